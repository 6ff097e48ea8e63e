"""Time a stranger's way from a clone to a picture, with error bars, of a table of their own, by the README's commands.

    python benchmarks/stranger.py --json benchmarks/results/stranger.json

The table is one as people have it: dates, texts, numbers, yes and no, missing cells, and a column that never changes.
Each step is a fresh process in a fresh environment: clone, install (which compiles the engine), fit, plot, report.
Seconds are those of the clock and of the CPU; on a machine with other work the clock says more about that work.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path

from checkout import commit

ROOT = Path(__file__).resolve().parents[1]


def write_table(path: Path, n_rows: int, seed: int) -> None:
    """Write rents of flats as a CSV file, of which some cells are empty."""
    draw = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["listed", "district", "area in m2", "rooms", "floor", "balcony", "currency", "rent"])
        for _ in range(n_rows):
            listed = date(2021, 1, 1) + timedelta(days=draw.randrange(1500))
            district = draw.choices(["Altstadt", "Hafen", "Nord", "Süd"], [1, 2, 4, 3])[0]
            area, floor, balcony = draw.lognormvariate(4.1, 0.4), draw.randrange(7), draw.random() < 0.4
            level = {"Altstadt": 17.0, "Hafen": 14.5, "Nord": 11.0, "Süd": 12.5}[district]
            rent = area * level * (1 + 0.0001 * (listed - date(2021, 1, 1)).days) * (1.1 - 0.1 * math.tanh(area / 90))
            rent += 25 * floor + 60 * balcony + draw.gauss(0, 60)
            cells = [listed.isoformat(), district, f"{area:.1f}", max(1, round(area / 28)), floor]
            cells += ["yes" if balcony else "no", "EUR"]
            cells = ["" if place in (1, 2, 4) and draw.random() < 0.04 else cell for place, cell in enumerate(cells)]
            table.writerow([*cells, round(rent)])


def timed(name: str, command: list[str | Path], folder: Path) -> dict[str, object]:
    """Run a command; return its seconds, and the lines that it printed."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [str(one) for one in command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name}: {wall:.1f} s, of the CPU {cpu:.1f} s\n{done.stdout}", flush=True)
    if done.returncode:
        sys.exit(f"{name} failed with {done.returncode}")
    return {"step": name, "wall_s": round(wall, 1), "cpu_s": round(cpu, 1), "printed": done.stdout.splitlines()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for the table, the model, the picture and the report")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.keep is None else options.keep.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        clone, tools = Path(scratch) / "gigagp", Path(scratch) / "gigagp/.venv/bin"
        write_table(folder / "rents.csv", options.rows, options.seed)
        write_table(folder / "new.csv", options.rows // 5, options.seed + 1)
        gigagp = tools / "gigagp"
        install = [tools / "pip", "install", "-q", "-c", "constraints.txt", ".[plot]"]
        steps = [
            timed("clone", ["git", "clone", "-q", ROOT, clone], folder),
            timed("environment", [sys.executable, "-m", "venv", clone / ".venv"], folder),
            timed("install", install, clone),
            timed("fit", [gigagp, "fit", "rents.csv", "--target", "rent", "--out", "model.gp"], folder),
            timed("plot", [gigagp, "plot", "model.gp", "--out", "picture.png", "--include-noise"], folder),
            timed("report", [gigagp, "report", "model.gp", "new.csv", "--out", "report.html"], folder),
        ]
    total = {name: round(sum(float(str(one[name])) for one in steps), 1) for name in ("wall_s", "cpu_s")}
    print(f"together {total['wall_s']} s, of the CPU {total['cpu_s']} s")
    found = {"rows": options.rows, "steps": steps, "total": total, "load": os.getloadavg()[2], "commit": commit()}
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
