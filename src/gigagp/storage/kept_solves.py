"""Long solves of a fit with a checkpoint: a killed process goes on from the last iteration that was written.

The last solve of a fit on a million rows takes minutes an iteration. `gigagp.estimators.checkpoint` logs evaluations
and not what happens within one, so conjugate gradients write their state to their own file beside the checkpoint.
It is identified by everything that determines the solve, and read when the resumed fit reaches the same solve.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch

from gigagp.errors import GigaGPWarning, ModelFileError, warn
from gigagp.storage.occasional_writes import OccasionalWrites
from gigagp.storage.tensor_file import load_state, save_state

_KIND = "solve"


class SolveFile:
    """The state of the solve that a fit is in.

    The file is read if it exists, written atomically, at most once in an interval of seconds, and removed at the end of
    the fit, whose identity is its `gigagp.estimators.checkpoint.fingerprint`.
    """

    def __init__(self, path: Path, identity: str, interval: float) -> None:
        self.path, self._identity = path, identity
        self._writes = OccasionalWrites(path, interval)

    def key(self, tensors: list[torch.Tensor], settings: str) -> str:
        """Return what a solve is known by: its vectors and settings, and the fit that it belongs to."""
        digest = hashlib.sha256(f"{self._identity} {settings}".encode())
        for tensor in tensors:
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def state_of(self, key: str) -> dict[str, torch.Tensor] | None:
        """Return the state of a solve, or None if the file has none of it; warn of a damaged file."""
        if not self.path.exists():
            return None
        try:
            kind, tensors, header = load_state(self.path)
        except ModelFileError as error:
            warn(f"The solve begins anew: {error}", GigaGPWarning)
            return None
        return tensors if kind == _KIND and header.get("key") == key else None

    def keep(self, key: str, state: Callable[[], dict[str, torch.Tensor]]) -> None:
        """Write the state of a solve if the last write is old enough, or SIGTERM has come."""
        if self._writes.are_due:
            self._writes.attempt(lambda: save_state(self.path, _KIND, state(), {"key": key}))

    def remove(self) -> None:
        """Delete the file, because the fit is complete."""
        self.path.unlink(missing_ok=True)
