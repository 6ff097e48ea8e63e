"""``gigagp report`` and ``gigagp plot`` on the command line."""

from __future__ import annotations

import numpy as np
import pytest

import gigagp
from gigagp import inference

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    days = np.datetime64("2020-01-01") + np.arange(160)
    for name, part in (("train", slice(0, None, 2)), ("test", slice(1, None, 2))):
        rows = [f"{day},{np.sin(k / 9) + 0.1 * rng.normal():.4f}" for k, day in enumerate(days)][part]
        (folder / f"{name}.csv").write_text("day,height\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return folder


def test_fit_report_and_plot(run, refused, files):
    model, out = files / "m.gp", files / "page.html"
    fit = ("fit", files / "train.csv", "--target", "height", "-q", "--kernel", "rbf", "--out", model)
    assert run(*fit)[0] == 0
    code, text, error = run("report", model, files / "test.csv", "--out", out, "-q", "--title", "Tides & days")
    assert (code, text, error) == (0, f"Wrote {out}.\n", "")
    page = out.read_text(encoding="utf-8")
    assert "<h1>Tides &amp; days</h1>" in page
    assert "predicts height from 1 input: day" in page
    code, text, _ = run("plot", model, "-o", files / "p.svg", "--upper", "2020-08-01", "--data", files / "test.csv")
    assert code == 0
    drawn = (files / "p.svg").read_text(encoding="utf-8")
    for words in ("beyond the data: mean", "data", "height", "day"):
        assert f"<!-- {words} -->" in drawn
    assert "must be a file that ends in .html" in refused("report", model, files / "test.csv", "--out", files / "p.pdf")
    assert "no column" in refused("report", model, files / "test.csv", "--target", "depth", "--out", files / "q.html")
    assert "aspect of plot must be" in refused("plot", model, "-o", files / "q.svg", "--aspect", "round")
    assert "dates" in refused("plot", model, "-o", files / "q.svg", "--upper", "soon")
    assert not (files / "q.html").exists()
    assert not (files / "q.svg").exists()


X = np.random.default_rng(2).uniform(0, 6, (30, 1))
ONCE = {"inference": inference.QuadruplyStochastic(n_basis=5), "optimizer": None}
MODELS = {
    "three classes": gigagp.GPClassifier(**ONCE).fit(X, np.array(["clay", "sand", "silt"])[(X[:, 0] // 2).astype(int)]),
    "two classes": gigagp.GPClassifier(**ONCE).fit(X, np.where(X[:, 0] > 3, "wet", "dry")),
    "two targets": gigagp.GPRegressor(optimizer=None, outputs="independent").fit(X, np.hstack([X, X**2])),
    "one target": gigagp.GPRegressor(optimizer=None).fit(X, X[:, 0]),
}


@pytest.mark.parametrize(
    ("model", "text", "place"),
    [
        ("three classes", "sand", 1),
        ("three classes", "3", 2),
        ("three classes", "loam", "--target must be one of the classes clay, sand, silt, or a number from 1 to 3; got"),
        ("two classes", "wet", None),
        ("two classes", "2", None),
        ("two classes", "dry", "--target must be wet, whose probability a picture of two classes shows; got 'dry'"),
        ("two targets", "2", 1),
        ("two targets", "0", "--target must be a number from 1 to 2; got '0'"),
        ("one target", "1", 0),
        ("one target", "2", "--target must be 1, as the model has one target; got '2'"),
    ],
)
def test_a_target_to_draw_is_a_class_or_a_number_from_1(run, refused, monkeypatch, tmp_path, model, text, place):
    shown = []
    monkeypatch.setattr(gigagp, "load", lambda path: MODELS[model])
    monkeypatch.setattr("gigagp.commands.plot.load_notes", lambda path: {})
    monkeypatch.setattr("gigagp.plots.plot", lambda model, X, y, **options: shown.append(options["target"]))
    call = ("plot", "m.gp", "-o", tmp_path / "m.png", "--target", text)
    if isinstance(place, str):
        assert place in refused(*call)
    else:
        assert run(*call)[0] == 0
    assert shown == ([] if isinstance(place, str) else [place])


@pytest.mark.slow
def test_classes_are_drawn_with_their_labels(run, refused, tmp_path):
    rng = np.random.default_rng(1)
    for name in ("train", "test"):
        X = rng.uniform(0, 6, (80, 2))
        label = np.where(X[:, 0] + 0.3 * rng.normal(size=80) > 3, "wet", "dry")
        lines = [f"{a:.4f},{b:.4f},{one}" for (a, b), one in zip(X, label, strict=True)]
        (tmp_path / f"{name}.csv").write_text("a,b,soil\n" + "\n".join(lines) + "\n", encoding="utf-8")
    model, drawn, test = tmp_path / "m.gp", tmp_path / "p.svg", tmp_path / "test.csv"
    fit = ("fit", tmp_path / "train.csv", "--target", "soil", "--likelihood", "logistic", "-q", "--out", model)
    assert run(*fit)[0] == 0
    assert run("plot", model, "-o", drawn, "--data", test, "--resolution", 8)[0] == 0
    text = drawn.read_text(encoding="utf-8")
    for words in ("probability of soil = wet", "dry", "wet", "standard deviation of the probability"):
        assert f"<!-- {words} -->" in text
    assert "include_noise of a picture must be False" in refused("plot", model, "-o", drawn, "--include-noise")
    assert run("report", model, test, "--out", tmp_path / "page.html", "-q")[0] == 0
    assert "probability of soil = wet" in (tmp_path / "page.html").read_text(encoding="utf-8")
