from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from gigagp import kernels, optimization
from gigagp.commands.options import choose_kernel, choose_optimizer
from gigagp.errors import InvalidInputError, SolverWarning
from gigagp.estimators.saving import persistence
from gigagp.tables.files import read_table


@pytest.fixture
def model(stand_in, run, csv, tmp_path):
    path = tmp_path / "model.gp"
    code, _, error = run("fit", csv, "--target", "y", "--out", path, "-q")
    assert code == 0, error
    return path


@pytest.mark.usefixtures("stand_in")
def test_fit_says_what_it_did(run, csv, tmp_path):
    code, out, error = run("fit", csv, "--target", "y", "--out", tmp_path / "m.gp", "-q")
    assert code == 0
    assert out.startswith("stand-in: least squares\nFitted 40 rows and 2 inputs in ")
    assert error == "gigagp: warning: a solve stopped early: residual 0.5\n"
    assert persistence.load_notes(tmp_path / "m.gp") == {"target": "y", "noise_column": None, "rows": 40}


def test_options_reach_the_estimator(stand_in, run, csv, tmp_path):
    code, _, error = run(
        *("fit", csv, "--target", "y", "-o", tmp_path / "m.gp", "--kernel", "rbf", "--inference", "exact"),
        *(
            "--steps",
            7,
            "--seed",
            3,
            "--dtype",
            "float32",
            "--device",
            "cpu",
            "--memory",
            "1GiB",
            "--mean",
            "zero",
            "-v",
        ),
    )
    assert code == 0, error
    given = stand_in.arguments
    assert isinstance(given["kernel"], kernels.RBF)
    assert type(given["inference"]).__name__ == "Exact"
    assert isinstance(given["optimizer"], optimization.Adam)
    assert given["optimizer"].steps == 7
    rest = {name: given[name] for name in ("random_state", "dtype", "device", "memory_budget", "mean", "verbose")}
    assert rest == {
        "random_state": 3,
        "dtype": "float32",
        "device": "cpu",
        "memory_budget": "1GiB",
        "mean": "zero",
        "verbose": 2,
    }


def test_columns_rows_and_noise(stand_in, run, csv, tmp_path):
    out = tmp_path / "m.gp"
    assert run("fit", csv, "--target", "-1", "-o", out, "--columns", "b", "--noise-column", "1", "--rows", 30)[0] == 0
    assert stand_in.arguments["noise_variance"].shape == (30,)
    loaded = persistence.load(out)
    assert list(loaded.feature_names_in_) == ["b"]
    assert persistence.load_notes(out)["target"] == "y"
    assert run("fit", csv, "--target", "3", "-o", out, "--noise-column", "a")[0] == 0
    assert list(persistence.load(out).feature_names_in_) == ["b"]


@pytest.mark.parametrize("name", ["p.csv", "p.parquet", "p.arrow", "p.npz"])
def test_predict_writes_mean_and_std(run, model, csv, tmp_path, name):
    code, out, _ = run("predict", model, csv, "-o", tmp_path / name)
    assert code == 0
    assert "Wrote 40 predictions" in out
    written = read_table(tmp_path / name)
    truth = read_table(csv).column("y")
    assert written.names == ("mean", "std")
    assert np.sqrt(np.mean((written.column("mean") - truth) ** 2)) < 0.2


def test_predict_noise_and_samples(run, model, csv, tmp_path):
    run("predict", model, csv, "-o", tmp_path / "f.csv")
    run("predict", model, csv, "-o", tmp_path / "y.csv", "--include-noise", "--samples", 2)
    function, measured = read_table(tmp_path / "f.csv"), read_table(tmp_path / "y.csv")
    assert measured.names == ("mean", "std", "sample1", "sample2")
    assert np.all(measured.column("std") > function.column("std"))


def test_predict_takes_columns_by_name_in_any_order(run, model, csv, tmp_path):
    table = read_table(csv)
    mixed = pa.table({"note": ["x"] * 40, "b": table.column("b"), "extra": [None] * 40, "a": table.column("a")})
    pyarrow.parquet.write_table(mixed, tmp_path / "mixed.parquet")
    run("predict", model, csv, "-o", tmp_path / "1.npy")
    assert run("predict", model, tmp_path / "mixed.parquet", "-o", tmp_path / "2.npy")[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "1.npy"), np.load(tmp_path / "2.npy"))


@pytest.mark.usefixtures("stand_in")
def test_tables_without_names_work_throughout(run, tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 2))
    np.savetxt(tmp_path / "t.csv", np.column_stack([X, X.sum(axis=1)]), delimiter=",")
    assert run("fit", tmp_path / "t.csv", "--target", "-1", "-o", tmp_path / "m.gp")[0] == 0
    np.save(tmp_path / "new.npy", X[:1])  # one row is enough to predict
    assert run("predict", tmp_path / "m.gp", tmp_path / "new.npy", "-o", tmp_path / "p.csv")[0] == 0
    assert read_table(tmp_path / "p.csv").column("mean") == pytest.approx(X[:1].sum(axis=1), abs=1e-8)
    assert run("evaluate", tmp_path / "m.gp", tmp_path / "t.csv")[0] == 0


