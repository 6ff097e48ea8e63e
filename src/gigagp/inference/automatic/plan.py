"""A forecast of what several ways to end a fit would bring and cost, and the choice among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gigagp.errors import ModelFileError
from gigagp.inference.contract.base import Inference
from gigagp.runtime.duration import in_words
from gigagp.runtime.memory import size_in_words
from gigagp.settings.schema import anything, listing, number, optional, record, text, whole

#: Seconds that a fit without a time budget may be expected to take, and those up to which it need not be worth them.
PATIENCE, FREE = 600.0, 60.0
#: Share of a time budget that likewise need not be worth it, and nats a row that each doubling beyond must gain.
_UNFELT, _GAIN = 0.1, 0.005
#: Reach from which patches count as deep as gaps.
_DEEP = 0.7

_OPTION = record(
    {
        "inference": anything,
        "n_rows": whole(1),
        "seconds": number(),
        "memory": number(),
        "nll": optional(number()),
        "nll_error": number(),
        "rmse": optional(number()),
    }
)
_GAPS = record({"rmse": number(), "nll": number(), "nll_error": number(), "reach": number(positive=True)})
_LIMIT = optional(number(positive=True))
_PLAN = record(
    {"options": listing(_OPTION), "chosen": whole(), "budget": _LIMIT, "memory": _LIMIT, "reason": text},
    {"in_gaps": optional(_GAPS)},  # files of earlier versions have none
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
    seconds, memory : float
        Expected time of the whole fit, and expected bytes at the peak, in addition to the table.
    nll, rmse : float or None
        Expected negative log density of a new target, in nats, and its root mean square error. None if the method
        cannot foresee them; it is then never chosen.
    nll_error : float
        Standard error of `nll`, mostly common to all options.
    """

    inference: Inference
    n_rows: int
    seconds: float
    memory: float
    nll: float | None
    nll_error: float
    rmse: float | None

    def in_units(self, scale: float) -> Option:
        """Return the option for targets that are ``scale`` times as large."""
        if self.nll is None or self.rmse is None:
            return self
        return replace(self, nll=self.nll + math.log(scale), rmse=self.rmse * scale)

    def after(self, spent: float, slowness: float) -> Option:
        """Return the option with ``seconds`` times a factor, and with the time that has passed before it."""
        return replace(self, seconds=spent + slowness * self.seconds)

    def __str__(self) -> str:
        cost = f"{self.inference.label} of {self.n_rows:,} rows, {in_words(self.seconds)}, {size_in_words(self.memory)}"
        if self.nll is None:
            return f"{cost}: its error is not forecast"
        error = f"(standard error {self.nll_error:.2g})"
        return f"{cost}: expected NLL {self.nll:.3f} {error}, RMSE {self.rmse:.3g}"


@dataclass(frozen=True)
class InGaps:
    """Expected errors in the gaps of a table, from patches of rows as wide that neighbours predict.

    Attributes
    ----------
    rmse : float
        Root mean square error.
    nll, nll_error : float
        Negative log density of a target, in nats, and its standard error.
    reach : float
        How far the rows that were predicted lie from all others, over how far points in gaps do.
    """

    rmse: float
    nll: float
    nll_error: float
    reach: float

    def in_units(self, scale: float) -> InGaps:
        """Return the errors for targets that are ``scale`` times as large."""
        return replace(self, rmse=self.rmse * scale, nll=self.nll + math.log(scale))

    def __str__(self) -> str:
        found = (
            "Options are forecast at new rows among these. In gaps like these, neighbours are expected to have NLL "
            f"{self.nll:.3f} (standard error {self.nll_error:.2g}), RMSE {self.rmse:.3g}"
        )
        if self.reach >= _DEEP:
            return f"{found}."
        return f"{found}, or more: the table has room for patches {100 * self.reach:.0f} % as deep."


