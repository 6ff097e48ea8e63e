"""Kernels of the scaled distance: radial basis function, Matern and rational quadratic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Unpack

import torch
from torch import Tensor

from gigagp.kernels.arguments import ParameterLike, StationaryOptions
from gigagp.kernels.fused import Profile
from gigagp.kernels.leaf import Hyperparameter
from gigagp.kernels.spectral import lower_gamma_quantile, upper_gamma_quantile
from gigagp.kernels.state_space import Component, Relaxing
from gigagp.kernels.stationary import StationaryKernel
from gigagp.kernels.units import Unit
from gigagp.settings.fields import OneOf, Remedy, Words, checked
from gigagp.settings.indexed_random import IndexedDraws

#: Half-integers have closed forms.
_Smoothness = Annotated[
    float, OneOf(0.5, 1.5, 2.5), Words("0.5, 1.5 or 2.5"), Remedy("Use RBF for the limit of large nu.")
]
#: A rational quadratic with a larger exponent equals the `RBF` to twelve digits.
_LARGEST_EXPONENT = 1e12


class RBF(StationaryKernel):
    """Radial basis function (squared exponential): ``k = variance * exp(-q / 2)``.

    Here q is the sum of the squared distances along the inputs, each divided by its squared lengthscale. Functions are
    infinitely smooth. Real data are seldom that smooth: `Matern` is the better first choice, and its matrices are
    better conditioned.

    Parameters
    ----------
    lengthscale : float or array-like, optional
        One for all inputs or one for each active input. Default: the square root of the number of active inputs.
    variance : float, optional
        Default 1.
    ard : bool
        Whether every active input has its own lengthscale.
    columns : sequence of int, optional
        The inputs that the kernel depends on; None for all.
    fixed : sequence of str or bool
        Names of hyperparameters that are not learned; True for all.
    bounds : mapping of str to (lower, upper), optional
        The range allowed in learning, such as ``{"lengthscale": (0.1, 10.0)}``: in the units of the value, one number
        or one for each active input, None where there is no bound. Every optimizer respects them.
    metric : {"euclidean", "haversine", "rotated"}
        How distances between points are measured.

        - ``"euclidean"``: that of the inputs, each in units of its lengthscale.
        - ``"haversine"``: that of points on the Earth. The first two active inputs are longitude and latitude in
          degrees, in this order; longitudes may run from -180 to 180 or from 0 to 360. They share one lengthscale,
          which is in **kilometres** and comes first. Distances are chords through the Earth, for which kernels of any
          smoothness are positive definite: ``2 R sin(s / 2 R)`` for a great-circle distance s and the radius R of 6371
          km. The chord is 0.1 % shorter at 1000 km, 1 % at 3,100 km and 10 % at 10,000 km.
        - ``"rotated"``: that of the inputs after rotating the axes of the first two by `angle`. Their lengthscales, the
          first two, are along and across this direction. Both inputs must be in the same unit.

        Further active inputs, such as time, have their own lengthscales.
    angle : float, optional
        Only for ``metric="rotated"``: the direction of the first lengthscale in degrees, counterclockwise from the axis
        of the first active input to that of the second. It is learned. Directions repeat after 180 degrees, so the
        default, 180, means 0; the value must be positive.
    """

    words: ClassVar[dict[str, dict[str, Any]]] = {"rbf": {}}
    smoothness = math.inf

    @property
    def distance_factor(self) -> float:
        return 0.5

    def profile(self, q: Tensor) -> Tensor:
        return torch.exp(-0.5 * q)

    def profile_(self, p: Tensor) -> Tensor:
        return p.neg_().exp_()

    def profile_derivatives_(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        g = p.neg_().exp_()
        return g, g.neg(), None

    def fused_profile(self) -> Profile:
        return Profile.RBF

    def draw_at(self, numbers: IndexedDraws) -> dict[str, Tensor]:
        """Return the same by index; without a tail, because the normal draws are frequencies already."""
        weight = torch.ones(1, 1, dtype=torch.float64, device=numbers.index.device)
        return {"normal": numbers.normal(self.n_coordinates), "weight": weight}

    def frequencies(self, draw: Mapping[str, Tensor]) -> Tensor:
        """Return normal draws: their directions, and lengths from chi-square quantiles with one degree an input."""
        normal = draw["normal"]
        if "tail" not in draw:
            return normal
        squared_length = 2.0 * upper_gamma_quantile(draw["tail"], torch.tensor(0.5 * normal.shape[1]))
        return normal / normal.norm(dim=1, keepdim=True) * squared_length.sqrt()


class Matern(StationaryKernel):
    """Matern kernel of smoothness 1/2, 3/2 or 5/2.

    With ``t = sqrt(2 nu q)`` and the q of `RBF`: ``exp(-t)``, ``(1 + t) exp(-t)``, ``(1 + t + t^2 / 3) exp(-t)``, times
    the variance.

    Parameters
    ----------
    nu : {0.5, 1.5, 2.5}
        Functions are continuous (0.5), once (1.5) or twice (2.5) differentiable in mean square.
    lengthscale, variance, ard, columns, fixed, bounds, metric, angle
        As for `RBF`.

    References
    ----------
    Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, eq. 4.14 and 4.17,
    http://gaussianprocess.org/gpml/
    """

    words: ClassVar[dict[str, dict[str, Any]]] = {
        "matern12": {"nu": 0.5},
        "matern32": {"nu": 1.5},
        "matern52": {"nu": 2.5},
    }

    def __init__(
        self,
        nu: float = 1.5,
        lengthscale: ParameterLike = None,
        variance: ParameterLike = None,
        **options: Unpack[StationaryOptions],
    ) -> None:
        self._nu: float = checked(nu, _Smoothness, "nu", "Matern")
        super().__init__(lengthscale, variance, **options)

    @property
    def nu(self) -> float:
        """The smoothness."""
        return self._nu

    @property
    def smoothness(self) -> float:  # type: ignore[override]
        """The number nu."""
        return self._nu

    @property
    def kink(self) -> bool:  # type: ignore[override]
        """Whether this is Matern-1/2."""
        return self._nu == 0.5

    @property
    def distance_factor(self) -> float:
        """The number 2 nu, so that p = t^2."""
        return 2.0 * self._nu

    def profile(self, q: Tensor) -> Tensor:
        return matern_profile(q * self.distance_factor, int(self._nu))

    def profile_(self, p: Tensor) -> Tensor:
        t = p.sqrt_()
        e = t.neg().exp_()
        if self._nu == 0.5:
            return e
        if self._nu == 1.5:
            return e.addcmul_(e, t)
        return t.addcmul_(t, t, value=1 / 3).add_(1).mul_(e)

    def profile_derivatives_(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        t = p.sqrt_()
        e = t.neg().exp_()
        # d/dp of the profile of order j is -1 / (4 j - 2) times that of order j - 1, for p = t^2 and j = nu - 1/2
        if self._nu == 0.5:
            slope = torch.div(e, t, out=t).mul_(-0.5)
            return e, slope.masked_fill_(slope == -torch.inf, 0.0), None
        if self._nu == 1.5:
            return torch.addcmul(e, e, t, out=t), e.mul_(-0.5), None
        slope = torch.addcmul(e, e, t)
        g = t.mul_(t).mul_(e).div_(3).add_(slope)
        return g, slope.mul_(-1 / 6), None

    def fused_profile(self) -> Profile:
        return {0.5: Profile.MATERN_12, 1.5: Profile.MATERN_32, 2.5: Profile.MATERN_52}[self._nu]

    def state_space(self) -> tuple[Component, ...]:
        rate = math.sqrt(2 * self._nu) / self.lengths()[0]
        return (Relaxing(self.value("variance"), rate, int(self._nu)),)

    def draw_frequencies(self, n_frequencies: int, generator: torch.Generator, law: str) -> dict[str, Tensor]:
        """Return directions, tail probabilities and weights.

        All coordinates of a frequency share one chi-square draw (Rasmussen and Williams 2006, eq. 4.15). The
        independent law draws one for each coordinate, which is another kernel for more than one input. It is kept under
        its own name to reproduce the numbers of Lin et al. 2024.
        """
        draw = super().draw_frequencies(n_frequencies, generator, law)
        if law == "independent":
            draw["tail"] = torch.rand(draw["normal"].shape, generator=generator, dtype=torch.float64)
        return draw

    def frequencies(self, draw: Mapping[str, Tensor]) -> Tensor:
        """Return multivariate t draws with 2 nu degrees of freedom."""
        chi_square = 2.0 * lower_gamma_quantile(draw["tail"], torch.tensor(self._nu))
        return draw["normal"] * (2.0 * self._nu / chi_square).sqrt()


class RationalQuadratic(StationaryKernel):
    """Rational quadratic: ``k = variance * (1 + q / (2 alpha))^(-alpha)``, a mixture of `RBF` of many lengthscales.

    Parameters
    ----------
    lengthscale, variance, ard, columns, fixed, bounds, metric, angle
        As for `RBF`.
    alpha : float, optional
        Small values mix more lengthscales, large ones approach `RBF`. Default 1.

    References
    ----------
    Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, eq. 4.19, http://gaussianprocess.org/gpml/
    """

    shapes: ClassVar[dict[str, bool]] = {"lengthscale": True, "variance": False, "alpha": False}
    units: ClassVar[dict[str, Unit]] = {"lengthscale": "input", "variance": "target", "alpha": "none"}
    words: ClassVar[dict[str, dict[str, Any]]] = {"rq": {}}

    alpha = Hyperparameter("Mixing exponent, a single number; None if not settled.")

    def __init__(
        self,
        lengthscale: ParameterLike = None,
        variance: ParameterLike = None,
        alpha: ParameterLike = None,
        **options: Unpack[StationaryOptions],
    ) -> None:
        super().__init__(lengthscale, variance, alpha=alpha, **options)

    @property
    def distance_factor(self) -> float:
        return 0.5 / float(self.exponent())

    def exponent(self, like: Tensor | None = None) -> Tensor:
        """Return alpha, clipped where covariances no longer change with it."""
        return self.value("alpha", like).clamp_max(_LARGEST_EXPONENT)

    def profile(self, q: Tensor) -> Tensor:
        alpha = self.exponent(q)
        return torch.exp(-alpha * torch.log1p(q / (2 * alpha)))

    def profile_(self, p: Tensor) -> Tensor:
        return p.log1p_().mul_(-float(self.exponent())).exp_()

    def profile_derivatives_(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        alpha = float(self.exponent())
        logarithm = torch.log1p(p)
        g = torch.mul(logarithm, -alpha).exp_()
        slope = torch.div(g, p + 1)  # g / (1 + p)
        # dg/dalpha at fixed q, where p = q / (2 alpha): g (p / (1 + p) - log(1 + p))
        by_alpha = p.mul_(slope).sub_(logarithm.mul_(g))
        return g, slope.mul_(-alpha), by_alpha

    def fused_profile(self) -> Profile:
        return Profile.RATIONAL_QUADRATIC

    def fused_alpha(self) -> float:
        return float(self.exponent())

    def frequencies(self, draw: Mapping[str, Tensor]) -> Tensor:
        """Return normals times the root of gamma draws of shape and rate alpha.

        The gamma draws come through the inverse distribution function, so that they move smoothly with alpha and are
        differentiable in it.
        """
        alpha = self.exponent()
        # clamped: at alpha below 0.05 a draw can leave the range of float64, where the root has no slope
        return draw["normal"] * (upper_gamma_quantile(draw["tail"], alpha).clamp_min(1e-300) / alpha).sqrt()


# Profiles of kernels that need their own derivatives ---------------------------------------------------------------


class _Matern(torch.autograd.Function):
    """The Matern profile of order j = nu - 1/2 as a function of p = t^2.

    Autograd through ``sqrt`` gives 0 * inf = NaN at p = 0, although every profile but the first is smooth there: its
    derivative is a multiple of the next rougher profile. With the derivative in this form, first derivatives are right
    everywhere, and so are second derivatives in the inputs.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, order: int) -> Tensor:
        t = p.sqrt()
        e = torch.exp(-t)
        if order == 0:
            return e
        return e * (1 + t) if order == 1 else e * (1 + t + p / 3)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        p, ctx.order = inputs
        ctx.save_for_backward(p)
        ctx.save_for_forward(p)

    @staticmethod
    def slope(p: Tensor, order: int) -> Tensor:
        if order > 0:
            return matern_profile(p, order - 1) / (2 - 4 * order)
        # Matern-1/2 has a kink. Its slope is taken as 0 at coincident points, where it is multiplied by zero.
        apart = p > 0
        t = torch.where(apart, p, torch.ones_like(p)).sqrt()
        return torch.where(apart, -0.5 * torch.exp(-t) / t, torch.zeros_like(t))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (p,) = ctx.saved_tensors
        return gradients[0] * _Matern.slope(p, ctx.order), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (p,) = ctx.saved_tensors
        return tangents[0] * _Matern.slope(p, ctx.order)


def matern_profile(p: Tensor, order: int) -> Tensor:
    """Return the Matern profile of order nu - 1/2 (0, 1 or 2) at ``p = 2 nu q``, with finite derivatives at p = 0."""
    return _Matern.apply(p, order)
