"""Run the test suite as other machines would: with other instructions, libraries, threads, orders and surroundings.

    python packaging/machines.py --list
    python packaging/machines.py                                        # every machine, one after another
    python packaging/machines.py "engine avx2" "order 1 + busy cores"   # these; settings joined by + hold in one run
    python packaging/machines.py coverage --commit 04a5003              # lines and branches that a commit's tests run

It clones HEAD or the given commit, builds the compiled engine as each machine asks for, and runs the suite there by the
given Python, which has the `test` extra, for the orders pytest-randomly, and for the coverage coverage 7.10 or later.
Where the user is not root, others must be able to read that Python. At its end it prints a table and each test that
failed; with ``--out`` it adds them to a file of JSON, after every run, with the ten slowest files of tests.
Options after ``--`` go to pytest, such as a folder of tests.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMPILERS = {"cc", "c++", "gcc", "g++", "clang", "clang++", "as", "ld", "cl"}
USER = 65534  # nobody
ALL_SETS = "avx2 avx512"
VERSIONS = """
import platform
from importlib.metadata import version
names = ("torch", "numpy", "scipy", "scikit-learn", "pytest")
print("Python", platform.python_version(), *(f"{name} {version(name)}" for name in names), sep=", ")
"""
# Workers and commands that the tests start are measured too; where one is killed, what it ran is not known.
COVERAGE = """
[run]
branch = true
parallel = true
patch = subprocess
source_pkgs = gigagp
data_file = {data}
disable_warnings = no-data-collected, module-not-measured, module-not-imported
"""


@dataclass(frozen=True)
class Machine:
    """What differs from this machine.

    Attributes
    ----------
    environment : dict
        Environment variables.
    options : list of str
        Options of pytest.
    engine : str or None
        Instruction sets that the engine is built for beside the baseline. None: there is no engine.
    tools : set of str
        "no network", "no compiler", "not root", "read only", "busy", "blanks", "folder by folder", "coverage".
    """

    environment: dict[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    engine: str | None = ALL_SETS
    tools: frozenset[str] = frozenset()

    def __add__(self, other: Machine) -> Machine:
        return Machine(
            self.environment | other.environment,
            self.options + other.options,
            other.engine if self.engine == ALL_SETS else self.engine,
            self.tools | other.tools,
        )


def _with(*tools: str) -> Machine:
    return Machine(tools=frozenset(tools))


MACHINES: dict[str, Machine] = {
    "as it is": Machine(),
    **{f"torch {one}": Machine({"ATEN_CPU_CAPABILITY": one}) for one in ("default", "avx2", "avx512")},
    **{f"openblas {one}": Machine({"OPENBLAS_CORETYPE": one}) for one in ("Haswell", "Zen", "SkylakeX", "Prescott")},
    "mkl compatible": Machine({"MKL_CBWR": "COMPATIBLE"}),
    "engine avx512": Machine(engine=ALL_SETS),
    "engine avx2": Machine(engine="avx2"),
    "engine baseline": Machine(engine=""),
    "engine absent": Machine(engine=None),
    # passive: two workers of several threads each would wait for cores by keeping them busy
    **{f"{n} threads": Machine({"OMP_NUM_THREADS": str(n), "OMP_WAIT_POLICY": "passive"}) for n in (1, 2, 4)},
    **{f"{n} workers": Machine(options=["-n", str(n)]) for n in (0, 2, 4)},
    **{f"order {n}": Machine(options=["-p", "randomly", f"--randomly-seed={n}"]) for n in range(1, 11)},
    "coverage": _with("coverage"),
    "folder by folder": _with("folder by folder"),
    "busy cores": _with("busy"),
    "another time zone": Machine({"TZ": "Asia/Kathmandu"}),
    # Python takes UTF-8 there; scikit-learn reads files of its own in the locale's encoding, so that cannot be undone
    "C locale": Machine({"LC_ALL": "C", "LANG": "C"}),
    "not root": _with("not root"),
    "nothing can be written": _with("not root", "read only"),
    "path with blanks": _with("blanks"),
    "no compiler": _with("no compiler"),
    "no network": _with("no network"),
}


def main() -> int:
    """Run the machines that the command line names; return 1 if any test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help="all by default")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--python", default=sys.executable, help="that has the test extra (default: this one)")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--out", type=Path, help="a file of JSON, which is begun or added to")
    end = [*sys.argv, "--"].index("--")
    options, rest = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    if options.list:
        print("\n".join(MACHINES))
        return 0
    wanted = {name: _machine(name, parser) for name in options.machines or MACHINES}
    versions = _output([options.python, "-c", VERSIONS])
    rows = []
    for name, machine in wanted.items():
        commit = _output(["git", "rev-parse", "--short", options.commit])
        found = run(machine, options.python, commit, rest)
        rows.append({"machine": name, "commit": commit, "versions": versions, **found})
        print(f"{name}: {rows[-1]['passed']} passed, {len(rows[-1]['failed'])} failed", flush=True)
        if options.out is not None:
            earlier = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else []
            options.out.write_text(
                json.dumps([*earlier, rows[-1] | {"pytest": rest}], indent=1) + "\n", encoding="utf-8"
            )
    print(table(rows))
    return int(any(row["failed"] or not row["passed"] for row in rows))


