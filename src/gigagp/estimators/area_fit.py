"""Fits of targets that are averages of the function over areas, given by the points of each area."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.estimators.arguments import Arguments, start_model
from gigagp.estimators.choices.open_hyperparameters import DEFAULT_ROWS, check_draws
from gigagp.estimators.fit_checks.poor_fits import Rows, warn_of_extreme_targets
from gigagp.estimators.fitting import Begun, Fitted, Job, with_draws
from gigagp.estimators.planning import require_time, resolve_areas
from gigagp.inference import Exact, Iterative
from gigagp.inference.contract.areas import AreaTable
from gigagp.kernels import Kernel
from gigagp.kernels.chosen import is_open
from gigagp.kernels.group import groups_of
from gigagp.kernels.stationary import require_taken
from gigagp.model.likelihoods import Gaussian
from gigagp.model.means import Mean
from gigagp.model.model import Model
from gigagp.model.scaling import Scaling
from gigagp.operators import Averages
from gigagp.optimization import History
from gigagp.optimization.trace import Trace
from gigagp.runtime.progress import Meter
from gigagp.settings.random import generator_from, spawn
from gigagp.tables import intake
from gigagp.tables.blocks import shares_in_blocks
from gigagp.tables.encoding import model_inputs

_FIT = "GPRegressor.fit"
#: Most points of fits that draw hyperparameters by default: a draw takes evaluations of the kernel at all pairs.
_DRAWN_POINTS = 2_000


def fit_areas(estimator: Any, X: Any, y: Any, blocks: Any, weights: Any, others: Mapping[str, Any]) -> Fitted:
    """Fit targets that are averages over the areas of points X; see `GPRegressor.fit`.

    ``others`` are its arguments that have no meaning for areas, by name. All that cannot be fitted is refused before
    any work.
    """
    arguments = Arguments.of(estimator)
    _check(arguments, blocks, others)
    X = model_inputs(estimator, X, reset=True, min_rows=2)
    names, area, shares = shares_in_blocks(blocks, weights, len(X), _FIT)
    targets = _targets(y, names)[:, None]
    scaling = Scaling.fit(X, targets, estimator.standardize)
    given = copy.copy(estimator)
    given.noise_variance = _by_label(estimator.noise_variance, names, "noise_variance of GPRegressor")
    start = start_model(given, arguments.mean, len(targets), 1, n_columns=X.shape[1])
    _check_kernel(start.kernel)
    require_taken(start.kernel, X, getattr(estimator, "feature_names_in_", None))
    inference = resolve_areas(estimator.inference, len(names), arguments.budget)
    arguments = arguments.placed(inference, len(X))
    model = start.standardized(scaling.units())
    inference.check_model(model)
    order, device = np.argsort(area, kind="stable"), arguments.device
    points, numbers, shares_of = (
        torch.from_numpy(np.ascontiguousarray(one[order])).to(device)
        for one in (scaling.inputs(X), area.astype(np.int64), shares)
    )
    areas = Averages(points, numbers, shares_of, len(names))
    Y = torch.from_numpy(scaling.targets(targets)).to(device)
    table = AreaTable.of(areas, Y, arguments.mean, arguments.budget).require_finite()
    title = f"fit of {len(names):,} areas of {len(X):,} points"
    return _Areas(arguments, inference, None, title, table, model, scaling, targets, names).fit()


@dataclass(frozen=True)
class _Areas(Job):
    """A fit to averages over areas: to one kernel, without a rule for more noise."""

    table: AreaTable
    start: Model
    scaling: Scaling
    targets: np.ndarray  # (n, 1), in the target's own units
    names: np.ndarray  # labels of the areas

    def begin(self, meter: Meter, resources: ExitStack) -> Begun:
        arguments, rows = self.arguments, self._rows()
        is_spoiled = self.watches and warn_of_extreme_targets(rows)
        generator = generator_from(arguments.estimator.random_state)
        objective = self.inference.objective(self.table, generator)
        if arguments.deadline < math.inf:
            require_time(objective, self.inference, arguments.deadline)
        if arguments.estimator.hyperparameters == "laplace":
            check_draws(objective, arguments.optimizer, arguments.likelihood)
        trace = Trace(History(), meter)
        given = objective, self.start, arguments.optimizer, self.scaling, trace, spawn(generator)
        return Begun(*given, rows, is_spoiled)

    def learn(self, begun: Begun) -> Fitted:
        """Learn and compute the posterior, with draws of what few areas leave open."""
        fitted = super().learn(begun)
        by_default = _draws_by_default(self.arguments, self.table.n_rows, len(self.table.points))
        return with_draws(self.arguments, fitted, by_default=True) if by_default else fitted

    def _rows(self) -> Rows:
        def some_of(some: slice) -> AreaTable:
            return self.table if some == slice(None) else self.table.take_rows(torch.arange(len(self.names))[some])

        def example(row: int, column: int) -> str:
            return f"{self.targets[row, column]:.3g} of area {self.names[row].item()!r}"

        return Rows(len(self.names), lambda: self.targets, example, some_of, has_others=False)


def _draws_by_default(arguments: Arguments, n_areas: int, n_points: int) -> bool:
    """Whether a fit that leaves the kernel open draws what the areas leave open, as a fit of rows does."""
    estimator = arguments.estimator
    is_free = estimator.hyperparameters == "auto" and is_open(estimator.kernel) and arguments.optimizer is not None
    return is_free and n_areas <= DEFAULT_ROWS and n_points <= _DRAWN_POINTS


def _targets(y: Any, names: np.ndarray) -> np.ndarray:
    """Return the target of each area, (n,), in the ascending order of their labels."""
    found = intake.targets(_by_label(y, names, f"y of {_FIT}"))
    if found.shape != (len(names),):
        raise InvalidInputError(
            f"y of {_FIT} with blocks must have one target for each area, shape ({len(names)},), in the ascending "
            f"order of the labels; got {found.shape}."
        )
    if len(names) < 2:
        raise InvalidInputError(f"blocks of {_FIT} must have two areas or more; got one.")
    return found


def _by_label(column: Any, names: np.ndarray, name: str) -> Any:
    """Return a pandas column in the order of the labels, which are its index; other values as they are."""
    index: Any = getattr(column, "index", None)
    if not (hasattr(column, "iloc") and hasattr(index, "get_indexer")):
        return column
    if not index.is_unique:
        again = index[index.duplicated()][0]
        raise InvalidInputError(f"{name} must have one row for each area; that of {again!r} is there twice.")
    places = index.get_indexer(names)
    if (places < 0).any() or len(index) > len(names):
        got = [f"no row for {one!r}" for one in names[places < 0].tolist()[:1]]
        got += [f"{one!r}, which has no points" for one in index[~index.isin(names)].tolist()[:1]]
        raise InvalidInputError(
            f"{name} with blocks must be indexed by the labels of the areas, each once; it has {' and '.join(got)}. "
            "Take its to_numpy() for values in the ascending order of the labels."
        )
    return column.iloc[places]


def _check(arguments: Arguments, blocks: Any, others: Mapping[str, Any]) -> None:
    """Refuse arguments that have no meaning for areas, or are not known for them."""
    if blocks is None:
        raise InvalidInputError(
            f"weights of {_FIT} must be None without blocks: they are shares of points within an area. Known noise "
            "variances of rows are noise_variance of GPRegressor."
        )
    for name, value in others.items():
        if value is not None:
            raise InvalidInputError(f"{name} of {_FIT} must be None with blocks; got {type(value).__name__}.")
    estimator = arguments.estimator
    got = None
    if not isinstance(arguments.likelihood, Gaussian) or arguments.chooses_likelihood:
        got = f"likelihood={estimator.likelihood!r}; it must be 'gaussian'"
    elif not (estimator.inference == "auto" or isinstance(estimator.inference, Exact | Iterative)):
        got = f'inference={estimator.inference!r}; it must be "auto", inference.Exact() or inference.Iterative()'
    elif isinstance(estimator.inference, Iterative) and estimator.inference.computational_uncertainty:
        got = f"inference={estimator.inference!r}; it must have computational_uncertainty=False"
    elif not (is_open(estimator.kernel) or isinstance(estimator.kernel, Kernel)):
        got = f"kernel={estimator.kernel!r}, because no rule compares kernels of areas; give a kernel, or None"
    elif type(arguments.mean).offset is not Mean.offset:
        got = f"mean={estimator.mean!r}; subtract its averages over the areas from y, and add it to predictions"
    elif estimator.target_transform != "none":
        got = (
            f"target_transform={estimator.target_transform!r}, because the transform of an average is no average of "
            "transformed values"
        )
    elif estimator.noise != "constant":
        got = f'noise={estimator.noise!r}; it must be "constant", or give the noise_variance of each area'
    elif estimator.encode != "strict":
        got = f"encode={estimator.encode!r}; give a table of numbers"
    elif estimator.panel is not None:
        got = f"panel={estimator.panel!r}; give a kernel, such as a product of kernels of some columns each"
    elif len(estimator.groups):
        got = f"groups={estimator.groups!r}"
    elif estimator.dtype != "float64":
        got = f'dtype={estimator.dtype!r}; it must be "float64"'
    elif estimator.distributed:
        got = "distributed=True"
    if got is not None:
        raise InvalidInputError(f"{_FIT} with blocks does not take {got}.")


def _check_kernel(kernel: Kernel) -> None:
    if kernel.has_white:
        raise InvalidInputError(
            f"kernel of GPRegressor for fit with blocks must not contain White, since noise is that of an area's "
            f"average (noise_variance); got {kernel!r}."
        )
    if groups_of(kernel):
        msg = f"kernel of GPRegressor for fit with blocks must have no kernels.Group; got {kernel!r}."
        raise InvalidInputError(msg)
