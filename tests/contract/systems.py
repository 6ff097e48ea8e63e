"""Every inference method of the package, one line each; the contract must hold for all of them.

To put a new inference under the contract, add a line to `SYSTEMS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from contract import dense
from contract.dense import Array, Covariance
from contract.problems import Problem
from gigagp import GPRegressor, actions, inference, optimization, solvers, truncation
from gigagp.inference.quadruply_stochastic.bases import InducingBasis, RadialBasis


class Limit(NamedTuple):
    """The process that a system is exact for.

    Attributes
    ----------
    covariance : Covariance
        Covariance of the process that the system conditions: the kernel, or an approximation of it.
    rest : Covariance or None
        Covariance of the process whose covariance the system predicts, if it is a different one.
    actions : array of shape (n, i) or None
        Actions that the system conditions on, if these are not all rows.
    condition : float
        Condition number of a system to solve in addition to that of the rows.
    """

    covariance: Covariance
    rest: Covariance | None = None
    actions: Array | None = None
    condition: float = 1.0


def kernel_itself(gp: GPRegressor, problem: Problem) -> Limit:
    return Limit(problem.table.covariance)


def _standardized(gp: GPRegressor, X: Array) -> torch.Tensor:
    """Return points in the units of the posterior."""
    return torch.from_numpy((X - gp.scaling_.x_centre) / gp.scaling_.x_scale)


def _own(gp: GPRegressor, points: torch.Tensor) -> Array:
    """Return points of a posterior in the units of the data."""
    return points.double().numpy() * gp.scaling_.x_scale + gp.scaling_.x_centre


def _actions(gp: GPRegressor, problem: Problem) -> Limit:
    """Return the limit for the actions taken; rows are in the order of the actions, and are matched by targets."""
    found, table = gp.posterior_, problem.table
    own, given = found.X.numpy(), _standardized(gp, table.X).to(found.X.dtype).numpy()
    if len(np.unique(given, axis=0)) < len(given):
        targets = (problem.Y - problem.offset(table.X) - gp.scaling_.y_centre) / gp.scaling_.y_scale
        own, given = np.concatenate([own, found.table.Y.numpy()], 1), np.concatenate([given, targets], 1)
    places = np.array([int(np.abs(own - row).sum(1).argmin()) for row in given])
    assert len(np.unique(places)) == len(own)
    return Limit(table.covariance, actions=found.actions.dense().double().numpy()[places])


def _grid(gp: GPRegressor, problem: Problem) -> Limit:
    grid = gp.posterior_.grid
    lower = np.array(grid.lower) * gp.scaling_.x_scale + gp.scaling_.x_centre
    geometry = lower, np.array(grid.spacing) * gp.scaling_.x_scale, grid.shape, grid.interpolation
    return Limit(dense.interpolated(problem.table.covariance, *geometry))


def _features(gp: GPRegressor, problem: Problem) -> Limit:
    """Return the limit for the package's own features; `tests/kernels/test_features.py` compares them with kernels."""
    kernel, draw = gp.posterior_.model.kernel, gp.posterior_.draw
    dtype, unit = torch.float32 if problem.dtype == "float32" else torch.float64, gp.scaling_.y_scale[0]

    def features(X: Array) -> Array:
        return unit * kernel.features(_standardized(gp, X).to(dtype), draw).double().numpy()

    return Limit(dense.of_features(features))


def _basis(gp: GPRegressor, problem: Problem) -> Limit:
    """Return the limit for weights of functions: kernels at points by formula; waves and eigenfunctions as they are."""
    basis, table, unit = gp.posterior_.basis, problem.table, gp.scaling_.y_scale[0]
    if isinstance(basis, InducingBasis | RadialBasis):
        points = _own(gp, basis.points)
        features = _covariances_with(table.covariance, points)
        if isinstance(basis, RadialBasis):
            precision = gp.posterior_.weights.log_precision.double().exp().numpy()
            vectors = _own(gp, gp.posterior_.relevance_vectors)  # at least one always remains
            kept = np.array([(np.abs(vectors - one).sum(1) == 0).any() for one in points])
            features = _covariances_with(table.covariance, points[kept])
            return Limit(dense.of_features(features, unit**2 * precision[kept]))
        S = table.covariance(points, points)
        S += basis.jitter * np.diag(np.diag(S))
        limit = Limit(dense.of_features(features, S), condition=float(np.linalg.cond(S)))
    else:
        index = torch.arange(basis.size)
        precision = basis.prior_diagonal(index).double().numpy()

        # weights learned from samples use waves in the precision of the fit, which matters for a far row
        sampled = gp.posterior_.from_samples and problem.dtype == "float32"
        working = torch.float32 if sampled else torch.float64

        def columns(X: Array) -> Array:
            return unit * basis.columns(_standardized(gp, X).to(working), index).double().numpy()

        limit = Limit(dense.of_features(columns, precision))
    # with samples, the covariance is that of the kernel given the initial rows, which are all rows here
    return limit if gp.posterior_.covariance_of is None else limit._replace(rest=table.covariance)


