"""The kernel of a categorical column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from gigagp.kernels.arguments import BoundsLike, ParameterLike
from gigagp.kernels.fused import Profile
from gigagp.kernels.radial import RBF
from gigagp.kernels.units import Unit, Units


class Categorical(RBF):
    """Overlap kernel of one-hot columns: ``k = variance * exp(-[x differs from z] / lengthscale^2)``.

    When to use: in a product with a kernel of the numerical inputs, with one factor for each categorical column, such
    as ``Matern(columns=[0, 1]) * Categorical(columns=[2, 3, 4], fixed=["variance"])``. It is an `RBF` of the one-hot
    columns with one lengthscale, since two different categories have the squared distance two. All categories are
    equally far from each other, including rare ones: the columns are never standardized. A long lengthscale means that
    the categories hardly differ, a short one that one category says nothing about another.

    With ``encode="auto"`` of the estimators, ``columns`` is the number of the categorical column itself.

    Parameters
    ----------
    lengthscale : float, optional
        Default 1: the correlation of two categories is ``exp(-1)``.
    variance : float, optional
        Default 1.
    columns : sequence of int, optional
        The one-hot columns of one categorical column; None for all inputs.
    fixed, bounds
        As for `RBF`.
    """

    units: ClassVar[dict[str, Unit]] = {"lengthscale": "none", "variance": "target"}

    def __init__(
        self,
        lengthscale: ParameterLike = None,
        variance: ParameterLike = None,
        *,
        columns: Sequence[int] | None = None,
        fixed: Sequence[str] | bool = (),
        bounds: BoundsLike = None,
    ) -> None:
        super().__init__(lengthscale, variance, ard=False, columns=columns, fixed=fixed, bounds=bounds)

    def default(self, name: str, n_active: int) -> float:
        """Return 1: the distance of two categories does not depend on how many there are."""
        return 1.0

    def fused_profile(self) -> Profile:
        return Profile.RBF

    def frequencies(self, draw: Mapping[str, Tensor]) -> Tensor:
        return super().frequencies(draw)

    def settings(self) -> dict[str, Any]:
        return {name: value for name, value in super().settings().items() if name != "ard"}

    def _weights_in(self, units: Units) -> Tensor:
        """Return the factors that undo the standardization of the columns."""
        return units.scale[self._active_columns(len(units.scale))]
