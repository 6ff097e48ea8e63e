"""The checked arguments of an estimator, the start of a fit, and the standardized problem that they make of rows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal, cast

import numpy as np
import torch

from gigagp.errors import GigaGPWarning, InvalidInputError, warn
from gigagp.estimators.choices.kernel_choice import KernelRule
from gigagp.estimators.estimator import Estimator
from gigagp.inference import Exact, Inference, Iterative, Markov, QuadruplyStochastic, Vecchia
from gigagp.inference.automatic import Automatic
from gigagp.inference.contract.table import TrainingTable
from gigagp.kernels import Constant, Kernel, Outputs, White
from gigagp.kernels.chosen import is_open, plain_kernel
from gigagp.kernels.group import Group, apart_from_levels, groups_of, level_columns, numbered, with_groups
from gigagp.kernels.stationary import require_taken
from gigagp.kernels.units import Units
from gigagp.model.likelihoods import AUTO, Gaussian, Likelihood, resolve_likelihood
from gigagp.model.means import ConstantMean, LinearMean, Mean, resolve_mean
from gigagp.model.model import NOISE, Model, StartModel
from gigagp.model.scaling import Scaling
from gigagp.optimization import Auto
from gigagp.optimization.optimizer import check_optimizer
from gigagp.runtime import processes
from gigagp.runtime.duration import resolve_duration
from gigagp.runtime.memory import resolve_budget
from gigagp.runtime.run import current_run
from gigagp.settings.fields import check_parameters, shown
from gigagp.tables.beside import Beside
from gigagp.tables.encoding import fitted_encoder, scaled_inputs
from gigagp.tables.intake import numbers


@dataclass(frozen=True)
class Arguments:
    """The checked arguments of an estimator, with every ``"auto"`` resolved that does not depend on rows."""

    estimator: Estimator
    dtype: torch.dtype  # of the training table
    device: torch.device
    budget: int  # in bytes
    mean: Mean
    likelihood: Likelihood
    optimizer: Any
    deadline: float  # value of ``time.monotonic()``; infinity without a time budget
    job: str = ""  # what the fit is of, for its progress; empty for all targets
    sharing: int = 1  # fits whose models are kept together, each with this share of the memory budget
    keeps_checkpoint: bool = False  # whether it stays after the fit, as a part of a larger one
    predict_at: np.ndarray | None = None  # points that are to be predicted, if they are known, encoded
    cells: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # columns of entities and times of encoded rows
    opened: Literal["panel", "outputs"] | None = None  # whose default kernel may be exchanged for a better one
    shown: Callable[[int], str] | None = None  # how messages name a target, where rows are not those of the user

    @property
    def opens_kernel(self) -> bool:
        """Whether a rule may choose the kernel: none was given, and it is not that of a panel."""
        return is_open(self.estimator.kernel) or self.opened == "outputs"

    @property
    def chooses_likelihood(self) -> bool:
        """Whether the rows decide on the likelihood."""
        given = self.estimator.likelihood
        return isinstance(given, str) and given == AUTO

    @classmethod
    def of(cls, estimator: Estimator) -> Arguments:
        """Check the arguments of an estimator."""
        check_parameters(estimator)
        if current_run().processes is not None:
            _check_distributed(estimator)
        device = resolve_device(estimator.device)
        optimizer = estimator.optimizer
        if isinstance(optimizer, str) and optimizer == "auto":
            optimizer = Auto()
        check_optimizer(optimizer)
        return cls(
            estimator,
            DTYPES[estimator.dtype],
            device,
            resolve_budget(estimator.memory_budget, device),
            resolve_mean(estimator.mean),
            resolve_likelihood(estimator.likelihood),
            optimizer,
            time.monotonic() + resolve_duration(estimator.time_budget),
        )

    def check_plan(self) -> None:
        """Refuse arguments for which nothing can be foreseen."""
        estimator = self.estimator
        for name, needed, is_met in (
            ("inference", "auto", estimator.inference == "auto"),
            ("likelihood", "gaussian", isinstance(self.likelihood, Gaussian) and not self.chooses_likelihood),
            ("target_transform", "none", estimator.target_transform == "none"),
            ("noise", "constant", estimator.noise == "constant"),
        ):
            if not is_met:
                msg = f'plan of GPRegressor needs {name}="{needed}"; got {getattr(estimator, name)!r}.'
                raise InvalidInputError(msg)

    @property
    def suits_states(self) -> bool:
        """Whether ``inference="auto"`` may use states: no rule chooses the kernel, and rows are float64 on the CPU.

        A scale that depends on the time has no states.
        """
        given = not isinstance(self.estimator.kernel, str) and self.estimator.noise in ("constant", "varying")
        return given and self.estimator.dtype == "float64" and self.device.type == "cpu"

    def placed(self, inference: Inference, n_rows: float) -> Arguments:
        """Return the arguments with the device that ``"auto"`` takes for a method and a number of rows."""
        device = resolve_device(self.estimator.device, inference.takes_gpu(n_rows))
        if device == self.device:
            return self
        budget = resolve_budget(self.estimator.memory_budget, device) // self.sharing
        return replace(self, device=device, budget=budget)

    def check_for(self, inference: Inference, *, streams: bool = False) -> None:
        """Refuse arguments that this inference method or the likelihood does not use."""
        estimator, likelihood = self.estimator, self.likelihood
        inference.check_precision(estimator.dtype, asked=estimator.inference != "auto")
        inference.check_device(self.device, asked=estimator.device != "auto")
        self.check_rule(inference, streams=streams)
        self.check_noise(inference, streams=streams)
        refuse_white(estimator.kernel, likelihood)
        if not likelihood.adds_noise and type(self.mean).offset is not Mean.offset:
            raise InvalidInputError(
                f"mean of GPRegressor must not be a function with the {likelihood.name} likelihood: its values would "
                f"be subtracted from targets that are not in the units of the latent function; got {estimator.mean!r}. "
                "Add kernels.Constant() or kernels.Linear() to the kernel."
            )
        if likelihood.has_noise:
            return
        if estimator.noise_variance is not None:
            raise InvalidInputError(
                f"noise_variance of GPRegressor must be None with the {likelihood.name} likelihood, which has no noise "
                f"variance; got {estimator.noise_variance!r}."
            )
        if isinstance(self.mean, LinearMean) and not likelihood.has_trend:
            raise InvalidInputError(
                f'mean of GPRegressor must be "zero" with the {likelihood.name} likelihood, whose latent mean is zero; '
                f"add kernels.Linear(); got {estimator.mean!r}."
            )

    def rule_for(self, inference: Inference) -> KernelRule | None:
        """Return the rule that chooses the kernel of rows that are held; None if it is given, or the plain one.

        Without a kernel, or with `kernels.Chosen`, it is ``"auto"`` where the gain and the time of that are known:
        where `optimization.Auto` maximises the likelihood of Gaussian noise, of labels or of counts in this process.
        """
        kernel = self.estimator.kernel
        if not self.opens_kernel:
            return cast("KernelRule", kernel) if isinstance(kernel, str) else None
        if not isinstance(self.optimizer, Auto) or current_run().processes is not None:
            return None
        if len(self.estimator.groups):  # of which random rows of a large table tell nothing
            takes = isinstance(self.likelihood, Gaussian) and isinstance(inference, Exact)
        elif isinstance(self.likelihood, Gaussian):
            takes = isinstance(inference, Exact | Iterative | Vecchia | Automatic | Markov)
        else:
            takes = not (self.likelihood.has_noise or self.likelihood.has_limits) and (
                isinstance(inference, Vecchia)
                or (isinstance(inference, QuadruplyStochastic) and not inference.learns_precision)
            )
        return "auto" if takes else None

    def check_rule(self, inference: Inference, *, streams: bool = False) -> None:
        """Refuse a rule for the kernel where it does not apply; a kernel of the user's own is always accepted."""
        kernel, likelihood = self.estimator.kernel, self.likelihood
        if not isinstance(kernel, str):
            return
        start = f'kernel="{kernel}" of GPRegressor'
        if streams:
            msg = f"{start} needs fit, because fit_table reads rows in chunks. Fit a few thousand rows first, and give "
            raise InvalidInputError(msg + "fit_table the kernel_ of that fit.")
        if not isinstance(likelihood, Gaussian) and not (kernel != "average" and likelihood.is_scale_mixture):
            msg = f"{start} compares likelihoods of targets with Gaussian noise; for the {likelihood.name} likelihood, "
            raise InvalidInputError(msg + "give a kernel, such as kernels.Matern(nu=1.5), or None.")
        if self.optimizer is None:
            msg = f"{start} learns every candidate, and optimizer=None learns nothing. Give a kernel, or an optimizer."
            raise InvalidInputError(msg)
        if kernel == "average" and not isinstance(inference, Exact | Vecchia | Automatic):
            raise InvalidInputError(
                f"{start} mixes posteriors of the same rows; got {inference!r}. Use inference.Exact() or Vecchia(), or "
                'inference="auto", or kernel="auto".'
            )

    def check_noise(self, inference: Inference, *, streams: bool = False, has_checkpoint: bool = False) -> None:
        """Refuse noise that depends on the inputs where it cannot be learned."""
        estimator = self.estimator
        if estimator.noise == "constant":
            return
        got = None
        if streams:
            got = "fit_table, which holds no rows (use fit)"
        elif not isinstance(self.likelihood, Gaussian):
            got = f"the {self.likelihood.name} likelihood"
        elif self.optimizer is None:
            got = "optimizer=None, which learns nothing"
        elif np.ndim(estimator.noise_variance):
            got = "the known noise variance of each row"
        elif isinstance(estimator.kernel, Kernel) and has_white_term(estimator.kernel):
            got = f"a White term in the kernel, which is all the noise there is; got {estimator.kernel!r}"
        elif has_checkpoint:
            got = "a checkpoint, because it needs two fits"
        elif current_run().processes is not None:
            got = "distributed=True"
        elif not isinstance(inference, Exact | Iterative | Vecchia | Automatic | Markov):
            got = f'{inference.label}; use inference.Exact, Markov, Vecchia, Iterative or "auto"'
        elif isinstance(inference, Markov) and estimator.noise == "scaled":
            got = f"{inference.label}, whose functions have the same scale at all times"
        if got is not None:
            raise InvalidInputError(f'noise of GPRegressor is {estimator.noise!r}, but must be "constant" with {got}.')

    def check_transform(self, n_targets: int = 1, *, streams: bool = False) -> None:
        """Refuse a target transform together with arguments that have no meaning after it."""
        estimator, mean, likelihood = self.estimator, self.mean, self.likelihood
        name = estimator.target_transform
        if name == "none":
            return
        got = None
        if not isinstance(likelihood, Gaussian):
            got = f"the {likelihood.name} likelihood, whose targets are not transformed"
        elif n_targets > 1:
            got = f'{n_targets} targets that share one kernel (use outputs="independent")'
        elif np.ndim(estimator.noise_variance):
            got = "the known noise variance of each row, which is in the units of the untransformed target"
        elif type(mean).offset is not Mean.offset:
            got = "a known mean function, which is in the units of the untransformed target"
        elif streams:
            got = "fit_table, which reads rows in chunks (load the table and use fit, or transform its column)"
        if got is not None:
            raise InvalidInputError(f'target_transform of GPRegressor is {name!r}, but must be "none" with {got}.')

    def weights_rows(self, inference: Inference) -> bool:
        """Whether an inference method fits the likelihood by weights of rows."""
        return self.likelihood.is_scale_mixture and inference.abilities.likelihoods == "gaussian"


