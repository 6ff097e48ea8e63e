"""Log-determinants by stochastic Lanczos quadrature, and the Lanczos process itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gigagp.errors import InvalidInputError, NonFiniteError
from gigagp.model.estimate import Estimate
from gigagp.operators.base import LinearOperator
from gigagp.settings.fields import Count, checks_arguments
from gigagp.settings.random import standard_normal
from gigagp.solvers.base import own_generator
from gigagp.solvers.krylov import Recurrence, have_failed
from gigagp.solvers.preconditioners import Preconditioner
from gigagp.solvers.preconditioners.automatic import PreconditionerChoice
from gigagp.solvers.prepared import Prepared
from gigagp.solvers.truncation import Distribution, RussianRoulette, TruncatedSeries
from gigagp.solvers.truncation.estimators import TruncationChoice

#: The quadrature ends when its mean changes between two checks by less than this share of the standard error.
_SHARE_OF_ERROR = 0.05
#: Inner product of unit vectors that are orthogonal up to rounding, above which `lanczos` stops.
_DRIFT = 1e-8
#: Largest number of products of a quadrature without truncation.
_MAX_STEPS = 200


class Quadrature:
    """Gauss quadratures of ``<z, log(A) z> / <z, z>`` with ``A = P^-1 H``, refined by every product.

    Conjugate gradients on ``H x = z`` produces tridiagonal matrices T. Their eigenvalues are the nodes, and the squared
    first components of their eigenvectors are the weights. For each z the values decrease with the number of steps
    towards the limit (Potapczynski et al. 2021, Theorem 1). The directions z are the columns of ``starts``, shape (n,
    s); without a preconditioner P is the identity.
    """

    def __init__(
        self, operator: LinearOperator, starts: torch.Tensor, preconditioner: Preconditioner | None = None
    ) -> None:
        apply = None if preconditioner is None else preconditioner.apply
        self._run = Recurrence(operator, torch.zeros_like(starts), starts.clone(), apply)
        self._finest = (10 * torch.finfo(operator.dtype).eps) ** 2 * self._run.gamma
        self._alphas: list[torch.Tensor] = []
        self._betas: list[torch.Tensor] = []

    @property
    def steps(self) -> int:
        """Number of products so far."""
        return len(self._alphas)

    @property
    def exhausted(self) -> bool:
        """Whether further steps would change no quadrature."""
        return not bool((self._run.gamma > self._finest).any())

    def step(self) -> None:
        """Take one step, which costs one product; raise `NonFiniteError` at NaN and without positive curvature."""
        run = self._run
        gamma = run.gamma
        alive = gamma > self._finest  # below, residual and coefficients are rounding
        step = run.step()
        if not run.finite or bool((have_failed(gamma, step.curvature) & alive).any()):
            raise NonFiniteError(
                "log_determinant met NaN or a direction without positive curvature: the matrix is not positive "
                'definite in its precision. Use dtype="float64" or a larger noise variance.'
            )
        self._alphas.append(torch.where(alive, step.alpha, 0.0))
        self._betas.append(torch.where(alive, step.beta, 0.0))

    def values(self, steps: int | None = None, columns: torch.Tensor | slice = slice(None)) -> torch.Tensor:
        """Return ``e1' log(T) e1`` for each direction in float64, after ``steps`` steps or at most all that were taken.

        ``T_jj = 1 / alpha_j + beta_{j-1} / alpha_{j-1}`` and ``T_{j,j+1} = sqrt(beta_j) / alpha_j`` (Saad 2003,
        "Iterative methods for sparse linear systems", section 6.7.3). A step that a column did not take is represented
        by an uncoupled diagonal entry of 1, whose logarithm adds nothing.
        """
        alphas, betas = (
            torch.stack(part[:steps], 1).to(torch.float64).cpu()[columns] for part in (self._alphas, self._betas)
        )
        taken = alphas > 0
        inverse = torch.where(taken, 1 / torch.where(taken, alphas, 1.0), 0.0)
        diagonal = torch.where(taken, inverse, 1.0)
        diagonal[:, 1:] += torch.where(taken[:, 1:], betas[:, :-1] * inverse[:, :-1], 0.0)
        coupling = torch.where(taken[:, 1:], betas[:, :-1].clamp_min(0).sqrt() * inverse[:, :-1], 0.0)
        tridiagonal = torch.diag_embed(diagonal) + torch.diag_embed(coupling, 1) + torch.diag_embed(coupling, -1)
        eigenvalues, vectors = torch.linalg.eigh(tridiagonal)
        smallest = torch.finfo(torch.float64).tiny
        return (vectors[:, 0, :].square() * eigenvalues.clamp_min(smallest).log()).sum(1)


@checks_arguments
def log_determinant(
    operator: LinearOperator,
    preconditioner: PreconditionerChoice = "auto",
    n_probes: Count = 16,
    max_steps: Count | None = None,
    generator: torch.Generator | None = None,
    truncation: TruncationChoice | None = None,
    starts: torch.Tensor | None = None,
) -> Estimate:
    """Estimate ``log det H``, with its standard error over the probes (NaN for one probe).

    ``log det H = log det P + tr log(P^-1/2 H P^-1/2)``. The trace is estimated by the mean over random directions of a
    quadrature, whose nodes and weights come from the tridiagonal matrix that conjugate gradients produces. A better
    preconditioner makes the trace smaller and with it the standard error; with ``P = H`` the result is exact. See
    Ubaru, Chen & Saad (2017), doi:10.1137/16M1104974; Gardner et al. (2018), arXiv:1809.11165, section 4; and Wenger et
    al. (2022), arXiv:2107.00243.

    The preconditioner is chosen as in `gigagp.solvers.ConjugateGradients`, and left out if its own determinant is not
    known. ``starts``, shape (n, s), are the
    directions, drawn from N(0, P); without them ``n_probes`` are drawn here. The quadrature ends once its error is far
    below the standard error, or after ``max_steps`` products, by default 200.

    With a truncation, the quadrature of each direction is cut at its own random length and reweighted, which removes
    the bias of a small number of steps (Potapczynski et al. 2021, arXiv:2102.06695, eq. S12). It requires small
    eigenvalue problems for every length up to the longest; it is meant for analysis, as gradients do not need it.
    """
    generator = own_generator(generator)
    series = None if truncation is None else _bounded(truncation, operator.dimension, max_steps)
    built = Prepared(operator, setting=preconditioner).build(generator)
    if built is not None and not built.has_determinant:
        built = None
    if starts is not None:
        probes = starts
    elif built is None:
        if operator.dimension != operator.n:
            msg = f"starts of log_determinant must be given for a {type(operator).__name__} without a preconditioner."
            raise InvalidInputError(msg)
        probes = standard_normal(
            operator.n, n_probes, generator=generator, dtype=operator.dtype, device=operator.device
        )
    else:
        probes = built.sample(n_probes, generator)
    quadrature = Quadrature(operator, probes, built)
    if series is None:
        values = _to_the_error(quadrature, operator.dimension, max_steps or _MAX_STEPS)
    else:
        lengths = [series.distribution.sample(generator) for _ in range(probes.shape[1])]
        values = operator.dimension * _truncated(quadrature, series, lengths)
    total = float(values.mean()) + (0.0 if built is None else built.log_determinant())
    return Estimate(total, _standard_error(values))


def _bounded(truncation: Distribution | TruncatedSeries, n: int, max_steps: int | None) -> TruncatedSeries:
    series = RussianRoulette(truncation) if isinstance(truncation, Distribution) else truncation
    if max_steps is not None and max_steps < n:
        return series.bounded(max_steps, "max_steps of log_determinant")
    return series.bounded(n, "the number of rows")


def _to_the_error(quadrature: Quadrature, n: int, max_steps: int) -> torch.Tensor:
    """Take steps until the quadrature error is far below the standard error; return the estimate of each probe."""
    previous, look = math.inf, 3
    while True:
        quadrature.step()
        done = quadrature.steps == max_steps or quadrature.exhausted
        if not done and quadrature.steps != look:
            continue
        values = quadrature.values() * n
        mean, error = float(values.mean()), _standard_error(values)
        least = 1e-6 * n if math.isnan(error) else _SHARE_OF_ERROR * error
        if done or abs(mean - previous) <= least:
            return values
        previous = mean
        look = quadrature.steps + max(2, quadrature.steps // 3)


def _truncated(quadrature: Quadrature, series: TruncatedSeries, lengths: list[int]) -> torch.Tensor:
    """Return the estimate of each probe's quadrature from its partial sums up to the length drawn for it."""
    while quadrature.steps < max(lengths) and not quadrature.exhausted:
        quadrature.step()
    wanted = [series.coefficients(length) for length in lengths]
    values = torch.zeros(len(lengths), dtype=torch.float64)
    for steps in sorted(set().union(*wanted)):
        columns = torch.tensor([column for column, needs in enumerate(wanted) if steps in needs])
        factors = torch.tensor([wanted[column][steps] for column in columns.tolist()], dtype=torch.float64)
        values[columns] += factors * quadrature.values(steps, columns)
    return values


