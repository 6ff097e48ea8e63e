"""Checkpoints, from which a killed fit resumes with the same bits.

An optimizer is a deterministic function of the results of its evaluations. A checkpoint therefore does not depend on
optimizers. It consists of the log of all evaluations on all rows (a few numbers each), and the state of the objective
after the last one (the solution blocks for warm starts). A resumed fit runs the optimizer from the beginning, answers
its evaluations from the log, and computes only those that are missing. Stages on subsets take seconds and are repeated.
An optimizer with many steps in many dimensions (Adam) stores its own state instead, so that the log stays short.
A solve that a kill interrupts goes on from a second file (`gigagp.storage.kept_solves`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gigagp
from gigagp.errors import InvalidInputError
from gigagp.estimators.estimator import Estimator
from gigagp.inference.contract.objective import TableObjective
from gigagp.model.model import NOISE, Model
from gigagp.optimization.history import SolveRecord, Step
from gigagp.runtime import processes
from gigagp.storage.files import check_folder
from gigagp.storage.kept_solves import SolveFile
from gigagp.storage.occasional_writes import OccasionalWrites
from gigagp.storage.tensor_file import load_state, save_state

_KIND = "checkpoint"
_KEPT = "kept."
#: Minimum number of seconds between two writes; a write costs about as much as reading the table.
INTERVAL = 60.0


def fingerprint(tensors: Mapping[str, torch.Tensor], settings: Mapping[str, object]) -> str:
    """Return a digest of everything that determines a fit: the table, the settings and the versions."""
    digest = hashlib.sha256(f"{gigagp.__version__} {torch.__version__}".encode())
    for name in sorted(settings):
        digest.update(f"{name}={settings[name]!r};".encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def open_checkpoint(
    path: str | os.PathLike[str],
    estimator: Estimator,
    optimizer: object,
    objective: TableObjective,
    model: Model,
    extra: Mapping[str, object] | None = None,
) -> Checkpoint:
    """Return the checkpoint of an estimator's fit, new or as left by a killed fit.

    The settings of the estimator, the optimizer and the start are part of the fit's identity, and so is ``extra``.
    Refuses a ``random_state`` that is not an int, and a file that belongs to another fit or cannot be written.
    """
    check_folder(path)
    if not isinstance(estimator.random_state, int | np.integer):
        raise InvalidInputError(
            "random_state of GPRegressor must be an int for a fit with a checkpoint, so that it can be repeated; "
            f"got {estimator.random_state!r}."
        )
    settings = {name: value for name, value in estimator.get_params(deep=False).items() if name != "verbose"}
    # A mean function has no reliable name, but its values have been subtracted from Y.
    settings |= {"kernel": model.kernel.to_dict(), "mean": getattr(model.mean, "name", type(model.mean).__name__)}
    settings[NOISE] = None
    settings |= {"optimizer": optimizer, **(extra or {})}
    tensors = {"X": objective.table.X, "Y": objective.table.Y, NOISE: model.noise_variance}
    tensors |= objective.table.beside.state()
    return Checkpoint(path, fingerprint(tensors, settings), objective)


class Checkpoint:
    """The log of a fit's evaluations on one objective.

    The file is read if it exists, written atomically during the fit, and removed at its end. A file of another fit or a
    damaged one is refused.
    """

    def __init__(self, path: str | os.PathLike[str], identity: str, objective: TableObjective) -> None:
        self.path, self.identity, self.objective = Path(path), identity, objective
        self._writes = OccasionalWrites(self.path, INTERVAL)
        self.solves = SolveFile(self.path.with_name(f"{self.path.name}.solve"), identity, INTERVAL)
        self._vectors: list[torch.Tensor] = []
        self._gradients: list[torch.Tensor] = []
        self._steps: list[Step] = []
        self._position = 0
        # Steps from `_kept_from` to `_kept_to` have no vector and gradient: the optimizer's state replaces them.
        self._kept: dict[str, torch.Tensor] = {}
        self._kept_from = self._kept_to = self._stage = 0
        self._state: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None
        if self.path.exists():
            self._read()
        # Also a barrier: from here on the first process may write the file or remove it.
        processes.require_same({"checkpoint": f"{len(self._steps)} steps in {self.path}"})

    def _read(self) -> None:
        kind, tensors, header = load_state(self.path)
        if kind != _KIND or header.get("identity") != self.identity:
            raise InvalidInputError(
                f"checkpoint {self.path} belongs to another fit (other data, settings or version). Delete it, or give "
                "another file name."
            )
        self._kept = {name.removeprefix(_KEPT): tensors.pop(name) for name in list(tensors) if name.startswith(_KEPT)}
        self._kept_from, self._kept_to = header["kept"]
        self._vectors = list(tensors.pop("vectors"))
        self._gradients = list(tensors.pop("gradients"))
        for plain in header["steps"]:
            solve = None if plain["solve"] is None else SolveRecord(**plain["solve"])
            self._steps.append(Step(**{**plain, "solve": solve}))
        self._state = tensors, header["objective"]

    def replay(self, vector: torch.Tensor, model: Model) -> tuple[Step, torch.Tensor] | None:
        """Return the logged step and flat gradient at this point of the fit, or None at the end of the log.

        Raises
        ------
        InvalidInputError
            If the fit differs from the one in the log.
        """
        if self._position >= len(self._steps):
            return None
        index = self._position if self._position < self._kept_to else self._position - (self._kept_to - self._kept_from)
        if not torch.equal(self._vectors[index], vector):
            raise InvalidInputError(
                f"checkpoint {self.path} cannot be resumed with the same bits: on this machine, or with this number of "
                "threads, results differ in their last digits. Delete it to start anew."
            )
        found = self._steps[self._position], self._gradients[index]
        self._position += 1
        if self._position == len(self._steps) and self._state is not None:
            self.objective.restore(model, *self._state)
        return found

    def record(self, vector: torch.Tensor, gradient: torch.Tensor, step: Step) -> None:
        """Log an evaluation, and write the file if the last write is old enough."""
        self._vectors.append(vector.clone())
        self._gradients.append(gradient.clone())
        self._steps.append(step)
        self._position = len(self._steps)
        if self._writes.are_due:
            self.write()

    def write(self) -> bool:
        """Write the file and return whether that succeeded; see `OccasionalWrites.attempt`.

        Nothing is written while steps are replayed: the file contains them already, and the objective's state is older.
        """
        if self._position < len(self._steps):
            return True
        tensors, state = self.objective.snapshot()
        log = {
            name: torch.stack(kept) if kept else torch.zeros(0)
            for name, kept in (("vectors", self._vectors), ("gradients", self._gradients))
        }
        log |= {_KEPT + name: value for name, value in self._kept.items()}
        header = {
            "identity": self.identity,
            "steps": [asdict(one) for one in self._steps],
            "kept": [self._kept_from, self._kept_to],
            "objective": state,
        }
        return self._writes.attempt(
            lambda: save_state(self.path, _KIND, {**tensors, **log}, header) if processes.is_first() else None
        )

    def resume(self) -> tuple[list[Step], dict[str, torch.Tensor]] | None:
        """Start the evaluations of one optimizer; return its logged steps and the state it kept, or None."""
        self._stage = self._position
        if self._kept_to == self._kept_from or self._kept_from != self._stage:
            return None
        self._position = self._kept_to
        return self._steps[self._kept_from : self._kept_to], self._kept

    def catch_up(self, model: Model) -> None:
        """Restore the objective's state if the state that `resume` returned comes after all logged steps."""
        if self._position == len(self._steps) and self._state is not None:
            self.objective.restore(model, *self._state)

    def keep(self, state: dict[str, torch.Tensor]) -> None:
        """Store this state in place of the vectors and gradients that the optimizer has received so far.

        Only one optimizer of a fit is shortened in this way, the first that calls this. The call has no effect during a
        replay.
        """
        if self._position < len(self._steps) or (self._kept and self._kept_from != self._stage):
            return
        self._kept, self._kept_from, self._kept_to = state, self._stage, self._position
        del self._vectors[self._stage :], self._gradients[self._stage :]

    def remove(self) -> None:
        """Delete the files, because the fit is complete."""
        if processes.is_first():
            self.path.unlink(missing_ok=True)
            self.solves.remove()
