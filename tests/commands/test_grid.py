"""The command line with tables that are streamed, and ``gigagp plot``."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import gigagp
from gigagp.commands import blocks
from gigagp.estimators.saving.persistence import load_notes
from gigagp.tables.files import read_table

RNG = np.random.default_rng(0)
N = 600
FRAME = pd.DataFrame(RNG.uniform(0, 3, (N, 2)), columns=["u", "v"])
FRAME["y"] = np.sin(2 * FRAME.u) * np.cos(2 * FRAME.v) + 0.1 * RNG.normal(size=N)
FIT = ("--target", "y", "--inference", "grid", "-q")


@pytest.fixture
def folder(tmp_path):
    """Parquet and CSV files in one folder."""
    path = tmp_path / "parts"
    path.mkdir()
    FRAME.iloc[:350].to_parquet(path / "0.parquet")
    FRAME.iloc[350:].to_csv(path / "1.csv", index=False)
    return path


@pytest.fixture
def model(run, folder, tmp_path):
    path = tmp_path / "model.gp"
    code, out, error = run("fit", folder, *FIT, "--grid-size", "16,14", "--kernel", "rbf", "-o", path)
    assert code == 0, error
    assert "grid (size 16 x 14" in out
    assert "Fitted 600 rows and 2 inputs" in out
    return path


def test_a_folder_is_fitted_evaluated_and_predicted(run, folder, model, tmp_path):
    assert load_notes(model) == {"target": "y", "noise_column": None, "rows": N}
    code, out, error = run("evaluate", model, folder, "--json")
    assert code == 0, error
    found = json.loads(out)
    assert found["rows"] == N
    assert found["rmse"] < 0.12
    assert run("predict", model, folder, "-o", tmp_path / "p.parquet")[0] == 0
    np.testing.assert_allclose(
        read_table(tmp_path / "p.parquet").column("mean"), gigagp.load(model).predict(FRAME[["u", "v"]]), rtol=1e-12
    )


def test_large_tables_are_predicted_in_blocks(run, model, tmp_path, monkeypatch):
    """Predictions in blocks equal those made at once, including joint samples."""
    FRAME.to_parquet(tmp_path / "all.parquet")
    predict = ("predict", model, tmp_path / "all.parquet", "--include-noise", "--samples", 2, "-o")
    assert run(*predict, tmp_path / "whole.npy")[0] == 0
    whole = run("evaluate", model, tmp_path / "all.parquet", "--json")[1]
    read: list[int] = []
    monkeypatch.setattr(blocks, "AT_ONCE", 0)
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 90)
    original = blocks.Block.__new__
    monkeypatch.setattr(
        blocks.Block, "__new__", lambda cls, inputs, others: read.append(len(inputs)) or original(cls, inputs, others)
    )
    assert run(*predict, tmp_path / "parts.npy")[0] == 0
    assert read == [90] * 6 + [60]
    np.testing.assert_allclose(np.load(tmp_path / "parts.npy"), np.load(tmp_path / "whole.npy"), rtol=1e-9, atol=1e-12)
    found = json.loads(run("evaluate", model, tmp_path / "all.parquet", "--json")[1])
    assert found["rmse"] == pytest.approx(json.loads(whole)["rmse"], rel=1e-9)


def test_a_checkpoint_goes_on_after_a_damaged_file(run, refused, tmp_path, monkeypatch):
    monkeypatch.setattr("gigagp.tables.rows.preview.PREVIEW_ROWS", 100)
    path = tmp_path / "parts"
    path.mkdir()
    for k in range(3):
        FRAME.iloc[200 * k : 200 * (k + 1)].to_parquet(
            path / f"{k}.parquet", use_dictionary=False, compression="none", data_page_size=200, write_batch_size=20
        )
    whole = (path / "1.parquet").read_bytes()
    (path / "1.parquet").write_bytes(whole[:1000] + b"\xff" * 500 + whole[1500:])  # beyond the first page
    call = ("fit", path, *FIT, "--grid-size", 14, "--checkpoint", tmp_path / "state", "-o", tmp_path / "model.gp")
    error = refused(*call)
    assert f"{path / '1.parquet'} cannot be read" in error
    assert "200 rows before it are kept in" in error
    (path / "1.parquet").write_bytes(whole)
    assert run(*call)[0] == 0
    assert load_notes(tmp_path / "model.gp")["rows"] == N
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--rows", 100),
            "--panel, --groups and --predict-at do not apply to --inference grid",
        ),
        (("--noise-column", "v"), "--panel, --groups and --predict-at do not apply"),
        (("--grid-size", "4"), "each at least 6; got 4"),
        (("--grid-size", "9,9,9"), "must have 2 numbers"),
        (("--grid-size", "many"), "--grid-size must be whole numbers"),
        (("--truncation", "40"), "grid inference has nothing to cut"),
        (("--truncation", "40", "--grid-size", "9"), "grid inference has nothing to cut"),
        (("--target", "w"), "has no column 'w'"),
        (("--columns", "u,y"), "--columns must not contain 'y'"),
        (("--columns", "u,w"), "has no column 'w'"),
        (("--kernel", "rbf*linear"), "must be stationary"),
    ],
)
def test_one_line_says_what_is_wrong(refused, folder, tmp_path, arguments, message):
    assert message in refused("fit", folder, *FIT, "-o", tmp_path / "m.gp", *arguments)


def test_a_size_needs_a_grid(refused, folder, tmp_path):
    assert "it goes with --inference grid" in refused(
        "fit", folder / "0.parquet", "--target", "y", "--grid-size", 20, "-o", tmp_path / "m.gp"
    )
    assert "got 'grid', whose model is another one" in refused(
        "diagnose", "bias", folder / "0.parquet", "--target", "y", "--inference", "grid"
    )


def test_a_csv_file_without_a_header(run, tmp_path):
    FRAME.to_csv(tmp_path / "t.csv", index=False, header=False)
    call = ("fit", tmp_path / "t.csv", "--target", "-1", "--inference", "grid", "--grid-size", 14, "--no-header", "-q")
    code, _, error = run(*call, "-o", tmp_path / "m.gp")
    assert code == 0, error
    assert list(gigagp.load(tmp_path / "m.gp").feature_names_in_) == ["column1", "column2"]


@pytest.mark.slow
def test_plots(run, refused, model, tmp_path):
    assert run("plot", model, "--out", tmp_path / "map.svg", "--resolution", 10)[1] == f"Drew {tmp_path / 'map.svg'}.\n"
    assert "<!-- y: mean -->" in (tmp_path / "map.svg").read_text(encoding="utf-8")
    assert run("plot", model, "-o", tmp_path / "map.png", "--resolution", 10, "--lower", "0.5,1", "--upper=2,2")[0] == 0
    for arguments, message in (
        (("--at", "1"), "only for maps of three inputs"),
        (("--lower", "a,b"), "lower of a picture must be finite numbers for u; got 'a'"),
        (("--target", 2), "--target must be 1, as the model has one target; got '2'."),
        (("--out", tmp_path / "map.jpg"), "ends in .png"),
        (("--out", tmp_path / "no" / "map.png"), "does not exist"),
        (("--upper", "99,99"), "outside of the grid's region"),
    ):
        assert message in refused("plot", model, "-o", tmp_path / "x.png", *arguments)
    assert "does not exist" in refused("plot", tmp_path / "none.gp", "-o", tmp_path / "x.png")


def test_slices_by_number(run, tmp_path):
    """Numbers count from 1 on the command line, and names take precedence."""
    frame = FRAME.assign(w=RNG.uniform(size=N))
    gp = gigagp.GPRegressor(optimizer=None, inference=gigagp.inference.Exact())
    gp.fit(frame[["u", "v", "w"]].iloc[:50], frame.y.iloc[:50])
    shown: list[dict] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gigagp, "load", lambda path: gp)
        patch.setattr("gigagp.commands.plot.load_notes", lambda path: {})
        patch.setattr("gigagp.plots.plot", lambda model, X, y, **options: shown.append(options))
        for which in ("1", "w"):
            assert run("plot", "m.gp", "-o", tmp_path / "m.png", "--across", which, "--at=-0.5,1")[0] == 0
    assert [options["across"] for options in shown] == [0, "w"]
    assert shown[0]["at"] == [-0.5, 1.0]
