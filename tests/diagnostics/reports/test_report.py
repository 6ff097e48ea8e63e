"""The report: one file that asks for nothing, says what is right and wrong, and can be seen in a browser."""

from __future__ import annotations

import base64
import re
import runpy
import warnings
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization
from gigagp.diagnostics.report import assessment
from gigagp.diagnostics.report.page import Picture
from gigagp.errors import FitWarning, InvalidInputError
from gigagp.estimators.answers.predictor import Predictor

pytest.importorskip("matplotlib")
RNG = np.random.default_rng(0)
HOSTILE = "<script>alert(1)</script>\"'& $x^2$ --> \x00\u202e"
SITE = runpy.run_path(str(Path(__file__).parents[3] / "packaging/look_at_site.py"))


def table(n: int) -> tuple[pd.DataFrame, np.ndarray]:
    X = RNG.uniform(0, 6, (n, 2))
    return pd.DataFrame(X, columns=["a", HOSTILE]), np.sin(X[:, 0]) + 0.1 * RNG.normal(size=n)


@pytest.fixture(scope="module")
def model() -> GPRegressor:
    return GPRegressor(kernels.RBF(), inference.Exact()).fit(*table(150))


@pytest.fixture(scope="module")
def page(model) -> str:
    return gigagp.report(model, *table(300), label=HOSTILE, title=HOSTILE)


