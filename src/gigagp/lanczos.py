"""Log-determinants by stochastic Lanczos quadrature, from the coefficients of conjugate gradients."""

from __future__ import annotations

import math

import torch

from gigagp.errors import InvalidInputError, NonFiniteError
from gigagp.estimate import Estimate
from gigagp.operators.base import LinearOperator
from gigagp.preconditioners.automatic import PreconditionerChoice, build, check_choice
from gigagp.random import standard_normal
from gigagp.solvers.base import own_generator
from gigagp.solvers.krylov import Recurrence

#: The quadrature is done when its mean moves by less than this share of the standard error between two looks.
_SHARE_OF_ERROR = 0.05


def log_determinant(
    operator: LinearOperator,
    preconditioner: PreconditionerChoice = "auto",
    n_probes: int = 16,
    max_steps: int = 200,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Estimate ``log det H``.

    ``log det H = log det P + tr log(P^-1/2 H P^-1/2)``; the trace is the mean over random directions of a quadrature
    whose nodes and weights are the eigenvalues of the tridiagonal matrix that conjugate gradients builds on the way.
    The better the preconditioner, the smaller the trace and with it the standard error: with ``P = H`` the result is
    exact.

    Parameters
    ----------
    operator : LinearOperator
        Symmetric positive definite in the dot product.
    preconditioner : "auto", recipe, Preconditioner or None
        As for `gigagp.solvers.ConjugateGradients`.
    n_probes : int, default 16
        Random directions. The standard error falls with the root of their number.
    max_steps : int, default 200
        Most products with the operator; it stops sooner when the quadrature error is far below the standard error.
    generator : torch.Generator, optional
        None is a fixed seed.

    Returns
    -------
    Estimate
        The standard error is over the probes; NaN with one probe.

    Raises
    ------
    InvalidInputError
        If a count is not positive, or a recipe is given for an operator whose entries cannot be read.
    NonFiniteError
        If the products give NaN, or the matrix is not positive definite in its precision.

    References
    ----------
    Ubaru, Chen & Saad (2017), doi:10.1137/16M1104974. Gardner et al. (2018), arXiv:1809.11165, section 4.
    Wenger et al. (2022), "Preconditioning for scalable Gaussian process hyperparameter optimization", arXiv:2107.00243.
    """
    for name, value in (("n_probes", n_probes), ("max_steps", max_steps)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            msg = f"{name} of log_determinant must be a positive int; got {value!r}."
            raise InvalidInputError(msg)
    check_choice(preconditioner, "log_determinant")
    generator = own_generator(generator)
    built = build(preconditioner, operator, generator)
    if built is None:
        probes = standard_normal(
            operator.n, n_probes, generator=generator, dtype=operator.dtype, device=operator.device
        )
    else:
        probes = built.sample(n_probes, generator)
    run = Recurrence(operator, torch.zeros_like(probes), probes, None if built is None else built.apply)
    finest = (10 * torch.finfo(operator.dtype).eps) ** 2 * run.gamma
    alphas: list[torch.Tensor] = []
    betas: list[torch.Tensor] = []
    previous: float = math.inf
    look = 3
    values = torch.zeros(n_probes, dtype=torch.float64)
    for step in range(1, max_steps + 1):
        alive = run.gamma > finest  # below, the residual is rounding and so are the coefficients
        coefficients, _ = run.step()
        if not run.finite or bool((run.failed & alive).any()):
            msg = (
                "log_determinant met NaN or a direction without positive curvature: the matrix is not positive "
                'definite in its precision. Use dtype="float64" or a larger noise variance.'
            )
            raise NonFiniteError(msg)
        alphas.append(torch.where(alive, coefficients.alpha, 0.0))
        betas.append(torch.where(alive, coefficients.beta, 0.0))
        done = step == max_steps or not bool((run.gamma > finest).any())
        if done or step == look:
            values = _quadrature(torch.stack(alphas), torch.stack(betas)) * operator.n
            mean, error = float(values.mean()), _standard_error(values)
            least = 1e-6 * operator.n if math.isnan(error) else _SHARE_OF_ERROR * error
            if done or abs(mean - previous) <= least:
                break
            previous = mean
            look = step + max(2, step // 3)
    total = float(values.mean()) + (0.0 if built is None else built.log_determinant())
    return Estimate(total, _standard_error(values))


def _standard_error(values: torch.Tensor) -> float:
    return float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.nan


def _quadrature(alphas: torch.Tensor, betas: torch.Tensor) -> torch.Tensor:
    """Return ``e1' log(T) e1`` of each column's tridiagonal matrix.

    ``T_jj = 1 / alpha_j + beta_{j-1} / alpha_{j-1}`` and ``T_{j,j+1} = sqrt(beta_j) / alpha_j`` (Saad 2003,
    "Iterative methods for sparse linear systems", section 6.7.3). Steps that a column did not take are an uncoupled
    1, whose logarithm adds nothing.
    """
    alphas, betas = alphas.T.to(torch.float64).cpu(), betas.T.to(torch.float64).cpu()
    taken = alphas > 0
    inverse = torch.where(taken, 1 / torch.where(taken, alphas, 1.0), 0.0)
    diagonal = torch.where(taken, inverse, 1.0)
    diagonal[:, 1:] += torch.where(taken[:, 1:], betas[:, :-1] * inverse[:, :-1], 0.0)
    coupling = torch.where(taken[:, 1:], betas[:, :-1].clamp_min(0).sqrt() * inverse[:, :-1], 0.0)
    tridiagonal = torch.diag_embed(diagonal) + torch.diag_embed(coupling, 1) + torch.diag_embed(coupling, -1)
    eigenvalues, vectors = torch.linalg.eigh(tridiagonal)
    smallest = torch.finfo(torch.float64).tiny
    return (vectors[:, 0, :].square() * eigenvalues.clamp_min(smallest).log()).sum(1)
