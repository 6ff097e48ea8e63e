"""A Gaussian-process model: kernel, mean and noise, with its hyperparameters under one set of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.kernels.units import Units
from gigagp.means import Mean

NOISE = "noise_variance"
#: Start of the noise variance where none is given, as a share of the target's: a standard deviation of 0.3 of its.
START_NOISE_SHARE = 0.09


@dataclass(frozen=True)
class Model:
    """What is learned: ``y = mean(x) + f(x) + noise`` with ``f ~ GP(0, kernel)``.

    The coefficients of the mean are not hyperparameters: at any kernel and noise their best values follow from one
    more linear solve (generalised least squares), so no optimizer has to find them. See `gigagp.inference.trend`.

    Attributes
    ----------
    kernel : Kernel
        Bound to the number of inputs.
    mean : Mean
        Bound likewise.
    noise_variance : Tensor of shape () or (n,)
        One variance, which is learned, or the known variance of each row, which is not.
    noise_is_learned : bool
        False where ``noise_variance`` is held: at zero, where the white part of the kernel is all the noise there is.
    free : mapping of str to Tensor
        Real numbers, float64, that an inference learns beside the hyperparameters: actions, inducing points. They are
        no part of the prior; the objective puts them here (`TableObjective.start`) and gives their gradient by the
        same names, and every optimizer moves them as they are.
    """

    kernel: Kernel
    mean: Mean
    noise_variance: torch.Tensor
    free: Mapping[str, torch.Tensor] = field(default_factory=dict)
    noise_is_learned: bool = True

    @property
    def noise_is_known(self) -> bool:
        """Whether every row has a given noise variance."""
        return self.noise_variance.ndim == 1

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return every hyperparameter in natural units: the kernel's names and ``noise_variance``."""
        values = dict(self.kernel.parameters())
        if not self.noise_is_known:
            values[NOISE] = self.noise_variance
        return values

    def learned_names(self) -> tuple[str, ...]:
        """Return the names that an optimizer may move, in a fixed order."""
        fixed = self.kernel.fixed_parameters()
        if not self.noise_is_learned:
            fixed |= {NOISE}
        return tuple(name for name in self.parameters() if name not in fixed)

    def replace(self, values: Mapping[str, torch.Tensor]) -> Model:
        """Return the model with some hyperparameters or free numbers changed."""
        unknown = sorted(set(values) - set(self.parameters()) - set(self.free))
        if unknown:
            known = ", ".join([*self.parameters(), *self.free])
            msg = f"the model has no hyperparameter {unknown[0]!r}; it has {known}."
            raise InvalidInputError(msg)
        kernel_values = {name: value for name, value in values.items() if name != NOISE and name not in self.free}
        return replace(
            self,
            kernel=self.kernel.replace(kernel_values) if kernel_values else self.kernel,
            noise_variance=values.get(NOISE, self.noise_variance),
            free={name: values.get(name, value) for name, value in self.free.items()},
        )

    def unit_factors(self, units: Units) -> dict[str, torch.Tensor]:
        """Return what standardized hyperparameters are to be multiplied with to be in the data's own units, by name."""
        return self.kernel.unit_factors(units) | {NOISE: torch.tensor(units.variance, dtype=torch.float64)}

    def standardized(self, units: Units) -> Model:
        """Return a model whose numbers are in the data's own units for the standardized problem."""
        noise = self.noise_variance / units.variance
        return replace(self, kernel=self.kernel.standardized(units), noise_variance=noise)

    def in_own_units(self, units: Units) -> Model:
        """Return the inverse of `standardized`."""
        noise = self.noise_variance * units.variance
        return replace(self, kernel=self.kernel.in_own_units(units), noise_variance=noise)

    def take_rows(self, rows: torch.Tensor) -> Model:
        """Return the model for a subset of the rows: known noise variances go with them, free numbers do not."""
        if not self.noise_is_known and not self.free:
            return self
        noise = self.noise_variance[rows] if self.noise_is_known else self.noise_variance
        return replace(self, noise_variance=noise, free={})

    def noise_at(self, X: torch.Tensor) -> torch.Tensor:
        """Return the noise variance of new rows, the kernel's white part included, shape (m,).

        Raises
        ------
        InvalidInputError
            If the noise was given for each training row: that of other rows is not known.
        """
        if self.noise_is_known:
            msg = (
                "include_noise of GPRegressor.predict must be False where noise_variance was given for each row: the "
                "noise of new rows is not known. Add their variances to std ** 2."
            )
            raise InvalidInputError(msg)
        return self.kernel.white(X) + self.noise_variance.to(X)


def _require_numbers(model: Model, units: Units, *, may_be_zero: bool) -> None:
    """Refuse hyperparameters that are nothing, or infinite, once they are standardized; only noise may be zero."""
    for name, value in model.parameters().items():
        sound = (value > 0) | (value == 0 if name == NOISE and may_be_zero else value > 0)
        if not bool((torch.isfinite(value) & sound).all()):
            msg = (
                f"{name} of GPRegressor is {value.tolist()} in units of the standardized problem, whose target has a "
                f"variance of {units.variance:g} and whose inputs have scales of {units.scale.tolist()}. Give another "
                "value, none at all, or scale the table."
            )
            raise InvalidInputError(msg)


#: What the hyperparameters of an estimator are in: the data's own units, or those of the standardized problem.
HyperparameterUnits = Literal["own", "standardized"]


@dataclass(frozen=True)
class StartModel:
    """Where learning starts, as it was given: the standardized problem is known once the rows are.

    Attributes
    ----------
    kernel : Kernel
        Not bound; what it was not given is found from the data.
    mean : Mean
    noise_variance : Tensor of shape () or (n,), or None
        None: `START_NOISE_SHARE` of the target's variance. 0 is held: the kernel's white part is all the noise there
        is. Known variances of rows are in the data's own units always.
    units : {"own", "standardized"}
        Of the kernel's numbers and of one noise variance.
    """

    kernel: Kernel
    mean: Mean
    noise_variance: torch.Tensor | None
    units: HyperparameterUnits = "own"

    def bound(self, n_inputs: int) -> Model:
        """Return a model with the numbers as they are, for checks that look at its structure."""
        return self._model(self.kernel.bind(n_inputs), 1.0)

    def standardized(self, units: Units) -> Model:
        """Return the model for the standardized problem."""
        if self.units == "own":
            model = self._model(self.kernel.standardized(units), units.variance)
            _require_numbers(model, units, may_be_zero=self._has_no_noise)
            return model
        is_known = self.noise_variance is not None and self.noise_variance.ndim == 1
        return self._model(self.kernel.bind(len(units.scale)), units.variance if is_known else 1.0)

    @property
    def _has_no_noise(self) -> bool:
        return self.noise_variance is not None and not bool(self.noise_variance.any())

    def _model(self, kernel: Kernel, unit: float) -> Model:
        given = self.noise_variance
        noise = torch.tensor(START_NOISE_SHARE, dtype=torch.float64) if given is None else given / unit
        return Model(kernel, self.mean, noise, noise_is_learned=bool((noise > 0).all()))
