"""The command line."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.papers import pages, records, runner
from benchmarks.papers.experiment import MODULES, load

_EXAMPLES = """\
    python -m benchmarks.papers --quick                          # all papers, small: a quarter of an hour on two cores
    python -m benchmarks.papers --paper iterative --full --resume    # may take days; a killed run goes on where it was
    python -m benchmarks.papers --full --resume --only table-1 --stop-after 100
    python -m benchmarks.papers --smoke                          # every experiment on a few dozen made rows, no files
    python -m benchmarks.papers --write                          # only the documents
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked and write the documents; return 1 if a cell did not succeed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers",
        description="Reproduce the tables and figures of the five papers.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = {module.rpartition(".")[2]: module for module in MODULES}
    parser.add_argument("--paper", choices=sorted(names), action="append", help="default: all")
    parser.add_argument("--only", metavar="EXPERIMENT", nargs="+", help="such as table-1 figure-5; see --list")
    parser.add_argument(
        "--match", metavar="REGEX", help="only cells whose names match, such as 'pol.*--0$' for split 0"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    for level, text in (("smoke", "made rows, nothing kept"), ("quick", "a quarter of an hour"), ("full", "days")):
        what.add_argument(f"--{level}", dest="level", action="store_const", const=level, help=text)
    what.add_argument("--list", action="store_true", help="what there is, and the number of cells at each size")
    what.add_argument("--write", action="store_true", help="only write the documents")
    parser.add_argument("--resume", action="store_true", help="leave out cells that have a result with these settings")
    parser.add_argument("--retry", action="store_true", help="with --resume: run again what failed")
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="start no cell after so many seconds")
    parser.add_argument("--data", type=Path, default=records.ROOT.parent / "shared" / "data", help="folder of load.py")
    given = parser.parse_args(arguments)
    modules = [names[name] for name in given.paper] if given.paper else list(MODULES)
    unknown = set(given.only or ()) - {one.name for module in modules for one in load(module).experiments}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; see --list")

    if given.list:
        for module in modules:
            print(f"{load(module).name}: {load(module).title}")
            for experiment in load(module).experiments:
                counts = [len(runner.jobs(module, level, None, [experiment.name])) for level in ("quick", "full")]
                print(f"  {experiment.name:12s} {counts[0]:4d} quick, {counts[1]:4d} full  {experiment.title}")
        return 0
    if given.level == "smoke":
        with tempfile.TemporaryDirectory() as scratch:
            results = Path(scratch) / "results"
            failures = runner.run(modules, "smoke", None, results, only=given.only, match=given.match, apart=False)
            pages.write(modules, results, Path(scratch) / "docs")
            return int(failures > 0)
    failures = 0
    if given.level is not None:
        if not (given.data / "load.py").exists():
            parser.error(f"{given.data} has no load.py; give the data folder with --data")
        failures = runner.run(
            modules,
            given.level,
            given.data,
            records.RESULTS,
            only=given.only,
            match=given.match,
            resume=given.resume,
            retry=given.retry,
            stop_after=given.stop_after,
        )
    pages.write(MODULES, records.RESULTS, records.ROOT / "docs")
    return int(failures > 0)
