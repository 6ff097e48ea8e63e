"""What the site shows differently from the repository, where the same Markdown files are read.

- The mermaid picture of the architecture is drawn by the repository's viewer; the site would need a script for it.
- Links to ``README.md`` lead to the start page, and the changelog is the one of the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_MERMAID = re.compile(r"^```mermaid\n.*?^```\n", re.DOTALL | re.MULTILINE)
_README = re.compile(r"\]\((?:\.\./)*README\.md(?:#[^)]*)?\)")


def adapt(app: Any, name: str, content: list[str]) -> None:
    """Change the text of a page before it is parsed."""
    depth = "../" * name.count("/")
    text = _MERMAID.sub("*The picture of the layers is in the repository's copy of this page.*\n", content[0])
    content[0] = _README.sub(f"]({depth}index.md)", text)


def write_changelog(app: Any) -> None:
    """Copy the changelog beside the pages."""
    source = Path(app.srcdir)
    text = (source.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    path = source / "changelog.md"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, object]:
    """Connect both to Sphinx."""
    app.connect("builder-inited", write_changelog, priority=100)
    app.connect("source-read", adapt, priority=100)
    return {"version": "1", "parallel_read_safe": True}
