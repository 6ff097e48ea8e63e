"""Render README.md as a site of code does: a folder with one page and its pictures, for `look_at_site.py`.

    python packaging/render_readme.py build/readme
    python packaging/look_at_site.py build/readme --screenshots build/screenshots --pages README.html

Needs markdown-it-py, which the extra ``docs`` installs. The style is a plain one: a column of at most 1012 px, whose
tables and code scroll where they are wider.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>gigagp</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,"><style>
body {{ max-width: 1012px; margin: 0 auto; padding: 24px 16px; font: 16px/1.5 sans-serif; color: #1f2328; }}
img {{ max-width: 100%; }}
table {{ display: block; max-width: 100%; overflow: auto; border-collapse: collapse; }}
th, td {{ border: 1px solid #d1d9e0; padding: 6px 13px; }}
pre {{ padding: 16px; overflow: auto; background: #f6f8fa; font: 13.6px/1.45 monospace; }}
code {{ font: 85% monospace; background: #eff1f3; padding: .2em .4em; overflow-wrap: anywhere; }}
pre code {{ font: inherit; padding: 0; background: none; overflow-wrap: normal; }}
a {{ color: #0969da; }}
</style></head><body>{}</body></html>
"""


def main() -> None:
    """Write the page and copy its pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.html").write_text(_PAGE.format(body), encoding="utf-8")
    for picture in re.findall(r'<img src="([^":]+)"', body):
        (folder / picture).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / picture, folder / picture)


if __name__ == "__main__":
    main()
