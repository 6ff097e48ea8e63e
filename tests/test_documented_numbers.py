"""Every measured number in a document is in a committed record (``documented_numbers.py`` says how it is named)."""

import json
from pathlib import Path

import pytest

import documented_numbers

ROOT = Path(__file__).parents[1]
#: The pages that `benchmarks.papers` writes from records are left out.
#: Pages without comments: two are written from records, and one is what building the site copies from `CHANGELOG.md`.
WITHOUT = ("papers.md", "beside-peers.md", "changelog.md")
PAGES = [
    "README.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in WITHOUT),
    *(f"docs/coming-from/{path.name}" for path in sorted((ROOT / "docs" / "coming-from").glob("*.md"))),
]
PAGE = """# Title, 7.5

The error is 0.25 after 3 steps, a third of `--rate 0.9`, and 50 % of what it was with 0.01.

<!-- numbers: made.json/rows[method=x]/error 0.01
made.json/rows[share=yes]/part -->

| method | error | seconds |
|---|---|---|
| x, 5,000 | 0.2 | 2.0, 3.0 |
| y, 2.5 | 0.13, 1e-3 | about 4 |

<!-- numbers: made.json/rows other.json
[method=x]/first+second,error [method=x]/first÷[method=x]/second
[method=y] other.json/0
-->

```
0.77
```
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    rows = [
        {"method": "x", "error": 0.2499, "first": 1.5, "second": 0.5},
        {"method": "y", "error": 0.126, "share": "yes", "part": 0.5},
    ]
    (tmp_path / "made.json").write_text(json.dumps({"rows": rows, "note": "of 12 and 1,300"}), encoding="utf-8")
    (tmp_path / "other.json").write_text("[0.001, 0.002, 0.006]", encoding="utf-8")
    monkeypatch.setattr(documented_numbers, "RESULTS", tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_the_numbers_of_a_page_are_in_records(page):
    assert documented_numbers.check((ROOT / page).read_text(encoding="utf-8")) == []


def test_right_numbers_pass(made):
    assert documented_numbers.check(PAGE) == []


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("error is 0.25", "error is 0.26", "line 3: no record of 0.26"),
        ("with 0.01", "with 0.02", "line 3: no record of 0.02"),
        ("50 %", "51 %", "line 3: no record of 51"),
        ("| 0.2 |", "| 0.13 |", "line 8: no record of 0.13 in row 1"),
        ("1e-3", "2e-3", "line 8: no record of 2e-3 in row 2"),
        ("about 4", "4", "line 8: no record of 4 in row 2"),
        ("about 4", "about 4.5", "line 8: no record of 4.5 in row 2"),
        ("[method=y] other.json/0\n", "", "line 8: 2 rows, 1 lines of places"),
        ("[method=y] ", "[method=z] ", "line 8: [method=z] leads nowhere"),
        ("[share=yes]/part", "[share=yes]/parts", "line 3: made.json/rows[share=yes]/parts leads nowhere"),
    ],
)
def test_a_wrong_number_is_found(made, right, wrong, said):
    assert PAGE.count(right) == 1
    assert said in documented_numbers.check(PAGE.replace(right, wrong))


def test_a_number_without_a_source_is_found(made):
    def last(text):
        return documented_numbers.check(f"{PAGE}\n{text}\n")

    assert last("It takes 12 s.") == ["line 22: no record of 12"]
    assert last("It takes 1,200 iterations, version 1.8.0.") == ["line 22: no record of 1,200"]
    assert last("It has 12 rows.") == []
    assert last("It takes 12 s.\n\n<!-- numbers: 12 -->") == []


def test_a_comment_that_names_everything_is_refused(made, tmp_path):
    (tmp_path / "long.json").write_text(json.dumps(list(range(1000))), encoding="utf-8")
    said = documented_numbers.check("It takes 12 s.\n\n<!-- numbers: long.json -->\n")
    assert said == ["line 1: row 1 may be any of 1000 numbers"]


def test_what_places_hold(made):
    def at(place):
        return documented_numbers.numbers_at(place)

    assert at("made.json/note") == [12, 1300]
    assert at("made.json/rows/0/first÷made.json/rows/0/second") == [3]
    assert at("other.json÷0.001") == pytest.approx([1, 2, 6])
    assert at("other.json|mean") == pytest.approx([0.003])
    assert at("other.json|median") == at("other.json/1")
    assert at("made.json/rows/first,error") == [1.5, 0.2499, 0.126]
    assert at("made.json/*") == []
    with pytest.raises(AssertionError, match="not in a JSON file"):
        at("made")
    with pytest.raises(AssertionError, match="no step"):
        at("made.json/rows]x")
