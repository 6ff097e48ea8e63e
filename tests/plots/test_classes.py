"""Pictures of classifiers show probabilities: against `predict_proba`, sampling and counting."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization, plots
from gigagp.errors import InvalidInputError
from gigagp.plots.classes import draw_confusion, draw_reliability
from gigagp.plots.view import ClassProbability, View
from gigagp.storage.figures import new_figure

pytest.importorskip("matplotlib")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 2))
TWO = np.where(X[:, 0] + 0.5 * RNG.normal(size=90) > 0, "yes", "no")
THREE = np.array(["a", "b", "c"])[np.digitize(X[:, 0] + 0.3 * RNG.normal(size=90), [-0.5, 0.5])]
FRAME = pd.DataFrame(X, columns=["u", "v"])


def fitted(X, labels, method="vecchia", **options) -> GPClassifier:
    kinds = {"vecchia": inference.Vecchia(), "basis": inference.QuadruplyStochastic(n_basis=60)}
    optimizer = None if method == "vecchia" else optimization.SparseAdam(steps=100)
    return GPClassifier(kernels.RBF(1.0, 4.0), kinds[method], optimizer, **options).fit(X, labels)


@pytest.fixture(scope="module", params=["vecchia", "basis"])
def two(request) -> GPClassifier:
    return fitted(FRAME, TWO, request.param)


@pytest.fixture(scope="module", params=["logistic", "probit"])
def three(request) -> GPClassifier:
    return fitted(FRAME, THREE, likelihood=request.param)


def axes():
    return new_figure(5, 4).add_subplot()


def words(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


# Numbers --------------------------------------------------------------------------------------------------------------


def test_a_map_has_the_probability_of_the_second_of_two_classes(two):
    found = plots.map_values(two, resolution=5)
    points = pd.DataFrame([[u, v] for u in found.axes[0] for v in found.axes[1]], columns=["u", "v"])
    np.testing.assert_allclose(found.mean.ravel(), two.predict_proba(points)[:, 1], rtol=1e-7)
    latent, std = two.latent_.predict_latent(points.to_numpy(), return_std=True)
    draws = 1 / (1 + np.exp(-(latent + std * RNG.normal(size=(40_000, 25)))))
    np.testing.assert_allclose(found.std.ravel(), draws.std(0), rtol=0.03)
    assert (abs(found.std.ravel() / std - 1) > 0.2).any()  # a control: the latent function's deviation is another


def test_quantiles_of_two_classes_are_those_of_the_latent_function(two):
    view = View(two)
    mean, std = two.latent_.predict_latent(X, return_std=True)
    expected = 1 / (1 + np.exp(-(mean + 1.959964 * std)))
    np.testing.assert_allclose(view.quantiles(X, [0.975])[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_each_of_three_classes(three, k):
    view = View(three, k)
    np.testing.assert_allclose(view.mean(X), three.predict_proba(FRAME)[:, k], rtol=1e-7)
    mean, std = three.latent_.predict_latent(X[:20], return_std=True)
    f = mean[None] + std[None] * np.random.default_rng(1).normal(size=(20_000, 20, 3))
    p = View(three)._class._of(f)
    p /= p.sum(2, keepdims=True)
    np.testing.assert_allclose(view.mean_and_std(X[:20])[1], p[:, :, k].std(0), atol=0.01)
    levels = [0.025, 0.5, 0.975]
    np.testing.assert_allclose(view.quantiles(X[:20], levels), np.quantile(p[:, :, k], levels, axis=0).T, atol=0.02)


def test_probabilities_stay_probabilities_where_the_latent_function_is_extreme():
    likelihood = View(fitted(FRAME, TWO)).regressor.likelihood_
    mean, std = np.array([-800.0, 0.0, 800.0]), np.array([1.0, 500.0, 0.0])
    for values in (mean, np.stack([mean, -mean, 0 * mean], 1)):
        one = ClassProbability(likelihood, 0)
        spread = std if values.ndim == 1 else np.stack([std] * 3, 1)
        for found in (one.stds(values, spread), one.quantiles(values, spread, [0.01, 0.99])):
            assert np.isfinite(found).all()
            assert ((found >= 0) & (found <= 1)).all()


def test_partial_dependence_is_the_average_of_probabilities(two):
    found = plots.partial_dependence_values(two, "u", FRAME, n_rows=90, resolution=4)
    for value, mean in zip(found.values, found.mean, strict=True):
        assert mean == pytest.approx(two.predict_proba(FRAME.assign(u=value))[:, 1].mean(), rel=1e-6)
    assert ((found.bands >= 0) & (found.bands <= 1)).all()
    assert (np.diff(found.bands, axis=1) > 0).all()
    samples = two.latent_.sample_functions(400, 1, latent=True)
    for k, value in enumerate(found.values):
        draws = (1 / (1 + np.exp(-samples(FRAME.assign(u=value).to_numpy())))).mean(0)
        assert abs(np.log(found.std[k] / draws.std(ddof=1))) < 0.3  # two draws of 400 samples each
        assert found.bands[k, 0] < np.median(draws) < found.bands[k, 3]


def test_bands_of_regression_are_those_of_a_normal_distribution():
    gp = GPRegressor(kernels.RBF(1.0), inference.Exact(), None, noise_variance=0.1).fit(X, X[:, 0])
    found = plots.partial_dependence_values(gp, 0, resolution=3)
    np.testing.assert_allclose(found.bands[:, 3], found.mean + 1.959964 * found.std, rtol=1e-6)


def test_relevance_is_that_of_the_probability(two):
    found = plots.relevance_values(two, FRAME)
    assert found.sensitivity[0] > 3 * found.sensitivity[1]


# Pictures -------------------------------------------------------------------------------------------------------------


def test_a_curve_of_two_classes_has_rows_at_zero_and_one():
    gp = fitted(FRAME[["u"]], TWO)
    ax = plots.curve(gp, ax=axes(), upper=4.0, label="answer")
    assert ax.get_ylabel() == "probability of answer = yes"
    assert "95 % of the probability" in words(ax)
    assert set(np.asarray(ax.collections[0].get_offsets())[:, 1]) == {0.0, 1.0}
    offsets = np.asarray(ax.collections[0].get_offsets())
    order = np.argsort(offsets[:, 0])
    np.testing.assert_array_equal(offsets[order, 1], (TWO == "yes")[np.argsort(X[:, 0])])
    for line in ax.lines[:2]:
        assert ((line.get_ydata() >= 0) & (line.get_ydata() <= 1)).all()
    given = plots.curve(gp, FRAME[["u"]][:5], TWO[:5], ax=axes())
    assert len(given.collections[0].get_offsets()) == 5


def test_a_map_of_two_classes_has_a_boundary_and_marks(two):
    ax = plots.surface(two, FRAME, TWO, ax=axes(), resolution=20)
    assert ax.get_title() == "probability of yes"
    mesh = ax.collections[0]
    assert (mesh.norm.vmin, mesh.norm.vmax) == (0, 1)
    assert words(ax) == ["no", "yes"]
    counts = [len(one.get_offsets()) for one in ax.collections[-2:]]
    assert counts == [(TWO == "no").sum(), (TWO == "yes").sum()]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("columns", [["u"], ["u", "v"], ["u", "v", "w"], ["u", "v", "w", "x"]])
@pytest.mark.parametrize("labels", [TWO, THREE])
def test_every_classifier_has_a_picture(tmp_path, columns, labels):
    frame = FRAME.assign(w=RNG.normal(size=90), x=RNG.normal(size=90))[columns]
    gp = fitted(frame, labels)
    gp.plot(path=tmp_path / "a.svg", resolution=6)
    gp.plot(frame, labels, path=tmp_path / "b.svg", resolution=6)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "latent" not in text
    if len(set(labels)) == 3 and len(columns) <= 3:
        ax = gp.plot(resolution=6).axes[0]
        named = words(ax) if len(columns) == 1 else [one.get_text() for one in ax.texts]
        assert set(named) >= set("abc" if len(columns) == 1 else "ac")  # b may be the most probable one nowhere
        gp.plot(path=tmp_path / "c.svg", target=2, resolution=6)
        assert "probability of c" in (tmp_path / "c.svg").read_text(encoding="utf-8")
    with pytest.raises(InvalidInputError, match="include_noise of a picture must be False"):
        gp.plot(include_noise=True)


def test_the_most_probable_class_is_that_of_the_probabilities(three):
    figure = three.plot(FRAME, THREE, resolution=8)
    left, right = figure.axes[:2]
    image, sure = left.collections[0].get_array(), np.asarray(right.collections[0].get_array()).reshape(8, 8)
    u, v = (np.linspace(X[:, k].min(), X[:, k].max(), 8) for k in (0, 1))
    points = pd.DataFrame([[a, b] for b in v for a in u], columns=["u", "v"])
    probability = three.predict_proba(points).reshape(8, 8, 3)
    np.testing.assert_allclose(sure, probability.max(2), rtol=1e-6)
    assert (left.get_title(), right.get_title()) == ("most probable class", "probability of that class")
    hues = np.asarray(image).reshape(8, 8, 3)
    for k in range(3):  # the hue of a class is nearest to its own colour
        cells = hues[probability.argmax(2) == k]
        saturated = (1 - cells) / np.maximum((1 - cells).max(1, keepdims=True), 1e-12)
        from gigagp.plots.classes import colours

        own = 1 - colours(3)
        own /= own.max(1, keepdims=True)
        assert (np.abs(saturated[:, None] - own[None]).sum(2).argmin(1) == k).all()


# Are they right? ------------------------------------------------------------------------------------------------------


def test_reliability_counts_rows_in_groups(two):
    ax = plots.reliability(two, FRAME, TWO, ax=axes())
    probability, happened = two.predict_proba(FRAME)[:, 1], TWO == "yes"
    order = np.argsort(probability, kind="stable")
    groups = np.array_split(order, 9)
    line = next(one for one in ax.lines if one.get_marker() == "o")
    np.testing.assert_allclose(line.get_xdata(), [100 * probability[one].mean() for one in groups], rtol=1e-6)
    np.testing.assert_allclose(line.get_ydata(), [100 * happened[one].mean() for one in groups], rtol=1e-6)
    assert ax.get_xlabel() == "probability of yes (%)"


@pytest.mark.slow
def test_chance_covers_what_calibrated_probabilities_give():
    rng, inside, total = np.random.default_rng(2), 0, 0
    for _ in range(60):
        p = rng.uniform(size=200)
        codes = (rng.uniform(size=200) < p).astype(int)
        ax = axes()
        draw_reliability(ax, ["n", "y"], codes, np.stack([1 - p, p], 1))
        line = next(one for one in ax.lines if one.get_marker() == "o")
        bars = [segment[:, 1] for segment in ax.collections[0].get_segments()]
        for y, (low, high) in zip(line.get_ydata(), bars, strict=True):
            inside += low - 1e-9 <= y <= high + 1e-9
            total += 1
    assert inside / total > 0.95 - 4 * np.sqrt(0.95 * 0.05 / total)


def test_of_more_classes_the_predicted_one_is_checked(three):
    ax = plots.reliability(three, FRAME, THREE, ax=axes())
    assert ax.get_xlabel() == "probability of the predicted class (%)"


def test_confusion_counts_rows(three):
    ax = plots.confusion(three, FRAME, THREE, ax=axes())
    predicted = three.classes_[three.predict_proba(FRAME).argmax(1)]
    texts = [text.get_text().split("\n")[0] for text in ax.texts]
    expected = [str(((a == THREE) & (predicted == b)).sum()) for a in "abc" for b in "abc"]
    assert texts == expected
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a", "b", "c"]
    assert ax.yaxis_inverted()


def test_of_many_classes_the_most_confused_are_shown():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 30, 900)
    probability = np.eye(30)[codes] + 0.01
    wrong = np.flatnonzero(codes < 3)
    probability[wrong] = np.eye(30)[29] + 0.01
    ax = axes()
    draw_confusion(ax, [f"class {k}" for k in range(30)], codes, probability)
    names = [tick.get_text() for tick in ax.get_yticklabels()]
    assert len(names) == 12
    assert {"class 0", "class 1", "class 2", "class 29"} <= set(names)
    assert ax.get_title() == "the 12 of 30 classes that are confused most"


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda gp: plots.reliability(gp, FRAME, np.full(90, "maybe")), "must hold classes of the fit"),
        (lambda gp: plots.confusion(gp, FRAME, TWO[:3]), "90"),
        (lambda gp: plots.confusion(GPRegressor(optimizer=None).fit(X, X[:, 0]), X, TWO), "picture of a GPClassifier"),
        (lambda gp: plots.reliability(GPClassifier(), FRAME, TWO), "must be fitted"),
        (lambda gp: gp.plot(target=1), "target of a picture must be from 0 to 0"),
        (lambda gp: plots.predicted(gp, FRAME, TWO), r"plots\.reliability and plots\.confusion"),
    ],
)
def test_bad_arguments(call, match):
    with pytest.raises(InvalidInputError, match=match):
        call(fitted(FRAME, TWO))


@pytest.fixture(autouse=True)
def no_open_figures():
    import matplotlib

    matplotlib.use("Agg")
    yield
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.mark.parametrize("given", [False, True])
def test_curves_of_three_classes_are_their_probabilities(given):
    gp = fitted(FRAME[["u"]], THREE)
    rows = (FRAME[["u"]][:20], THREE[:20]) if given else ()
    ax = gp.plot(*rows, resolution=9, lower=-1.0, upper=1.0).axes[0]
    assert words(ax) == ["a", "b", "c"]
    assert tuple(np.round(ax.get_xlim(), 12)) == (-1.0, 1.0)
    lines = ax.lines[:3]
    np.testing.assert_allclose([line.get_xdata() for line in lines], [np.linspace(-1, 1, 9)] * 3, atol=1e-12)
    expected = gp.predict_proba(pd.DataFrame({"u": np.linspace(-1, 1, 9)}))
    np.testing.assert_allclose([line.get_ydata() for line in lines], expected.T, rtol=1e-6)
    # a row of ticks for each class, below zero
    X_of, labels = (FRAME["u"][:20], THREE[:20]) if given else (FRAME["u"], THREE)
    ticks = [one for one in ax.collections if len(one.get_paths()) and one.get_paths()[0].vertices[:, 1].max() < 0]
    counts = [int(((labels == name) & (np.abs(X_of) <= 1)).sum()) for name in "abc"]
    assert [len(one.get_paths()) for one in ticks] == [count for count in counts if count]
