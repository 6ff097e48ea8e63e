"""What an earlier run of a benchmark has left in its JSON file."""

from __future__ import annotations

import argparse
import json
from typing import Any


def earlier_rows(
    parser: argparse.ArgumentParser, options: argparse.Namespace, key: str = "rows"
) -> list[dict[str, Any]]:
    """Return the rows of the file that ``--resume`` or ``--judge`` asks for; end with the usage where there is none.

    Without these options, and for a run to be resumed that has not begun, there are no rows. The file has them as
    ``key``.
    """
    asked = [f"--{name}" for name in ("judge", "resume") if getattr(options, name, False)]
    if asked and options.json is None:
        parser.error(f"{asked[0]} needs --json, the file of the earlier run")
    if asked and options.json.exists():
        rows: list[dict[str, Any]] = json.loads(options.json.read_text(encoding="utf-8"))[key]
        return rows
    if "--judge" in asked:
        parser.error(f"--judge needs the file of an earlier run; there is no {options.json}")
    return []
