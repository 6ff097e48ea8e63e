"""Every measured number in a document is in a committed record (``documented_numbers.py`` says how it is named)."""

import json
from pathlib import Path

import pytest

import documented_numbers

ROOT = Path(__file__).parents[1]
#: Pages that are checked, and how many of their numbers still have no record.
PAGES = {"docs/iterative.md": 11, "docs/computation-aware.md": 10}
#: Pages whose numbers have no sources yet. The pages of `docs/papers` are written from records as they are.
LATER = {
    "README.md",
    "docs/architecture.md",
    "docs/grids.md",
    "docs/how-to-choose.md",
    "docs/neighbours.md",
    "docs/quadruply-stochastic.md",
    "docs/randomized-truncation.md",
    "docs/reliability.md",
    "docs/troubleshooting.md",
}
PAGE = """# Title

The error is 0.25 after 3 steps, a third of `--rate 0.9`, and 50 % of what it was.

<!-- numbers: made.json
[method=x] : error _ 100*[share=yes]/part
-->

| method | error | times |
|---|---|---|
| x, 5,000 | 0.3 | 2.0 |
| y | 0.13 | 1 |

<!-- numbers: made.json
[method=x] : rows error other.json#0÷error
[method=y] : error _
-->

```
0.77
```
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    rows = [
        {"method": "x", "error": 0.2499, "rows": 5000, "part": 0.5},
        {"method": "y", "error": 0.126, "share": "yes", "part": 0.5},
    ]
    (tmp_path / "made.json").write_text(json.dumps(rows))
    (tmp_path / "other.json").write_text("[0.5]")
    monkeypatch.setattr(documented_numbers, "RESULTS", tmp_path)


PAGE_FILES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("page", [page for page in PAGE_FILES if page != "docs/papers.md"])
def test_the_numbers_of_a_page_are_in_records(page):
    wrong, missing = documented_numbers.check((ROOT / page).read_text(encoding="utf-8"))
    if page in LATER:
        assert wrong, f"{page} has all its sources now: take it out of LATER"
    else:
        assert wrong == []
        assert missing == PAGES.get(page, 0)


def test_right_numbers_pass(made):
    page = PAGE.replace("100*[share=yes]/part", "100*part").replace("0.3 | 2.0", "0.2 | 2.0")
    assert documented_numbers.check(page) == ([], 0)


def test_a_wrong_number_is_found(made):
    page = PAGE.replace("100*[share=yes]/part", "100*part")
    assert documented_numbers.check(page)[0] == ["line 9: 0.3 is 0.2499 in made.json ([method=x]error)"]


def test_a_number_without_a_source_is_found(made):
    page = PAGE.replace("100*[share=yes]/part", "100*part").replace("0.3 | 2.0", "0.2 | 2.0")
    assert documented_numbers.check(page + "\nIt takes 12 s.\n")[0] == ["line 23: no source of ['12 s']"]
    assert documented_numbers.check(page + "\nIt has 12 rows.\n") == ([], 0)
    assert documented_numbers.check(page + "\nIt takes 12 s.\n\n<!-- numbers: given -->\n") == ([], 0)
    assert "3 numbers" in documented_numbers.check(page.replace("| y | 0.13 | 1 |", "| y | 0.13 | 1 | 2 |"))[0][0]
    assert "2 rows, 1 lines" in documented_numbers.check(page.replace("[method=y] : error _\n", ""))[0][0]
    assert documented_numbers.check(page.replace("[method=y] : error", "[method=y] : ?")) == ([], 1)


def test_a_path_that_leads_nowhere_is_an_error(made):
    with pytest.raises(AssertionError, match="0 items"):
        documented_numbers.lookup("[method=z]/error", "made.json")
    with pytest.raises(KeyError):
        documented_numbers.lookup("0/nothing", "made.json")