@dataclass(frozen=True)
class Tridiagonal:
    """The result of the Lanczos process: ``H Q = Q T`` except for the last column.

    ``vectors`` is Q, shape (n, k), orthonormal in the operator's inner product. The other two are the diagonals of T.
    """

    vectors: torch.Tensor
    diagonal: torch.Tensor
    off_diagonal: torch.Tensor

    def dense(self) -> torch.Tensor:
        """Return ``T``, shape (k, k)."""
        return torch.diag(self.diagonal) + torch.diag(self.off_diagonal, 1) + torch.diag(self.off_diagonal, -1)


def lanczos(
    operator: LinearOperator,
    start: torch.Tensor,
    steps: int,
    breakdown: float = 1e-8,
    apart_from: torch.Tensor | None = None,
) -> Tridiagonal:
    """Run Lanczos with full reorthogonalisation, in the operator's own inner product.

    For a `gigagp.operators.KernelMatrix` this is Algorithm 5 of Yadav et al. (2021, appendix B.3, arXiv:2101.11751,
    with the misprints of its pseudo-code corrected), and for a `gigagp.operators.grid.GridOperator` Algorithm 7. A step
    takes one product. All columns are orthogonal to those of ``apart_from``, which are orthonormal.

    The process ends early where a new direction is shorter than ``breakdown`` times the largest diagonal entry, because
    what remains of the Krylov space is rounding. It also ends where rounding makes inner products asymmetric: the two
    parts of a vector of a `GridOperator` drift apart by a factor per step if no eigenvalue of the Krylov space is near
    the noise variance.
    """
    first = 0 if apart_from is None else apart_from.shape[1]
    vectors = start.new_empty(first + steps, len(start)).T  # column-major, so that its first columns are contiguous
    if apart_from is not None:
        vectors[:, :first] = apart_from
    product, shortest = start, breakdown * operator.inner(start, start).sqrt()
    diagonal: list[torch.Tensor] = []
    lengths: list[torch.Tensor] = []
    while len(diagonal) < steps:
        known = vectors[:, : first + len(diagonal)]
        for _ in range(2):  # two passes suffice (Giraud et al. 2005)
            product = product - known @ operator.inner(known, product)[:, None]
        length = operator.inner(product, product).clamp_min(0).sqrt()
        if not bool(length > shortest):
            break
        direction = product / length
        if not bool((operator.inner(direction, known).abs() < _DRIFT).all()):
            break
        vectors[:, known.shape[1]] = direction[:, 0]
        lengths.append(length)
        product = operator @ direction
        diagonal.append(operator.inner(direction, product))
        shortest = breakdown * torch.cat(diagonal).max()
    found, none = vectors[:, first : first + len(diagonal)], start.new_zeros(0)
    return Tridiagonal(found, torch.cat([none, *diagonal]), torch.cat([none, *lengths[1:]]))


def _standard_error(values: torch.Tensor) -> float:
    return float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.nan
