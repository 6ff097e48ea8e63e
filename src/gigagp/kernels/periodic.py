"""Kernels of periodic functions and of oscillations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gigagp.kernels.arguments import BoundsLike, ParameterLike
from gigagp.kernels.distances import squared_distances
from gigagp.kernels.leaf import Hyperparameter, Leaf
from gigagp.kernels.state_space import Component, Resting, Turning
from gigagp.kernels.units import Unit
from gigagp.settings.indexed_random import IndexedDraws
from gigagp.settings.random import standard_normal

#: Largest number of waves by which a periodic kernel is represented, the share of its variance that they may miss, and
#: the angles at which it is looked at for that.
_MOST_HARMONICS, _MISSING, _ANGLES = 32, 1e-12, 256


class Periodic(Leaf):
    """Periodic kernel: ``k = variance * exp(-2 sum_k sin^2(pi (x_k - z_k) / period_k) / lengthscale_k^2)``.

    This is `RBF` on a circle, onto which ``[cos, sin](2 pi x / period)`` maps each input. With one input it is
    scikit-learn's ``ExpSineSquared``. Multiply by `RBF` for a pattern that changes slowly.

    Parameters
    ----------
    lengthscale : float or array-like, optional
        In units of the circle's radius, one for all or one for each active input. Default: the square root of the
        number of active inputs.
    variance : float, optional
        Default 1.
    period : float or array-like, optional
        One for all or one for each active input, in units of the inputs. Default 1. The likelihood has many local
        optima in it: give a good value.
    ard : bool
        Whether every active input has its own lengthscale and period.
    columns, fixed, bounds
        As for `RBF`.

    References
    ----------
    MacKay 1998, Introduction to Gaussian processes; Rasmussen and Williams 2006, eq. 4.31, http://gaussianprocess.org/gpml/
    """

    shapes: ClassVar[dict[str, bool]] = {"lengthscale": True, "variance": False, "period": True}
    units: ClassVar[dict[str, Unit]] = {"lengthscale": "none", "variance": "target", "period": "input"}
    has_spectrum: ClassVar[bool] = True
    words: ClassVar[dict[str, dict[str, Any]]] = {"periodic": {}}

    lengthscale = Hyperparameter("Lengthscales; None if not settled.")
    variance = Hyperparameter("Variance, a single number; None if not settled.")
    period = Hyperparameter("Periods; None if not settled.")

    def __init__(
        self,
        lengthscale: ParameterLike = None,
        variance: ParameterLike = None,
        period: ParameterLike = None,
        *,
        ard: bool = True,
        columns: Sequence[int] | None = None,
        fixed: Sequence[str] | bool = (),
        bounds: BoundsLike = None,
    ) -> None:
        super().__init__(
            {"lengthscale": lengthscale, "variance": variance, "period": period},
            ard=ard,
            columns=columns,
            fixed=fixed,
            bounds=bounds,
        )

    def embed(self, X: Tensor) -> Tensor:
        """Return points on circles in units of the lengthscales, shape (n, 2 * number of active inputs)."""
        angle = self.active(X) * (2 * math.pi / self.by_input("period", X))
        lengthscale = self.by_input("lengthscale", X)
        return torch.cat([torch.cos(angle) / lengthscale, torch.sin(angle) / lengthscale], dim=1)

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        kernel = self.bind(X.shape[1])
        left = kernel.embed(X.to(torch.float64))
        right = left if Z is X else kernel.embed(Z.to(torch.float64))
        return torch.exp(-0.5 * squared_distances(left, right).to(X.dtype)) * kernel.value("variance", X)

    def derivatives(self, X: Tensor, Z: Tensor) -> dict[str, Tensor] | None:
        """Return the derivatives of `block` for one active input; None for several."""
        kernel = self.bind(X.shape[1])
        if kernel.n_active != 1:
            return None
        x, z = kernel.active(X.double()), kernel.active(Z.double()).T
        period, length = (kernel.by_input(name, x) for name in ("period", "lengthscale"))
        angle = (x - z) * (2 * math.pi / period)
        bow = 2 * (0.5 * angle).sin().square()  # 1 - cos
        shape = torch.exp(-bow / length.square())
        whole = shape * kernel.value("variance", x)
        found = {
            "lengthscale": whole * bow * (2 / length**3),
            "variance": shape,
            "period": whole * angle * angle.sin() / (length.square() * period),
        }
        return {name: one.to(X.dtype)[None] for name, one in found.items()}

    def diagonal(self, X: Tensor) -> Tensor:
        return self.bind(X.shape[1]).value("variance", X).expand(X.shape[0])

    def harmonics(self) -> Tensor:
        """Return the variances of the constant and of the waves of 1, 2, ... in a period, for one input, (J + 1,).

        There are as many waves as it takes to miss less than 1e-12 of the variance, 11 for a lengthscale of 1, and at
        most 32. `missing_share` is what they miss.
        """
        sharpness = self.by_input("lengthscale")[0] ** -2
        angle = torch.arange(_ANGLES, dtype=torch.float64) * (2 * math.pi / _ANGLES)
        around = torch.exp(sharpness * (torch.cos(angle) - 1))
        waves = torch.cos(angle[:, None] * torch.arange(_MOST_HARMONICS + 1, dtype=torch.float64))
        shares = (2 / _ANGLES * (around @ waves)).clamp_min(0.0)  # tiny ones round
        shares = torch.cat([shares[:1] / 2, shares[1:]])
        missing = 1 - shares.detach().cumsum(0)
        count = int((missing > _MISSING).sum())
        return self.value("variance") * shares[: min(count, _MOST_HARMONICS) + 1]

    def missing_share(self) -> float:
        """Return the share of the variance that `harmonics` miss, which bounds the error of every covariance."""
        return max(0.0, 1 - float(self.harmonics().sum() / self.value("variance")))

    def state_space(self) -> tuple[Component, ...]:
        """Return a state for each of the `harmonics` (Solin and Sarkka 2014)."""
        constant, *waves = self.harmonics()
        period = self.lengths("period")[0]
        return (Resting(constant), *(Turning(wave, period / k) for k, wave in enumerate(waves, 1)))

    def draw_frequencies(self, n_frequencies: int, generator: torch.Generator, law: str) -> dict[str, Tensor]:
        return {"normal": standard_normal(n_frequencies, 2 * self.n_active, generator=generator)}

    def draw_at(self, numbers: IndexedDraws) -> dict[str, Tensor]:
        return {"normal": numbers.normal(2 * self.n_active)}

    def amplitude_and_phase(self, X: Tensor, draw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        points = self.embed(X.to(torch.float64)).to(X.dtype)  # float64 first: angles can be many turns
        return self.value("variance", X).sqrt(), points @ draw["normal"].to(dtype=X.dtype, device=X.device).T


class Cosine(Leaf):
    """Cosine kernel: ``k = variance * prod_k cos(2 pi (x_k - z_k) / period_k)``.

    Its functions are waves of the given periods with random amplitudes and phases. Multiply by `RBF` or `Matern` for an
    oscillation that loses its phase after a lengthscale, such as sound, vibrations and irregular seasons. A spectral
    mixture has several such terms. `Periodic` repeats any shape, but unlike `Cosine` it never makes points half a
    period apart correlate negatively.

    Parameters
    ----------
    variance : float, optional
        Default 1.
    period : float or array-like, optional
        One for all or one for each active input, in units of the inputs. Default 1. The likelihood has many local
        optima in it: give a good value.
    ard : bool
        Whether every active input has its own period.
    columns, fixed, bounds
        As for `RBF`.

    References
    ----------
    Wilson and Adams 2013, Gaussian process kernels for pattern discovery and extrapolation, arXiv:1302.4245.
    """

    shapes: ClassVar[dict[str, bool]] = {"variance": False, "period": True}
    units: ClassVar[dict[str, Unit]] = {"variance": "target", "period": "input"}
    has_spectrum: ClassVar[bool] = True
    smoothness = math.inf

    variance = Hyperparameter("Variance, a single number; None if not settled.")
    period = Hyperparameter("Periods; None if not settled.")

    def __init__(
        self,
        variance: ParameterLike = None,
        period: ParameterLike = None,
        *,
        ard: bool = True,
        columns: Sequence[int] | None = None,
        fixed: Sequence[str] | bool = (),
        bounds: BoundsLike = None,
    ) -> None:
        super().__init__({"variance": variance, "period": period}, ard=ard, columns=columns, fixed=fixed, bounds=bounds)

    def angles(self, X: Tensor) -> Tensor:
        """Return ``2 pi x / period``, shape (n, number of active inputs), in float64: angles can be many turns."""
        return self.active(X.to(torch.float64)) * (2 * math.pi / self.by_input("period").to(X.device))

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        kernel = self.bind(X.shape[1])
        left, right = kernel.angles(X), kernel.angles(Z)
        product = torch.cos(left[:, None, 0] - right[None, :, 0])
        for k in range(1, left.shape[1]):
            product = product * torch.cos(left[:, None, k] - right[None, :, k])
        return product.to(X.dtype) * kernel.value("variance", X)

    def diagonal(self, X: Tensor) -> Tensor:
        return self.bind(X.shape[1]).value("variance", X).expand(X.shape[0])

    def state_space(self) -> tuple[Component, ...]:
        return (Turning(self.value("variance"), self.lengths("period")[0]),)

    def draw_frequencies(self, n_frequencies: int, generator: torch.Generator, law: str) -> dict[str, Tensor]:
        """Return random signs, because the spectrum has one line for each choice of signs."""
        return {"sign": standard_normal(n_frequencies, self.n_active, generator=generator).sign()}

    def draw_at(self, numbers: IndexedDraws) -> dict[str, Tensor]:
        return {"sign": numbers.normal(self.n_active).sign()}

    def amplitude_and_phase(self, X: Tensor, draw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        return self.value("variance", X).sqrt(), self.angles(X).to(X.dtype) @ draw["sign"].to(X).T
