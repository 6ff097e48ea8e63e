"""Run cells, each in its own process with a time limit, and keep every result at once."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import select
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.checkout import commit
from benchmarks.papers import records
from benchmarks.papers.experiment import Cell, Paper, cells, load


@dataclass(frozen=True)
class Job:
    """A cell by names, so that another process finds it."""

    module: str
    experiment: str
    row: str
    level: str
    split: int
    folder: Path | None

    def cell(self) -> Cell:
        """Return the cell."""
        experiment = next(one for one in load(self.module).experiments if one.name == self.experiment)
        row = next(one for one in experiment.rows if one.key == self.row)
        return Cell(experiment, row, self.level, self.split, self.folder)


def jobs(
    module: str, level: str, folder: Path | None, only: list[str] | None = None, match: str | None = None
) -> list[Job]:
    """Return the jobs of a paper at a level; ``only`` names experiments, ``match`` is searched in the cells' names."""
    return [
        Job(module, experiment.name, cell.row.key, level, cell.split, folder)
        for experiment in load(module).experiments
        if only is None or experiment.name in only
        for cell in cells(experiment, level, folder)
        if match is None or re.search(match, records.stem(cell.row, cell.split))
    ]


def compute(job: Job) -> dict[str, Any]:
    """Run a cell in this process and return what happened."""
    started, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            cell = job.cell()
            assert cell.experiment.run is not None
            outcome = {"status": "done", "numbers": records.plain(cell.experiment.run(cell))}
        except Exception as error:
            # not printed here: a fork of the server would write to the standard error that the server was started with
            outcome = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            outcome["traceback"] = traceback.format_exc()
    torch = sys.modules.get("torch")
    return {
        **outcome,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "threads": torch.get_num_threads() if torch else None,
        "warnings": sorted({f"{one.category.__name__}: {str(one.message)[:200]}" for one in caught}),
    }


def _child(job: Job, send: Connection) -> None:
    """Compute in a process of its own, which ends when the process that waits for it does."""

    def watch() -> None:
        # The parent of this process is the server that it was forked from, which lives as long as its children do.
        waiting = select.poll()
        waiting.register(send, 0)
        waiting.poll()  # until nobody can read any more
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    with suppress(BrokenPipeError):  # nobody waits for it any more
        send.send(compute(job))


def compute_apart(job: Job, limit: float) -> dict[str, Any]:
    """Run a cell in its own process, and kill it after ``limit`` seconds."""
    # A fork of a server that has imported the paper's module starts at once, and no cell sees what another one left.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([job.module])
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(job, send), daemon=True)
    started = time.perf_counter()
    process.start()
    send.close()
    try:
        if not receive.poll(limit):
            return {"status": "out of time", "error": f"stopped after {limit:g} s", "seconds": limit}
        return receive.recv()
    except EOFError:
        process.join()
        error = f"the process ended with exit code {process.exitcode}"
        return {"status": "failed", "error": error, "seconds": time.perf_counter() - started}
    finally:
        process.kill()
        process.join()
        receive.close()


def run(
    modules: list[str],
    level: str,
    folder: Path | None,
    results: Path,
    *,
    only: list[str] | None = None,
    match: str | None = None,
    resume: bool = False,
    retry: bool = False,
    stop_after: float = float("inf"),
    apart: bool = True,
    say: Callable[[str], None] = print,
) -> int:
    """Run the cells of papers and write a record for each as soon as it is known; return how many did not succeed.

    Parameters
    ----------
    modules : list of str
        Modules with a ``PAPER``.
    level : {"smoke", "quick", "full"}
    folder : Path or None
        Data folder.
    results : Path
        Where records are written.
    only : list of str, optional
        Names of experiments.
    match : str, optional
        Regular expression, searched in the names of cells: the names of their records without the ending.
    resume : bool
        Leave out cells that have a record with the same settings; where another experiment of the paper has computed
        the same, take its numbers.
    retry : bool
        With ``resume``, run those again that did not succeed.
    stop_after : float
        Start no cell after this many seconds.
    apart : bool
        Whether cells run in processes of their own; without it nothing enforces their time limits.
    say : callable
        Takes a line of progress.
    """
    started, failures = time.perf_counter(), 0
    described = {"commit": commit(), "versions": records.versions()}
    for module in modules:
        paper: Paper = load(module)
        for job in jobs(module, level, folder, only, match):
            cell = job.cell()
            path = records.path_of(results, paper.name, cell.experiment, level, cell.row, cell.split)
            kept = records.kept_settings(cell)
            known = records.read(path) if resume else None
            if known and known["settings"] == kept and (known["status"] == "done" or not retry):
                continue
            if time.perf_counter() - started > stop_after:
                say(f"stopped after {stop_after:g} s; go on with --resume")
                return failures
            named = {
                "paper": paper.name,
                "experiment": cell.experiment.name,
                "row": cell.row.name,
                "data": cell.row.data,
                "split": cell.split,
                "seed": cell.split,
                "level": level,
                "settings": kept,
            }
            shared = records.twin(results, paper, cell) if resume else None
            outcome = shared or (compute_apart(job, kept["limit"]) if apart else compute(job))
            print(outcome.pop("traceback", ""), end="", file=sys.stderr)
            record = {**named, **described, **outcome} | named
            if shared:
                record["computed_for"] = shared["experiment"]
            records.write(path, records.text_of(record))
            failures += outcome["status"] != "done"
            result = "" if outcome["status"] == "done" else f" {outcome['status']}: {outcome['error']}"
            say(f"{paper.name} {cell.experiment.name} {path.stem}: {outcome['seconds']:.1f} s{result}")
    return failures
