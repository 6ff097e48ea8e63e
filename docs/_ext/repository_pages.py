"""What the site shows differently from the repository, where the same Markdown files are read.

- The mermaid picture of the architecture is drawn by the repository's viewer; the site would need a script for it.
- Links to ``README.md`` lead to the start page, and links of the changelog to ``docs/`` stay on the site.
- The pages of single papers are below the page of all.
"""

from __future__ import annotations

import re
from typing import Any

_MERMAID = re.compile(r"^```mermaid\n.*?^```\n", re.DOTALL | re.MULTILINE)
_README = re.compile(r"\]\((?:\.\./)*README\.md(?:#[^)]*)?\)")


def adapt(app: Any, name: str, content: list[str]) -> None:
    """Change the text of a page before it is parsed."""
    depth = "../" * name.count("/")
    text = _MERMAID.sub("*The picture of the layers is in the repository's copy of this page.*\n", content[0])
    text = _README.sub(f"]({depth}index.md)", text)
    if name == "papers":  # the page is written by `benchmarks.papers`, and read elsewhere too
        text += "\n```{toctree}\n:hidden:\n:glob:\n\npapers/*\n```\n"
    content[0] = text.replace("](docs/", f"]({depth}")


def setup(app: Any) -> dict[str, object]:
    """Connect it to Sphinx."""
    app.connect("source-read", adapt, priority=100)
    return {"version": "1", "parallel_read_safe": True}
