"""Fits in processes of their own, with one thread, of this checkout or another one, and rows that are kept as JSON."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from checkout import commit

#: The folder of this checkout whose gigagp is imported.
OWN = Path(__file__).parents[1] / "src"
#: Environment in which all libraries take one thread.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def printed(script: str, arguments: Sequence[str], src: Path = OWN) -> Any:
    """Run a script in one thread, with the gigagp of a ``src`` folder, and return the JSON of the last line it prints.

    What it writes to the standard error is passed on.
    """
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(src.resolve())}
    command = [sys.executable, script, *arguments]
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def measure(
    script: str, cells: Iterable[tuple[Mapping[str, Any], Sequence[str]]], src: Path, path: Path | None
) -> None:
    """Run a script once for each cell, with one thread, and print and write its row as soon as it is known.

    Parameters
    ----------
    script : str
        File to run. It prints the numbers of its cell as one line of JSON.
    cells : iterable of pair
        What identifies a row, and the script's arguments.
    src : Path
        The ``src`` folder of the checkout whose gigagp is imported.
    path : Path or None
        JSON file. Rows of the same commit and cell are replaced.
    """
    where, results = commit(src), []
    if path is not None and path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))["rows"]
    for named, arguments in cells:
        key = {"commit": where, **named}
        row = {**key, **printed(script, arguments, src)}
        results = [one for one in results if any(one[name] != key[name] for name in key)] + [row]
        print(row, flush=True)
        if path is not None:
            path.write_text(json.dumps({"rows": results}, indent=1) + "\n", encoding="utf-8")


def run_tables(
    script: str,
    description: str | None,
    fit: Callable[[Path, str, int, str], Mapping[str, Any]],
    tables: Sequence[str],
    way: str,
    ways: Sequence[str],
    rows: int,
) -> None:
    """Read a command line, fit every table in every way, and write the JSON after each fit.

    Parameters
    ----------
    script : str
        File whose command line it is.
    description : str or None
        Its docstring.
    fit : callable
        ``fit(folder, table, rows, way)`` returns the numbers of a row.
    tables, ways : sequence of str
        What can be chosen; all of them by default.
    way : str
        Name of a way in the rows; its plural is the option.
    rows : int
        Training rows by default.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--src", type=Path, default=OWN)
    parser.add_argument("--tables", nargs="+", default=list(tables), choices=tables)
    parser.add_argument(f"--{way}s", nargs="+", default=list(ways), choices=ways, dest="ways")
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", nargs=3, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        table, count, chosen = options.child
        print(json.dumps(fit(options.data, table, int(count), chosen)))
        return
    cells = []
    for table in options.tables:
        for chosen in options.ways:
            child = ["--data", str(options.data), "--child", table, str(options.rows), chosen]
            cells.append(({"table": table, way: chosen}, child))
    measure(script, cells, options.src, options.json)
