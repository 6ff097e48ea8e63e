"""The contract of an inference method, for the package's own and for a user's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.streaming import BegunFit, StreamJob
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.likelihoods import Gaussian, Likelihood
from gigagp.model.model import Model
from gigagp.operators.grid.statistics.arguments import checked_bounds
from gigagp.optimization.adam import Adam
from gigagp.settings.fields import Settings
from gigagp.tables.intake import numbers

#: Names of the two bounds of `GPRegressor.fit_table`, for messages.
_CORNERS = ("bounds of fit_table, lower corner,", "bounds of fit_table, upper corner,")


@dataclass(frozen=True)
class Abilities:
    """Capabilities of an inference method. Estimators and the command line read them only from here.

    Parameters
    ----------
    name : str
        Name in lower case with hyphens, as in ``gigagp fit --inference``.
    rows : str
        Numbers of rows that the method is intended for, in words, for the table in the documentation.
    kernels : {"any", "random features", "state space", "stationary"}, default "any"
        Supported kernels: all, those with `gigagp.kernels.Kernel.has_features`, those with
        `gigagp.kernels.Kernel.state_space`, or only stationary ones.
    likelihoods : {"gaussian", "log-concave", "any"}, default "gaussian"
        Supported likelihoods: the Gaussian one alone, those with a log-concave density, or all.
    row_noise : bool, default True
        Whether the method accepts a known noise variance for each row.
    most_inputs : int or None, default None
        Largest number of inputs; None: no limit.
    streams : bool, default False
        Whether `GPRegressor.fit_table` can use the method, which must then implement `Inference.stream`.
    holds_rows : bool, default False
        Whether a fit to a stream holds the numbers of its rows, so that everything is as in a fit to rows in memory.
    takes_bounds : bool, default False
        Whether the method uses ``fit_table(bounds=...)``.
    adds_rows : bool, default False
        Whether `GPRegressor.condition_on` and `partial_fit` can add rows. The posteriors must then derive from
        `gigagp.inference.contract.posterior.GrowingPosterior`.
    dtypes : tuple of str, default ("float64", "float32")
        Supported precisions. ``"mixed"`` is not listed, because it depends on the settings; see
        `Inference.mixes_precision`.
    devices : {"any", "cpu"}, default "any"
        Devices that the method can run on.
    gpu_rows : float, default 10,000
        Number of rows from which ``device="auto"`` takes a GPU if there is one. With fewer rows a GPU waits for
        Python, and methods whose work is on the CPU wherever the rows are gain nothing from it.
    options : mapping of str to str, default empty
        Options of ``gigagp fit`` that only this method has, with the fields that they set, such as
        ``{"--functions": "n_basis"}``.
    """

    name: str
    rows: str
    kernels: Literal["any", "random features", "state space", "stationary"] = "any"
    likelihoods: Literal["gaussian", "log-concave", "any"] = "gaussian"
    row_noise: bool = True
    most_inputs: int | None = None
    streams: bool = False
    holds_rows: bool = False
    takes_bounds: bool = False
    adds_rows: bool = False
    dtypes: tuple[str, ...] = ("float64", "float32")
    devices: Literal["any", "cpu"] = "any"
    gpu_rows: float = 10_000
    options: Mapping[str, str] = field(default_factory=dict)


class Inference(Settings, ABC):
    """Base class of every inference method in `gigagp.inference`: its settings, and the objective it makes of a table.

    When to use: as the base class of your own inference method. Make it a frozen dataclass, declare `abilities` and
    `posteriors`, and implement `objective` and `describe`; `GPRegressor(inference=...)` then accepts it. Pass the class
    to `gigagp.inference.register` to make it available by name on the command line and in model files (or to
    ``gigagp.load(path, custom=[...])`` for one file). `docs/extending.md` has an example.

    Attributes
    ----------
    abilities : Abilities
        Capabilities of the class.
    posteriors : tuple of type
        Subclasses of `gigagp.inference.contract.posterior.Posterior` that a fit can return. Model files store their
        `kind`.
    """

    abilities: ClassVar[Abilities]
    posteriors: ClassVar[tuple[type[Posterior], ...]]

    @property
    def label(self) -> str:
        """Name of the class in messages, such as ``inference.Grid``."""
        return f"inference.{type(self).__name__}"

    @property
    def mixes_precision(self) -> bool:
        """Whether ``dtype="mixed"`` is supported: solves are iterative, and their products may be float32."""
        return False

    @abstractmethod
    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> TableObjective:
        """Return the objective to maximize on a table.

        Parameters
        ----------
        table : TrainingTable
            Training rows in the model's units.
        generator : torch.Generator
            Source of all random numbers.
        likelihood : Likelihood or None, default None
            None: Gaussian. Others are accepted only if `abilities` lists them.
        """

    def objective_of(
        self, model: Model, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> TableObjective:
        """Return the objective for models of one structure, of which this is one; by default that of all models."""
        return self.objective(table, generator, likelihood)

    @abstractmethod
    def describe(self) -> str:
        """Return a one-line description for users."""

    def forecast(self, subject: Subject) -> Forecast | None:
        """Return the expected cost and error of a fit by this method; by default None, because they are not known.

        ``inference="auto"`` asks every registered method, with its default settings, once hyperparameters have been
        learned from neighbours. It is called only for models that `check_model` accepts, and should take less than a
        second.
        """
        return None

    def adam(self, **settings: Any) -> Any:
        """Return the Adam optimizer that suits the parameters of this method, for ``gigagp fit --steps``."""
        return Adam(**settings)

    def stream(self, job: StreamJob, generator: torch.Generator) -> BegunFit:
        """Pass over rows that are not held in memory. Implemented only if ``abilities.streams``.

        Raises
        ------
        InvalidInputError
            If a row cannot be used; the message names its file.
        """
        raise NotImplementedError(f"{self.label} does not stream")

    def check_likelihood(self, likelihood: Likelihood) -> None:
        """Refuse (`InvalidInputError`) a likelihood that this method does not support."""
        can = self.abilities.likelihoods
        is_variational = likelihood.is_log_concave and not likelihood.only_laplace
        if can == "any" or isinstance(likelihood, Gaussian) or (can == "log-concave" and is_variational):
            return
        if can == "gaussian" and self.abilities.row_noise and likelihood.is_scale_mixture:
            return
        others = "inference.QuadruplyStochastic or " if is_variational else ""
        others = "one that takes known noise variances of rows, or " if likelihood.is_scale_mixture else others
        msg = f'inference for the {likelihood.name} likelihood must be "auto", {others}inference.Vecchia; got {self!r}.'
        if can == "log-concave" and likelihood.is_log_concave:
            msg += " Its variational bound has no parameters of a likelihood, limits or trials."
        elif can == "log-concave":
            msg += " Its variational bound has one optimum only for log-concave densities (is_log_concave)."
        raise InvalidInputError(msg)

    def check_precision(self, dtype: str, *, asked: bool = True) -> None:
        """Refuse (`InvalidInputError`) a precision, ``dtype`` of `GPRegressor`, that this method does not support.

        Where ``"auto"`` has chosen the method, and no user (``asked``), ``"mixed"`` is accepted in any case.
        """
        if dtype in self.abilities.dtypes or (dtype == "mixed" and (self.mixes_precision or not asked)):
            return
        known = " or ".join(f'"{one}"' for one in self.abilities.dtypes)
        why = f", whose sums and solves are {self.abilities.dtypes[0]}"
        if dtype == "mixed" and len(self.abilities.dtypes) > 1:
            why = ": only the products of iterative solvers can be mixed"
        raise InvalidInputError(f"dtype of GPRegressor must be {known} with {self.label}{why}; got {dtype!r}.")

    def takes_gpu(self, n_rows: float) -> bool:
        """Whether ``device="auto"`` takes a GPU for some rows, if there is one."""
        return self.abilities.devices == "any" and n_rows >= self.abilities.gpu_rows

    def check_device(self, device: torch.device, *, asked: bool = True) -> None:
        """Refuse (`InvalidInputError`) a device that a user has chosen and that this method does not support."""
        if asked and self.abilities.devices == "cpu" and device.type != "cpu":
            raise InvalidInputError(
                f'device of GPRegressor must be "auto" or "cpu" with {self.label}, which runs on the CPU; got '
                f"{str(device)!r}."
            )

    def check_bounds(self, bounds: tuple[Any, Any] | None) -> tuple[list[float], list[float]] | None:
        """Return the argument ``bounds`` of `GPRegressor.fit_table` as lists.

        Raises `InvalidInputError` if this method does not use bounds, or they are not the corners of a box.
        """
        if bounds is None:
            return None
        if not self.abilities.takes_bounds:
            msg = f"bounds of GPRegressor.fit_table must be None with {self.label}, which has no grid; got {bounds!r}."
            raise InvalidInputError(msg)
        low, high = (numbers(one, name).reshape(-1).tolist() for one, name in zip(bounds, _CORNERS, strict=True))
        return checked_bounds(low, high)

    def check_model(self, model: Model) -> None:
        """Refuse early (`InvalidInputError`) a kernel, mean or noise that this method does not support."""
        if self.abilities.kernels == "random features" and not model.kernel.has_features():
            raise InvalidInputError(
                f"kernel of GPRegressor must have random features for {self.label}; got {model.kernel!r}. Use "
                "inference.Exact(), or give the kernel a spectrum."
            )
        most, d = self.abilities.most_inputs, model.n_inputs
        if most is not None and d > most:
            raise InvalidInputError(
                f"X of GPRegressor must have at most {most} input{'s' * (most > 1)} with {self.label}; got {d}. Use "
                "inference.Iterative."
            )
        if not self.abilities.row_noise and model.noise_is_known:
            raise InvalidInputError(
                f"noise_variance of GPRegressor must be one number, or None, with {self.label}; got one for each row. "
                "Use inference.Iterative."
            )

    def in_processes(self) -> Inference:
        """Return the method whose processes share the rows of a stream; by default raise `InvalidInputError`."""
        raise InvalidInputError(
            "inference of GPRegressor for fit_table with distributed=True must be inference.Grid, whose processes "
            f"share the files; got {self!r}. Load the table and use fit."
        )

    def check_held(self) -> None:
        """Refuse (`InvalidInputError`) settings that apply only to rows that are not held in memory."""
