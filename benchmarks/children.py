"""Fits in processes of their own, of this checkout or another one, whose rows are kept as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from checkout import commit


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
    environment = os.environ | {"PYTHONPATH": str(src.resolve()), "OMP_NUM_THREADS": "1"}
    if path is not None and path.exists():
        results = json.loads(path.read_text())["rows"]
    for named, arguments in cells:
        command = [sys.executable, script, *arguments]
        printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        key = {"commit": where, **named}
        row = {**key, **json.loads(printed.splitlines()[-1])}
        results = [one for one in results if any(one[name] != key[name] for name in key)] + [row]
        print(row, flush=True)
        if path is not None:
            path.write_text(json.dumps({"rows": results}, indent=1) + "\n")