def _check_distributed(estimator: Estimator) -> None:
    """Refuse arguments that a distributed fit cannot have, or that are not the same in all processes."""
    if not isinstance(estimator.random_state, int | np.integer):
        raise InvalidInputError(
            "random_state of GPRegressor must be an int for a distributed fit, whose processes draw the same numbers; "
            f"got {estimator.random_state!r}."
        )
    if estimator.time_budget is not None:
        raise InvalidInputError(
            "time_budget of GPRegressor must be None for a distributed fit, whose processes have separate clocks; "
            f"got {estimator.time_budget!r}."
        )
    settings = {name: value for name, value in estimator.get_params(deep=False).items() if name != "verbose"}
    # Functions are shown with their place in memory, which differs.
    processes.require_same({name: re.sub(r"0x[0-9a-f]+", "", repr(value)) for name, value in settings.items()})


def require_same_rows(X: np.ndarray, y: np.ndarray, noise_variance: torch.Tensor) -> None:
    """Raise `InvalidInputError` in all processes of a distributed fit unless they have the same rows."""
    if current_run().processes is not None:
        found: dict[str, object] = {"shape of X": X.shape}
        for name, rows in (("X", X), ("y", y), ("noise_variance", noise_variance.numpy())):
            found[name] = sha256(np.ascontiguousarray(rows).data).hexdigest()[:16]
        processes.require_same(found)


