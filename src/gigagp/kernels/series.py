"""Kernels of series in time: trends that bend, trends that level off, and cycles that lose their phase."""

from __future__ import annotations

import math
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels.arguments import LeafOptions, ParameterLike
from gigagp.kernels.elementary import Centred
from gigagp.kernels.leaf import Hyperparameter, Leaf
from gigagp.kernels.state_space import Component, Damped, Drifting, Swinging, damped_bend, damped_waves, remainder
from gigagp.kernels.units import Unit


class _OfOneInput(Leaf):
    """Base of kernels of one input."""

    def _n_values(self, n_active: int) -> int:
        if n_active != 1:
            owner = type(self).__name__
            msg = f"columns of {owner} must be one input, such as columns=[0]; got {n_active} inputs."
            raise InvalidInputError(msg)
        return 1


class IntegratedWiener(_OfOneInput, Centred):
    """Integral of a random walk: a trend with a slowly varying slope, ``k = variance m^2 (3 M - m) / 6``.

    m and M are the smaller and the larger distance of the two points from the centre. The covariance of points on
    different sides of it is zero: value and slope are zero at the centre, and functions continue independently to both
    sides. With ``mean="linear"``, or with `Constant` and `Linear` beside it, this is the local linear trend of
    structural time-series models, and its posterior mean is a cubic smoothing spline.

    Parameters
    ----------
    variance : float, optional
        Increase of the variance of the slope per unit of the input. Default 1.
    centre : float, optional
        Where functions and their slopes are zero. Default: the mean of the training inputs where the estimator
        standardizes them, otherwise zero. With a linear mean it does not matter.
    columns, fixed, bounds
        As for `RBF`. There must be one active input.

    References
    ----------
    Wahba 1978, Improper priors, spline smoothing and the problem of guarding against model errors in regression,
    doi:10.1111/j.2517-6161.1978.tb01050.x; Rasmussen and Williams 2006, section 6.3, http://gaussianprocess.org/gpml/
    """

    shapes: ClassVar[dict[str, bool]] = {"variance": True}
    units: ClassVar[dict[str, Unit]] = {"variance": "bend"}
    smoothness = 1.5

    variance = Hyperparameter("Growth of the variance of the slope; None if not settled.")

    def __init__(
        self, variance: ParameterLike = None, *, centre: ParameterLike = None, **options: Unpack[LeafOptions]
    ) -> None:
        super().__init__({"variance": variance}, centre=centre, **options)

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        kernel = self.bind(X.shape[1])
        x, z = kernel.active(X.double()), kernel.active(Z.double()).T
        near, far = x.abs().minimum(z.abs()), x.abs().maximum(z.abs())
        found = torch.where(x * z > 0, near.square() * (3 * far - near) / 6, 0.0)
        return (found * kernel.value("variance", found)).to(X.dtype)

    def diagonal(self, X: Tensor) -> Tensor:
        kernel = self.bind(X.shape[1])
        return (kernel.active(X.double())[:, 0].abs() ** 3 / 3 * kernel.value("variance").to(X.device)).to(X.dtype)

    def derivatives(self, X: Tensor, Z: Tensor) -> dict[str, Tensor]:
        kernel = self.bind(X.shape[1])
        return {"variance": (kernel.block(X, Z) / kernel.value("variance", X))[None]}

    def state_space(self) -> tuple[Component, ...]:
        return (Drifting(self.value("variance")[0], self.only_centre()),)


