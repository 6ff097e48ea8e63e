"""A Gaussian-process model: kernel, mean and noise, with its hyperparameters under one set of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.means import Mean

NOISE = "noise_variance"


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
