"""Worker processes with a time limit for each case."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stress.outcome import HANG, TRACEBACK, Result

_ROOT = Path(__file__).resolve().parent.parent
#: Largest number of seconds for a worker's imports.
_START = 120.0


@dataclass(frozen=True)
class Job:
    """A case to be run."""

    area: str
    seed: int
    case: int
    limit: float


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    job: Job | None = None
    deadline: float = 0.0
    unread: bytes = b""
    is_ready: bool = False

    def lines(self) -> list[bytes]:
        """Return the complete lines that can be read now."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 2**20)
        *complete, self.unread = (self.unread + data).split(b"\n")
        return complete if data else [b""]

    def end(self) -> int:
        """Kill the process and its children; return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        return self.process.wait()


@dataclass
class Pool:
    """Runs jobs in worker processes.

    Parameters
    ----------
    processes : int, default 2
        Number of worker processes.
    plant : str or None
        A bug to plant in the workers (`stress.plants`).
    warm : bool, default True
        Whether workers import everything before their first case.
    """

    processes: int = 2
    plant: str | None = None
    warm: bool = True
    _workers: list[_Worker] = field(default_factory=list)

    def run(self, next_job: Callable[[], Job | None]) -> Iterator[Result]:
        """Yield results in the order in which cases end, until there is no next job.

        A case that exceeds its time limit is a hang, and a worker that dies during a case is a traceback. Either ends
        only that worker.
        """
        try:
            while True:
                self._hand_out(next_job)
                busy = [worker for worker in self._workers if worker.job is not None or not worker.is_ready]
                if not busy:
                    return
                yield from self._collect(busy)
        finally:
            for worker in self._workers:
                worker.end()
            self._workers.clear()

    def _hand_out(self, next_job: Callable[[], Job | None]) -> None:
        idle = [worker for worker in self._workers if worker.job is None and worker.is_ready]
        while idle or len(self._workers) < self.processes:
            if not idle:  # a new worker takes a job once it is ready
                self._workers.append(self._start())
                continue
            job = next_job()
            if job is None:
                return
            worker = idle.pop()
            worker.job, worker.deadline = job, time.monotonic() + job.limit
            assert worker.process.stdin is not None
            message = {"area": job.area, "seed": job.seed, "case": job.case}
            worker.process.stdin.write(json.dumps(message).encode() + b"\n")
            worker.process.stdin.flush()

    def _start(self) -> _Worker:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        paths = [str(_ROOT), str(_ROOT / "src"), *environment.get("PYTHONPATH", "").split(os.pathsep)]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        if not self.warm:
            environment["STRESS_COLD"] = "1"
        if self.plant:
            environment["STRESS_PLANT"] = self.plant
        process = subprocess.Popen(
            [sys.executable, "-m", "stress.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        return _Worker(process, deadline=time.monotonic() + _START)

    def _collect(self, busy: list[_Worker]) -> Iterator[Result]:
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
            wait = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
            ready = [key.data for key, _ in selector.select(wait)]
        for worker in ready:
            for line in worker.lines():
                yield from self._take(worker, line)
        for worker in busy:
            if worker not in ready and worker in self._workers and time.monotonic() > worker.deadline:
                yield from self._give_up(worker)

    def _take(self, worker: _Worker, line: bytes) -> Iterator[Result]:
        job = worker.job
        if not line:  # the worker has died
            self._workers.remove(worker)
            code = worker.end()
            if job is None:
                msg = f"a worker could not start (exit code {code}); run `python -m stress.worker` to see why"
                raise RuntimeError(msg)
            what = f"signal {-code}" if code < 0 else f"exit code {code}"
            yield Result(job.area, job.seed, job.case, TRACEBACK, f"the process died: {what}")
        elif not worker.is_ready:
            worker.is_ready = True
        else:
            worker.job = None
            yield Result(**json.loads(line))

    def _give_up(self, worker: _Worker) -> Iterator[Result]:
        job = worker.job
        self._workers.remove(worker)
        worker.end()
        if job is None:
            msg = f"a worker was not ready after {_START:g} s"
            raise RuntimeError(msg)
        yield Result(job.area, job.seed, job.case, HANG, f"no end in {job.limit:g} s", seconds=job.limit)
