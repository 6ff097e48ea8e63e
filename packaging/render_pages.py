"""Write the pages that the site does not have, for `look_at_site.py`: the README, a report and a fitted estimator.

    python packaging/render_pages.py build/pages
    python packaging/look_at_site.py build/site build/pages --screenshots build/screenshots

README.md is rendered as a site of code does, in a column of at most 1012 px, and an estimator as in a notebook. Needs
markdown-it-py, which gigagp's own dependencies install.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

from markdown_it import MarkdownIt
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import gigagp

ROOT = Path(__file__).resolve().parents[1]
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>gigagp</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,"><style>
:root {{ color-scheme: light; }}
body {{ max-width: 1012px; margin: 0 auto; padding: 24px 16px; font: 16px/1.5 sans-serif; color: #1f2328; }}
img {{ max-width: 100%; }}
body > table {{ display: block; max-width: 100%; overflow: auto; border-collapse: collapse; }}
body > table :is(th, td) {{ border: 1px solid #d1d9e0; padding: 6px 13px; }}
pre {{ padding: 16px; overflow: auto; background: #f6f8fa; font: 13.6px/1.45 monospace; }}
code {{ font: 85% monospace; background: #eff1f3; padding: .2em .4em; overflow-wrap: anywhere; }}
pre code {{ font: inherit; padding: 0; background: none; overflow-wrap: normal; }}
a {{ color: #0969da; }}
</style></head><body>{}</body></html>
"""


def main() -> None:
    """Write the pages, and copy the pictures of the README."""
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

    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    gp = gigagp.GPRegressor().fit(X_train, y_train)
    (folder / "estimator.html").write_text(_PAGE.format(gp._repr_html_()), encoding="utf-8")
    gigagp.report(gp, X_test, y_test, folder / "report.html", label="progression after a year")


if __name__ == "__main__":
    main()