@dataclass(frozen=True)
class Plan:
    """The options of a fit, the chosen one, and why it was chosen.

    Attributes
    ----------
    options : tuple of Option
        From the fastest to the slowest.
    budget, memory : float
        Seconds and bytes that the fit may take; infinity without a time budget, or if the memory is not known.
    in_gaps : InGaps or None
        Errors in the gaps of the table, or in those of the points to be predicted; None where there are none.
    """

    options: tuple[Option, ...]
    chosen: Option
    budget: float
    memory: float
    reason: str
    in_gaps: InGaps | None = None

    @classmethod
    def of(cls, options: Sequence[Option], budget: float, memory: float = math.inf) -> Plan:
        """Choose the lowest expected negative log density that fits the budgets and is worth its time.

        ``memory`` is the memory budget in bytes. The first option that is foreseen is chosen if none fits.
        """
        ordered = tuple(sorted(options, key=lambda one: one.seconds))
        foreseen = _foreseen(ordered)
        fitting = [(one, nll) for one, nll in foreseen if one.seconds <= _limit(budget) and one.memory <= memory]
        best, least = (fitting or foreseen)[0]
        free = min(FREE, _UNFELT * budget)
        for option, nll in fitting[1:]:
            doublings = math.log2(max(option.seconds, free) / max(best.seconds, free))
            if nll < least - _GAIN * doublings:
                best, least = option, nll
        return cls(ordered, best, budget, memory, _reason(ordered, best, budget, memory))

    def in_units(self, scale: float) -> Plan:
        """Return the plan for targets that are ``scale`` times as large."""
        found = self._with([one.in_units(scale) for one in self.options])
        return replace(found, in_gaps=None if self.in_gaps is None else self.in_gaps.in_units(scale))

    def after(self, spent: float, slowness: Callable[[Inference], float]) -> Plan:
        """Return the same choice with the times of `Option.after`, with the factor of each method."""
        found = self._with([one.after(spent, slowness(one.inference)) for one in self.options])
        return replace(found, reason=_reason(found.options, found.chosen, self.budget, self.memory))

    def to_plain(self, describe: Callable[[Inference], Any]) -> dict[str, Any]:
        """Return plain data for a model file; ``describe`` turns an inference method into such."""
        listed = [{**vars(one), "inference": describe(one.inference)} for one in self.options]
        budget, memory = (None if limit == math.inf else limit for limit in (self.budget, self.memory))
        chosen = self.options.index(self.chosen)
        in_gaps = None if self.in_gaps is None else dict(vars(self.in_gaps))
        return {
            "options": listed,
            "chosen": chosen,
            "budget": budget,
            "memory": memory,
            "reason": self.reason,
            "in_gaps": in_gaps,
        }

    @classmethod
    def from_plain(cls, data: Any, restore: Callable[[Any], Any]) -> Plan:
        """Return the plan that `to_plain` has described, where ``restore`` is the inverse of its ``describe``.

        Raises `ModelFileError` if the data do not describe a plan.
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
        budget, memory = (math.inf if data[name] is None else data[name] for name in ("budget", "memory"))
        in_gaps = InGaps(**data["in_gaps"]) if data.get("in_gaps") else None
        return cls(options, options[data["chosen"]], budget, memory, data["reason"], in_gaps)

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
        return "\n".join([*lines, self.reason, *([] if self.in_gaps is None else [str(self.in_gaps)])])


def _limit(budget: float) -> float:
    """Return the seconds that an option may be expected to take."""
    return PATIENCE if budget == math.inf else budget


def _foreseen(options: Sequence[Option]) -> list[tuple[Option, float]]:
    """Return the options whose error is foreseen, with their negative log densities."""
    return [(one, one.nll) for one in options if one.nll is not None]


def _reason(options: Sequence[Option], chosen: Option, budget: float, memory: float) -> str:
    """Return in words why an option was chosen."""
    better, least = min(_foreseen(options), key=lambda pair: pair[1])
    if better is chosen:
        return f"{chosen.inference.label} is expected to predict best."
    assert chosen.nll is not None
    gain = chosen.nll - least
    if better.memory > memory:
        what = f"would take {size_in_words(better.memory)} of memory"
        return f"{better.inference.label} {what} and gain {gain:.2g} nats per row: give a larger memory_budget for it."
    if better.seconds > _limit(budget):
        what = f"time_budget={in_words(better.seconds)!r}" if budget == math.inf else "a larger time_budget"
        return (
            f"{better.inference.label} would take about {in_words(better.seconds)} and gain {gain:.2g} nats per row: "
            f"give {what} for it."
        )
    return (
        f"{better.inference.label} would gain only {gain:.2g} nats per row in {in_words(better.seconds)}, so that "
        f"{chosen.inference.label} was chosen."
    )
