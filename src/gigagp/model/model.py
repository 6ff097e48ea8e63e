"""The Gaussian-process model: kernel, mean and noise, whose hyperparameters share one set of names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.kernels.stationary import require_own_units
from gigagp.kernels.units import Units
from gigagp.model.means import Mean
from gigagp.model.student_noise import StudentNoise

NOISE = "noise_variance"
#: Beginning of the names of hyperparameters that are parameters of the likelihood.
OF_LIKELIHOOD = "likelihood."
#: Default start of the noise variance as a share of the target variance; the standard deviation's share is 0.3.
START_NOISE_SHARE = 0.09


@dataclass(frozen=True)
class Model:
    """The prior of a Gaussian process: ``y = mean(x) + f(x) + noise`` with ``f ~ GP(0, kernel)``.

    The coefficients of the mean are not hyperparameters. For any kernel and noise, their optimal values follow from one
    more linear solve (generalised least squares), so no optimizer has to find them. See
    `gigagp.inference.contract.trend`.

    ``free`` are numbers, float64, that an inference method learns together with the hyperparameters: actions or
    inducing points. They are not part of the prior. The objective adds them (`TableObjective.start`) and returns their
    gradient under the same names, and every optimizer changes them without a transform.
    """

    kernel: Kernel  # bound to the number of inputs
    mean: Mean
    noise_variance: torch.Tensor  # of shape (): learned; of shape (n,): the known variance of each row
    free: Mapping[str, torch.Tensor] = field(default_factory=dict)
    noise_is_learned: bool = True  # False: it is fixed at zero, as the white part of the kernel represents all noise
    given: frozenset[str] = frozenset()  # hyperparameters of the kernel that a search for a start leaves alone
    student: StudentNoise | None = None  # Student-t noise; the noise variances are then those at the rows' weights
    #: parameters of the likelihood that are learned, positive float64 (`gigagp.likelihoods.Likelihood.learned`)
    of_likelihood: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def n_inputs(self) -> int:
        """Number of inputs, to which the kernel is bound."""
        assert self.kernel.n_inputs is not None, "the kernel of a model is bound"
        return self.kernel.n_inputs

    @property
    def noise_is_known(self) -> bool:
        """Whether every row has a given noise variance."""
        return self.noise_variance.ndim == 1

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return every hyperparameter in natural units: of the kernel, ``noise_variance``, and of the likelihood."""
        values = dict(self.kernel.parameters())
        if not self.noise_is_known:
            values[NOISE] = self.noise_variance
        return values | dict(zip(self.likelihood_names(), self.of_likelihood.values(), strict=True))

    def likelihood_names(self) -> tuple[str, ...]:
        """Return the names of the likelihood's parameters among the hyperparameters."""
        return tuple(f"{OF_LIKELIHOOD}{name}" for name in self.of_likelihood)

    def equals(self, other: Model | None) -> bool:
        """Whether another model of the same structure has the same hyperparameters."""
        if other is None or self.noise_is_known != other.noise_is_known:
            return False
        found, wanted = self.parameters(), other.parameters()
        if self.noise_is_known:
            found, wanted = found | {NOISE: self.noise_variance}, wanted | {NOISE: other.noise_variance}
        return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in found)

    def learned_names(self) -> tuple[str, ...]:
        """Return the names of the learned hyperparameters, in a fixed order."""
        fixed = self.kernel.fixed_parameters()
        if not self.noise_is_learned:
            fixed |= {NOISE}
        return tuple(name for name in self.parameters() if name not in fixed)

    @property
    def n_learned(self) -> int:
        """Number of learned hyperparameters, each entry counted."""
        values = self.parameters()
        return sum(values[name].numel() for name in self.learned_names())

    def replace(self, values: Mapping[str, torch.Tensor]) -> Model:
        """Return the model with some hyperparameters or free numbers replaced."""
        unknown = sorted(set(values) - set(self.parameters()) - set(self.free))
        if unknown:
            known = ", ".join([*self.parameters(), *self.free])
            raise InvalidInputError(f"the model has no hyperparameter {unknown[0]!r}; it has {known}.")
        others = {NOISE, *self.free, *self.likelihood_names()}
        kernel_values = {name: value for name, value in values.items() if name not in others}
        return replace(
            self,
            kernel=self.kernel.replace(kernel_values) if kernel_values else self.kernel,
            noise_variance=values.get(NOISE, self.noise_variance),
            free={name: values.get(name, value) for name, value in self.free.items()},
            of_likelihood={
                name: values.get(f"{OF_LIKELIHOOD}{name}", value) for name, value in self.of_likelihood.items()
            },
        )

    def unit_factors(self, units: Units) -> dict[str, torch.Tensor]:
        """Return, by name, the factors that convert standardized hyperparameters to the data's own units."""
        of_noise = {NOISE: torch.tensor(units.variance, dtype=torch.float64)}
        return self.kernel.unit_factors(units) | of_noise | {one: torch.ones(()) for one in self.likelihood_names()}

    def standardized(self, units: Units) -> Model:
        """Return the model for the standardized problem from one in the data's own units."""
        noise = self.noise_variance / units.variance
        student = self.student and self.student.multiplied(1 / units.variance)
        return replace(self, kernel=self.kernel.standardized(units), noise_variance=noise, student=student)

    def in_own_units(self, units: Units) -> Model:
        """Return the model in the data's own units from one for the standardized problem."""
        noise = self.noise_variance * units.variance
        student = self.student and self.student.multiplied(units.variance)
        return replace(self, kernel=self.kernel.in_own_units(units), noise_variance=noise, student=student)

    def amplified(self, factor: float) -> Model | None:
        """Return the model with all covariances multiplied; None if a hyperparameter must not follow, or none would."""
        if self.noise_is_known:
            return None
        origin, ones = (torch.full((self.n_inputs,), value, dtype=torch.float64) for value in (0.0, 1.0))
        # lengthscales on the sphere are in other units than its inputs, in both
        before, after = (self.unit_factors(Units(origin, ones, variance)) for variance in (1.0, factor))
        factors, values = {name: after[name] / before[name] for name in after}, self.parameters()
        changed = {name: factors[name] * values[name] for name in values if bool((factors[name] != 1.0).any())}
        if not changed.keys() <= set(self.learned_names()):
            return None
        found = self.replace(changed)
        points = found.kernel.admitted(torch.cat([self._some_point(), 0.7 * self._some_point()]))
        follows = torch.allclose(found.kernel.block(points, points), factor * self.kernel.block(points, points))
        return found if follows else None

    @property
    def noise_level(self) -> float:
        """Noise variance at some point, with the kernel's white part; the mean one if each row has its own."""
        return float(self.noise_variance.mean()) + float(self.kernel.white(self._some_point()).max())

    @property
    def noise_share(self) -> float:
        """Noise variance over the kernel's variance at some point; infinity if each row has its own."""
        if self.noise_is_known:
            return math.inf
        variance = float(self.kernel.diagonal(self._some_point()).max())
        return self.noise_level / variance if variance else math.inf

    def _some_point(self) -> torch.Tensor:
        """Return a point, (1, d), at which no kernel of the package is degenerate."""
        return self.kernel.admitted(torch.linspace(0.5, 1.5, self.n_inputs, dtype=torch.float64)[None])

    def take_rows(self, rows: torch.Tensor) -> Model:
        """Return the model for a subset of the rows, with their known noise variances and without free numbers."""
        if not self.noise_is_known and not self.free:
            return self
        noise = self.noise_variance[rows] if self.noise_is_known else self.noise_variance
        return replace(self, noise_variance=noise, free={})

    def appended(self, noise: torch.Tensor | None) -> Model:
        """Return the model for further rows too, with their known noise variances; None where there is one for all."""
        if noise is None:
            return self
        return replace(self, noise_variance=torch.cat([self.noise_variance, noise.to(self.noise_variance)]))

    def noise_of_rows(self, rows: torch.Tensor | slice, X: torch.Tensor) -> torch.Tensor:
        """Return the noise variances of training rows, including the kernel's white part, shape (r,).

        ``rows`` are their places in the training table, which matter where the variance of every row is known, and X
        (r, d) their inputs, which matter to the kernel's white part.
        """
        noise = self.noise_variance.to(X)
        return (noise[rows] if self.noise_is_known else noise) + self.kernel.white(X)

    def noise_at(self, X: torch.Tensor) -> torch.Tensor:
        """Return the noise variance at new rows, including the kernel's white part, shape (m,).

        It is refused if the noise was given for each training row, because that of other rows is then unknown.
        """
        if self.student is not None:
            return self.kernel.white(X) + self.student.variance
        if self.noise_is_known:
            raise InvalidInputError(
                "include_noise of GPRegressor.predict must be False if noise_variance was given for each row: the "
                "noise of new rows is not known. Add their variances to std ** 2."
            )
        return self.kernel.white(X) + self.noise_variance.to(X)


