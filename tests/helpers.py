"""Shared parts of the tests: reference kernels, data, matrices with known spectra, tolerances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gigagp import kernels
from gigagp.kernels import Kernel
from gigagp.model.model import Model
from gigagp.optimization import Evaluation, History
from gigagp.optimization.sparse_ascent import SparseRun
from gigagp.optimization.trace import Trace
from gigagp.runtime.progress import NoProgress
from gigagp.solvers import Prepared, Solution
from gigagp.solvers.base import Solver

DTYPES = (torch.float64, torch.float32)


def tolerance(dtype: torch.dtype) -> float:
    """Return the error, relative to the size of the numbers, that a few thousand operations may cause."""
    return {torch.float64: 1e-11, torch.float32: 1e-5}[dtype]


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest expected number."""
    difference = (found.detach().double() - expected.detach().double()).abs().max()
    return float(difference / expected.detach().double().abs().max().clamp_min(1e-300))


def close(found: Any, expected: Any, *, condition: float = 1.0, dtype: torch.dtype = torch.float64) -> None:
    """Assert that numbers differ by what rounding may do to the problem, relative to the largest expected one.

    Parameters
    ----------
    found, expected : tensor, array or float
    condition : float
        How much the problem multiplies relative errors of its data: the condition number of a matrix that is solved
        with, or the ratio of the largest term to the sum. The multiple allowed covers sums of hundreds of terms.
    dtype : torch.dtype
        The precision that the numbers were computed in.
    """
    found, expected = (torch.as_tensor(one, dtype=torch.float64).detach() for one in (found, expected))
    assert found.shape == expected.shape
    allowed = 64 * torch.finfo(dtype).eps * condition
    assert allowed < 0.1, f"a condition of {condition:.3g} leaves no digit to compare"
    error = relative_error(found, expected) if found.numel() else 0.0
    assert error <= allowed, f"relative error {error:.3g}, allowed {allowed:.3g}"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(n: int, d: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return standard normal points."""
    return torch.randn(n, d, generator=generator(seed), dtype=torch.float64).to(dtype)


def spd_matrix(eigenvalues: Tensor, *, seed: int = 0) -> Tensor:
    """Return a random symmetric positive definite matrix with the given eigenvalues (float64)."""
    n = len(eigenvalues)
    basis, _ = torch.linalg.qr(torch.randn(n, n, generator=generator(seed), dtype=torch.float64))
    matrix = basis * eigenvalues.double() @ basis.T
    return (matrix + matrix.T) / 2


def reference_block(kernel: Kernel, X: Tensor, Z: Tensor) -> Tensor:
    """Return the covariance from textbook formulas and plain differences: float64, slow, differentiable."""
    X, Z = X.double(), Z.double()
    if isinstance(kernel, kernels.Sum):
        return sum((reference_block(part, X, Z) for part in kernel.parts), torch.zeros(len(X), len(Z)).double())
    if isinstance(kernel, kernels.Product):
        return math.prod((reference_block(part, X, Z) for part in kernel.parts), start=torch.ones(len(X), len(Z)))
    assert isinstance(kernel, kernels.Leaf)
    values = kernel.parameters()
    variance = values["variance"]
    if kernel.columns is not None:
        X, Z = X[:, list(kernel.columns)], Z[:, list(kernel.columns)]
    if getattr(kernel, "metric", "euclidean") == "haversine":
        return _reference_on_the_sphere(kernel, X, Z)
    if getattr(kernel, "metric", "euclidean") == "rotated":
        turn = torch.deg2rad(values["angle"])
        matrix = torch.stack([torch.stack([turn.cos(), -turn.sin()]), torch.stack([turn.sin(), turn.cos()])])
        X, Z = (torch.cat([points[:, :2] @ matrix, points[:, 2:]], 1) for points in (X, Z))
    if isinstance(kernel, kernels.Outputs):
        return kernel.covariance()[X[:, 0].long()][:, Z[:, 0].long()]
    differences = X[:, None, :] - Z[None, :, :]
    if isinstance(kernel, kernels.Constant):
        return variance.expand(len(X), len(Z))
    if isinstance(kernel, kernels.White):
        return torch.zeros(len(X), len(Z)).double()
    if isinstance(kernel, kernels.Linear):
        return (variance * X[:, None, :] * Z[None, :, :]).sum(2)
    lengthscale = values["lengthscale"]
    if isinstance(kernel, kernels.Periodic):
        sines = torch.sin(math.pi * differences / values["period"])
        return variance * torch.exp(-2 * (sines / lengthscale).square().sum(2))
    return _reference_profile(kernel, (differences / lengthscale).square().sum(2))


def great_circle(X: Tensor, Z: Tensor) -> Tensor:
    """Return great-circle distances in km of longitudes and latitudes in degrees, by the haversine formula."""
    X, Z = torch.deg2rad(X.double()), torch.deg2rad(Z.double())
    apart = X[:, None, :] - Z[None, :, :]
    h = (apart[..., 1] / 2).sin().square()
    h = h + X[:, None, 1].cos() * Z[None, :, 1].cos() * (apart[..., 0] / 2).sin().square()
    safe = torch.where(h > 0, h, 1.0).sqrt().clamp(max=1.0)
    return torch.where(h > 0, 2 * 6371.0088 * torch.asin(safe), 0.0)


def _reference_on_the_sphere(kernel: Kernel, X: Tensor, Z: Tensor) -> Tensor:
    """Return the covariance by the chords that belong to great-circle distances, and by the other inputs."""
    lengthscale = kernel.parameters()["lengthscale"]
    chord = 2 * 6371.0088 * torch.sin(great_circle(X[:, :2], Z[:, :2]) / (2 * 6371.0088))
    others = (X[:, None, 2:] - Z[None, :, 2:]) / lengthscale[1:]
    return _reference_profile(kernel, (chord / lengthscale[0]).square() + others.square().sum(2))


def _reference_profile(kernel: Kernel, q: Tensor) -> Tensor:
    values = kernel.parameters()
    variance = values["variance"]
    if isinstance(kernel, kernels.RBF):
        return variance * torch.exp(-q / 2)
    if isinstance(kernel, kernels.RationalQuadratic):
        alpha = values["alpha"]
        return variance * (1 + q / (2 * alpha)) ** -alpha
    assert isinstance(kernel, kernels.Matern)
    apart = q > 0
    t = math.sqrt(2 * kernel.nu) * torch.where(apart, q, 1.0).sqrt()
    polynomial = {0.5: 1.0, 1.5: 1 + t, 2.5: 1 + t + t**2 / 3}[kernel.nu]
    return variance * torch.where(apart, polynomial * torch.exp(-t), 1.0)


def reference_matrix(kernel: Kernel, X: Tensor, noise_variance: float | Tensor = 0.0) -> Tensor:
    """Return H in float64, from the reference formulas and the kernel's white part."""
    noise = torch.as_tensor(noise_variance, dtype=torch.float64).expand(len(X))
    return reference_block(kernel, X, X) + torch.diag(kernel.white(X.double()) + noise)


def autograd_gradient(kernel: Kernel, scalar: Callable[[Kernel], Tensor]) -> dict[str, Tensor]:
    """Return the derivatives of a function of the kernel by all its hyperparameters (zeros where there is none)."""
    values = {name: value.clone().requires_grad_() for name, value in kernel.parameters().items()}
    found = torch.autograd.grad(scalar(kernel.replace(values)), list(values.values()), allow_unused=True)
    return {
        name: torch.zeros_like(value) if gradient is None else gradient
        for (name, value), gradient in zip(values.items(), found, strict=True)
    }


class _LargestTensor(TorchDispatchMode):
    """Record the number of elements in the largest storage that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                stored = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.elements = max(self.elements, stored)
        return result


@contextmanager
def largest_tensor() -> Iterator[_LargestTensor]:
    """Watch torch; afterwards ``.elements`` is the size of the largest tensor that was created inside the block."""
    with _LargestTensor() as spy:
        yield spy


def all_kernels() -> dict[str, Kernel]:
    """Return kernels of every kind and combination, bound to four inputs, including White."""
    lengthscale = [0.7, 1.3, 2.1, 0.9]
    found: dict[str, Kernel] = {
        "rbf": kernels.RBF(lengthscale, 1.7),
        "rbf shared": kernels.RBF(1.4, 0.6, ard=False),
        "matern12": kernels.Matern(0.5, lengthscale, 1.7),
        "matern32": kernels.Matern(1.5, lengthscale, 1.7),
        "matern52": kernels.Matern(2.5, lengthscale, 1.7),
        "sphere": kernels.Matern(1.5, [90.0, 1.3, 0.8], 1.7, metric="haversine"),
        "rotated": kernels.RBF(lengthscale, 1.7, metric="rotated", angle=35.0),
        "matern columns": kernels.Matern(1.5, [0.8, 1.9], 0.4, columns=[3, 1]),
        "rational quadratic": kernels.RationalQuadratic(lengthscale, 1.7, 0.8),
        "periodic": kernels.Periodic([1.1, 0.8, 1.5, 0.9], 0.7, [2.0, 3.1, 1.7, 2.6]),
        "linear": kernels.Linear([0.3, 0.5, 0.2, 1.1]),
        "linear columns": kernels.Linear(0.4, ard=False, columns=[0, 2]),
        "constant": kernels.Constant(1.3),
        "white": kernels.White(0.6),
        "sum": kernels.Matern(1.5, lengthscale) + kernels.Linear(0.5) + 0.3 + kernels.White(0.2),
        "product": kernels.RBF(lengthscale, 1.2) * kernels.Matern(2.5, 1.9, 0.8) * kernels.Constant(0.7),
        "decaying period": kernels.RBF(2.0, columns=[0]) * kernels.Periodic(1.0, 0.9, 2.0, columns=[0], fixed=True),
        "nested": (kernels.Matern(0.5, 1.2, columns=[1]) + kernels.Linear(0.3)) * kernels.RBF(1.5) + kernels.Constant(),
        "growing noise": kernels.RBF(1.1) + kernels.White(0.4) * kernels.Linear(0.2),
    }
    return {name: kernel.bind(4) for name, kernel in found.items()}


class DensePosterior(NamedTuple):
    """The posterior from textbook formulas (Rasmussen and Williams 2006, eqs. 2.23 to 2.26, 2.30 and 2.42)."""

    mean: Tensor
    covariance: Tensor
    log_likelihood: float
    coefficients: Tensor


def dense_posterior(
    kernel: Kernel,
    X: Tensor,
    Y: Tensor,
    X_new: Tensor,
    noise_variance: float | Tensor,
    basis: Callable[[Tensor], Tensor] = lambda X: X.new_zeros(len(X), 0),
) -> DensePosterior:
    """Return the posterior by dense float64 algebra with the reference kernel; the log likelihood sums over targets."""
    kernel = kernel.bind(X.shape[1])
    Y = Y if Y.ndim == 2 else Y[:, None]
    H = reference_matrix(kernel, X, noise_variance)
    cross = reference_block(kernel, X, X_new)
    Phi = basis(X)
    coefficients = torch.linalg.solve(Phi.T @ torch.linalg.solve(H, Phi), Phi.T @ torch.linalg.solve(H, Y))
    residual = Y - Phi @ coefficients
    solved = torch.linalg.solve(H, residual)
    value = -0.5 * (residual * solved).sum() - 0.5 * Y.shape[1] * (
        torch.linalg.slogdet(H).logabsdet + len(X) * math.log(2 * math.pi)
    )
    return DensePosterior(
        basis(X_new) @ coefficients + cross.T @ solved,
        reference_block(kernel, X_new, X_new) - cross.T @ torch.linalg.solve(H, cross),
        float(value),
        coefficients,
    )


def draw_targets(kernel: Kernel, X: Tensor, noise_variance: float, *, seed: int = 0, columns: int = 1) -> Tensor:
    """Return noisy samples of the prior at the rows of ``X``, shape (n, columns)."""
    H = reference_matrix(kernel.bind(X.shape[1]), X, noise_variance)
    return torch.linalg.cholesky(H) @ torch.randn(len(X), columns, generator=generator(seed), dtype=torch.float64)


def within_standard_errors(draws: Tensor, expected: Tensor | float, *, errors: float = 4.0) -> bool:
    """Whether the mean over the first axis agrees with the expected value up to chance, in every component."""
    standard_error = draws.std(0) / math.sqrt(len(draws))
    return bool(((draws.mean(0) - expected).abs() <= errors * standard_error).all())


@dataclass
class Call:
    """One solve that `RecordingSolver` forwarded."""

    matrix: Any
    right_hand_sides: Tensor
    initial: Any
    n_targets: int | None
    solution: Solution


@dataclass(frozen=True)
class RecordingSolver(Solver):
    """A solver that forwards every solve to another one and records arguments and results."""

    inner: Solver
    calls: list[Call] = field(default_factory=list, compare=False, repr=False)

    def prepare(self, operator, previous=None, run=None):  # type: ignore[no-untyped-def]
        return self.inner.prepare(operator, previous, run)

    def solve(self, operator, right_hand_sides, initial=None, generator=None, *, n_targets=None):  # type: ignore[no-untyped-def]
        solution = self.inner.solve(operator, right_hand_sides, initial, generator, n_targets=n_targets)
        matrix = operator.operator if isinstance(operator, Prepared) else operator
        self.calls.append(Call(matrix, right_hand_sides, initial, n_targets, solution))
        return solution


class FunctionObjective:
    """An objective from any function of the hyperparameters (by name, natural units), with autograd's gradient.

    ``free`` holds the initial values of further arrays.
    """

    deterministic = is_likelihood = True
    follows_likelihood = has_distant_optima = False
    n_rows, n_inputs, target_variance = 10, 2, 1.0
    least_gain = float("inf")

    def __init__(
        self,
        function: Callable[[dict[str, Tensor]], Tensor],
        *,
        with_values: bool = True,
        free: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.function, self.with_values, self.free = function, with_values, dict(free or {})
        self.n_observations = 1
        self.evaluations = 0

    def own_optimizer(self) -> None:
        return None

    def draw_rows(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randperm(self.n_rows, generator=generator)[:count].sort().values

    def start(self, model: Model) -> Model:
        return replace(model, free=model.free or self.free)

    def evaluate(self, model: Model) -> Evaluation:
        self.evaluations += 1
        given = {**model.parameters(), **model.free}
        values = {name: value.detach().clone().requires_grad_() for name, value in given.items()}
        value = self.function(values)
        found = torch.autograd.grad(value, list(values.values()), allow_unused=True)
        gradient = {
            name: torch.zeros_like(values[name]) if one is None else one
            for name, one in zip(values, found, strict=True)
        }
        return Evaluation(float(value.detach()) if self.with_values else None, gradient)


def new_trace() -> Trace:
    """Return a silent trace for an optimizer."""
    return Trace(History(), NoProgress())


@contextmanager
def killed_before(step: int) -> Iterator[None]:
    """Kill a sparse ascent that starts in this block before one of its steps, after its state has been kept."""
    original = SparseRun._take_step

    class Killed(BaseException):
        pass

    def take_step(self):
        if self.step == step:
            self.step -= 1  # this step has not been taken
            self._save()
            raise Killed
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparseRun, "_take_step", take_step)
        with pytest.raises(Killed):
            yield
