"""The command line: selection of cases, the table of results, the list of failures, and the exit code."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from stress.outcome import OUTCOMES, Result
from stress.pool import Job, Pool

#: From an area to its share of the time, and the largest number of seconds of a case.
AREAS = {
    "tables": (0.25, 60.0),
    "arguments": (0.25, 100.0),
    "models": (0.15, 20.0),
    "kills": (0.1, 60.0),
    "failures": (0.1, 60.0),
    "races": (0.05, 60.0),
    "command_line": (0.1, 60.0),
    "likelihoods": (0.1, 60.0),
    "transforms": (0.1, 60.0),
    "outputs": (0.1, 60.0),
    "copies": (0.1, 200.0),
    "budgets": (0.1, 60.0),
    "translations": (0.05, 60.0),
    "containers": (0.1, 60.0),
    "ends": (0.1, 100.0),
}
#: Largest number of printed failures with the same cause.
_SHOWN = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if there was any failure, and 0 otherwise."""
    options = _parser().parse_args(arguments)
    areas = _areas(options.area)
    if options.case is None:
        schedule = Schedule(areas, options.seconds, options.cases, options.seed, options.first)
    else:
        schedule = Schedule(areas, float("inf"), 1, options.seed, options.case)
    began = time.monotonic()
    results: list[Result] = []
    for result in Pool(options.processes, options.plant).run(schedule.next_job):
        results.append(result)
        schedule.ended(result)
        if result.is_failure:
            _print_failure(result, results, options.plant, whole=options.case is not None)
        elif options.case is not None and result.detail:
            print(result.detail)
    print(table(areas, results))
    print(f"{len(results):,} cases, {time.monotonic() - began:.0f} s, seed {options.seed}")
    causes = Counter((result.area, result.outcome, result.cause) for result in results if result.is_failure)
    for (area, outcome, cause), count in causes.most_common():
        example = next(one for one in results if one.is_failure and one.cause == cause and one.area == area)
        print(f"{count:6,} x {area}, {outcome}: {cause}\n         {example.reproduction(options.plant)}")
    if options.json is not None:
        options.json.write_text(json.dumps([result.to_dict() for result in results]), encoding="utf-8")
    return int(any(result.is_failure for result in results))


def table(areas: Sequence[str], results: Sequence[Result]) -> str:
    """Return a table with one row per area, which shows the number of cases and their outcomes."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        counts[result.area][result.outcome] += 1
    rows = [("area", "cases", *OUTCOMES)]
    for area in areas:
        found = counts[area]
        rows.append((area, f"{found.total():,}", *(f"{found[outcome]:,}" for outcome in OUTCOMES)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        " | ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in pairs)
        for pairs in (list(enumerate(zip(row, widths, strict=True))) for row in rows)
    ]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])


class Schedule:
    """The order of cases: always one of the area that is furthest behind its share of the time.

    Parameters
    ----------
    areas : sequence of str
    seconds : float
        No case starts after this many seconds.
    cases : int or None
        Largest number of cases per area; None: no limit.
    seed, first : int
        Seed of the cases, and number of the first case.
    """

    def __init__(self, areas: Sequence[str], seconds: float, cases: int | None, seed: int, first: int) -> None:
        self.seconds, self.seed = seconds, seed
        self.end: float | None = None
        self._left = dict.fromkeys(areas, cases)
        self._number = dict.fromkeys(areas, first)
        self._spent, self._ended = dict.fromkeys(areas, 0.0), dict.fromkeys(areas, 0)
        self._expected = dict.fromkeys(areas, 0.0)

    def next_job(self) -> Job | None:
        """Return the next case, or None at the end."""
        if self.end is None:  # the first worker is ready
            self.end = time.monotonic() + self.seconds
        found = [name for name, left in self._left.items() if left is None or left > 0]
        if not found or time.monotonic() > self.end:
            return None
        area = min(found, key=lambda name: (self._spent[name] + self._expected[name]) / AREAS[name][0])
        self._expected[area] += self._usual(area)
        job = Job(area, self.seed, self._number[area], AREAS[area][1])
        self._number[area] += 1
        left = self._left[area]
        self._left[area] = None if left is None else left - 1
        return job

    def ended(self, result: Result) -> None:
        """Record the time of a case that has ended."""
        self._expected[result.area] = max(0.0, self._expected[result.area] - self._usual(result.area))
        self._spent[result.area] += result.seconds
        self._ended[result.area] += 1

    def _usual(self, area: str) -> float:
        return self._spent[area] / self._ended[area] if self._ended[area] else 0.5


def _print_failure(result: Result, before: Sequence[Result], plant: str | None, *, whole: bool) -> None:
    same = sum(one.is_failure and one.cause == result.cause and one.area == result.area for one in before)
    if same <= _SHOWN or whole:
        first = result.detail.strip() if whole else " ".join(result.detail.split())[:300]
        print(f"{result.outcome}: {result.reproduction(plant)}\n    {result.cause}\n    {first}", flush=True)


def _areas(text: str | None) -> list[str]:
    if text is None:
        return list(AREAS)
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in AREAS]
    if unknown:
        msg = f"--area must be some of {', '.join(AREAS)}; got {unknown[0]!r}"
        raise SystemExit(msg)
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stress", description=__import__("stress").__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="start no new case after this many seconds")
    parser.add_argument("--area", help=f"some of {', '.join(AREAS)}, separated by commas; all by default")
    parser.add_argument("--cases", type=int, help="largest number of cases per area")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="run only this case, and describe it")
    parser.add_argument("--processes", type=int, default=2, help="number of worker processes")
    parser.add_argument("--plant", help="plant this bug, to check that it is found (stress/plants.py)")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    return parser
