"""What a series may be made of: trends, seasons and cycles as kernels, and transforms of its values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Literal

import numpy as np
from scipy.stats import chi2

from gigagp.forecasting.times import Periods
from gigagp.kernels import DampedTrend, IntegratedWiener, Kernel, Linear, Matern, Oscillator, Periodic
from gigagp.model.target_transform import Log, NoTransform, TargetTransform, YeoJohnson

#: Rows below which only the simplest trends are tried.
_FEW = 12
#: Oversampling of the spectrum in which cycles are looked for, and fewest cycles that a series must show.
_FINE, _FEWEST_CYCLES = 4, 3
#: Probability that white noise has a peak as high as one that counts as a period.
_FALSE_ALARM = 0.01
#: Steps of a period up to which the smoothness of a season is not learned: so few points hardly tell it.
_SHORT = 8


@dataclass(frozen=True)
class Candidate:
    """A mean, a kernel in named parts, and a transform of the values."""

    name: str
    mean: Literal["constant", "linear"]
    parts: tuple[tuple[str, Kernel], ...]  # what each part is called among the components, in the order of the sum
    transform: TargetTransform = field(default_factory=NoTransform)

    @property
    def kernel(self) -> Kernel:
        """The sum of the parts."""
        return reduce(add, [kernel for _, kernel in self.parts])

    @property
    def periods(self) -> tuple[float, ...]:
        """The periods of the seasons, in steps."""
        periods = [leaf.period for leaf in self.kernel.leaves() if isinstance(leaf, Periodic)]
        return tuple(float(period) for period in periods if period is not None)

    def __str__(self) -> str:
        """Return the parts in words."""
        seasons = [name for name, _ in self.parts if name.startswith("season")]
        return ", ".join(
            [f"{self.transform.kind} of the values"] * (self.transform.kind != "none") + [self.name, *seasons]
        )

    def plus(self, parts: Sequence[tuple[str, Kernel]]) -> Candidate:
        """Return the candidate with further parts."""
        return replace(self, parts=(*self.parts, *parts))


def trends(n_steps: float, n_rows: int, cycle: float | None) -> Iterator[Candidate]:
    """Yield the candidates without a season for a series of so many steps; the first is the reference."""
    wander = Matern(0.5, lengthscale=n_steps / 3)
    bend = Matern(1.5, lengthscale=n_steps / 8)
    rest = "rest", Matern(0.5, lengthscale=3.0)
    yield Candidate("smooth drift", "linear", (("trend", bend),))
    yield Candidate("drift", "linear", (("trend", wander),))
    yield Candidate("level", "constant", (("trend", wander),))
    if n_rows < _FEW:
        return
    yield Candidate("smooth level", "constant", (("trend", bend),))
    yield Candidate("damped trend", "constant", (("trend", DampedTrend()),))
    yield Candidate("damped trend and rest", "constant", (("trend", DampedTrend()), rest))
    yield Candidate("local trend", "linear", (("trend", IntegratedWiener()),))
    yield Candidate("local trend and rest", "linear", (("trend", IntegratedWiener()), rest))
    if cycle is not None:
        swing = "cycle", Oscillator(period=cycle, quality=5.0)
        yield Candidate("cycle", "constant", (swing,))
        yield Candidate("cycle and level", "constant", (swing, ("trend", wander)))


def season(period: float, n_steps: float, variance: float) -> tuple[str, Kernel]:
    """Return a season of a period, whose shape moves slowly."""
    is_short = period <= _SHORT
    fixed = ["period", "lengthscale"] if is_short else ["period"]
    shape = Periodic(lengthscale=0.6 if is_short else 1.0, variance=variance, period=period, fixed=fixed)
    slow = Matern(0.5, lengthscale=n_steps, variance=1.0, fixed=["variance"])
    return f"season of {period:g}", shape * slow


def covariates(n_covariates: int) -> list[tuple[str, Kernel]]:
    """Return the part that is linear in known covariates, the columns after the time."""
    return [("covariates", Linear(columns=list(range(1, n_covariates + 1))))] if n_covariates else []


def transforms(y: np.ndarray) -> tuple[TargetTransform, ...]:
    """Return the transforms that values allow, the identity first."""
    if (y > 0).all():
        return NoTransform(), Log(), YeoJohnson(power=0.5, centre=0.0, scale=0.1 * float(np.median(y)))
    if (y >= 0).all() and (y > 0).mean() > 0.5:
        scale = float(np.median(y[y > 0]))
        return NoTransform(), *(YeoJohnson(power=power, centre=0.0, scale=scale) for power in (0.0, 0.5))
    centre, scale = float(np.median(y)), float(np.std(y))
    return NoTransform(), *(YeoJohnson(power=power, centre=centre, scale=scale) for power in (0.5, 1.5))


def found_periods(t: np.ndarray, y: np.ndarray, known: Periods) -> tuple[list[float], float | None]:
    """Return the known periods that the values show, the strongest first, and the strongest other cycle.

    Those that are sure are returned in any case. A period shows where its first harmonics explain more of the values,
    less a cubic trend and the periods found so far, than they would of white noise in one case of a hundred; or of the
    first or second differences of successive values, in which trends hide no short period.
    """
    span = float(t[-1] - t[0])
    place = (t - t[0]) / max(span, 1e-300)
    values = [y, np.diff(y), np.diff(y, 2)]
    times = [t, 0.5 * (t[1:] + t[:-1]), t[1:-1]]
    bases = [place[: len(one), None] ** np.arange(4) for one in values]
    seen: list[float] = []
    for _ in known.steps:
        shares = {
            one: max(map(_surplus, [_waves(at, one) for at in times], bases, values))
            for one in known.steps
            if one not in seen
        }
        best = max(shares, key=shares.__getitem__, default=None)
        if best is None or (shares[best] <= 0 and not known.sure):
            break
        seen.append(best)
        bases = [np.concatenate([basis, _waves(at, best)], 1) for basis, at in zip(bases, times, strict=True)]
    rest, n = _without(bases[0], y), len(t)
    cycles = np.arange(_FEWEST_CYCLES * _FINE, max(int(0.8 * n * _FINE / 2), 1)) / _FINE
    variance = float(np.mean(rest**2))
    if len(cycles) == 0 or variance <= 1e-20 * float(np.var(y)):
        return seen, None
    angles = 2 * np.pi * cycles[:, None] * place
    power = ((np.cos(angles) @ rest) ** 2 + (np.sin(angles) @ rest) ** 2) / (n * variance)
    k = int(power.argmax())
    return seen, span / float(cycles[k]) if power[k] > math.log(len(cycles) / _FALSE_ALARM) else None


def _waves(t: np.ndarray, period: float) -> np.ndarray:
    """Return the first harmonics of a period, as many as it shows, up to three."""
    found = [
        wave(2 * np.pi * k * t / period) for k in range(1, min(3, int(period / 2)) + 1) for wave in (np.cos, np.sin)
    ]
    return np.stack(found, 1)


def _without(basis: np.ndarray, y: np.ndarray) -> np.ndarray:
    rest: np.ndarray = y - basis @ np.linalg.lstsq(basis, y, rcond=None)[0]
    return rest


def _surplus(waves: np.ndarray, basis: np.ndarray, y: np.ndarray) -> float:
    """Return the share of what a basis leaves that waves explain, less what they would of white noise."""
    rest, free = _without(basis, y), len(y) - basis.shape[1]
    whole, count = float(rest @ rest), waves.shape[1]
    if free <= count or whole <= 1e-20 * float(y @ y):
        return 0.0
    left = _without(np.concatenate([basis, waves], 1), rest)
    return 1 - float(left @ left) / whole - float(chi2.isf(_FALSE_ALARM, count)) / free
