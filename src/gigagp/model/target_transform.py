"""Monotone transforms of the target, which make a Gaussian model fit targets that are skewed or have heavy tails.

A transform g maps the target y to ``z = g(y)``, which has a Gaussian-process prior and Gaussian noise (Snelson,
Rasmussen and Ghahramani 2003, Warped Gaussian Processes, NIPS 16). Every g here maps onto all real numbers, so that
every number of the model is a value of the target. `gigagp.estimators.choices.transform_learning` finds their
parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np

from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.settings.schema import Form, anything, listing, number, one_of, optional, record, text

#: Target transforms of the estimators.
TargetTransformName = Literal["none", "log", "yeo-johnson", "spline", "auto"]

#: Largest number of knots that a model file may have.
_MOST_KNOTS = 64


@dataclass(frozen=True)
class TargetTransform(ABC):
    """A strictly increasing function of the target, with a continuous derivative."""

    note: str = ""  # how it was chosen, for `GPRegressor.describe`
    #: Sum of `log_derivative` over the targets of the fit, whose rows not all inferences keep. None: unknown, in model
    #: files of earlier versions.
    log_jacobian: float | None = None

    #: value of ``target_transform`` that selects it
    kind: ClassVar[str]
    #: whether its slope changes within less than the noise
    has_pieces: ClassVar[bool] = False

    @abstractmethod
    def forward(self, y: np.ndarray) -> np.ndarray:
        """Return the transformed targets z, of the shape of y."""

    @abstractmethod
    def inverse(self, z: np.ndarray) -> np.ndarray:
        """Return the targets from transformed ones."""

    @abstractmethod
    def log_derivative(self, y: np.ndarray) -> np.ndarray:
        """Return ``log g'(y)``, the logarithm of the Jacobian at each target."""

    @abstractmethod
    def words(self) -> str:
        """Return a description in a few words."""

    @property
    def is_identity(self) -> bool:
        """Whether targets are left as they are."""
        return False

    def check(self, y: np.ndarray, name: str = "y") -> None:  # noqa: B027  # most transforms accept any number
        """Raise `InvalidInputError` for targets that the transform does not allow."""

    def noted(self, note: str) -> Self:
        """Return the transform with another note."""
        return replace(self, note=note)

    def of_targets(self, y: np.ndarray, further: bool = False) -> Self:
        """Return the transform with the Jacobian of targets; ``further`` ones are added to those of the fit."""
        before = self.log_jacobian if further else 0.0
        return replace(self, log_jacobian=None if before is None else before + float(self.log_derivative(y).sum()))

    def to_plain(self) -> dict[str, Any]:
        """Return plain data, which `from_plain` converts back."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class NoTransform(TargetTransform):
    """``z = y``."""

    log_jacobian: float | None = 0.0

    kind = "none"
    is_identity = True

    def forward(self, y: np.ndarray) -> np.ndarray:
        return y

    def inverse(self, z: np.ndarray) -> np.ndarray:
        return z

    def log_derivative(self, y: np.ndarray) -> np.ndarray:
        return np.zeros_like(y)

    def words(self) -> str:
        return "none"


@dataclass(frozen=True)
class Log(TargetTransform):
    """``z = log(y)`` for positive targets, without a shift."""

    kind = "log"

    def forward(self, y: np.ndarray) -> np.ndarray:
        return np.log(y)

    def inverse(self, z: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # callers refuse infinite numbers
            return np.exp(z)

    def log_derivative(self, y: np.ndarray) -> np.ndarray:
        return -np.log(y)

    def words(self) -> str:
        return "log(y)"

    def check(self, y: np.ndarray, name: str = "y") -> None:
        bad = ~(y > 0)
        if bad.any():
            row = int(np.argmax(bad.reshape(len(y), -1).any(1)))
            raise InvalidInputError(
                f'{name} must be positive with target_transform="log"; got {y[bad][0]!r} in row {row + 1} '
                f'({int(bad.sum())} such values). Use "yeo-johnson" or "spline", which allow any number.'
            )


@dataclass(frozen=True)
class YeoJohnson(TargetTransform):
    """``z = c + s psi((y - c) / s)`` with the function psi of Yeo and Johnson 2000, which has one parameter.

    ``psi(t)`` is ``((1 + t)^p - 1) / p`` for t >= 0 and ``(1 - (1 - t)^(2 - p)) / (2 - p)`` for t < 0, with logarithms
    in the limits p = 0 and p = 2. Powers below 1 draw large targets in, powers above 1 small ones; 1 is the identity.

    Attributes
    ----------
    power : float
        p, from 0 to 2. Beyond these limits psi would not reach all real numbers.
    centre, scale : float
        c and s, in the target's units.

    References
    ----------
    Yeo and Johnson 2000, A new family of power transformations to improve normality or symmetry, Biometrika 87,
    954-959, https://doi.org/10.1093/biomet/87.4.954.
    """

    power: float = 1.0
    centre: float = 0.0
    scale: float = 1.0

    kind = "yeo-johnson"

    def forward(self, y: np.ndarray) -> np.ndarray:
        t = (y - self.centre) / self.scale
        size = np.log1p(np.abs(t))
        return self.centre + self.scale * np.where(t >= 0, _power(size, self.power), -_power(size, 2 - self.power))

    def inverse(self, z: np.ndarray) -> np.ndarray:
        v = (z - self.centre) / self.scale
        size = np.abs(v)
        with np.errstate(over="ignore"):  # callers refuse infinite numbers
            return self.centre + self.scale * np.where(v >= 0, _root(size, self.power), -_root(size, 2 - self.power))

    def log_derivative(self, y: np.ndarray) -> np.ndarray:
        t = (y - self.centre) / self.scale
        return (self.power - 1) * np.sign(t) * np.log1p(np.abs(t))

    def words(self) -> str:
        return f"Yeo-Johnson (power {self.power:.3g} about {self.centre:.4g} in units of {self.scale:.4g})"


def _power(size: np.ndarray, power: float) -> np.ndarray:
    """Return ``(e^(power size) - 1) / power``."""
    return size if power == 0 else np.expm1(power * size) / power


def _root(value: np.ndarray, power: float) -> np.ndarray:
    """Return ``e^size - 1`` for the size at which `_power` has a value."""
    return np.expm1(value if power == 0 else np.log1p(power * value) / power)


@dataclass(frozen=True)
class Spline(TargetTransform):
    """A monotone rational-quadratic spline through knots, with straight lines beyond the first and the last one.

    Its derivative is continuous. At a knot it is the weighted harmonic mean of the slopes of both sides, which keeps
    the spline close to its chords; at the ends it is the slope of the last chord.

    Attributes
    ----------
    targets : tuple of float
        Knots, strictly increasing, in the target's units.
    values : tuple of float
        Transformed targets at the knots, strictly increasing.

    References
    ----------
    Gregory and Delbourgo 1982, Piecewise rational quadratic interpolation to monotonic data, IMA Journal of Numerical
    Analysis 2, 123-130, eq. 2.3; Fritsch and Butland 1984, A method for constructing local monotone piecewise cubic
    interpolants, SIAM Journal on Scientific and Statistical Computing 5, 300-304 (the derivatives).
    """

    targets: tuple[float, ...] = (0.0, 1.0)
    values: tuple[float, ...] = (0.0, 1.0)

    kind = "spline"
    has_pieces = True

    @cached_property
    def _pieces(self) -> tuple[np.ndarray, ...]:
        """Knots x and z, slopes of the pieces, and derivatives at the knots."""
        x, z = np.array(self.targets), np.array(self.values)
        widths = np.diff(x)
        slopes = np.diff(z) / widths
        left, right = widths[:-1], widths[1:]
        inner = 3 * (left + right) / ((2 * right + left) / slopes[:-1] + (right + 2 * left) / slopes[1:])
        return x, z, slopes, np.concatenate([slopes[:1], inner, slopes[-1:]])

    def forward(self, y: np.ndarray) -> np.ndarray:
        x, z, slopes, ends = self._pieces
        k, share = self._place(y, x)
        between = share * (1 - share)
        bend = slopes[k] + (ends[k] + ends[k + 1] - 2 * slopes[k]) * between
        inside = z[k] + (z[k + 1] - z[k]) * (slopes[k] * share**2 + ends[k] * between) / bend
        return np.where(
            y < x[0], z[0] + ends[0] * (y - x[0]), np.where(y > x[-1], z[-1] + ends[-1] * (y - x[-1]), inside)
        )

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """Return the targets; within a piece, the root of a quadratic equation."""
        k = np.searchsorted(np.array(self.values), z, side="right")
        value, x, width, curve, rise, bend, slope = (one[k] for one in self._inverse_pieces)
        above = z - value
        turned = above * bend
        b, c = rise - turned, slope * above
        return x + width * (2 * c / (b + np.sqrt(np.maximum(b * b + 4 * (curve + turned) * c, 0.0))))

    @cached_property
    def _inverse_pieces(self) -> np.ndarray:
        """What `inverse` needs of each piece, (7, pieces); the lines beyond the knots are the first and the last."""
        x, values, slopes, ends = self._pieces
        height, bend = np.diff(values), ends[:-1] + ends[1:] - 2 * slopes
        inner = values[:-1], x[:-1], np.diff(x), height * (slopes - ends[:-1]), height * ends[:-1], bend, slopes
        lines = ([values[end], x[end], 1 / ends[end], 0.0, 1.0, 0.0, 1.0] for end in (0, -1))
        first, last = (np.array(line)[:, None] for line in lines)
        return np.concatenate([first, np.stack(inner), last], 1)

    def log_derivative(self, y: np.ndarray) -> np.ndarray:
        x, _, slopes, ends = self._pieces
        k, share = self._place(y, x)
        between = share * (1 - share)
        bend = slopes[k] + (ends[k] + ends[k + 1] - 2 * slopes[k]) * between
        rise = ends[k + 1] * share**2 + 2 * slopes[k] * between + ends[k] * (1 - share) ** 2
        # Outside, the share is 0 or 1 and this is the slope of the end.
        return 2 * np.log(slopes[k] / bend) + np.log(rise)

    @staticmethod
    def _place(values: np.ndarray, knots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the piece of each value, and its place in it from 0 to 1."""
        k = np.clip(np.searchsorted(knots, values, side="right") - 1, 0, len(knots) - 2)
        return k, np.clip((values - knots[k]) / (knots[k + 1] - knots[k]), 0.0, 1.0)

    def words(self) -> str:
        slopes = self._pieces[2]
        return f"monotone spline ({len(self.targets)} knots, slopes from {slopes.min():.3g} to {slopes.max():.3g})"


