"""A forecast of what several ways to end a fit would bring and cost, and the choice among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gigagp.duration import in_words
from gigagp.errors import ModelFileError
from gigagp.inference.base import Inference
from gigagp.schema import anything, listing, number, optional, record, text, whole

#: Seconds that a fit without a time budget may be expected to take, and those up to which it need not be worth them.
PATIENCE, FREE = 600.0, 60.0
#: Nats a row that each further doubling of the time must gain.
_GAIN = 0.005

_OPTION = record(
    {
        "inference": anything,
        "n_rows": whole(1),
        "seconds": number(),
        "nll": number(),
        "nll_error": number(),
        "rmse": number(),
    }
)
_PLAN = record(
    {"options": listing(_OPTION), "chosen": whole(), "budget": optional(number(positive=True)), "reason": text}
)


@dataclass(frozen=True)
class Option:
    """A way to end a fit.

    Attributes
    ----------
    inference : Inference
        Settings of the method.
    n_rows : int
        Rows that it uses.
    seconds : float
        Expected time of the whole fit.
    nll : float
        Expected negative log density of a new target, in nats.
    nll_error : float
        Standard error of `nll`, mostly common to all options.
    rmse : float
        Expected root mean square error of a new target.
    """

    inference: Inference
    n_rows: int
    seconds: float
    nll: float
    nll_error: float
    rmse: float

    def in_units(self, scale: float) -> Option:
        """Return the option for targets that are ``scale`` times as large."""
        return replace(self, nll=self.nll + math.log(scale), rmse=self.rmse * scale)

    def after(self, spent: float, slowness: float) -> Option:
        """Return the option with ``seconds`` times a factor, and with the time that has passed before it."""
        return replace(self, seconds=spent + slowness * self.seconds)

    def __str__(self) -> str:
        return (
            f"{self.inference.label} of {self.n_rows:,} rows, {in_words(self.seconds)}: expected NLL {self.nll:.3f} "
            f"(standard error {self.nll_error:.2g}), RMSE {self.rmse:.3g}"
        )


@dataclass(frozen=True)
class Plan:
    """The options of a fit, the chosen one, and why it was chosen.

    Attributes
    ----------
    options : tuple of Option
        From the fastest to the slowest.
    chosen : Option
    budget : float
        Seconds that the fit may take; infinity without a time budget.
    reason : str
    """

    options: tuple[Option, ...]
    chosen: Option
    budget: float
    reason: str

    @classmethod
    def of(cls, options: Sequence[Option], budget: float) -> Plan:
        """Choose the lowest expected negative log density that is worth its time, or that fits the budget.

        A forecast of solves is uncertain by a half. Where they do not end in time, the fit ends with neighbours.
        """
        ordered = tuple(sorted(options, key=lambda one: one.seconds))
        best = ordered[0]
        limit = _limit(budget)
        for option in ordered[1:]:
            if option.seconds > limit:
                continue
            doublings = math.log2(max(option.seconds, FREE) / max(best.seconds, FREE)) if budget == math.inf else 0.0
            if option.nll < best.nll - _GAIN * doublings:
                best = option
        return cls(ordered, best, budget, _reason(ordered, best, budget))

    def in_units(self, scale: float) -> Plan:
        """Return the plan for targets that are ``scale`` times as large."""
        return self._with([one.in_units(scale) for one in self.options])

    def after(self, spent: float, slowness: float) -> Plan:
        """Return the same choice with the times of `Option.after`."""
        found = self._with([one.after(spent, slowness) for one in self.options])
        return replace(found, reason=_reason(found.options, found.chosen, self.budget))

    def to_plain(self, describe: Callable[[Inference], Any]) -> dict[str, Any]:
        """Return plain data for a model file; ``describe`` turns an inference method into such."""
        listed = [{**vars(one), "inference": describe(one.inference)} for one in self.options]
        budget = None if self.budget == math.inf else self.budget
        return {"options": listed, "chosen": self.options.index(self.chosen), "budget": budget, "reason": self.reason}

    @classmethod
    def from_plain(cls, data: Any, restore: Callable[[Any], Any]) -> Plan:
        """Return the plan that `to_plain` has described, where ``restore`` is the inverse of its ``describe``.

        Raises
        ------
        ModelFileError
            If the data do not describe a plan.
        """
        _PLAN(data, "the header.plan")
        names = Option.__dataclass_fields__
        options = tuple(
            Option(**{name: one[name] for name in names} | {"inference": restore(one["inference"])})
            for one in data["options"]
        )
        if not all(isinstance(one.inference, Inference) for one in options):
            raise ModelFileError("the header.plan.options must have inference methods.")
        if not data["chosen"] < len(options):
            raise ModelFileError(f"the header.plan.chosen must be below {len(options)}; got {data['chosen']}.")
        budget = math.inf if data["budget"] is None else data["budget"]
        return cls(options, options[data["chosen"]], budget, data["reason"])

    def instead(self, option: Option, words: str) -> Plan:
        """Return the plan with another choice, for a reason that came up on the way."""
        return replace(self, chosen=option, reason=f"{self.chosen.inference.label} was chosen. {words}")

    def remarked(self, words: str) -> Plan:
        """Return the plan with another sentence in its reason."""
        return replace(self, reason=f"{self.reason} {words}")

    def _with(self, options: Sequence[Option]) -> Plan:
        index = self.options.index(self.chosen)
        return replace(self, options=tuple(options), chosen=options[index])

    def __str__(self) -> str:
        lines = [f"{'-> ' if one is self.chosen else '   '}{one}" for one in self.options]
        return "\n".join([*lines, self.reason])


def _limit(budget: float) -> float:
    """Return the seconds that an option may be expected to take."""
    return PATIENCE if budget == math.inf else budget


def _reason(options: Sequence[Option], chosen: Option, budget: float) -> str:
    """Return in words why an option was chosen."""
    better = min(options, key=lambda one: one.nll)
    if better is chosen:
        return f"{chosen.inference.label} is expected to predict best."
    gain = chosen.nll - better.nll
    if better.seconds > _limit(budget):
        what = f"time_budget={in_words(better.seconds)!r}" if budget == math.inf else "a larger time_budget"
        return (
            f"{better.inference.label} would take about {in_words(better.seconds)} and gain {gain:.2g} nats a row: "
            f"give {what} for it."
        )
    return (
        f"{better.inference.label} would gain only {gain:.2g} nats a row in {in_words(better.seconds)}, so that "
        f"{chosen.inference.label} was chosen."
    )
