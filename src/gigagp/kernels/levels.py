"""The kernel of a column of levels that know nothing of each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gigagp.kernels.arguments import BoundsLike, ParameterLike, checked_fixed
from gigagp.kernels.fused import Profile
from gigagp.kernels.radial import RBF
from gigagp.kernels.units import Unit, Units

#: Lengthscale at which the correlation of two whole numbers is below 1e-86.
_APART = 0.05


class Levels(RBF):
    """Independent levels: ``k = variance`` where two rows have the same number in a column, and 0 elsewhere.

    When to use: for a part of the model of each entity's own, where a column has the number of the entity: alone it is
    an offset of each, and times a kernel of the other inputs it is a function of each. Beside parts that all entities
    share, a new entity (another whole number) is predicted from these, with the variance of its own part. The numbers
    are whole, and any of them will do.

    The covariance is that of an `RBF` with a lengthscale of a twentieth, so that it has random features and runs on all
    engines.

    Parameters
    ----------
    variance : float, optional
        Default 1.
    columns : sequence of int
        The column with the number of the level.
    lengthscale : float, optional
        Never learned.
    fixed, bounds
        As for `RBF`.
    """

    units: ClassVar[dict[str, Unit]] = {"lengthscale": "none", "variance": "target"}

    def __init__(
        self,
        variance: ParameterLike = None,
        *,
        columns: Sequence[int],
        lengthscale: ParameterLike = None,
        fixed: Sequence[str] | bool = (),
        bounds: BoundsLike = None,
    ) -> None:
        held = checked_fixed(fixed, self.shapes, "Levels") | {"lengthscale"}
        super().__init__(lengthscale, variance, ard=False, columns=columns, fixed=tuple(held), bounds=bounds)

    def default(self, name: str, n_active: int) -> float:
        return _APART if name == "lengthscale" else 1.0

    def fused_profile(self) -> Profile:
        return Profile.RBF

    def settings(self) -> dict[str, Any]:
        return {name: value for name, value in super().settings().items() if name != "ard"}

    def _weights_in(self, units: Units) -> Any:
        """Return the factors that undo the standardization of the column."""
        return units.scale[self._active_columns(len(units.scale))]
