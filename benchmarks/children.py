"""Fits in processes of their own, with one thread, of this checkout or another one, and rows that are kept as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from checkout import commit

#: The folder of this checkout whose gigagp is imported.
OWN = Path(__file__).parents[1] / "src"
_LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def printed(script: str, arguments: Sequence[str], src: Path = OWN) -> Any:
    """Run a script in one thread, with the gigagp of a ``src`` folder, and return the JSON of the last line it prints.

    What it writes to the standard error is passed on.
    """
    environment = {**os.environ, **dict.fromkeys(_LIBRARIES, "1"), "PYTHONPATH": str(src.resolve())}
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
        results = json.loads(path.read_text())["rows"]
    for named, arguments in cells:
        key = {"commit": where, **named}
        row = {**key, **printed(script, arguments, src)}
        results = [one for one in results if any(one[name] != key[name] for name in key)] + [row]
        print(row, flush=True)
        if path is not None:
            path.write_text(json.dumps({"rows": results}, indent=1) + "\n")
