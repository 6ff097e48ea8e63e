"""The learning rate of stochastic gradient descent, chosen from a few sampled blocks of the matrix.

One step is ``m <- rho m - step * P_I (H v - b)``, ``v <- v + m``, where ``P_I`` keeps a random share ``p = b / n`` of
the rows. Two conditions bound ``step``:

*Stability in the mean.* An eigenvector with eigenvalue ``lambda`` behaves as a heavy ball with curvature
``a = step p lambda``, which is stable for ``a < 2 (1 + rho)``. The leading eigenvalues ``mu`` of a sampled b x b block
are about ``p lambda``.

*Stability in the mean square.* Sampling turns the gradient along each eigenvector into noise along all the others,
which their momentum amplifies. If eigenvectors are spread over all rows, the ratio of the noise variance that one round
returns to the one that entered it is the stationary variance of the heavy ball summed over the spectrum:

    f(step) = step (1 - p) (1 + rho) / (1 - rho) * mean_k [ lambda_k / (2 (1 + rho) - step p lambda_k) ]

Convergence requires ``f < 1``. A row whose diagonal entry stands out (a large known noise variance) is an eigenvector
by itself; the same formula applies to it with that entry in place of the mean.

The second condition limits a matrix that is nearly diagonal, and the first one a matrix with a few large eigenvalues.
No single multiple of the largest eigenvalue is therefore right for both: the pol table with unit hyperparameters
diverges at ``step mu_max = 1.15``, and elevators does best at 2.9.
"""

from __future__ import annotations

import torch

from gigagp.operators.base import SymmetricMatrix

#: Shares of the bounds that are used: in the mean; in the mean square with noise spread over all rows (every row slows
#: down well before that bound); in the mean square for a single row.
_MEAN, _MEAN_SQUARE, _ONE_ROW = 0.75, 0.35, 0.7
_SAMPLED_BLOCKS = 4


def automatic_step(
    matrix: SymmetricMatrix, batch_size: int, momentum: float, generator: torch.Generator
) -> tuple[float, float]:
    """Return a safe ``step`` and the number of epochs spent to find it.

    Parameters
    ----------
    matrix : SymmetricMatrix
    batch_size : int
        Rows of a batch, at most n.
    momentum : float
    generator : torch.Generator
    """
    n, share = matrix.n, batch_size / matrix.n
    n_blocks = 1 if batch_size == n else _SAMPLED_BLOCKS
    spectra = []
    for _ in range(n_blocks):
        rows = torch.randperm(n, generator=generator)[:batch_size].to(matrix.device)
        spectra.append(torch.linalg.eigvalsh(matrix.block(rows, rows).to(torch.float64)).clamp_min(0).cpu())
    spectrum = max(spectra, key=lambda values: float(values[-1]))
    largest_entry = matrix.diagonal().to(torch.float64).max().cpu()
    # An eigenvector on one row has p times its diagonal entry as curvature in the mean.
    one = largest_entry.reshape(1)
    step = min(
        _MEAN * 2 * (1 + momentum) / float(spectrum[-1]),
        _solve_mean_square(spectrum, spectrum, share, momentum, _MEAN_SQUARE),
        _solve_mean_square(one, share * one, share, momentum, _ONE_ROW),
    )
    return step, n_blocks * batch_size**2 / n**2


def _solve_mean_square(
    eigenvalues: torch.Tensor, curvatures: torch.Tensor, share: float, momentum: float, target: float
) -> float:
    """Return the step at which ``f`` equals ``target``, by bisection (f grows with the step)."""
    limit = 2 * (1 + momentum)
    amplification = (1 - share) * (1 + momentum) / (1 - momentum)
    low, high = 0.0, limit / float(curvatures.max())
    for _ in range(60):
        middle = (low + high) / 2
        returned = middle * amplification * float((eigenvalues / (limit - middle * curvatures)).mean())
        low, high = (middle, high) if returned < target else (low, middle)
    return low
