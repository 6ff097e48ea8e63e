"""What the candidates have in common when the kernel is chosen from the data: inputs and metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gigagp.kernels.geometry import MetricName
from gigagp.kernels.radial import RBF, Matern
from gigagp.settings.fields import CountOrZero, Settings


@dataclass(frozen=True)
class Chosen(Settings):
    """Choose the kernel from the data, among kernels of these inputs with this metric.

    When to use: if ``kernel=None`` would choose among the wrong kernels. ``GPRegressor(kernels.Chosen(ard=False))`` is
    for inputs in the same unit, such as eastings and northings, and ``kernels.Chosen(metric="haversine")`` for
    longitudes and latitudes. If nothing is chosen, as for very few rows, the kernel is the ``default`` of this form.
    With two inputs and ``ard=False``, kernels with a direction (``metric="rotated"``) are tried too.

    Parameters
    ----------
    ard : bool, default True
        Whether every input has its own lengthscale.
    columns : sequence of int, optional
        The inputs that the kernel depends on; None for all.
    metric : {"euclidean", "haversine", "rotated"}
        As for `Matern`.
    default : {"matern32", "rbf"}, default "matern32"
        The kernel that is kept unless another is clearly better: ``kernels.Matern(nu=1.5)``, or ``kernels.RBF()``, the
        default of `GPClassifier`.
    """

    ard: bool = True
    columns: tuple[CountOrZero, ...] | None = None
    metric: MetricName = "euclidean"
    default: Literal["matern32", "rbf"] = "matern32"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.plain()  # which refuses what does not go together

    def plain(self) -> Matern | RBF:
        """Return the kernel that the others are compared with."""
        if self.default == "rbf":
            return RBF(ard=self.ard, columns=self.columns, metric=self.metric)
        return Matern(nu=1.5, ard=self.ard, columns=self.columns, metric=self.metric)


def plain_kernel(chosen: object) -> Matern | RBF:
    """Return the kernel that others are compared with where a kernel is left to the data, by a rule or by `Chosen`."""
    return chosen.plain() if isinstance(chosen, Chosen) else Matern(nu=1.5)


def is_open(kernel: object) -> bool:
    """Whether an argument ``kernel`` leaves the kernel to the data wherever it can be chosen."""
    return kernel is None or isinstance(kernel, Chosen)