def _covariances_with(covariance: Covariance, points: Array) -> Callable[[Array], Array]:
    return lambda X: covariance(X, points)


#: Smallest residual that can be reached; in float32 rounding limits it.
def _tight(problem: Problem) -> float:
    return 1e-4 if problem.dtype == "float32" else 1e-10


def _iterative(solver: Callable[[Problem], solvers.Solver], **settings: Any) -> Callable[[Problem], Any]:
    return lambda p: inference.Iterative(solver=solver(p), n_samples=32, **settings)


def _cg(p: Problem) -> solvers.Solver:
    return solvers.ConjugateGradients(tolerance=_tight(p), max_epochs=1000)


def _ap(p: Problem) -> solvers.Solver:
    return solvers.AlternatingProjections(block_size=14, tolerance=max(_tight(p), 1e-7), max_epochs=20_000)


def _sgd(p: Problem) -> solvers.Solver:
    return solvers.StochasticGradientDescent(batch_size=16, tolerance=1e-3, max_epochs=50_000)


def _grid_of(p: Problem) -> int:
    return {1: 40, 2: 16, 3: 9}[p.table.X.shape[1]]


def _grid_settings(more: int = 0, **settings: Any) -> Callable[[Problem], Any]:
    # 1,000 nodes in three dimensions, so that dense algebra is possible
    return lambda p: inference.Grid(_grid_of(p) + min(more, 12 // p.table.X.shape[1] ** 2), **settings)


def _iterative_grid(**settings: Any) -> Callable[[Problem], Any]:
    own = {"exact_nodes": 0, "final_tolerance": 1e-7, "preconditioner": "circulant", "n_samples": 48, **settings}
    return lambda p: inference.Grid({1: 30, 2: 12, 3: 7}[p.table.X.shape[1]], **own)


def _all_rows(p: Problem) -> int:
    return len(p.table.X)


def _neighbours(p: Problem) -> Any:
    return inference.Vecchia(n_neighbors=_all_rows(p), prediction_neighbors=_all_rows(p))


def _actions_of(policy: actions.Policy) -> Callable[[Problem], Any]:
    return lambda p: inference.ComputationAware(n_actions=_all_rows(p), policy=policy)


def _inducing(**settings: Any) -> Callable[[Problem], Any]:
    def make(p: Problem) -> Any:
        batch = {"batch_size": _all_rows(p)} if settings.get("batches") else {}
        return inference.SparseVariational(_all_rows(p), learn_inducing_points=False, **batch)

    return make


def _quadruply(basis: str, n_basis: int | None = None, **settings: Any) -> Callable[[Problem], Any]:
    def make(p: Problem) -> Any:
        n, m = _all_rows(p), n_basis or _all_rows(p)
        # of all rows and functions at once, the covariance of the weights, which is exact for these functions
        more = {"row_batch": n, "basis_batch": m} if settings.get("sampled") else {"n_columns": m}
        return inference.QuadruplyStochastic(n_basis=m, basis=basis, **more)

    return make


GAUSSIAN = frozenset({"gaussian"})
LOG_CONCAVE = frozenset({"gaussian", "laplace", "poisson", "logistic"})


@dataclass(frozen=True)
class System:
    """One inference method under the contract.

    Attributes
    ----------
    name : str
    make : callable
        Function from a `Problem` to the inference at its exact limit.
    limit : callable
        Function from the fitted estimator and the problem to the process that the system is exact for.
    tolerance : float
        Relative error in float64 that the settings allow at that limit, times the condition number if it is a
        residual.
    refuses : frozenset of str
        Names of the cells that it refuses: "rows", "mixed", "float32", kernels of `test_kernels`.
    likelihoods : frozenset of str
    laplace : bool
        Whether other likelihoods have Laplace's approximation, and not the best variational one.
    variance : {"auto", "solve"}
        Argument ``variance`` of `predict` for variances without sampling error.
    evidence : {"value", "bound", "unknown"}
        "bound" if the evidence uses less information than all rows have, so that it is at most the value.
    by_features : bool
        Whether sampled functions have the error of random features of the prior.
    inside : bool
        Whether points beyond the bounding box of the rows are refused.
    streamed : bool
        Whether the rows are passed to `fit_table`.
    random : bool or None
        Whether the fit draws random numbers that affect predictions. None: only through the step at which probes and
        targets stop together, which can be the same for two seeds.
    keeps : object
        Optimizer of the cells: None, or one that does not change the hyperparameters where None is slow.
    learns : object
        Optimizer with a few steps of learning, for checkpoints.
    variant : bool
        Whether it differs from another line only in settings of the fit. The matrix and the calibration include it;
        tests of the posterior's predictions use the other line.
    warns : frozenset of str
        Names of tables whose fit warns that they are unsuitable for it.
    """

    name: str
    make: Callable[[Problem], Any]
    limit: Callable[[GPRegressor, Problem], Limit] = kernel_itself
    tolerance: float = 1e-10
    refuses: frozenset[str] = frozenset()
    likelihoods: frozenset[str] = GAUSSIAN
    laplace: bool = False
    variance: str = "auto"
    evidence: str = "value"
    by_features: bool = True
    inside: bool = False
    streamed: bool = False
    random: bool | None = False
    keeps: Any = None
    learns: Any = field(default_factory=lambda: optimization.Adam(steps=4))
    variant: bool = False
    warns: frozenset[str] = frozenset()

    def refuses_cell(self, mean: str, noise: str, dtype: str, likelihood: str) -> bool:
        """Whether a cell of the matrix must raise `InvalidInputError`."""
        if likelihood not in self.likelihoods:
            return True
        without_noise = likelihood in ("poisson", "logistic")
        # counts and signs have no noise variance and no linear mean, and no known mean can be subtracted from them
        by_mean = without_noise and mean in ("function", "linear")
        return bool(self.refuses & {noise, dtype}) or by_mean or (without_noise and noise == "rows")

    def estimator(self, problem: Problem, **changes: Any) -> GPRegressor:
        settings = {"outputs": "shared", **problem.settings, "optimizer": self.keeps, **changes}
        return GPRegressor(inference=self.make(problem), **settings)

    def fit(self, problem: Problem, **changes: Any) -> GPRegressor:
        return self.fit_to(self.estimator(problem, **changes), problem.table.X, problem.y)

    def fit_to(self, gp: GPRegressor, X: Array, y: Array, **options: Any) -> GPRegressor:
        return gp.fit_table((X, y), **options) if self.streamed else gp.fit(X, y, **options)

    def std(self, gp: GPRegressor, X: Array, **options: Any) -> Array:
        return gp.predict(X, return_std=True, variance=self.variance, **options)[1]

    def __repr__(self) -> str:
        return self.name


NOT_MIXED = frozenset({"mixed"})
NOT_ON_GRIDS = frozenset({"mixed", "float32", "sphere", "rotated", "outputs"})
_GRID = {
    "limit": _grid,
    "variance": "solve",
    "inside": True,
    "refuses": NOT_ON_GRIDS,
    "warns": frozenset({"far row"}),
}
_QS = {"limit": _basis, "likelihoods": LOG_CONCAVE, "refuses": NOT_MIXED, "by_features": False}
_STAYS, _MOVES = optimization.SparseAdam(1e-6, steps=4, hyper_learning_rate=0.0), optimization.SparseAdam(steps=6)

_QS_SAMPLED = {**_QS, "by_features": True, "tolerance": 1e-4, "keeps": _STAYS, "learns": _MOVES, "random": True}
#: Updates of the precisions end where one gains 1e-6 nats an observation, which leaves errors of up to sqrt(4e-6 n) in
#: them, a hundredth for 24 rows, and a part of that in variances.
_RVM = {**_QS, "random": True, "tolerance": 4e-3, "learns": optimization.LBFGS(2)}
#: Inducing values have noise of j = 1e-8 of the prior variance; ``K*z (K + j)^-1`` has an error up to ``sqrt(j) / 2``.
_JITTER = 1e-4
#: Iterative grids use an approximate root of a kernel on a torus if its error is below a hundredth of the noise.
_ROOT = 2e-3

_ALL = {"refuses": NOT_MIXED}
_OWN_FEATURES = {"limit": _features, "refuses": NOT_MIXED, "by_features": False, "random": True}
_CAGP = {"limit": _actions, "refuses": NOT_MIXED}
_SOLVED = {"variance": "solve", "random": True}
_BOUND = {"evidence": "bound"}
_DENSE_GRID = {**_GRID, "by_features": False}
_SOLVED_GRID = {**_GRID, "tolerance": _ROOT, "random": True, "learns": optimization.Adam(0.01, steps=4)}
_STREAMED_GRID = {**_SOLVED_GRID, "refuses": NOT_ON_GRIDS | {"rows"}}
_LOW_RANK = {**_SOLVED_GRID, "variance": "auto", "random": None}
_TRUNCATED = truncation.OneOverJ(base=4, maximum=12, step=2)

# fmt: off
SYSTEMS: tuple[System, ...] = (
    System("exact", lambda p: inference.Exact(), **_ALL),
    System("iterative, CG", _iterative(_cg), **_SOLVED),
    System("iterative, AP", _iterative(_ap), tolerance=1e-5, **_SOLVED, variant=True),
    System("iterative, SGD", _iterative(_sgd), tolerance=1e-3, **_SOLVED, variant=True),
    System("iterative, aware", _iterative(_cg, computational_uncertainty=True), **_CAGP, **_BOUND),
    System("vecchia", _neighbours, likelihoods=LOG_CONCAVE | {"student-t"}, laplace=True, **_ALL),
    System("random features", lambda p: inference.RandomFeatures(200), **_OWN_FEATURES),
    System("SS-RFF", lambda p: inference.RandomFeatures(100, _TRUNCATED), **_ALL),
    System("SGPR", _inducing(), tolerance=_JITTER, **_ALL),
    System("SVGP", _inducing(batches=True), tolerance=_JITTER, **_ALL),
    System("CaGP, learned", _actions_of(actions.Learned()), **_CAGP),
    System("CaGP, CG", _actions_of(actions.ConjugateGradients(tolerance=0.0)), **_CAGP, **_BOUND),
    System("CaGP, Lanczos", _actions_of(actions.Lanczos(tolerance=0.0)), **_CAGP, **_BOUND, variant=True),
    System("CaGP, random", _actions_of(actions.Random()), **_CAGP, variant=True),
    System("CaGP, rows", _actions_of(actions.UnitVectors()), **_CAGP, variant=True),
    System("CaGP, pivots", _actions_of(actions.UnitVectors("pivoted")), **_CAGP, **_BOUND, variant=True),
    System("CaGP, eigenvectors", _actions_of(actions.TopEigenvectors()), **_CAGP, variant=True),
    System("CaGP, pseudo-inputs", _actions_of(actions.PseudoInputs()), **_CAGP, **_BOUND, variant=True),
    System("grid, dense", _grid_settings(), **_DENSE_GRID),
    System("grid, linear", _grid_settings(8, interpolation="linear"), **_DENSE_GRID, variant=True),
    System("grid, iterative", _iterative_grid(), **_SOLVED_GRID),
    System("grid, neighbours", _iterative_grid(preconditioner="vecchia"), **_SOLVED_GRID, variant=True),
    System("grid, low rank", _iterative_grid(variance="low_rank", rank=200), **_LOW_RANK),
    System("grid, fit_table", _iterative_grid(), streamed=True, **_STREAMED_GRID),
    System("quadruply, waves", _quadruply("fourier", 100), random=True, **_QS),
    System("quadruply, inducing", _quadruply("inducing"), **_QS),
    System("quadruply, sampled", _quadruply("fourier", 100, sampled=True), **_QS_SAMPLED),
    System("relevance vectors", lambda p: inference.RelevanceVectorMachine(n_basis=6), **_RVM),
)
# fmt: on


#: One system for each kind of posterior.
KINDS = tuple(system for system in SYSTEMS if not system.variant)
BY_NAME = {system.name: system for system in SYSTEMS}