@dataclass(frozen=True)
class Problem:
    """Rows that are held, their scaling, and the start of learning in the units of the standardized problem."""

    arguments: Arguments
    X: np.ndarray
    targets: np.ndarray
    scaling: Scaling
    model: Model
    beside: Beside = field(default_factory=Beside)  # in the data's own units

    @classmethod
    def of(cls, arguments: Arguments, X: np.ndarray, y: np.ndarray, beside: Beside | None = None) -> Problem:
        """Return the problem of inputs (n, d) and targets (n,) or (n, n_targets) in the data's own units."""
        estimator, mean, likelihood = arguments.estimator, arguments.mean, arguments.likelihood
        targets = _without_offset(mean, X, y)
        medians, is_scaled = likelihood.scales_by_medians, scaled_inputs(estimator)
        scaling = Scaling.fit(X, targets, estimator.standardize, medians=medians, is_scaled=is_scaled)
        if not likelihood.has_noise:  # counts and signs have no scale
            scaling = scaling.of_inputs_only()
        noise_differs = isinstance(likelihood, Gaussian)
        start = start_model(
            estimator, mean, len(X), targets.shape[1], noise_differs=noise_differs, n_columns=X.shape[1]
        )
        if start.mean is not mean:
            arguments = replace(arguments, mean=start.mean)
        for group in groups_of(start.kernel):
            group.bind(X.shape[1]).levels(torch.from_numpy(np.ascontiguousarray(X)))
        require_taken(start.kernel, X, getattr(estimator, "feature_names_in_", None))
        return cls(arguments, X, targets, scaling, start.standardized(scaling.units()), beside or Beside())

    def placed(self, inference: Inference) -> Problem:
        """Return the problem on the device that ``"auto"`` takes for a method."""
        return replace(self, arguments=self.arguments.placed(inference, len(self.X)))

    def table(self) -> TrainingTable:
        """Return the standardized rows; rows beyond the range of the data type are refused."""
        beside = self.beside
        if beside.limits is not None:
            own = beside.limits.numpy() - self.arguments.mean.offset(self.X)[:, None]
            beside = replace(beside, limits=torch.from_numpy(self.scaling.targets(own)))
        table, points = self._standardized(self.X, self.targets), self.arguments.predict_at
        if points is not None:
            table = replace(table, predict_at=torch.from_numpy(self.scaling.inputs(points)).to(table.X))
        return replace(table, beside=beside)

    def table_of(self, X: np.ndarray, y: np.ndarray) -> TrainingTable:
        """Return other rows, or some of these, on the same scale; see `of` and `table`."""
        return self._standardized(X, _without_offset(self.arguments.mean, X, y))

    def _standardized(self, X: np.ndarray, targets: np.ndarray) -> TrainingTable:
        arguments = self.arguments
        dtype, device = arguments.dtype, arguments.device
        return TrainingTable(
            torch.from_numpy(self.scaling.inputs(X)).to(dtype=dtype, device=device),
            torch.from_numpy(self.scaling.targets(targets)).to(dtype=dtype, device=device),
            arguments.mean,
            arguments.budget,
            mixed=arguments.estimator.dtype == "mixed",
            cells=arguments.cells,
        ).require_finite()


