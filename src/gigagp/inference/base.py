"""What an inference is: the contract of the package's own and of a user's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from gigagp.errors import InvalidInputError
from gigagp.fields import Settings
from gigagp.grids.arguments import checked_bounds
from gigagp.inference.objective import TableObjective
from gigagp.inference.posterior import Posterior
from gigagp.inference.streaming import BegunFit, StreamJob
from gigagp.inference.table import TrainingTable
from gigagp.intake import numbers
from gigagp.likelihoods import Gaussian, Likelihood
from gigagp.model import Model
from gigagp.optimization.adam import Adam

#: Names of both bounds of `GPRegressor.fit_table`, for messages.
_CORNERS = ("bounds of fit_table, lower corner,", "bounds of fit_table, upper corner,")


@dataclass(frozen=True)
class Abilities:
    """What an inference can be used for. Every front door reads it here and nowhere else.

    Parameters
    ----------
    name : str
        Lower case with hyphens: what ``gigagp fit --inference`` calls it.
    rows : str
        The numbers of rows it is made for, in words, for the table in the documentation.
    kernels : {"any", "random features", "stationary"}, default "any"
        Which kernels it can use: those with `gigagp.kernels.Kernel.has_features`, or stationary ones alone.
    likelihoods : {"gaussian", "any"}, default "gaussian"
    row_noise : bool, default True
        Whether it takes a known noise variance of each row.
    most_inputs : int or None, default None
        None: any number.
    streams : bool, default False
        Whether `GPRegressor.fit_table` can use it: it has `Inference.stream`.
    takes_bounds : bool, default False
        Whether ``fit_table(bounds=...)`` means something to it.
    adds_rows : bool, default False
        Whether `GPRegressor.partial_fit` can add rows: its posteriors derive from
        `gigagp.inference.posterior.GrowingPosterior`.
    dtypes : tuple of str, default ("float64", "float32")
        ``"mixed"`` depends on the settings, see `Inference.mixes_precision`.
    devices : {"any", "cpu"}, default "any"
    options : mapping of str to str, default empty
        Options of ``gigagp fit`` that only this inference has, and the fields that they set, such as
        ``{"--functions": "n_basis"}``.
    """

    name: str
    rows: str
    kernels: Literal["any", "random features", "stationary"] = "any"
    likelihoods: Literal["gaussian", "any"] = "gaussian"
    row_noise: bool = True
    most_inputs: int | None = None
    streams: bool = False
    takes_bounds: bool = False
    adds_rows: bool = False
    dtypes: tuple[str, ...] = ("float64", "float32")
    devices: Literal["any", "cpu"] = "any"
    options: Mapping[str, str] = field(default_factory=dict)


class Inference(Settings, ABC):
    """Settings of a way to infer, and what it makes of a table: the base of every class in `gigagp.inference`.

    When to use: as the base of an inference of your own. Make it a frozen dataclass, declare `abilities` and
    `posteriors`, and write `objective` and `describe`; `GPRegressor(inference=...)` then takes it. Give the class to
    `gigagp.inference.register` to have it on the command line and in model files by name (or to
    ``gigagp.load(path, custom=[...])`` for one file). `docs/extending.md` has an example.

    Attributes
    ----------
    abilities : Abilities
        Of the class.
    posteriors : tuple of type
        Subclasses of `gigagp.inference.posterior.Posterior` that a fit may end with. Files know them by their `kind`.
    """

    abilities: ClassVar[Abilities]
    posteriors: ClassVar[tuple[type[Posterior], ...]]

    @property
    def label(self) -> str:
        """What messages call it, such as ``inference.Grid``."""
        return f"inference.{type(self).__name__}"

    @property
    def mixes_precision(self) -> bool:
        """Whether ``dtype="mixed"`` means something: it solves iteratively, in products that may be float32."""
        return False

    @abstractmethod
    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> TableObjective:
        """Return what is maximised on a table.

        Parameters
        ----------
        table : TrainingTable
        generator : torch.Generator
            All randomness comes from it.
        likelihood : Likelihood or None, default None
            None: Gaussian. Others only where `abilities` has them.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return one line for people."""

    def adam(self, **settings: Any) -> Any:
        """Return the Adam that can move what this inference learns, for ``gigagp fit --steps``."""
        return Adam(**settings)

    def stream(self, job: StreamJob, generator: torch.Generator) -> BegunFit:
        """Pass over rows that are not held. Only where ``abilities.streams``.

        Raises
        ------
        InvalidInputError
            If a row cannot be used, naming its file.
        """
        raise NotImplementedError(f"{self.label} does not stream")

    def check_likelihood(self, likelihood: Likelihood) -> None:
        """Refuse a likelihood that it does not have.

        Raises
        ------
        InvalidInputError
            If that is so.
        """
        if self.abilities.likelihoods == "gaussian" and not isinstance(likelihood, Gaussian):
            msg = (
                f'inference for the {likelihood.name} likelihood must be "auto" or inference.QuadruplyStochastic; got '
                f"{self!r}."
            )
            raise InvalidInputError(msg)

    def check_precision(self, dtype: str, *, asked: bool = True) -> None:
        """Refuse a precision that it does not compute in.

        Parameters
        ----------
        dtype : str
            As `GPRegressor` takes it.
        asked : bool, default True
            Whether this inference was asked for by name; ``"auto"`` may be given ``"mixed"`` in any case.

        Raises
        ------
        InvalidInputError
            If that is so.
        """
        if dtype in self.abilities.dtypes or (dtype == "mixed" and (self.mixes_precision or not asked)):
            return
        known = " or ".join(f'"{one}"' for one in self.abilities.dtypes)
        why = f", whose sums and solves are {self.abilities.dtypes[0]}"
        if dtype == "mixed" and len(self.abilities.dtypes) > 1:
            why = ": only the products of iterative solvers can be mixed"
        msg = f"dtype of GPRegressor must be {known} with {self.label}{why}; got {dtype!r}."
        raise InvalidInputError(msg)

    def check_device(self, device: torch.device, *, asked: bool = True) -> None:
        """Refuse a device that it does not run on; where none was asked for, it runs on its own.

        Raises
        ------
        InvalidInputError
            If that is so.
        """
        if asked and self.abilities.devices == "cpu" and device.type != "cpu":
            msg = (
                f'device of GPRegressor must be "auto" or "cpu" with {self.label}, which runs there; got '
                f"{str(device)!r}."
            )
            raise InvalidInputError(msg)

    def check_bounds(self, bounds: tuple[Any, Any] | None) -> tuple[list[float], list[float]] | None:
        """Return the bounds of the inputs that `GPRegressor.fit_table` was given, as lists.

        Raises
        ------
        InvalidInputError
            If they mean nothing to this inference, or are no corners of a box.
        """
        if bounds is None:
            return None
        if not self.abilities.takes_bounds:
            msg = (
                f"bounds of GPRegressor.fit_table must be None with {self.label}: they are those of a grid; got "
                f"{bounds!r}."
            )
            raise InvalidInputError(msg)
        low, high = (numbers(one, name).reshape(-1).tolist() for one, name in zip(bounds, _CORNERS, strict=True))
        return checked_bounds(low, high)

    def check_model(self, model: Model) -> None:
        """Refuse a kernel, mean or noise that it cannot use, before any work.

        Raises
        ------
        InvalidInputError
            If that is so.
        """
        if self.abilities.kernels == "random features" and not model.kernel.has_features():
            msg = (
                f"kernel of GPRegressor must have random features for {self.label}; got {model.kernel!r}. Use "
                "inference.Exact(), or give the kernel a spectrum."
            )
            raise InvalidInputError(msg)
        if not self.abilities.row_noise and model.noise_is_known:
            msg = (
                f"noise_variance of GPRegressor must be one number, or None, with {self.label}; got one for each row. "
                "Use inference.Iterative."
            )
            raise InvalidInputError(msg)

    def check_held(self) -> None:
        """Refuse settings that mean something only for rows that are not held.

        Raises
        ------
        InvalidInputError
            If there is one.
        """