class DampedTrend(_OfOneInput, Centred):
    """Integral of a slope that decays: a trend that levels off a lengthscale beyond the rows.

    The slope has the covariance of ``Matern(0.5, lengthscale, variance)``, and functions are zero at the centre. A long
    lengthscale makes them straight lines, as `Linear` does, and a short one random walks.

    Parameters
    ----------
    lengthscale : float, optional
        Distance over which the slope decays. Default 1 in standardized inputs.
    variance : float, optional
        Variance of the slope. Default 1.
    centre : float, optional
        Where functions are zero. Default: the mean of the training inputs where the estimator standardizes them,
        otherwise zero. With a constant mean it does not matter.
    columns, fixed, bounds
        As for `RBF`. There must be one active input.

    References
    ----------
    Gardner and McKenzie 1985, Forecasting trends in time series, doi:10.1287/mnsc.31.10.1237; Taylor, Cumberland and Sy
    1994, A stochastic model for analysis of longitudinal AIDS data, doi:10.1080/01621459.1994.10476806
    """

    shapes: ClassVar[dict[str, bool]] = {"lengthscale": True, "variance": True}
    units: ClassVar[dict[str, Unit]] = {"lengthscale": "input", "variance": "slope"}
    smoothness = 1.5

    lengthscale = Hyperparameter("Lengthscale of the slope; None if not settled.")
    variance = Hyperparameter("Variance of the slope; None if not settled.")

    def __init__(
        self,
        lengthscale: ParameterLike = None,
        variance: ParameterLike = None,
        *,
        centre: ParameterLike = None,
        **options: Unpack[LeafOptions],
    ) -> None:
        super().__init__({"lengthscale": lengthscale, "variance": variance}, centre=centre, **options)

    def _distances(self, X: Tensor, Z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return lengthscales from the centre, (n, 1) and (1, m), and of points from each other, (n, m)."""
        length = self.value("lengthscale").to(X.device)
        x, z = self.active(X.double()) / length, self.active(Z.double()).T / length
        return x.abs(), z.abs(), (x - z).abs()

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        kernel = self.bind(X.shape[1])
        x, z, apart = (remainder(one, 2) for one in kernel._distances(X, Z))
        found = x + z - apart
        factor = kernel.value("variance", found) * kernel.value("lengthscale", found).square()
        return (found * factor).to(X.dtype)

    def derivatives(self, X: Tensor, Z: Tensor) -> dict[str, Tensor]:
        kernel = self.bind(X.shape[1])
        distances = kernel._distances(X, Z)
        variance, length = (kernel.value(name, distances[0]) for name in ("variance", "lengthscale"))
        wholes = [remainder(one, 2) for one in distances]
        # d / d length of length^2 r(a / length), with r'(x) = 1 - exp(-x)
        slopes = [2 * whole + one * torch.expm1(-one) for whole, one in zip(wholes, distances, strict=True)]
        by_variance, by_length = (x + z - apart for x, z, apart in (wholes, slopes))
        return {
            "lengthscale": (by_length * (variance * length)).to(X.dtype)[None],
            "variance": (by_variance * length.square()).to(X.dtype)[None],
        }

    def diagonal(self, X: Tensor) -> Tensor:
        kernel = self.bind(X.shape[1])
        length = kernel.value("lengthscale").to(X.device)
        found = 2 * remainder(kernel.active(X.double())[:, 0].abs() / length, 2)
        return (found * (kernel.value("variance", found) * length.square())).to(X.dtype)

    def state_space(self) -> tuple[Component, ...]:
        return (Damped(self.value("variance")[0], self.lengths()[0], self.only_centre()),)


class Oscillator(_OfOneInput):
    """Damped oscillator driven by white noise: cycles that change their amplitude and lose their phase.

    With ``a = 1 / (2 quality)``, ``b = sqrt(1 - a^2)`` and x = 2 pi / period times the distance:
    ``variance exp(-a x) (cos(b x) + (a / b) sin(b x))``. After ``quality / pi`` periods the phase is lost. At a quality
    of 1/2 this is `Matern` of smoothness 3/2, and below that there are no oscillations. For a cycle with a sharp shape
    use a sum of oscillators with the period, half the period, and so on, or `Periodic` times `Matern`.

    Parameters
    ----------
    variance : float, optional
        Default 1.
    period : float, optional
        That of the undamped oscillator, in units of the input. Default 1. The likelihood may have many local optima in
        it: give a good value.
    quality : float, optional
        Half the number of radians until the phase is lost. Default 5.
    columns, fixed, bounds
        As for `RBF`. There must be one active input.

    References
    ----------
    Foreman-Mackey et al. 2017, Fast and scalable Gaussian process modeling with applications to astronomical time
    series, section 4, arXiv:1703.09710.
    """

    shapes: ClassVar[dict[str, bool]] = {"variance": False, "period": True, "quality": False}
    units: ClassVar[dict[str, Unit]] = {"variance": "target", "period": "input", "quality": "none"}
    smoothness = 1.5

    variance = Hyperparameter("Variance, a single number; None if not settled.")
    period = Hyperparameter("Period; None if not settled.")
    quality = Hyperparameter("Quality, a single number; None if not settled.")

    def __init__(
        self,
        variance: ParameterLike = None,
        period: ParameterLike = None,
        quality: ParameterLike = None,
        **options: Unpack[LeafOptions],
    ) -> None:
        super().__init__({"variance": variance, "period": period, "quality": quality}, **options)

    def default(self, name: str, n_active: int) -> float | list[float]:
        return 5.0 if name == "quality" else super().default(name, n_active)

    def _angles(self, X: Tensor, Z: Tensor) -> Tensor:
        apart = (self.active(X.double()) - self.active(Z.double()).T).abs()
        return apart * (2 * math.pi / self.value("period").to(X.device))

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        kernel = self.bind(X.shape[1])
        quality = kernel.value("quality").to(X.device)
        c, d = damped_waves(kernel._angles(X, Z), quality)
        return ((c + 0.5 / quality * d) * kernel.value("variance", c)).to(X.dtype)

    def derivatives(self, X: Tensor, Z: Tensor) -> dict[str, Tensor]:
        kernel = self.bind(X.shape[1])
        x = kernel._angles(X, Z)
        variance, period, quality = (kernel.value(name, x) for name in ("variance", "period", "quality"))
        a = 0.5 / quality
        c, d = damped_waves(x, quality)
        found = {
            "variance": c + a * d,
            "period": x * d * (variance / period),  # of an angle: -d
            "quality": damped_bend(x, c, d, quality) * (-a / quality * variance),
        }
        return {name: one.to(X.dtype)[None] for name, one in found.items()}

    def diagonal(self, X: Tensor) -> Tensor:
        return self.bind(X.shape[1]).value("variance", X).expand(X.shape[0])

    def state_space(self) -> tuple[Component, ...]:
        frequency = 2 * math.pi / self.lengths("period")[0]
        return (Swinging(self.value("variance"), frequency, self.value("quality")),)