def with_likelihood(model: Model, likelihood: Likelihood, table: TrainingTable) -> Model:
    """Return the model at the start of learning with the parameters that the likelihood learns."""
    return replace(model, of_likelihood=likelihood.start(table.Y.double())) if likelihood.learned else model


def _without_offset(mean: Mean, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return targets (n, n_targets) minus the known part of the mean."""
    return (y if y.ndim == 2 else y[:, None]) - mean.offset(X)[:, None]


# The start: kernel, mean and noise variance, and whether the noise is learned -----------------------------------------


def start_model(
    estimator: Estimator,
    mean: Mean,
    n_rows: int,
    n_targets: int,
    *,
    noise_differs: bool = False,
    n_columns: int | None = None,
) -> StartModel:
    """Return the initial kernel, mean and noise, in the estimator's hyperparameter units.

    For a rule such as ``"average"``, the kernel is the default one, which shows how candidates treat the inputs. With
    ``noise_differs``, as under a Gaussian likelihood, rows with missing cells get more noise than others where kernel
    and noise are left to the fit, and the inference supports it.
    """
    encoder = fitted_encoder(estimator)
    kernel = _start_kernel(estimator, n_columns)
    kernel = kernel if encoder is None else encoder.kernel(apart_from_levels(kernel, len(encoder.columns)))
    noise = start_noise(estimator.noise_variance, kernel, n_rows)
    if noise is not None and noise.ndim == 1 and n_targets > 1 and estimator.standardize:
        raise InvalidInputError(
            'noise_variance of GPRegressor as an array needs outputs="independent", one target, or standardize=False: '
            f"several targets that share a kernel are scaled differently; got {n_targets} targets."
        )
    mean = _apart_from_levels(mean, kernel, n_columns)
    start = StartModel(kernel, mean, noise, estimator.hyperparameter_units)
    is_given = isinstance(estimator.kernel, Kernel) or estimator.noise_variance is not None
    if encoder is None or is_given or not noise_differs:
        return start
    of_missing = encoder.noise()
    if of_missing is None:
        return start
    noisier = replace(start, kernel=kernel + of_missing)
    return noisier if _takes(estimator.inference, noisier.bound(encoder.n_encoded)) else start


def _start_kernel(estimator: Estimator, n_columns: int | None) -> Kernel:
    """Return the kernel with the groups, of the table's columns by number; a rule's is the default one.

    Encoded columns of very many categories are groups where neither a kernel nor ``groups`` names them. A kernel that
    was left to the fit is of groups alone where all columns hold levels.
    """
    names, encoder = getattr(estimator, "feature_names_in_", None), fitted_encoder(estimator)
    given = numbered(estimator.kernel, names) if isinstance(estimator.kernel, Kernel) else None
    groups = with_groups(None, _listed(estimator.groups))
    groups = None if groups is None else numbered(groups, names)
    if encoder is not None and (given is None or given.n_inputs is None):
        named = set().union(*(level_columns(kernel) for kernel in (given, groups) if kernel is not None))
        groups = with_groups(groups, [column for column in encoder.level_columns if column not in named])
        n_columns = sum(map(bool, encoder.inputs))
    if groups is None:
        return plain_kernel(estimator.kernel) if given is None else given
    if given is not None:
        return given + groups
    only_levels = n_columns is not None and len(level_columns(groups)) >= n_columns
    return groups if only_levels else plain_kernel(estimator.kernel) + groups


def _listed(groups: Any) -> list[Any]:
    if isinstance(groups, str | int | Group) or not isinstance(groups, Sequence):
        raise InvalidInputError(
            'groups of GPRegressor must be a list of columns by number or name, such as ["shop", "item"]; got '
            f"{shown(groups)}."
        )
    return list(groups)


def _apart_from_levels(mean: Mean, kernel: Kernel, n_columns: int | None) -> Mean:
    """Return a mean whose slopes, where it names no columns, leave out the columns of levels."""
    levels = level_columns(kernel)
    if not levels or not isinstance(mean, LinearMean) or mean.columns is not None or n_columns is None:
        return mean
    others = tuple(column for column in range(n_columns) if column not in levels)
    return LinearMean(others) if others else ConstantMean()


def _takes(inference: Any, model: Model) -> bool:
    """Whether an inference supports a model; "auto" supports all."""
    if isinstance(inference, str):
        return True
    try:
        inference.check_model(model)
    except InvalidInputError:
        return False
    return True


def warn_of_shares(estimator: Estimator, model: Model, n_targets: int) -> None:
    """Warn if ``outputs="auto"`` has several targets share variances that are given in the target's squared units.

    Targets of one model are scaled separately, so that the variances are shares of each target's. With a model for each
    target they are in its own units.
    """
    is_scaled = estimator.standardize and estimator.hyperparameter_units == "own" and model.student is None
    if n_targets == 1 or estimator.outputs != "auto" or not is_scaled:
        return
    one, ones = (model.kernel.unit_factors(_units(model.n_inputs, variance)) for variance in (4.0, 1.0))
    set_by_user = model.given | model.kernel.bounds().keys()
    names = [name for name in one if name in set_by_user and not torch.equal(one[name], ones[name])]
    names += [NOISE] * (np.ndim(estimator.noise_variance) == 0 and estimator.noise_variance is not None)
    if names:
        msg = (
            f"{names[0]} is given in squared units of the target, but {n_targets} targets of a table of this size "
            "share one model, in which it is a share of the variance of each. Give "
            'outputs="shared" if you mean that, or outputs="independent" for a model of each target.'
        )
        warn(msg, GigaGPWarning)


def _units(n_inputs: int, variance: float) -> Units:
    return Units(torch.zeros(n_inputs).double(), torch.ones(n_inputs).double(), variance)


def start_noise(noise_variance: Any, kernel: Kernel, n_rows: int) -> torch.Tensor | None:
    """Return the noise variance at the start of a fit, besides that of the kernel: of shape () or (n_rows,), or None.

    If only the sum of two variances has a meaning, they cannot both be learned. A `White` term of the kernel therefore
    represents all noise, unless ``noise_variance`` is given too: 0 stays fixed at zero. Without such a term 0 is
    refused, because nothing would bound the condition number of the kernel matrix. None is initialised from the data.
    """
    if has_white_term(kernel) and (noise_variance is None or (np.ndim(noise_variance) == 0 and noise_variance == 0)):
        return torch.zeros((), dtype=torch.float64)
    return known_noise(noise_variance, n_rows)


def has_white_term(kernel: Kernel) -> bool:
    """Whether the kernel adds white noise to every row, the same one or one for each output.

    `White` times a function of the inputs does not.
    """
    return any(
        any(leaf.is_white for leaf in term) and all(isinstance(leaf, White | Constant | Outputs) for leaf in term)
        for term in kernel.terms()
    )


def refuse_white(kernel: object, likelihood: Likelihood) -> None:
    """Refuse a kernel with a white part under a likelihood without noise, where that part would have no effect."""
    if likelihood.has_noise or not isinstance(kernel, Kernel) or not kernel.has_white:
        return
    raise InvalidInputError(
        f"kernel must not contain White with the {likelihood.name} likelihood: it is noise of the targets, and this "
        f"likelihood has no noise variance, so that it would have no effect; got {kernel!r}. Leave the White part out."
    )


# Settings that estimators share ---------------------------------------------------------------------------------------


#: Data type of the training table for each ``dtype``.
DTYPES = {"float64": torch.float64, "float32": torch.float32, "mixed": torch.float64}


def resolve_device(device: str, takes_gpu: bool = False) -> torch.device:
    """Return the device for a setting.

    ``"auto"`` is CUDA where it is available and what is computed ``takes_gpu`` (`Inference.takes_gpu`). It is the CPU
    otherwise, and before the method and the number of rows are known.
    """
    if device == "auto":
        return torch.device("cuda" if takes_gpu and torch.cuda.is_available() else "cpu")
    msg = f'device of GPRegressor must be "auto", "cpu" or "cuda"; got {device!r}'
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidInputError(f"{msg}.") from error
    if resolved.type not in ("cpu", "cuda"):  # meta has no data; others lack float64 or our kernels
        raise InvalidInputError(f"{msg}.")
    if resolved.type == "cpu" and resolved.index:  # torch accepts any index, but there is only one
        raise InvalidInputError(f"{msg}: there is one CPU device.")
    if resolved.type == "cuda" and not torch.cuda.is_available():
        msg = f'device of GPRegressor is {device!r}, but torch finds no CUDA device. Use "auto" or "cpu".'
        raise InvalidInputError(msg)
    return resolved


def known_noise(noise_variance: Any, n_rows: int, name: str = "noise_variance of GPRegressor") -> torch.Tensor | None:
    """Return a given noise variance as float64 of shape () or (n_rows,), or None if none was given."""
    if noise_variance is None:
        return None
    values = numbers(noise_variance, name, finite=False)
    if values.ndim > 1 or (values.ndim == 1 and values.shape[0] != n_rows):
        raise InvalidInputError(f"{name} must have shape () or ({n_rows},), one for each row; got {values.shape}.")
    if not (np.isfinite(values).all() and (values > 0).all()):
        first = values if values.ndim == 0 else values[~(np.isfinite(values) & (values > 0))][0]
        raise InvalidInputError(
            f"{name} must be positive and finite; got {float(first)!r}. Zero is for kernels "
            "with a White term; for targets without noise give a small variance."
        )
    return torch.from_numpy(values.copy())