def test_a_model_of_a_bare_array_takes_the_columns_in_order(stand_in, run, refused, tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.warns(SolverWarning):
        persistence.save(stand_in().fit(X, X[:, 0]), tmp_path / "m.gp")
    (tmp_path / "new.csv").write_text("p,q,r\n1,2,3\n", encoding="utf-8")
    assert "2 inputs, got 3 columns" in refused("predict", tmp_path / "m.gp", tmp_path / "new.csv")
    arguments = ("predict", tmp_path / "m.gp", tmp_path / "new.csv", "--columns", "q,p", "-o", tmp_path / "p.csv")
    assert run(*arguments)[0] == 0
    assert read_table(tmp_path / "p.csv").column("mean") == pytest.approx([2.0])
    assert "name the column with --target" in refused("evaluate", tmp_path / "m.gp", tmp_path / "new.csv")


def test_evaluate_prints_scores_and_json(run, model, csv):
    code, out, _ = run("evaluate", model, csv)
    assert code == 0
    for word in ("RMSE", "NLL", "CRPS", "coverage 50 %", "coverage 80 %", "coverage 95 %"):
        assert word in out
    code, out, _ = run("evaluate", model, csv, "--json")
    scores = json.loads(out)
    assert code == 0
    assert scores["rows"] == 40
    assert scores["target"] == "y"
    assert 0.05 < scores["rmse"] < 0.2
    assert scores["coverage"].keys() == {"0.5", "0.8", "0.95"}


@pytest.mark.usefixtures("stand_in")
def test_evaluate_adds_the_noise_of_each_row(run, refused, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    variance = rng.uniform(0.1, 9.0, size=400)
    y = x + np.sqrt(variance) * rng.normal(size=400)
    pyarrow.parquet.write_table(pa.table({"x": x, "v": variance, "y": y}), tmp_path / "t.parquet")
    model = tmp_path / "m.gp"
    run("fit", tmp_path / "t.parquet", "--target", "y", "--noise-column", "v", "-o", model)
    nll = json.loads(run("evaluate", model, tmp_path / "t.parquet", "--json")[1])["nll"]
    std = np.sqrt(variance + (np.std(y - x) / 2) ** 2)  # the stand-in's spread is half of that of its residuals
    assert nll == pytest.approx(float(np.mean(0.5 * ((y - x) / std) ** 2 + np.log(std * np.sqrt(2 * np.pi)))), abs=0.01)
    pyarrow.parquet.write_table(pa.table({"x": x, "v": -variance, "y": y}), tmp_path / "t.parquet")
    assert "column 'v' must not be negative; row 1 is" in refused("evaluate", model, tmp_path / "t.parquet")


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("content", "extra", "message"),
    [
        ("a,y\n1,2\n3,4\n", ("--target", "Yy"), "no column 'Yy'. Did you mean 'y'?"),
        ("a,y\n1,2\n3,4\n", ("--target", "5"), "no column '5'"),
        ("a,y\n1,2\n", (), "has one row"),
        ("a,y\n", (), "has no rows"),
        ("", (), "is empty"),
        ("y\n1\n2\n", (), "no column besides y"),
        ("a,y\n1,2\nx,4\n", ("--strict",), "column 'a', row 2: 'x' is not a number"),
        ("a,y\n1,2\n3,\n", (), "column 'y', row 2: the cell is empty"),
        ("a,y\n1,2\n3,inf\n", (), "column 'y', row 2: the number is infinite"),
        ("a,y\n1,2\n3,2\n", (), "y must vary; it is constant."),
        ("a,y\n1,2\n3,4\n", ("--columns", "a,b"), "no column 'b'"),
        ("a,y\n1,2\n3,4\n", ("--columns", "a,y"), "must not contain 'y'"),
        ("a,y\n1,2\n3,4\n", ("--columns", ","), "at least one column"),
        ("a,y\n1,2\n3,4\n", ("--kernel", "matern"), "--kernel must be made of"),
        ("a,y\n1,2\n3,4\n", ("--inference", "magic"), "--inference must be one of"),
        ("a,y\n1,2\n3,4\n", ("--optimizer", "magic"), "--optimizer must be one of"),
        ("a,y\n1,2\n3,4\n", ("--steps", "0"), "--steps must be at least 1"),
        ("a,y\n1,2\n3,4\n", ("--rows", "1"), "--rows must be at least 2"),
        ("a,y\n1,2\n3,4\n", ("--out", "absent/m.gp"), "does not exist"),
        ("a,y\n1,2\n3,4\n", ("--noise", "loud"), "--noise must be one of"),
        ("a,y\n1,2\n3,4\n", ("--noise", "auto", "--likelihood", "poisson"), "--noise auto does not apply"),
        (
            "a,y\n1,2\n3,4\n",
            ("--target-transform", "log", "--likelihood", "poisson"),
            "--target-transform log does not",
        ),
        ("a,y\n1,p\n3,q\n", ("--likelihood", "logistic", "--distributed"), "--distributed does not apply"),
    ],
)
def test_bad_input_to_fit_is_one_line(refused, tmp_path, monkeypatch, content, extra, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(content, encoding="utf-8")
    target = () if "--target" in extra else ("--target", "y")
    assert message in refused("fit", "t.csv", *target, *extra)
    assert not (tmp_path / "model.gp").exists()


def test_bad_input_to_predict_is_one_line(refused, model, csv, tmp_path):
    (tmp_path / "short.csv").write_text("a\n1\n", encoding="utf-8")
    assert "no column 'b'" in refused("predict", model, tmp_path / "short.csv")
    (tmp_path / "text.csv").write_text("a,b\n1,x\n", encoding="utf-8")
    assert "column 'b', row 1" in refused("predict", model, tmp_path / "text.csv")
    (tmp_path / "none.csv").write_text("a,b\n", encoding="utf-8")
    assert "has no rows" in refused("predict", model, tmp_path / "none.csv")
    assert "ending '.xlsx'" in refused("predict", model, csv, "--out", tmp_path / "p.xlsx")
    assert "--samples must not be negative" in refused("predict", model, csv, "--samples=-1")
    model.write_bytes(model.read_bytes()[:100])
    assert "damaged" in refused("predict", model, csv, "--out", tmp_path / "p.csv")
    assert "damaged" in refused("evaluate", model, csv)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("matern32", kernels.Matern(nu=1.5)),
        ("Matern12", kernels.Matern(nu=0.5)),
        ("rbf*periodic+linear", kernels.RBF() * kernels.Periodic() + kernels.Linear()),
        ("rq + constant", kernels.RationalQuadratic() + kernels.Constant()),
    ],
)
def test_kernels_by_words(text, expected):
    assert repr(choose_kernel(text)) == repr(expected)


