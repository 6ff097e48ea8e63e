"""What a case can come to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

RIGHT = "right"
REFUSED = "refused"
WRONG = "wrong"
TRACEBACK = "traceback"
HANG = "hang"
LOST = "lost"

#: In the order of the table's columns.
OUTCOMES = (RIGHT, REFUSED, WRONG, TRACEBACK, HANG, LOST)
#: Those that must not happen.
FAILURES = (WRONG, TRACEBACK, HANG, LOST)


class Wrong(Exception):
    """An answer that is not the right one, and that no warning went with."""


class Lost(Exception):
    """Something of the user's is gone: a file, a fitted model, an array, a part of a fit; or rubbish was left."""


@dataclass(frozen=True)
class Result:
    """One case and what came of it.

    Attributes
    ----------
    area, seed, case
        Which case: enough to run it again.
    outcome : str
        One of `OUTCOMES`.
    cause : str
        Of a failure: short, the same for the same cause, so that failures can be counted by it.
    detail : str
        Of a failure: what was done and what was seen.
    seconds : float
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
        """Whether this must not happen."""
        return self.outcome in FAILURES

    def reproduction(self, plant: str | None = None) -> str:
        """Return the command that runs this case again."""
        planted = f" --plant {plant}" if plant else ""
        return f"python -m stress --area {self.area} --case {self.case} --seed {self.seed}{planted}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)
