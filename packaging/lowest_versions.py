"""Print the oldest versions that pyproject.toml allows, of the package and of its tests, as constraints for pip."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def lowest(requirements: list[str]) -> dict[str, str]:
    """Return the version behind ``>=`` of each requirement; those on gigagp's own extras have none.

    Raises
    ------
    ValueError
        If a requirement has no lower bound, or another one than elsewhere.
    """
    found: dict[str, str] = {}
    for one in requirements:
        if one.startswith("gigagp["):
            continue
        match = re.match(r"([a-z0-9-]+)>=([0-9.]+)(?=[,;]|$)", one)
        if match is None or found.setdefault(*match.groups()) != match[2]:
            msg = f"{one!r} in pyproject.toml needs a lower bound, the same wherever the package is required."
            raise ValueError(msg)
    return found


def main() -> int:
    """Print them."""
    text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    for name, version in lowest(project["dependencies"] + project["optional-dependencies"]["test"]).items():
        print(f"{name}=={version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