def _require_numbers(model: Model, units: Units, *, may_be_zero: bool) -> None:
    """Raise an error unless all standardized hyperparameters are finite and positive; noise may also be zero."""
    for name, value in model.parameters().items():
        sound = (value > 0) | (value == 0 if name == NOISE and may_be_zero else value > 0)
        if not bool((torch.isfinite(value) & sound).all()):
            raise InvalidInputError(
                f"{name} of GPRegressor is {value.tolist()} in units of the standardized problem, whose target has a "
                f"variance of {units.variance:g} and whose inputs have scales of {units.scale.tolist()}. Give another "
                "value, none at all, or scale the table."
            )


#: Units of an estimator's hyperparameters: those of the data, or those of the standardized problem.
HyperparameterUnits = Literal["own", "standardized"]


@dataclass(frozen=True)
class StartModel:
    """The given start of learning, from which the standardized model is made once the rows are known.

    The kernel is not bound yet; hyperparameters without a value are initialised from the data. A noise variance of None
    stands for `START_NOISE_SHARE` of the target's variance. 0 stays fixed, because the kernel's white part then
    represents all noise. ``units`` are those of the kernel's hyperparameters and of a single noise variance; known
    variances of rows are always in the data's own units.
    """

    kernel: Kernel
    mean: Mean
    noise_variance: torch.Tensor | None
    units: HyperparameterUnits = "own"

    def bound(self, n_inputs: int) -> Model:
        """Return a model with unscaled hyperparameters, for checks of its structure."""
        return self._model(self.kernel.bind(n_inputs), 1.0)

    def standardized(self, units: Units) -> Model:
        """Return the model for the standardized problem."""
        if self.units == "own":
            model = self._model(self.kernel.standardized(units), units.variance)
            _require_numbers(model, units, may_be_zero=self._has_no_noise)
            return model
        require_own_units(self.kernel)
        is_known = self.noise_variance is not None and self.noise_variance.ndim == 1
        return self._model(self.kernel.bind(len(units.scale)), units.variance if is_known else 1.0)

    @property
    def _has_no_noise(self) -> bool:
        return self.noise_variance is not None and not bool(self.noise_variance.any())

    def _model(self, kernel: Kernel, unit: float) -> Model:
        given = self.noise_variance
        noise = torch.tensor(START_NOISE_SHARE, dtype=torch.float64) if given is None else given / unit
        learned = bool((noise > 0).all())
        return Model(kernel, self.mean, noise, noise_is_learned=learned, given=self.kernel.given_parameters())
