"""What a notebook shows of an estimator, and the short texts of settings."""

from __future__ import annotations

import html
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.stats import norm

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization, solvers
from gigagp.errors import FitWarning, warn
from gigagp.runtime.run import current_run, running, unshown
from gigagp.settings.brief import brief, rounded

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
FRAME = pd.DataFrame(X, columns=["<b>depth</b>", "b"])


def test_a_fitted_estimator_shows_its_fit_above_its_diagram():
    gp = GPRegressor(kernels.RBF([2.0, 3.0]), inference.Exact(), None, noise_variance=0.01)
    assert "gigagp-view" not in gp._repr_html_()
    gp.fit(FRAME, X[:, 0])
    text = gp._repr_html_()
    assert text.index("gigagp-view") < text.index("sk-")
    assert "<b>depth</b>" not in text.split("sk-")[0]
    assert "lengthscale[&lt;b&gt;depth&lt;/b&gt;]" in text
    for part in (gp.kernel_.parameters()["lengthscale"], gp.posterior_.model.parameters()["lengthscale"]):
        assert f'<td class="number">{float(part[0]):.4g}</td>' in text
    assert gp._repr_mimebundle_()["text/html"].count("gigagp-view") == text.count("gigagp-view")
    with sklearn.config_context(display="text"):
        assert not hasattr(gp, "_repr_html_")
        assert list(gp._repr_mimebundle_()) == ["text/plain"]


def test_a_classifier_too():
    settings = inference.QuadruplyStochastic(n_basis=20)
    gp = GPClassifier(inference=settings, optimizer=optimization.SparseAdam(steps=5)).fit(FRAME, X[:, 0] > 0)
    text = gp._repr_html_().split("sk-")[0]
    assert "<b>GPClassifier</b>, fitted" in text
    assert "lengthscale[&lt;b&gt;depth&lt;/b&gt;]" in text
    assert "noise_variance" not in text  # which the likelihood ignores
    assert "noise_variance" not in gp.latent_.describe()


def test_validation_scores_are_shown():
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=inference.Exact()).fit(X, X[:, 0], validation=(X[:5], X[:5, 0]))
    assert f"RMSE {gp.history_[-1].validation_rmse:.4g}" in gp._repr_html_()


def test_the_view_has_a_score_of_left_out_rows_and_the_warnings_of_the_fit(tmp_path):
    y = X[:, 0] + 0.1 * RNG.normal(size=60)
    y[7] = 40.0
    gp = GPRegressor(kernels.Matern(), inference.Exact())
    with pytest.warns(FitWarning) as caught:
        gp.fit(X, y)
    assert gp.warnings_ == tuple(str(one.message) for one in caught)
    for one in (gp, _saved(gp, tmp_path)):
        text = html.unescape(one._repr_html_().split("<details>")[0])
        assert all(message in text for message in gp.warnings_)
        assert all(message in one.describe() for message in gp.warnings_)
        assert f"mean NLL {-gp.leave_one_out().log_density.mean():.4g} of rows" in text
        without = norm.logpdf(y, y.mean(), y.std()).mean()
        assert f"{-without:.4g} without inputs" in text
    gp.fit(X, X[:, 0])
    assert gp.warnings_ == ()


def test_each_output_has_its_own_warnings(tmp_path):
    y = np.c_[X[:, 0], X[:, 1]]
    y[7, 1] = 40.0
    gp = GPRegressor(kernels.Matern(), inference.Exact())
    with pytest.warns(FitWarning, match=r"^y\[:, 1\]: "):
        gp.fit(X, y)
    assert gp.warnings_[0] == ()
    assert len(gp.warnings_[1]) == 1
    assert _saved(gp, tmp_path).warnings_ == gp.warnings_


def test_candidates_that_are_tried_leave_no_warning():
    with running(told=[]):
        with unshown():
            warn("a candidate", FitWarning)
        with pytest.warns(FitWarning, match="the fit"):
            warn("the fit", FitWarning)
        assert current_run().told == ["the fit"]


def _saved(gp: GPRegressor, folder: Path) -> GPRegressor:
    gp.save(folder / "model.gp")
    return gigagp.load(folder / "model.gp")


def test_settings_are_short():
    assert (
        brief(solvers.ConjugateGradients(tolerance=0.0016020567479636605)) == "ConjugateGradients(tolerance=0.001602)"
    )
    assert brief(solvers.ConjugateGradients()) == "ConjugateGradients()"
    nested = inference.Iterative(solver=solvers.AlternatingProjections(block_size=7))
    assert brief(nested) == "Iterative(solver=AlternatingProjections(block_size=7))"
    assert brief("cholesky") == "cholesky"


def test_texts_of_settings_are_calls_of_what_differs_from_the_defaults():
    assert repr(optimization.Restarts()) == "Restarts()"
    assert repr(optimization.Restarts(optimization.LBFGS(steps=7))) == "Restarts(optimizer=LBFGS(steps=7))"
    assert repr(solvers.ConjugateGradients(tolerance=0.0016020567479636605)) == "ConjugateGradients(tolerance=0.001602)"
    for settings in (inference.Grid(size=(8, 9), variance="solve"), solvers.AlternatingProjections(block_size=7)):
        assert eval(repr(settings), {**vars(inference), **vars(solvers)}) == settings
    gp = GPRegressor(inference=inference.Iterative(solver=solvers.AlternatingProjections()))
    assert repr(gp) == "GPRegressor(inference=Iterative(solver=AlternatingProjections()))"


def test_texts_of_kernels_have_four_digits_unless_somebody_typed_more():
    typed = kernels.Periodic(1.0, period=365.25, bounds={"period": (0.1234567, None)})
    assert repr(typed) == "Periodic(lengthscale=1.0, period=365.25, bounds={'period': [0.1234567, None]})"
    learned = kernels.Matern(0.5, [1 / 3, 2e7 / 3]) + kernels.White(1 / 7)
    text = repr(learned)
    assert text == "Matern(nu=0.5, lengthscale=[0.3333, 6.667e+06]) + White(variance=0.1429)"
    again = eval(text, vars(kernels)).bind(2).parameters()
    for name, value in learned.bind(2).parameters().items():
        np.testing.assert_allclose(again[name], value, rtol=5e-4)  # half of the fourth digit
    assert kernels.from_dict(learned.to_dict()) == learned  # which has all digits


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (
            "Matern(nu=1.5, lengthscale=[1.4464630338838276, 11.315496985183875])",
            "Matern(nu=1.5, lengthscale=[1.446, 11.32])",
        ),
        ("RBF(columns=[0, 12345])", "RBF(columns=[0, 12345])"),
        ("noise=8.58784e-05, x1.234567, -2.000001", "noise=8.588e-05, x1.234567, -2"),
    ],
)
def test_numbers_have_four_digits(text, short):
    assert rounded(text) == short


def test_a_description_has_no_long_line():
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=inference.Iterative()).fit(X, X[:, 0] + 0.1 * X[:, 1])
    assert max(map(len, gp.describe().splitlines())) < 140
