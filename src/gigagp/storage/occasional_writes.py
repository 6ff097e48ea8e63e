"""Writing the state of long work now and then, without ending the work where that fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gigagp.errors import GigaGPWarning, ModelFileError, warn
from gigagp.runtime import termination


class OccasionalWrites:
    """Writes of a checkpoint now and then, because a write costs about as much as reading the table.

    A write that fails (a full disk) does not end the fit, and is warned of once.
    """

    def __init__(self, path: Path, interval: float) -> None:
        self.path, self.interval = path, interval
        self._last = time.monotonic()
        self._warned = False

    @property
    def are_due(self) -> bool:
        """Whether the last write is old enough, or SIGTERM has come."""
        return termination.can_wait() or time.monotonic() - self._last >= self.interval

    def attempt(self, write: Callable[[], None]) -> bool:
        """Write, and return whether that worked; if not, the file is unchanged. After SIGTERM, end the process."""
        try:
            write()
        except ModelFileError as error:
            if not self._warned:
                kept = "the one before it is whole" if self.path.exists() else "there is none yet"
                message = (
                    f"A checkpoint was not written: {error} The fit goes on, and tries again every "
                    f"{self.interval:.0f} s; {kept}."
                )
                warn(message, GigaGPWarning)
            self._warned = True
            return False
        finally:
            self._last = time.monotonic()
            termination.after_write()
        return True