@pytest.mark.parametrize("text", ["", "rbf+", "rbf**rbf", "(rbf)"])
def test_other_words_are_refused(text):
    with pytest.raises(InvalidInputError, match="--kernel must be made of rbf, matern12"):
        choose_kernel(text)


def test_optimizers_by_words():
    assert choose_optimizer("auto", None) == "auto"
    assert choose_optimizer("none", None) is None
    assert choose_optimizer("auto", 3) == optimization.Adam(steps=3)
    assert isinstance(choose_optimizer("lbfgs", 3), optimization.LBFGS)


def test_truncation_is_one_option(stand_in, run, refused, csv, tmp_path):
    fit = ("fit", csv, "--target", "y", "-q", "-o", tmp_path / "m.gp")
    for words, mean, deviation in (
        (("--truncation", "30"), 30, 15),
        (("--truncation", "30,8", "--inference", "iterative"), 30, 8),
    ):
        assert run(*fit, *words)[0] == 0
        given = stand_in.arguments["inference"]
        assert type(given).__name__ == "Iterative"
        law = given.solver.truncation
        assert type(law).__name__ == "ExponentialDecay"
        assert law.mean == pytest.approx(mean)
        assert law.standard_deviation == pytest.approx(deviation, abs=0.6)
    assert run(*fit, "--truncation", "12,3", "--inference", "random-features")[0] == 0
    series = stand_in.arguments["inference"].truncation
    assert type(series).__name__ == "SingleSample"
    assert series.distribution.mean == pytest.approx(12, abs=1)
    for wrong in ("many", "-3", "10,0", "1,2,3", "inf", ""):
        assert "--truncation must be a mean, or a mean and a standard deviation" in refused(*fit, "--truncation", wrong)
    assert "exact inference has nothing to cut" in refused(*fit, "--truncation", "30", "--inference", "exact")
    assert "the mean is at least" in refused(*fit, "--truncation", "10,30")


def test_a_table_that_is_read_is_not_replaced(run, refused, csv, tmp_path, stand_in):
    text, model = csv.read_text(encoding="utf-8"), tmp_path / "m.gp"
    assert "would be replaced" in refused("fit", csv, "--target", "y", "--out", csv)
    assert run("fit", csv, "--target", "y", "--out", model)[0] == 0
    assert "would be replaced" in refused("predict", model, csv, "--out", csv)
    assert csv.read_text(encoding="utf-8") == text