_KINDS: dict[str, type[TargetTransform]] = {item.kind: item for item in (NoTransform, Log, YeoJohnson, Spline)}
_finite = number(finite=True)
_knots = listing(_finite)
_FORMS: dict[str, dict[str, Form]] = {
    "none": {},
    "log": {},
    "yeo-johnson": {"power": _finite, "centre": _finite, "scale": number(finite=True, positive=True)},
    "spline": {"targets": _knots, "values": _knots},
}


def from_plain(data: Any, where: str = "the header.target_transform") -> TargetTransform:
    """Return the transform from the plain data of a model file, which are checked."""
    record({"kind": one_of(*_KINDS), "note": text}, {"log_jacobian": optional(_finite)})(data, where)
    kind = data["kind"]
    forms = _FORMS[kind]
    record(forms)(data, where)
    if kind == "yeo-johnson" and not 0 <= data["power"] <= 2:
        raise ModelFileError(f"{where}.power must be a number from 0 to 2; got {data['power']!r}.")
    if kind == "spline":
        x, z = (np.array(data[name], dtype=float) for name in ("targets", "values"))
        if not 2 <= len(x) == len(z) <= _MOST_KNOTS:
            msg = f"{where} must have 2 to {_MOST_KNOTS} knots and as many values; got {len(x)} and {len(z)}."
            raise ModelFileError(msg)
        with np.errstate(all="ignore"):
            widths, heights = np.diff(x), np.diff(z)
            slopes = heights / widths
        if not ((widths > 0) & (heights > 0) & np.isfinite(slopes) & (slopes > 0)).all():
            raise ModelFileError(f"{where}.targets and its values must be strictly increasing.")
    values = {name: data[name] for name in forms}
    plain = {name: tuple(map(float, v)) if isinstance(v, list) else float(v) for name, v in values.items()}
    return _KINDS[kind](data["note"], 0.0 if kind == "none" else data.get("log_jacobian"), **plain)


def restored(header: Mapping[str, Any], n_targets: int, *, may_transform: bool) -> TargetTransform:
    """Return the transform of a model file, which is there if the settings ask for one."""
    setting = header["settings"].get("target_transform", "none")
    one_of("none", "log", "yeo-johnson", "spline", "auto")(setting, "the header.settings.target_transform")
    if setting == "none" and "target_transform" not in header:
        return NoTransform()
    record({"target_transform": anything})(dict(header), "the header")
    found = from_plain(header["target_transform"])
    if setting not in ("auto", found.kind):
        msg = f"the header.target_transform.kind must be that of the settings, {setting!r}; got {found.kind!r}."
        raise ModelFileError(msg)
    if not found.is_identity and (n_targets != 1 or not may_transform):
        raise ModelFileError(
            "the header.target_transform must be none for this likelihood, noise or number of targets."
        )
    return found
