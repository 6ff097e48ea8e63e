"""Plant faults in the package one after another, and see which tests find them.

    python packaging/mutations.py --list
    python packaging/mutations.py                                  # every fault, one after another
    python packaging/mutations.py "either tolerance" wide-variance   # these

The faults are those of `packaging/mutations.toml`: mutations of the source, and the bugs of `stress/plants.py`. Each is
planted in a clone of HEAD, in which pytest runs the tests that its entry names, and the whole default suite if these
pass. At the end the tests that failed run without a fault, where they have to pass, and there is a table; with
``--out`` the same as JSON, written after every fault. The command fails if a fault survives.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
#: Module of pytest that plants a bug before the tests.
PLANT = "from stress.plants import plant\nplant({!r})\n"
#: The test of the list itself, which any mutation fails.
NOT_A_TEST = ["--deselect", "tests/test_packaging.py::test_every_planted_fault_is_somewhere"]


@dataclass(frozen=True)
class Fault:
    """A fault and where to look for it.

    Attributes
    ----------
    name : str
    tests : list of str
        Files and folders of tests that run first.
    file, text, replacement : str or None
        The text of a file that it replaces; None for a bug of `stress/plants.py`.
    fault : str
        What is wrong.
    """

    name: str
    tests: list[str]
    file: str | None = None
    text: str = ""
    replacement: str = ""
    fault: str = "stress/plants.py"


def faults() -> dict[str, Fault]:
    """Return all faults by their names."""
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))
    mutations = [Fault(**entry) for entry in entries["mutation"]]
    plants = [Fault(name, tests) for name, tests in entries["plants"].items()]
    return {fault.name: fault for fault in mutations + plants}


def main() -> int:
    """Plant the faults that the command line names; return 1 if any survives."""
    known = faults()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all by default")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--first", action="store_true", help="run the tests that an entry names, and no others")
    parser.add_argument("--python", default=sys.executable, help="that has the test extra (default: this one)")
    parser.add_argument("--out", type=Path, help="a file of JSON")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"there is no fault {', '.join(map(repr, unknown))}; --list names them")
    if options.list:
        print("\n".join(f"{fault.name}: {fault.fault}" for fault in known.values()))
        return 0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="gigagp-") as scratch:
        clone = Clone(Path(scratch), options.python)
        for name in options.names or known:
            rows.append({"fault": name, **clone.try_fault(known[name], first_alone=options.first)})
            print("{fault}: {killed_by} ({seconds} s)".format(**rows[-1]), flush=True)
            if options.out is not None:
                options.out.write_text(
                    json.dumps({"commit": clone.commit, "rows": rows}, indent=1) + "\n", encoding="utf-8"
                )
        killers = {row["killed_by"] for row in rows if ".py::" in (row["killed_by"] or "")}
        if killers and (unsound := clone.first_failure(["-n", "0", "-m", "", *sorted(killers)])):
            raise SystemExit(f"{unsound} fails without any fault")
    width = max(len(row["fault"]) for row in rows)
    print("\n".join(f"{row['fault']:{width}}  {row['stage']:9}  {row['killed_by'] or ''}" for row in rows))
    return int(not all(row["killed_by"] for row in rows))


class Clone:
    """A clone of HEAD with the compiled engine of this checkout."""

    def __init__(self, scratch: Path, python: str) -> None:
        self.folder, self.report, self.python = scratch / "checkout", scratch / "report.xml", python
        subprocess.run(["git", "clone", "-q", str(ROOT), str(self.folder)], check=True)
        for engine in (ROOT / "src/gigagp/products").glob("_native*.so"):
            shutil.copy(engine, self.folder / "src/gigagp/products")
        command = ["git", "rev-parse", "--short", "HEAD"]
        self.commit = subprocess.check_output(command, cwd=self.folder, text=True).strip()

    def try_fault(self, fault: Fault, *, first_alone: bool = False) -> dict[str, Any]:
        """Return the test that finds a fault, None if there is none, and whether it is among the first tests."""
        changed = self.folder / (fault.file or "planted.py")
        before = changed.read_text(encoding="utf-8") if fault.file else ""
        if fault.file and before.count(fault.text) != 1:
            raise SystemExit(f"{fault.name}: its text must occur once in {fault.file}; got {before.count(fault.text)}")
        changed.write_text(
            before.replace(fault.text, fault.replacement) if fault.file else PLANT.format(fault.name), encoding="utf-8"
        )
        plugin, began, stage = [] if fault.file else ["-p", "planted"], time.monotonic(), "first"
        killer = self.first_failure([*plugin, "-x", "-n", "0", *fault.tests])
        if killer is None and not first_alone:
            stage, killer = "suite", self.first_failure([*plugin, "-n", "2", "--maxfail=1", *NOT_A_TEST])
        changed.write_text(before, encoding="utf-8")
        seconds = round(time.monotonic() - began)
        return {"killed_by": killer, "stage": stage if killer else "survived", "seconds": seconds}

    def first_failure(self, options: list[str]) -> str | None:
        """Run pytest, and return the first test that fails; None if all pass."""
        self.report.unlink(missing_ok=True)
        command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={self.report}", *options]
        path = os.pathsep.join([str(self.folder / "src"), str(self.folder)])  # before an editable installation
        environment = os.environ | {"PYTHONPYCACHEPREFIX": str(self.report.parent / "compiled"), "PYTHONPATH": path}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, and not for each fault
        result = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return None
        if result.returncode in (3, 4, 5):  # internal errors, wrong arguments, no tests
            raise SystemExit(result.stdout + result.stderr)
        for case in ET.parse(self.report).getroot().iter("testcase") if self.report.exists() else ():
            if any(one.tag in ("failure", "error") for one in case):
                module, name = case.get("classname") or "", case.get("name") or ""
                return f"{module.replace('.', '/')}.py::{name}" if module else name  # a file that cannot be imported
        return f"pytest, which ended with {result.returncode}"


if __name__ == "__main__":
    sys.exit(main())
