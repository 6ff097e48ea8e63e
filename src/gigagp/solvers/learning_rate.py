"""The learning rate of stochastic gradient descent, from what a few sampled blocks tell of the matrix.

One step is ``m <- rho m - step * P_I (H v - b)``, ``v <- v + m``, where ``P_I`` keeps a random share ``p = b / n`` of
the rows. Two things bound ``step``:

*In the mean* every eigenvector with eigenvalue ``lambda`` is a heavy ball with curvature ``a = step p lambda``; it is
stable for ``a < 2 (1 + rho)``. The b x b sampled blocks have the leading eigenvalues ``mu ~ p lambda``.

*In the mean square* sampling turns the gradient of every eigenvector into noise on all the others, which their
momentum amplifies. With eigenvectors spread over all rows the noise variance that one round of this returns, over
what went in, is the stationary variance of the heavy ball summed over the spectrum:

    f(step) = step (1 - p) (1 + rho) / (1 - rho) * mean_k [ lambda_k / (2 (1 + rho) - step p lambda_k) ]

and ``f < 1`` is needed for convergence. A row whose diagonal entry stands out (large known noise) is an eigenvector of
its own: the same formula with that entry in place of the mean.

The second bound is what limits a matrix that is nearly diagonal, the first one a matrix with a few large eigenvalues,
which is why no single multiple of the largest eigenvalue is right (the pol
table with unit hyperparameters diverges at ``step mu_max = 1.15``, elevators is at its best at 2.9).
"""

from __future__ import annotations

import torch

from gigagp.operators.base import SymmetricMatrix

#: Shares of the bounds that are used: in the mean; in the mean square with noise spread over all rows, which slows
#: every row down well before the bound; in the mean square for a row by itself.
_MEAN, _MEAN_SQUARE, _ONE_ROW = 0.75, 0.35, 0.7
_SAMPLED_BLOCKS = 4


def automatic_step(
    matrix: SymmetricMatrix, batch_size: int, momentum: float, generator: torch.Generator
) -> tuple[float, float]:
    """Return a safe ``step`` and the epochs that were spent to find it.

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
    # An eigenvector on one row has p times its entry as curvature in the mean.
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
    """Return the step at which ``f`` is ``target``, by bisection (f grows with the step)."""
    limit = 2 * (1 + momentum)
    amplification = (1 - share) * (1 + momentum) / (1 - momentum)
    low, high = 0.0, limit / float(curvatures.max())
    for _ in range(60):
        middle = (low + high) / 2
        returned = middle * amplification * float((eigenvalues / (limit - middle * curvatures)).mean())
        low, high = (middle, high) if returned < target else (low, middle)
    return low
