"""What a rule for the kernel has tried, for `GPRegressor.describe` and model files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from gigagp.settings.schema import listing, number, one_of, optional, record, text, whole

#: Rules that the estimators' argument ``kernel`` may name in place of a kernel.
KernelRule = Literal["auto", "average", "choose"]
#: Least gain in nats for which ``"choose"`` leaves the default, and number of its standard errors.
MARGIN, ERRORS = 20.0, 2.0
#: Nats for each e-fold of a weight of ``"average"``.
TEMPERATURE = 10.0

_MAYBE = optional(number(finite=True))
_KERNEL = record(
    {
        "name": text,
        "gain": number(finite=True),
        "left_out_gain": number(finite=True),
        "standard_error": number(finite=True),
        "weight": number(finite=True),
    },
    {"refusal": text, "gap_gain": _MAYBE, "gap_error": _MAYBE},  # files of earlier versions have none
)
_CHOICE = record(
    {"rule": one_of("average", "choose"), "n_rows": whole(1), "tried": listing(_KERNEL)},
    {"dropped": listing(listing(text, 2))},
)


class TriedKernel(NamedTuple):
    """One candidate. Gains are in nats, over the default kernel."""

    name: str  # in the words of ``gigagp fit --kernel``
    gain: float  # of the log evidence
    left_out_gain: float  # of the log densities of all rows, each given all others
    standard_error: float  # of ``left_out_gain``
    weight: float  # of its predictions; 0 or 1 for ``"choose"``
    refusal: str = ""  # why it was refused, whatever it gains; empty if it was not
    gap_gain: float | None = None  # of log densities in gaps, times the number of rows; None where there are no gaps
    gap_error: float | None = None  # standard error of ``gap_gain``

    @property
    def words(self) -> str:
        """The gains, with standard errors."""
        found = f"{self.gain:+.1f} nats, left out {self.left_out_gain:+.1f} ({self.standard_error:.1f})"
        return found if self.gap_gain is None else f"{found}, in gaps {self.gap_gain:+.1f} ({self.gap_error:.1f})"


@dataclass(frozen=True)
class KernelChoice:
    """What a rule has tried, and by how much it won. For ``kernel="auto"`` the rule is one of the two."""

    rule: Literal["average", "choose"]
    n_rows: int  # number of rows that the gains are computed from
    tried: tuple[TriedKernel, ...]  # the default comes first
    dropped: tuple[tuple[str, str], ...] = ()  # kernels that were not worth learning, and why

    def lines(self) -> list[str]:
        """Return a description, one line for the rule and one for each candidate."""
        how = {
            "choose": f"chosen, if it gains {MARGIN:g} nats and {ERRORS:g} standard errors, and in left-out rows",
            "average": f"averaged, with weights exp(smaller gain / {TEMPERATURE:g})",
        }
        found = [f"kernels tried {how[self.rule]} on {self.n_rows:,} rows (standard errors in brackets)"]
        width = max(52, *(len(one.words) for one in self.tried))
        for one in self.tried:
            end = {"choose": "chosen" if one.weight else "", "average": f"weight {one.weight:.3g}"}[self.rule]
            end = f"{one.refusal}: refused" if one.refusal else end
            gain = "default" if one is self.tried[0] else one.words
            found.append(f"  {one.name:24s} {gain:{width}s} {end}".rstrip())
        return found + [f"  {name:24s} {why}" for name, why in self.dropped]

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for a model file."""
        tried = [one._asdict() for one in self.tried]
        return {
            "rule": self.rule,
            "n_rows": self.n_rows,
            "tried": tried,
            "dropped": [list(one) for one in self.dropped],
        }

    @classmethod
    def from_plain(cls, data: Any) -> KernelChoice:
        """Return the choice that `to_plain` has described; raises `ModelFileError` for other data."""
        _CHOICE(data, "the header.kernel_choice")
        tried = tuple(
            TriedKernel(**{name: one[name] for name in TriedKernel._fields if name in one}) for one in data["tried"]
        )
        dropped = tuple((name, why) for name, why in data.get("dropped", ()))  # earlier versions had none
        return cls(data["rule"], data["n_rows"], tried, dropped)
