"""Parts shared by all solvers: checks and scaling of right-hand sides, the stopping rule, and the true residual."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

import torch

from gigagp.errors import InvalidInputError
from gigagp.operators.base import LinearOperator, SymmetricMatrix
from gigagp.products.arguments import check_finite
from gigagp.runtime.run import Run
from gigagp.settings.fields import Settings
from gigagp.solvers.prepared import Prepared
from gigagp.solvers.solution import Initial, Solution, Start, Status


class Solver(Settings, ABC):
    """A method of solving ``H v = b`` for many right-hand sides; immutable, and independent of the data."""

    def prepare(
        self, operator: LinearOperator, previous: object = None, run: Run | None = None
    ) -> LinearOperator | Prepared:
        """Return what `solve` takes for several solves with one matrix, and what they can share.

        Parameters
        ----------
        operator : LinearOperator
            The matrix ``H``.
        previous : Prepared or LinearOperator, optional
            What this method returned for a similar matrix, with the same rows. It saves work and has no other effect.
        run : Run, optional
            What the loop of a solve reports to, and when it has to end. None: that of the fit in this thread, if any.
        """
        return operator

    @abstractmethod
    def solve(
        self,
        operator: LinearOperator | Prepared,
        right_hand_sides: torch.Tensor,
        initial: Initial = None,
        generator: torch.Generator | None = None,
        *,
        n_targets: int | None = None,
    ) -> Solution:
        """Solve for every column.

        Parameters
        ----------
        operator : LinearOperator or Prepared
            The matrix ``H``, or what `prepare` returned for it.
        right_hand_sides : Tensor of shape (n, s) or (n,)
            Cast to the operator's dtype and device.
        initial : Tensor or Start, optional
            Initial guess, of the same shape. A column whose guess is worse than zero starts from zero.
        generator : torch.Generator, optional
            Source of random pivots and batches. None stands for a fixed seed, so that a solve always gives the same
            bits.
        n_targets : int, optional
            Number k of leading columns that are targets; the others are probe vectors. Each target has to reach the
            tolerance, but only the mean relative residual of the probe vectors has to reach the probe tolerance. None:
            every column is a target.

        Returns
        -------
        Solution
            ``value`` has the shape of ``right_hand_sides``.

        Raises
        ------
        InvalidInputError
            If shapes disagree or a number is complex, NaN or infinite.
        """


class PreparingSolver(Solver):
    """Base of solvers whose solves with one matrix share a `Prepared`."""

    def prepare(self, operator: LinearOperator, previous: object = None, run: Run | None = None) -> Prepared:
        return Prepared(operator, previous, run=run)

    def solve(
        self,
        operator: LinearOperator | Prepared,
        right_hand_sides: torch.Tensor,
        initial: Initial = None,
        generator: torch.Generator | None = None,
        *,
        n_targets: int | None = None,
    ) -> Solution:
        state = operator if isinstance(operator, Prepared) else self.prepare(operator)
        return self._solve(state, right_hand_sides, initial, own_generator(generator), n_targets)

    @abstractmethod
    def _solve(
        self, state: Prepared, b: torch.Tensor, initial: Initial, generator: torch.Generator, n_targets: int | None
    ) -> Solution:
        """Solve for every column."""


@dataclass(frozen=True)
class StoppingRule:
    """The condition that ends a solve: every target reaches one tolerance *and* the mean probe reaches the other.

    See Lin et al. 2024, App. B. The printed pseudo-code stops when either holds; the text requires both.
    """

    tolerance: float
    probe_tolerance: float
    n_targets: int

    def excess(self, values: torch.Tensor) -> float:
        """Return the largest ratio of a residual to its tolerance (infinity for NaN); at most 1 means converged."""
        numbers = values.tolist()  # all at once: a GPU is waited for
        if any(map(math.isnan, numbers)):
            return math.inf
        targets, probes = numbers[: self.n_targets], numbers[self.n_targets :]
        of_probes = sum(probes) / len(probes) / self.probe_tolerance if probes else 0.0
        return max(max(targets, default=0.0) / self.tolerance, of_probes)

    def met(self, values: torch.Tensor) -> bool:
        """Whether every tolerance is reached."""
        return self.excess(values) <= 1.0


def slack(dtype: torch.dtype) -> float:
    """Return the relative margin by which a loop must undershoot its tolerance before it stops.

    The margin exceeds the rounding error of scaling a solution back and passing it in again, so that a solve started
    at its own solution takes no step.
    """
    return 1e-6 if dtype == torch.float64 else 1e-3


#: Error of a loop's products relative to the operator, along a solution, from which on they are too coarse.
_COARSE = 0.03
#: Reasons for which a loop ends with whatever it has, which may be of no use.
_CUT_SHORT = (Status.STAGNATED, Status.TIME_SPENT)


class Problem:
    """Right-hand sides scaled to unit norm, with a solution and a residual that a solver's loop updates in place.

    Lin et al. 2024, App. B: ``H v~ = b / ||b||``, and the initial guess is scaled with its right-hand side. A zero
    column stays zero. Norms are those of the operator's own inner product. Numbers of columns that decide what happens
    next are on the CPU, so that a GPU is waited for once, when they are read.

    Attributes
    ----------
    operator : LinearOperator
        What is solved with: true residuals come from its products.
    working : LinearOperator
        What the loop multiplies with: ``operator.fast``, until `take_exact` sets ``widened``.
    scale : Tensor of shape (s,)
        Factors by which the right-hand sides were divided; `scale_here` has them on the CPU.
    right_hand_sides, value, residual : Tensor of shape (n, s)
        In scaled units.
    setup_epochs : float
        Epochs spent outside the loop's own steps.
    drift : Tensor of shape (s,)
        Bound on the distance between ``residual`` and the true residual that rounding may have caused; on the CPU.
    companion_product : Tensor or None
        ``H @ companion``, if a first residual had to be computed and the companion could share that pass.
    """

    def __init__(
        self,
        operator: LinearOperator,
        right_hand_sides: torch.Tensor,
        initial: Initial,
        *,
        norm: Callable[[torch.Tensor], torch.Tensor] | None = None,
        companion: torch.Tensor | None = None,
        reuse: object = None,  # of solvers written for earlier versions
    ) -> None:
        self.operator, self.working = operator, operator.fast
        self.widened = False
        self.norm = norm or column_norms
        self._flat = right_hand_sides.ndim == 1
        b = _as_columns(operator, right_hand_sides, "right_hand_sides")
        # Divide by the largest entry first: the squares of tiny or huge entries would leave the range of the dtype.
        largest = b.abs().amax(0) if b.numel() else b.new_zeros(b.shape[1])
        largest = torch.where(largest > 0, largest, torch.ones_like(largest))
        norms = self.norm(b / largest)
        self.scale = largest * torch.where(norms > 0, norms, torch.ones_like(norms))
        self.scale_here = self.scale.cpu()
        self.right_hand_sides = b / self.scale
        self.norms = self.norm(self.right_hand_sides).cpu()  # 1, or 0 for a zero column
        self.setup_epochs = 0.0
        self.drift = torch.zeros_like(self.scale_here)
        self.companion_product: torch.Tensor | None = None
        self._size = self._size_of_operator()
        self._set_start(initial, companion)
        self._initial = self.value.clone() if initial is not None else None
        self._initial_norms = self.residual_norms()

    def _set_start(self, initial: Initial, companion: torch.Tensor | None) -> None:
        b = self.right_hand_sides
        if initial is None:
            self.value, self.residual = torch.zeros_like(b), b.clone()
            return
        start = initial if isinstance(initial, Start) else Start(initial)
        value = _as_columns(self.operator, start.value, "initial")
        if value.shape != b.shape:
            raise InvalidInputError(
                f"initial must have the shape of right_hand_sides, {tuple(b.shape)} as columns; "
                f"got {tuple(value.shape)}."
            )
        self.value = value / self.scale
        self.setup_epochs += start.epochs
        if start.residual is not None:
            self.residual = _as_columns(self.operator, start.residual, "initial.residual") / self.scale
            self.drift += start.rounding * self._size * column_norms(self.value).cpu()
        elif not bool(self.value.any()):
            self.residual = b.clone()
        elif companion is None:
            self.residual = self.true_residual()
        else:  # one pass over the matrix serves both
            both = self.multiply(torch.cat([self.value, companion], dim=1))
            self.residual, self.companion_product = b - both[:, : b.shape[1]], both[:, b.shape[1] :].contiguous()
        self._drop_worse_than_zero()

    def _drop_worse_than_zero(self) -> None:
        """Replace columns whose residual exceeds that of zero by zero, and any value of a zero column."""
        worse = ~(self.residual_norms() <= self.norms) | (self.norms == 0)
        self.value[:, worse] = 0.0
        self.residual[:, worse] = self.right_hand_sides[:, worse]

    def _size_of_operator(self) -> float:
        """Return a bound on ``||abs(H)||``, or 0 if none is known in advance.

        For a positive semi-definite matrix ``|H_ij| <= sqrt(H_ii H_jj)``, so the trace bounds even the norm of the
        matrix of absolute values.
        """
        return float(self.operator.diagonal().sum()) if isinstance(self.operator, SymmetricMatrix) else 0.0

    def residual_norms(self) -> torch.Tensor:
        """Return the norms of the running residual, shape (s,), on the CPU."""
        return self.norm(self.residual).cpu()

    def multiply(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the product with the whole matrix, counted as one epoch outside the loop."""
        self.setup_epochs += 1.0
        return self.operator @ vectors

    def true_residual(self) -> torch.Tensor:
        """Compute ``b - H v`` (scaled) with one product, which costs one epoch."""
        self.setup_epochs += 1.0
        return self.operator.residual(self.right_hand_sides, self.value)

    def refresh(self, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Replace the running residual and return its norms; None computes the true residual, which costs one epoch."""
        self.residual.copy_(self.true_residual() if residual is None else residual)
        self.drift.zero_()
        return self.residual_norms()

    @property
    def corrects(self) -> bool:
        """Whether the products of the loop are less precise than the operator's."""
        return self.working is not self.operator

    def is_coarse(self, gap: torch.Tensor, residual: torch.Tensor) -> bool:
        """Whether the loop's products are too coarse for the operator's smallest eigenvalues, which rule the solution.

        For products with ``H + E``, ``|E v| |v| / v'Hv`` is about the norm of E in units of the eigenvalues that v is
        made of. Up to 0.1, conjugate gradients took at most a fifth more iterations; from 0.6 on they found nothing.
        ``gap`` is ``E v``: what the operator's own product changes in the residual.
        """
        if not self.corrects:
            return False
        energies = self.operator.inner(self.value, self.right_hand_sides - residual)
        return bool((self.norm(gap) * self.norm(self.value) > _COARSE * energies).any())

    def take_exact(self) -> None:
        """Let the loop multiply with the operator itself from now on, and start again if it has gone astray."""
        self.working, self.widened = self.operator, True
        if not bool((self.residual_norms() <= self._initial_norms).all()):
            self.start_again()

    def start_again(self) -> None:
        """Return to the initial guess, or to zero if there was none."""
        if self._initial is None:
            self.value.zero_()
            self.refresh(self.right_hand_sides)
        else:
            self.value.copy_(self._initial)
            self.refresh()

    def account(
        self, step_norms: torch.Tensor, value_norms: torch.Tensor, norms: torch.Tensor, observed_size: float = 0.0
    ) -> None:
        """Bound the rounding error of one update ``v += d``, ``r -= H d``, from norms on the CPU, each of shape (s,).

        They are those of d, of v afterwards and of r before. The gap between the recurrence's residual and the true one
        grows per step by at most a small multiple of ``eps (||H|| (||d|| + ||v||) + ||r||)`` (van der Vorst & Ye 2000,
        section 2). This bound tells a loop how accurate its residual is without a pass over the matrix.
        """
        self._size = max(self._size, observed_size)
        moved = 4 * step_norms + value_norms
        self.drift += self.working.rounding * (self._size * moved + norms)

    def state(self) -> dict[str, torch.Tensor]:
        """Return what a loop has updated."""
        size = torch.tensor(self._size, dtype=torch.float64)
        widened = torch.tensor(self.widened, dtype=torch.uint8)
        found = {"value": self.value, "residual": self.residual, "drift": self.drift}
        return found | {"size": size, "widened": widened}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a state of the same problem."""
        for name in ("value", "residual", "drift"):
            getattr(self, name).copy_(state[name])
        self._size = float(state["size"])
        if bool(state["widened"]):
            self.working, self.widened = self.operator, True

    def finish(
        self,
        status: Status,
        iterations: int,
        epochs: float,
        rule: StoppingRule,
        *,
        nats: torch.Tensor | None = None,
        detail: dict[str, object] | None = None,
    ) -> Solution:
        """Return the solution in the original units, with a residual that is true.

        Where the steps have left numbers that are not finite, it is the initial guess.
        """
        if not bool(torch.isfinite(self.value).all()):
            self.start_again()
        norms = self.residual_norms()
        known = bool((self.drift <= 0.01 * norms.clamp_min(0.1 * min(rule.tolerance, rule.probe_tolerance))).all())
        if not known:
            norms = self.refresh()
        if status in _CUT_SHORT:
            self._drop_worse_than_zero()
            norms = self.residual_norms()
        if nats is None:
            nats = self.nats_from_noise()
        return Solution(
            value=self.in_units(self.value),
            status=status,
            relative_residual=norms.to(self.value.device),
            iterations=iterations,
            epochs=epochs,
            setup_epochs=self.setup_epochs,
            nats=None if nats is None else nats.to(self.value.device),
            residual=(self.residual * self.scale)[:, : rule.n_targets],
            widened=self.widened,
            detail=detail or {},
        )

    def in_units(self, columns: torch.Tensor) -> torch.Tensor:
        """Return scaled columns, shape (n, s), in the units and the shape of the right-hand sides."""
        columns = columns * self.scale
        return columns[:, 0] if self._flat else columns

    def nats_from(self, precondition: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return ``r' P^-1 r / 2`` for the residuals in the problem's units, shape (s,)."""
        product = self.operator.inner(self.residual, precondition(self.residual))
        return (0.5 * self.scale.to(torch.float64).square() * product.to(torch.float64)).clamp_min(0)

    def nats_from_noise(self) -> torch.Tensor | None:
        """Return the crude bound ``r' N^-1 r / 2`` from the noise N, which never exceeds H; None without noise."""
        if not isinstance(self.operator, SymmetricMatrix):
            floor = self.operator.floor
            return None if floor is None else self.nats_from(lambda vectors: vectors / floor)
        noise = self.operator.noise()
        if not bool((noise > 0).all()):
            return None
        return self.nats_from(lambda vectors: vectors / noise.unsqueeze(1))


def column_norms(vectors: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean norm of every column.

    On the CPU `torch.linalg.vector_norm` takes four times as long along rows; a GPU starts one kernel for it.
    """
    if vectors.device.type != "cpu":
        return torch.linalg.vector_norm(vectors, dim=0)
    return vectors.square().sum(0).sqrt()


def on_cpu(*numbers: torch.Tensor) -> list[torch.Tensor]:
    """Return vectors or numbers on the CPU, those of a GPU in the dtype of the first; a GPU is waited for once."""
    if numbers[0].device.type == "cpu":
        return list(numbers)
    alike: dict[torch.dtype, list[int]] = {}  # those of a dtype are converted together
    for k, one in enumerate(numbers):
        alike.setdefault(one.dtype, []).append(k)
    parts = [torch.cat([numbers[k].reshape(-1) for k in which]).to(numbers[0].dtype) for which in alike.values()]
    flat = (parts[0] if len(parts) == 1 else torch.cat(parts)).cpu()
    order = list(chain(*alike.values()))
    found = dict(zip(order, flat.split([numbers[k].numel() for k in order]), strict=True))
    return [found[k].view(one.shape) for k, one in enumerate(numbers)]


def are_finite(columns: torch.Tensor, others: torch.Tensor | None = None) -> bool:
    """Whether numbers of columns, shape (s,), are finite; on short vectors `torch.isfinite` takes longer."""
    found = columns - columns
    return float((found if others is None else found + (others - others)).sum()) == 0


def inner_norm(operator: LinearOperator) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the norm that the operator's inner product defines."""
    if type(operator).inner is LinearOperator.inner:
        return column_norms
    return lambda vectors: operator.inner(vectors, vectors).clamp_min(0).sqrt()


def _as_columns(operator: LinearOperator, vectors: torch.Tensor, name: str) -> torch.Tensor:
    """Check one argument and return it as a matrix with the operator's dtype and device."""
    if not isinstance(vectors, torch.Tensor):
        msg = f"{name} of solve must be a torch.Tensor; got {type(vectors).__name__}. Use torch.as_tensor."
        raise InvalidInputError(msg)
    if vectors.is_complex():
        raise InvalidInputError(f"{name} of solve must be real; got {vectors.dtype}.")
    if vectors.ndim not in {1, 2} or vectors.shape[0] != operator.n:
        msg = f"{name} of solve must have shape ({operator.n},) or ({operator.n}, s); got {tuple(vectors.shape)}."
        raise InvalidInputError(msg)
    columns = vectors.detach().reshape(operator.n, -1).to(dtype=operator.dtype, device=operator.device)
    check_finite(f"{name} of solve", columns)
    return columns


def stopping_rule(
    problem: Problem, tolerance: float, probe_tolerance: float | None, n_targets: int | None
) -> StoppingRule:
    """Check ``n_targets`` and return the stopping rule for a problem."""
    n_columns = len(problem.scale)
    if n_targets is not None and not 0 <= n_targets <= n_columns:
        msg = f"n_targets of solve must be between 0 and the number of right-hand sides, {n_columns}; got {n_targets}."
        raise InvalidInputError(msg)
    return StoppingRule(
        tolerance,
        tolerance if probe_tolerance is None else probe_tolerance,
        n_columns if n_targets is None else n_targets,
    )


def require_matrix(operator: LinearOperator, owner: str) -> SymmetricMatrix:
    """Return the operator if its entries can be read, and raise an error otherwise."""
    if not isinstance(operator, SymmetricMatrix):
        msg = f"{owner} reads entries of the matrix: operator must be a SymmetricMatrix; got {type(operator).__name__}."
        raise InvalidInputError(msg)
    return operator


def has_finite_diagonal(operator: LinearOperator) -> bool:
    """Whether the diagonal is finite; a cheap check before anything is built from the matrix."""
    return not isinstance(operator, SymmetricMatrix) or bool(torch.isfinite(operator.diagonal()).all())


def own_generator(generator: torch.Generator | None) -> torch.Generator:
    """Return the given generator, or a new one with a fixed seed if it is None."""
    return torch.Generator().manual_seed(0) if generator is None else generator
