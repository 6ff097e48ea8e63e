"""The possible outcomes of a case."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

RIGHT = "right"
REFUSED = "refused"
WRONG = "wrong"
TRACEBACK = "traceback"
HANG = "hang"
LOST = "lost"

#: All outcomes, in the order of the table's columns.
OUTCOMES = (RIGHT, REFUSED, WRONG, TRACEBACK, HANG, LOST)
#: Outcomes that must not occur.
FAILURES = (WRONG, TRACEBACK, HANG, LOST)


class Wrong(Exception):
    """A wrong answer that came without a warning."""


class Lost(Exception):
    """Something of the user's was lost (a file, a fitted model, an array, a part of a fit), or garbage was left."""


@dataclass(frozen=True)
class Result:
    """The result of one case.

    Attributes
    ----------
    area, seed, case
        The case, which can be repeated from these alone.
    outcome : str
        One of `OUTCOMES`.
    cause : str
        A short description of a failure that is the same for the same cause, so that failures can be grouped by it.
    detail : str
        A full description of a failure: the actions and the observations.
    seconds : float
        Duration of the case.
    """

    area: str
    seed: int
    case: int
    outcome: str
    cause: str = ""
    detail: str = ""
    seconds: float = 0.0

    @property
    def is_failure(self) -> bool:
        """Whether the outcome is one that must not occur."""
        return self.outcome in FAILURES

    def reproduction(self, plant: str | None = None) -> str:
        """Return the command that repeats this case."""
        planted = f" --plant {plant}" if plant else ""
        return f"python -m stress --area {self.area} --case {self.case} --seed {self.seed}{planted}"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return asdict(self)
