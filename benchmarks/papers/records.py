"""Results as files: one JSON file a cell, written atomically."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.papers.experiment import Cell, Experiment, Paper, Row, cells

from gigagp.storage.files import replacing

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "papers"


def path_of(results: Path, paper: str, experiment: Experiment, level: str, row: Row, split: int) -> Path:
    """Return the file of a cell."""
    return results / paper / experiment.name / level / f"{stem(row, split)}.json"


def stem(row: Row, split: int) -> str:
    """Return the name of a cell's file without its ending."""
    return f"{row.key}--{split}"


def kept_settings(cell: Cell) -> dict[str, Any]:
    """Return a cell's settings as its record has them; how many splits there are does not change a cell."""
    kept = {name: value for name, value in cell.settings.items() if name != "splits"}
    return json.loads(json.dumps(plain(kept)))


def plain(value: Any) -> Any:
    """Return numbers (8 digits), lists and texts that JSON has, from those of numpy and torch; None if not finite."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def text_of(record: Mapping[str, Any]) -> str:
    """Return a record as JSON with one line for each name, and with one for each number of the cell."""
    numbers = record.get("numbers")
    lines = [f' "{name}": {json.dumps(value)}' for name, value in record.items() if name != "numbers"]
    if numbers is not None:
        inner = ",\n".join(f'  "{name}": {json.dumps(value)}' for name, value in numbers.items())
        lines.append(f' "numbers": {{\n{inner}\n }}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(path: Path, text: str) -> None:
    """Replace a file: a reader, or a run that is killed, sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text.encode())


def read(path: Path) -> dict[str, Any] | None:
    """Return a record, or None where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def twin(results: Path, paper: Paper, cell: Cell) -> dict[str, Any] | None:
    """Return the record of a cell of another experiment that computes the same, or None: tables share some fits."""
    wanted = kept_settings(cell)
    for other in paper.experiments:
        if other is cell.experiment or other.run is not cell.experiment.run:
            continue
        for one in cells(other, cell.level, cell.folder):
            if (one.row.data, one.split, kept_settings(one)) == (cell.row.data, cell.split, wanted):
                known = read(path_of(results, paper.name, other, one.level, one.row, one.split))
                if known and known["status"] == "done" and known["settings"] == wanted:
                    return known
    return None


def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    import gigagp

    return {"gigagp": gigagp.__version__, **{name: metadata.version(name) for name in ("torch", "numpy")}}
