"""The command line with tables as people have them: texts, dates, missing cells, other decimal marks and encodings."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import gigagp
from engines import needs_extension
from gigagp.commands.blocks import _named_cells
from gigagp.errors import InvalidInputError
from gigagp.tables.files import CsvStyle, read_columns

OPTIONS = ("--target", "y", "--optimizer", "none", "-q")


def content(n: int = 60) -> list[list[str]]:
    rng = np.random.default_rng(0)
    x, city, days = rng.normal(size=n), rng.choice(["Oslo", "Rome"], n), rng.integers(0, 900, n)
    y = x + (city == "Rome") + 0.01 * rng.normal(size=n)
    day = np.datetime64("2020-01-01") + days
    cells = ["" if k % 9 == 0 else f"{value:.3f}" for k, value in enumerate(x)]
    rows = [[f"r{k}", city[k], cells[k], str(day[k]), f"{y[k]:.3f}"] for k in range(n)]
    return [["id", "city", "x", "day", "y"], *rows]


@pytest.fixture
def mixed(tmp_path):
    path = tmp_path / "mixed.csv"
    path.write_text("\n".join(",".join(row) for row in content()) + "\n", encoding="utf-8")
    return path


def test_fit_predict_evaluate_and_plot(run, mixed, tmp_path):
    model, out = tmp_path / "m.gp", tmp_path / "p.csv"
    code, text, error = run("fit", mixed, *OPTIONS, "-o", model)
    assert code == 0, error
    assert error.startswith("gigagp: warning: X: column 'id' is left out")
    assert "  city  2 categories (" in text
    assert gigagp.load(model).encoder_.labels == ["city", "x", "x missing", "day days", "day season"]
    code, _, error = run("predict", model, mixed, "--keep", "id,day,city", "-o", out)
    assert code == 0, error
    found = read_columns(out)
    assert found.column_names == ["id", "day", "city", "mean", "std"]
    assert found.column("city").to_pylist() == read_columns(mixed).column("city").to_pylist()
    code, text, error = run("evaluate", model, mixed, "--json")
    assert (code, error) == (0, "")
    assert json.loads(text)["rmse"] < 0.7
    pytest.importorskip("matplotlib")
    assert run("plot", model, "-o", tmp_path / "m.svg", "--resolution", 5)[0] == 0


def test_strict_refuses_and_says_what_to_do(refused, mixed, tmp_path):
    error = refused("fit", mixed, *OPTIONS, "--strict", "-o", tmp_path / "m.gp")
    assert "column 'id', row 1: 'r0' is not a number" in error
    error = refused("fit", mixed, *OPTIONS, "--strict", "--inference", "quadruply-stochastic", "-o", tmp_path / "m.gp")
    assert "'r0' is not a number" in error


def test_classes_of_a_table_with_texts(run, mixed, tmp_path):
    model = tmp_path / "m.gp"
    options = ("--target", "city", "--columns", "x,day,y", "--likelihood", "logistic", "--optimizer", "none", "-q")
    code, _, error = run("fit", mixed, *options, "-o", model)
    assert code == 0, error
    assert list(gigagp.load(model).classes_) == ["Oslo", "Rome"]
    code, text, error = run("evaluate", model, mixed, "--json")
    assert code == 0, error
    assert json.loads(text)["accuracy"] > 0.8


def test_kept_columns_must_exist_and_not_repeat(run, refused, mixed, tmp_path):
    model = tmp_path / "m.gp"
    assert run("fit", mixed, *OPTIONS, "-o", model)[0] == 0
    assert "no column 'idd'. Did you mean 'id'?" in refused("predict", model, mixed, "--keep", "idd")
    table = read_columns(mixed)
    table = table.append_column("std", table.column("y"))
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert "--keep must not name 'std'" in refused(
        "predict", model, tmp_path / "t.parquet", "--keep", "std", "-o", tmp_path / "p.csv"
    )
    assert "column 'id'" in refused("predict", model, mixed, "--keep", "id", "-o", tmp_path / "p.npy")


def test_unseen_categories_warn_on_one_line(run, mixed, tmp_path):
    model = tmp_path / "m.gp"
    assert run("fit", mixed, *OPTIONS, "-o", model)[0] == 0
    (tmp_path / "new.csv").write_text("id,city,x,day\n1,Lima,0.5,2020-03-01\n", encoding="utf-8")
    code, _, error = run("predict", model, tmp_path / "new.csv", "-o", tmp_path / "p.csv")
    assert code == 0
    assert error.count("\n") == 1
    assert "'city' has categories that the fit has not seen: 'Lima'" in error


WRITTEN = {
    "semicolons": (lambda rows: "\n".join(";".join(row).replace(".", ",") for row in rows), "csv", "utf-8"),
    "comments": (
        lambda rows: "# made\n" + "\n".join(";".join(row).replace(".", ",") + " # note" for row in rows),
        "csv",
        "utf-8",
    ),
    "utf-16": (lambda rows: "\n".join(";".join(row).replace(".", ",") for row in rows), "csv", "utf-16"),
    "utf-16 tabs": (lambda rows: "\r\n".join("\t".join(row).replace(".", ",") for row in rows), "txt", "utf-16-le"),
    "blanks": (
        lambda rows: "\n".join("   ".join(cell.replace(".", ",") or "NA" for cell in row) for row in rows),
        "dat",
        "utf-8",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_other_ways_to_write_the_same_table(name, mixed, tmp_path):
    write, ending, encoding = WRITTEN[name]
    text = write(content())
    path = tmp_path / f"t.{ending}"
    path.write_bytes((("\ufeff" if encoding == "utf-16-le" else "") + text).encode(encoding))
    found = read_columns(path, style=CsvStyle(",", "#" if name == "comments" else None))
    expected = read_columns(mixed)
    assert found.column_names == expected.column_names
    assert found.column("y").type == pa.float64()
    for one in expected.column_names:
        cells = [cell.strip() if isinstance(cell, str) else cell for cell in found.column(one).to_pylist()]
        assert cells == expected.column(one).to_pylist()


def test_blanks_within_names_do_not_separate(tmp_path):
    (tmp_path / "one.csv").write_text("wind speed\n3.5\n4.5\n", encoding="utf-8")
    assert read_columns(tmp_path / "one.csv").column_names == ["wind speed"]
    (tmp_path / "two.csv").write_text("wind speed,y\n3.5,1\n", encoding="utf-8")
    assert read_columns(tmp_path / "two.csv").column_names == ["wind speed", "y"]
    (tmp_path / "three.txt").write_text('a "the b"\n1.5 "x y"\n2.5 z\n', encoding="utf-8")
    assert read_columns(tmp_path / "three.txt").to_pydict() == {"a": [1.5, 2.5], "the b": ["x y", "z"]}


@pytest.mark.parametrize(("decimal", "comment"), [("'", None), ("", None), (".", ""), (".", ","), (".", '"')])
def test_wrong_marks_are_refused(decimal, comment):
    with pytest.raises(InvalidInputError, match=r"--decimal|--comment"):
        CsvStyle(decimal, comment)


def test_the_command_takes_the_marks(run, tmp_path):
    path, model = tmp_path / "t.csv", tmp_path / "m.gp"
    path.write_text("# a table\n" + "\n".join(";".join(row).replace(".", ",") for row in content()), encoding="utf-8")
    marks = ("--decimal", ",", "--comment", "#")
    assert run("fit", path, *OPTIONS, *marks, "-o", model)[0] == 0
    code, text, error = run("evaluate", model, path, *marks, "--json")
    assert code == 0, error
    assert json.loads(text)["rows"] == 60
    assert run("predict", model, path, *marks, "-o", tmp_path / "p.csv")[0] == 0


@needs_extension
def test_a_plan_takes_the_same_tables(run, refused, mixed):
    code, text, error = run("plan", mixed, "--target", "y", "-q", "--json")
    assert code == 0, error
    assert json.loads(text)["options"]
    assert "'r0' is not a number" in refused("plan", mixed, "--target", "y", "-q", "--strict")


def test_cells_of_a_block_have_the_names_of_the_model_or_none():
    found = _named_cells(SimpleNamespace(feature_names_in_=np.array(["u", "v"])), pa.table({"a": [1.5], "b": ["x"]}))
    assert found.to_pylist() == [{"u": 1.5, "v": "x"}]
    plain = _named_cells(SimpleNamespace(), pa.table({"a": [1.5, None], "b": ["x", "y"]}))
    assert plain.tolist() == [[1.5, "x"], [None, "y"]]