class Reader(HTMLParser):
    """Tags with their attributes, and a check that they are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.slow
def test_the_page_is_one_file_that_asks_for_nothing(page):
    found = Reader(page)
    assert found.open == []
    names = {name for name, _ in found.tags}
    assert not names & {"script", "iframe", "object", "form", "base"}
    links = [value for _, given in found.tags for key, value in given.items() if key in ("src", "href", "srcset")]
    assert links
    assert all(link.startswith("data:") for link in links)
    assert not re.search(r"url\(|@import|https?://", page)
    policy = next(
        given["content"] for name, given in found.tags if given.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy


@pytest.mark.slow
def test_pictures_are_described_and_sound(page):
    import xml.etree.ElementTree as xml

    pictures = [given for name, given in Reader(page).tags if name == "img"]
    assert len(pictures) >= 8
    for caption in ("Calibration", "Partial dependence on a", "Hyperparameters as multiples", "Residuals"):
        assert caption in page
    for one in pictures:
        assert len(one["alt"]) > 20
        svg = base64.b64decode(one["src"].removeprefix("data:image/svg+xml;base64,"))
        tree = xml.fromstring(svg)  # hostile names leave it a valid document
        assert not [e for e in tree.iter() if e.tag.endswith("script")]
        links = [value for e in tree.iter() for key, value in e.attrib.items() if key.endswith("href")]
        assert all(link.startswith(("#", "data:")) for link in links)


def test_hostile_names_stay_text(page):
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert not [given for _, given in Reader(page).tags if any(key.startswith("on") for key in given)]


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
def test_the_words_state_the_scores(model, page):
    X, y = table(400)
    text = " ".join(Reader(gigagp.report(model, X, y, label="height")).texts)
    error = y - model.predict(X)
    assert f"predictions miss by {np.sqrt(np.mean(error**2)):.4g}" in text
    mean, std = model.predict(X, return_std=True, include_noise=True)
    inside = np.mean(np.abs(y - mean) < 1.959964 * std)
    assert f"{100 * inside:.1f} % of the rows lie inside" in text
    assert "fitted to 150 rows with inference.Exact" in text
    for name in ("lengthscale", "noise_variance", "What to be careful about"):
        assert name in text


def cautions(model, X, y) -> str:
    text = gigagp.report(model, X, y)
    return " ".join(Reader(text[text.index("<h2>What to be careful about") : text.index("<h2>How good it is")]).texts)


@pytest.fixture
def without_pictures(monkeypatch):
    """Leave out the pictures, which take most of the time."""
    for name in ("of_the_function", "of_the_history"):
        monkeypatch.setattr(f"gigagp.diagnostics.report.making.{name}", lambda *_, **__: [])
    monkeypatch.setattr("gigagp.diagnostics.report.making.picture", lambda *_, **__: Picture(b"", "", ""))


@pytest.mark.usefixtures("without_pictures")
def test_each_problem_has_a_caution_and_a_sound_model_has_none(model):
    X, y = table(400)
    X, y = X.clip(0.3, 5.7), y + np.sin(X["a"].clip(0.3, 5.7)) - np.sin(X["a"])  # inside of the range
    sound = cautions(model, X, y)
    problems = {
        "Error bars are too narrow": cautions(model, X, y + RNG.normal(size=400)),
        "Error bars are too wide": cautions(model, X, model.predict(X)),
        "outside the range": cautions(model, X + 3, y),
        "predicted standard deviations off": cautions(model, X, y + 9.0 * (np.arange(400) == 7)),
        "too low by": cautions(model, X, y + 0.2),
        "only 20 test rows": cautions(model, X[:20], y[:20]),
        "Nothing was learned": cautions(GPRegressor(inference=inference.Exact(), optimizer=None).fit(X, y), *table(99)),
        "ended at a bound": cautions(
            GPRegressor(kernels.RBF(bounds={"lengthscale": (3.0, 9.0)}), inference.Exact()).fit(X, y), *table(99)
        ),
    }
    for words, text in problems.items():
        assert words in text
        assert words not in sound


@pytest.mark.usefixtures("without_pictures")
def test_rows_of_the_fit_are_noticed():
    X, y = table(100)
    X["a"] *= 1e6
    model = GPRegressor(kernels.RBF([1e6, 1.0]), inference.Exact(), None).fit(X, y)
    more, other = table(100)
    more["a"] *= 1e6
    assert "100 of 100 test rows equal training rows" in cautions(model, X, y)
    assert "25 of 125 test rows" in cautions(model, pd.concat([X[:25], more]), np.concatenate([y[:25], other]))
    assert "training rows" not in cautions(model, more, other)


@pytest.mark.usefixtures("without_pictures")
def test_intervals_of_counts_are_checked_in_their_own_units():
    X, y = table(400)
    y = np.random.default_rng(1).poisson(np.exp(1 + y)).astype(float)
    model = GPRegressor(kernels.Matern(1.5, 1.5), inference.Vecchia(10), None, likelihood="poisson")
    text = gigagp.report(model.fit(X[:200], y[:200]), X[200:], y[200:])
    rmse = np.sqrt(np.mean((model.predict(X[200:]) - y[200:]) ** 2))
    assert f"On 200 test rows predictions miss by {rmse:.4g}" in text
    assert "this agrees with 95 %" in text
    assert "not checked" not in text
    wrong = gigagp.report(model, X[200:], y[200:] * 3)
    assert "Error bars are too narrow" in wrong
    assert "student-t" not in wrong  # which is no remedy for counts


def test_classes(tmp_path):
    X, y = table(300)
    labels = np.where(y > 0, "<up>", "down")
    settings = inference.QuadruplyStochastic(n_basis=40)
    model = GPClassifier(inference=settings, optimizer=optimization.SparseAdam(steps=60)).fit(X[:200], labels[:200])
    text = gigagp.report(model, X[200:], labels[200:], tmp_path / "page.html")
    accuracy = model.score(X[200:], labels[200:])
    assert f"Of 100 test rows {100 * accuracy:.1f} % get the right class" in text
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text
    for words in ("True and predicted classes", "Probability, with a line where it is one half, with the test rows"):
        assert words in text
    assert "latent" not in text
    assert "noise_variance" not in text  # which the likelihood ignores
    assert "lengthscale[a]" in text
    with pytest.raises(InvalidInputError, match="must hold classes of the fit"):
        gigagp.report(model, X[200:], np.full(100, "other"))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("columns", [["a"], ["a", "b"]])
def test_three_classes_are_shown_together(columns):
    X = pd.DataFrame(RNG.uniform(0, 6, (150, 2)), columns=["a", "b"])
    labels = np.array(["low", "middle", "high"])[np.digitize(X["a"], [2, 4])]
    model = GPClassifier(kernels.Matern(1.5, 1.0, 9.0), inference.Vecchia(), None).fit(X[:100][columns], labels[:100])
    whole = gigagp.report(model, X[100:][columns], labels[100:])
    one = gigagp.report(model, X[100:][columns], labels[100:], target=1)
    words = "probability of each class" if len(columns) == 1 else "most probable class over"
    assert words in whole
    assert words not in one
    assert "probability of low" in one  # classes_ are sorted: high, low, middle
    assert "with the training rows" in whole or len(columns) == 1


@pytest.mark.usefixtures("without_pictures")
def test_models_whose_error_bars_cannot_be_checked():
    X, y = table(60)
    known = GPRegressor(kernels.RBF(), inference.Exact(), None, noise_variance=np.full(60, 0.01)).fit(X, y)
    assert "the noise of each row of the fit was given" in cautions(known, *table(50))


@pytest.mark.usefixtures("without_pictures")
def test_several_targets():
    X, y = table(80)
    model = GPRegressor(kernels.RBF(), inference.Exact(), None).fit(X, np.stack([y, 100 * y], 1))
    test, new = table(60)
    text = gigagp.report(model, test, np.stack([new, 100 * new], 1), target=1)
    error = 100 * new - model.predict(test)[:, 1]
    assert f"miss by {np.sqrt(np.mean(error**2)):.4g}" in text


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"path": "page.txt"}, r"must be a file that ends in \.html"),
        ({"path": "/nowhere/page.html"}, "does not exist"),
        ({"model": GPRegressor(kernels.Matern(nu=1.5))}, "must be fitted"),
        ({"model": 3}, "must be a fitted GPRegressor or GPClassifier; got int"),
        ({"y": np.ones(3)}, "y"),
        ({"y": None}, "X and y"),
        ({"X": np.ones((50, 2))[:, :1]}, "features"),
        ({"target": 1}, "target of a picture"),
    ],
)
@pytest.mark.usefixtures("without_pictures")
def test_bad_arguments_leave_nothing_behind(model, tmp_path, monkeypatch, change, match):
    monkeypatch.chdir(tmp_path)
    X, y = table(50)
    given = {"model": model, "X": X, "y": y, "path": "page.html", **change}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of scikit-learn, about missing names
        with pytest.raises(InvalidInputError, match=match):
            gigagp.report(**given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("without_pictures")
def test_warnings_of_predictions_are_on_the_page_and_still_warn(model, monkeypatch):
    predict = Predictor.predict

    def warned(self, *arguments, **options):
        warnings.warn(FitWarning("variances are rough here"), stacklevel=2)
        return predict(self, *arguments, **options)

    monkeypatch.setattr(Predictor, "predict", warned)
    with pytest.warns(FitWarning, match="rough here"):
        assert "variances are rough here" in gigagp.report(model, *table(60))


@pytest.mark.slow
@pytest.mark.skipif(not SITE["PROGRAM"], reason="no Chromium or Chrome on this machine")
def test_a_browser_shows_it_without_an_error_or_a_request_at_all_widths(page, tmp_path):
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    assert SITE["look"]([tmp_path]) == []
    wide = page.replace("<main>", '<main><div style="width: 500px">x</div><img src="https://127.0.0.1:9/x.png">')
    (tmp_path / "report.html").write_text(wide, encoding="utf-8")
    faults = " ".join(SITE["look"]([tmp_path]))
    assert "report.html at 380 px: wider than the window by" in faults
    assert "report.html at 768 px: wider" not in faults
    assert "broken pictures ['https://127.0.0.1:9/x.png']" in faults
    assert "Content Security Policy" in faults


@pytest.mark.parametrize(
    "words",
    ["Few errors are small, and few are large", 'large, which likelihood="student-t" or a target_transform'],
)
def test_errors_of_another_shape_than_predicted(words):
    """Intervals of 50 % and of 95 % are wrong on different sides."""
    view, shares = SimpleNamespace(adds_noise=True), {0.5: 0.4, 0.95: 1.0}
    found = SimpleNamespace(
        share_inside=lambda level: shares[level] if "Few" in words else {0.5: 0.6, 0.95: 0.9}[level]
    )
    sides = {0.5: "too narrow", 0.95: "too wide"} if "Few" in words else {0.5: "too wide", 0.95: "too narrow"}
    (text,) = assessment._about_intervals(view, found, sides)
    assert words in text
    assert f"50 % contain {40 if 'Few' in words else 60}" in text


@pytest.mark.parametrize(
    ("sure", "right", "words"),
    [
        (0.99, 0.6, "The model is too sure: its confidence is 99.0 % and its accuracy 60.0 %"),
        (0.6, 0.99, "The model is not sure enough"),
        (0.6, 0.4, "no better than always predicting the most frequent class"),
        (0.8, 0.8, "No test row has the class c"),
    ],
)
def test_probabilities_that_are_not_to_be_trusted(monkeypatch, sure, right, words):
    monkeypatch.setattr(assessment, "about_the_fit", lambda view: [])
    codes = np.arange(200) % 2
    chosen = np.where(np.arange(200) < 200 * right, codes, 1 - codes)
    probability = np.full((200, 3), (1 - sure) / 2)
    probability[np.arange(200), chosen] = sure
    found = assessment.of_classes(None, np.array(["a", "b", "c"]), codes, probability)
    assert words in " ".join(found.cautions)
    assert dict((name, value) for name, value, _ in found.scores)["accuracy"].startswith(f"{100 * right:.1f} %")
    few = assessment.of_classes(None, np.array(["a", "b", "c"]), codes[:20], probability[:20])
    assert "only 20 test rows" in " ".join(few.cautions)