def _machine(name: str, parser: argparse.ArgumentParser) -> Machine:
    parts = name.split(" + ")
    unknown = [part for part in parts if part not in MACHINES]
    if unknown:
        parser.error(f"there is no machine {', '.join(map(repr, unknown))}; --list names them")
    return sum((MACHINES[part] for part in parts[1:]), MACHINES[parts[0]])


def run(machine: Machine, python: str, commit: str, options: list[str]) -> dict[str, Any]:
    """Run the suite on a machine; return its numbers of tests and seconds, and the tests that failed."""
    with _checkout(machine, python, commit) as folder, tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o777)
        compiled = {"PYTHONPYCACHEPREFIX": f"{scratch}/compiled"}  # once, and not by every process
        environment = os.environ | compiled | {"TMPDIR": scratch} | machine.environment
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *_workers(machine),
            *machine.options,
            *options,
        ]
        command = _within(machine, command, environment, Path(scratch), folder)
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        found: dict[str, Any] = {"passed": 0, "skipped": 0, "failed": {}}
        files: Counter[str] = Counter()
        with _busy(machine):
            for part in _parts(machine, folder):
                report = Path(scratch) / "report.xml"
                report.unlink(missing_ok=True)
                result = subprocess.run(
                    [*command, f"--junitxml={report}", *part],
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if report.exists():
                    _add(found, files, report)
                if result.returncode not in (0, 1, 5):
                    found["failed"][" ".join(["pytest", *part])] = (result.stdout + result.stderr)[-2000:]
            if "coverage" in machine.tools:
                found["coverage"] = _covered(python, Path(scratch), folder)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found |= {"seconds": round(time.monotonic() - began), "cpu_seconds": round(cpu)}
        found["failures"] = len(found["failed"])
        return {**found, "slowest_files": {name: round(seconds, 1) for name, seconds in files.most_common(10)}}


def _workers(machine: Machine) -> list[str]:
    return [] if "-n" in machine.options else ["-n", "2"]


def _parts(machine: Machine, folder: Path) -> list[list[str]]:
    """Return the arguments of each run of pytest."""
    if "folder by folder" not in machine.tools:
        return [[]]
    tests = sorted((folder / "tests").iterdir())
    folders = [[f"tests/{one.name}"] for one in tests if one.is_dir() and any(one.rglob("test_*.py"))]
    return [*folders, [f"tests/{one.name}" for one in tests if one.name.startswith("test_")]]


def _output(command: list[str]) -> str:
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()


def _add(found: dict[str, Any], files: Counter[str], report: Path) -> None:
    for case in ET.parse(report).getroot().iter("testcase"):
        files[case.get("classname", "")] += float(case.get("time", 0))
        problem = next((one for one in case if one.tag in ("failure", "error")), None)
        if problem is not None:
            found["failed"][f"{case.get('classname')}::{case.get('name')}"] = (problem.get("message") or "")[:1000]
        elif any(one.tag == "skipped" for one in case):
            found["skipped"] += 1
        else:
            found["passed"] += 1


@contextmanager
def _checkout(machine: Machine, python: str, commit: str) -> Iterator[Path]:
    """Clone a commit, and build the engine in the clone."""
    with tempfile.TemporaryDirectory(prefix="gigagp-") as scratch:
        Path(scratch).chmod(0o755)
        folder = Path(scratch) / ("a path with blanks" if "blanks" in machine.tools else "checkout")
        subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
        subprocess.run(["git", "checkout", "-q", "--detach", commit], cwd=folder, check=True)
        if machine.engine is not None:
            _build(python, folder, machine.engine)
        if "not root" in machine.tools and "read only" not in machine.tools:
            subprocess.run(["chown", "-R", f"{USER}:{USER}", str(folder)], check=True)
        if "read only" in machine.tools:
            subprocess.run(["chmod", "-R", "a-w", str(folder)], check=True)
        yield folder
        subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)


