"""The state of the checkout that a benchmark runs in."""

from __future__ import annotations

import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def commit(folder: Path = _ROOT) -> str:
    """Return the commit of a checkout, with ``+changes`` where its code differs from it; any folder of it will do."""
    try:
        root = Path(_git(folder, "rev-parse", "--show-toplevel"))
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()
