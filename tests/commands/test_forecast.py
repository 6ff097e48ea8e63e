"""``gigagp forecast``: a table of dates in, a table and a picture out."""

from __future__ import annotations

import numpy as np
import pyarrow.csv as csv
import pytest


@pytest.fixture
def table(tmp_path):
    t = np.arange(11)
    y = 10 + t / 10 + np.sin(t) + 0.01 * np.cos(t**2)
    dates = np.arange("2024-01-01", "2024-01-12", dtype="datetime64[D]")
    lines = [f"{day},{value:.4f},{shop}" for shop in "ab" for day, value in zip(dates, y, strict=True)]
    path = tmp_path / "sales.csv"
    path.write_text("\n".join(["date,sold,shop", *lines]), encoding="utf-8")
    return path


def test_a_table_becomes_a_forecast_and_a_picture(run, table, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "f.csv"
    given = ("forecast", table, "--time", "date", "--target", "sold", "--series", "shop", "--steps", 3, "-o", out, "-q")
    code, text, error = run(*given)
    assert (code, error) == (0, "")
    found = csv.read_csv(out)
    assert found.column_names == ["series", "time", "mean", "std", "q0.025", "q0.1", "q0.5", "q0.9", "q0.975"]
    assert found["series"].to_pylist() == ["a"] * 3 + ["b"] * 3
    assert str(found["time"][0]) == "2024-01-12 00:00:00"
    assert out.with_suffix(".png").is_file()
    assert f"Wrote 6 rows to {out}, and {out.with_suffix('.png')}." in text


def test_a_table_without_rows_and_one_to_be_replaced_are_refused(refused, table):
    text = table.read_text(encoding="utf-8")
    given = ("--time", "date", "--target", "sold", "--steps", 3, "--no-picture")
    assert "would be replaced. Give --out another name" in refused("forecast", table, *given, "-o", table)
    assert table.read_text(encoding="utf-8") == text
    table.write_text("date,sold\n", encoding="utf-8")
    assert "has no rows of data" in refused("forecast", table, *given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--target", "y"], "target of forecast must name a column, one of date, sold, shop; got 'y'"),
        (["--target", "sold", "--level", "2"], "--level must be between 0 and 1; got 2."),
        (["--target", "sold", "--series", "shop", "--backtest", "2"], "--backtest is for one series"),
        (["--target", "shop"], "shop"),
    ],
)
def test_what_cannot_be_is_one_line(run, table, tmp_path, given, message):
    code, text, error = run("forecast", table, "--time", "date", *given, "-o", tmp_path / "f.csv", "--no-picture")
    assert (code, text) == (2, "")
    assert message in error
    assert error.count("\n") == 1