def _build(python: str, folder: Path, sets: str) -> None:
    """Build the engine for this Python."""
    command = [python, "setup.py", "-q", "build_ext", "--inplace", "--force"]
    environment = os.environ | {"GIGAGP_BUILD_INSTRUCTION_SETS": sets}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


def _within(
    machine: Machine, command: list[str], environment: dict[str, str], scratch: Path, folder: Path
) -> list[str]:
    """Return the command that runs another one in the surroundings of a machine."""
    environment["PYTHONPATH"] = str(folder / "src")  # before an editable installation of this checkout
    if "no compiler" in machine.tools:
        environment["PATH"] = str(_tools(scratch, Path(command[0]).parent, environment["PATH"]))
    if "not root" in machine.tools:
        home = scratch / "home"
        home.mkdir()
        home.chmod(0o555 if "read only" in machine.tools else 0o777)
        environment["HOME"] = str(home)
        environment["GIT_CONFIG_COUNT"] = "1"
        environment["GIT_CONFIG_KEY_0"], environment["GIT_CONFIG_VALUE_0"] = "safe.directory", "*"
        command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]
    if "coverage" in machine.tools:
        settings = scratch / "settings.ini"
        settings.write_text(COVERAGE.format(data=scratch / "coverage"), encoding="utf-8")
        command = [command[0], "-m", "coverage", "run", f"--rcfile={settings}", *command[1:]]
    if "no network" in machine.tools:
        command = ["unshare", "-n", "sh", "-c", 'ip link set lo up 2>/dev/null; exec "$@"', "sh", *command]
    return command


def _covered(python: str, scratch: Path, folder: Path) -> dict[str, float]:
    """Return the shares, in percent, of the lines and branches of the package that the tests ran."""
    for step in (["combine", "-q"], ["json", "-q", "-o", "coverage.json"]):
        command = [python, "-m", "coverage", *step, f"--rcfile={scratch / 'settings.ini'}"]
        subprocess.run(command, cwd=folder, check=True)
    totals = json.loads((folder / "coverage.json").read_text(encoding="utf-8"))["totals"]
    branches = totals["covered_branches"] / totals["num_branches"]
    lines = totals["covered_lines"] / totals["num_statements"]
    return {"lines": round(100 * lines, 2), "branches": round(100 * branches, 2)}


def _tools(scratch: Path, own: Path, path: str) -> Path:
    """Return a folder with links to all programs except compilers."""
    tools = scratch / "tools"
    tools.mkdir()
    for folder in [own, *map(Path, path.split(os.pathsep))]:
        for one in folder.iterdir() if folder.is_dir() else ():
            if not any(
                one.name.startswith(name) and one.name[len(name) :].lstrip("-.0123456789") == "" for name in COMPILERS
            ):
                link = tools / one.name
                if not link.is_symlink():
                    link.symlink_to(one)
    return tools


@contextmanager
def _busy(machine: Machine) -> Iterator[None]:
    """Keep two cores busy."""
    loops = []
    if "busy" in machine.tools:
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table with a row for each machine, and a line for each test that failed."""
    width = max(len(row["machine"]) for row in rows)
    lines = [f"{'machine':{width}}  passed  skipped  failed  seconds  CPU s"]
    for row in rows:
        lines.append(
            f"{row['machine']:{width}}  {row['passed']:6}  {row['skipped']:7}  {len(row['failed']):6}  "
            f"{row['seconds']:7}  {row['cpu_seconds']:5}"
        )
    lines += [f"{row['machine']}: {test}: {why.splitlines()[0]}" for row in rows for test, why in row["failed"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
