"""Kriging that leaves the kernel to the data: candidates are kernels of places, and answers are those of mixtures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone

import gigagp
from gigagp import GPRegressor, geo, inference, kernels
from gigagp.errors import InvalidInputError
from gigagp.estimators.choices import kernel_rules
from gigagp.estimators.choices.candidates import turned
from gigagp.kernels.composite import summands
from gigagp.kernels.rebuilding import in_form_of
from gigagp.kernels.units import Units
from gigagp.model.means import ConstantMean
from gigagp.model.model import StartModel
from kriging_cases import universal_kriging

RNG = np.random.default_rng(0)
PLANE = RNG.uniform(0, 90, (60, 2)) + 400
DEGREES = RNG.uniform([5, 45], [15, 52], (60, 2))
VALUES = np.sin(PLANE[:, 0] / 15) + np.cos(PLANE[:, 1] / 9) + 0.1 * RNG.normal(size=60)


def drawn(kernel: kernels.Kernel, X: np.ndarray, noise: float, seed: int) -> np.ndarray:
    """Return measurements of a function that is drawn from a prior."""
    K = kernel.block(torch.from_numpy(X), torch.from_numpy(X)).numpy()
    source = np.random.default_rng(seed)
    return np.linalg.cholesky(K + 1e-9 * np.eye(len(X))) @ source.normal(size=len(X)) + noise * source.normal(
        size=len(X)
    )


def components(gp: GPRegressor) -> list:
    return list(getattr(gp.posterior_, "components", [gp.posterior_]))


@pytest.fixture(scope="module", params=["plane", "degrees"])
def fitted(request) -> tuple[np.ndarray, geo.Kriging]:
    X, crs = (PLANE, None) if request.param == "plane" else (DEGREES, "EPSG:4326")
    return X, geo.Kriging(crs=crs).fit(X, VALUES)


def test_all_kernels_are_of_places(fitted):
    X, model = fitted
    gp = model.gp
    assert len(gp.kernel_choice_.tried) > 1
    assert gp.kernel == (kernels.Chosen(ard=False) if X is PLANE else kernels.Chosen(metric="haversine"))
    for one in components(gp):
        for leaf in summands(one.model.kernel):
            is_turned = leaf.metric == "rotated"
            assert leaf.metric == "haversine" if X is DEGREES else is_turned or not leaf.ard
    assert "kernels tried averaged" in gp.describe()
    assert clone(gp).get_params(deep=False) == gp.get_params(deep=False)


def test_answers_are_those_of_dense_mixtures(fitted):
    """Means and standard deviations of every kernel by the equations of ordinary kriging, in the data's own units."""
    X, model = fitted
    gp, new = model.gp, X[:7] + 0.3
    units = gp.scaling_.units()
    parts, weights = [], getattr(gp.posterior_, "weights", torch.ones(1, dtype=torch.float64)).numpy()
    for one in components(gp):
        kernel = one.model.kernel.in_own_units(units)
        noise = float(one.model.noise_variance) * gp.scaling_.y_scale[0] ** 2

        def covariance(A, B, kernel=kernel):
            return kernel.block(torch.from_numpy(A), torch.from_numpy(B)).numpy()

        parts.append(universal_kriging(X, VALUES, new, covariance, noise, np.ones((60, 1)), np.ones((7, 1))))
    means, stds = (np.array(part) for part in zip(*parts, strict=True))
    mean = weights @ means
    std = np.sqrt(weights @ (stds**2 + (means - mean) ** 2))
    found = gp.predict(new, return_std=True, hyperparameters="learned")
    np.testing.assert_allclose(found, [mean, std], rtol=1e-6)
    np.testing.assert_array_equal(model.predict(new, return_std=True), gp.predict(new, return_std=True))
    assert len(weights) == 1 or abs(found[0] - means[0]).max() > 1e-4, "the control: the heaviest kernel alone"


def test_saved_models_answer_alike(fitted, tmp_path):
    X, model = fitted
    model.gp.save(tmp_path / "m.gp")
    loaded = gigagp.load(tmp_path / "m.gp")
    assert loaded.kernel == model.gp.kernel
    assert loaded.kernel_choice_ == model.gp.kernel_choice_
    for found, expected in zip(loaded.predict(X, return_std=True), model.gp.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_what_kriging_promises_works_for_mixtures(fitted):
    _, model = fitted
    left = model.leave_one_out()
    assert np.isfinite(np.asarray(left["std"])).all()
    low = model.places.X.min(0)
    points = [low.tolist(), (low + 1).tolist()]
    joint = model.gp.posterior(torch.tensor(points, dtype=torch.float64))
    std = model.predict(points, return_std=True)[1]
    np.testing.assert_allclose(joint.covariance.diagonal().numpy() ** 0.5, std, rtol=1e-8)
    assert np.isfinite(model.variogram(n_bins=4).model).all()


@pytest.mark.slow
def test_covariates_are_seen_by_the_mean_alone():
    h = RNG.normal(size=60)
    model = geo.Kriging(covariates=["h"]).fit(np.c_[PLANE, h], VALUES + 2 * h)
    assert model.gp.kernel == kernels.Chosen(ard=False, columns=(0, 1))
    for one in components(model.gp):
        assert all(leaf.active_columns == [0, 1] for leaf in one.model.kernel.leaves())


def test_a_kernel_of_ones_own_is_kept_to_the_bit():
    plain = kernels.Matern(ard=False)
    model, gp = geo.Kriging(GPRegressor(plain)).fit(PLANE, VALUES), GPRegressor(plain).fit(PLANE, VALUES)
    assert model.gp.kernel_choice_ is None
    np.testing.assert_array_equal(model.predict(PLANE), gp.predict(PLANE))


@pytest.mark.slow
def test_a_direction_is_found_where_there_is_one():
    X = np.random.default_rng(4).uniform(0, 100, (150, 2))
    y = drawn(kernels.Matern(1.5, [60.0, 8.0], 4.0, metric="rotated", angle=40.0), X, 0.2, 5)
    gp = geo.Kriging().fit(X, y).gp
    weights = {one.name: one.weight for one in gp.kernel_choice_.tried}
    assert sum(weight for name, weight in weights.items() if name.startswith("rotated ")) > 0.5, weights
    leaf = summands(gp.kernel_)[0]
    along = float(leaf.angle) if leaf.lengthscale[0] > leaf.lengthscale[1] else float(leaf.angle) + 90
    assert abs((along - 40 + 90) % 180 - 90) < 10


@pytest.mark.slow
def test_a_choice_takes_a_direction_only_where_there_is_one(monkeypatch):
    monkeypatch.setattr(kernel_rules, "CHOICE_ROWS", 100)
    monkeypatch.setattr(kernel_rules, "NEIGHBOUR_ROWS", 300)
    monkeypatch.setattr(kernel_rules, "AVERAGED_ROWS", 500)
    X = np.random.default_rng(6).uniform(0, 100, (600, 2))
    found = []
    for lengths in ([60.0, 8.0], [20.0, 20.0]):
        y = drawn(kernels.Matern(1.5, lengths, 4.0, metric="rotated", angle=120.0), X, 0.2, 7)
        gp = geo.Kriging(GPRegressor(inference=inference.Vecchia(15))).fit(X, y).gp
        found.append(next(one.name for one in gp.kernel_choice_.tried if one.weight))
        assert any(one.name.startswith("rotated ") for one in gp.kernel_choice_.tried)
    assert [name.startswith("rotated ") for name in found] == [True, False]


def test_kernels_in_the_form_of_another_are_those_of_their_arguments():
    units = Units(torch.tensor([3.0, -2.0]).double(), torch.tensor([10.0, 0.5]).double(), 2.0)
    X = torch.from_numpy(RNG.normal(size=(8, 2)))
    forms = [{}, {"ard": False}, {"metric": "haversine"}, {"metric": "rotated"}, {"columns": [1]}]
    for form in forms:
        base = kernels.Matern(1.5, **form).standardized(units)
        made = in_form_of(kernels.RBF(2.0, 0.7), base)
        values = {
            "lengthscale": torch.full_like(base.parameters()["lengthscale"], 2.0),
            "variance": torch.tensor(0.7, dtype=torch.float64),
        }
        angle = {"angle": base.parameters()["angle"]} if "angle" in base.parameters() else {}
        expected = kernels.RBF(**form).standardized(units).replace({**values, **angle})
        assert torch.equal(made.block(X, X), expected.block(X, X)), form
    assert not torch.equal(kernels.RBF(2.0, 0.7).block(X, X), made.block(X, X)), "the control"


def test_only_round_kernels_of_two_inputs_are_turned():
    def start(kernel, inputs=2):
        return StartModel(kernel, ConstantMean(), None, "own").bound(inputs)

    for kernel in (kernels.Matern(), kernels.Matern(metric="rotated"), kernels.Matern(metric="haversine")):
        assert turned(start(kernel)) is None
    assert turned(start(kernels.Matern(ard=False), 3)) is None
    found = turned(start(kernels.Matern(1.5, 5.0, ard=False) + kernels.RBF(2.0, ard=False)))
    assert [leaf.metric for leaf in summands(found.kernel)] == ["rotated", "rotated"]
    for leaf, length in zip(summands(found.kernel), (5.0, 2.0), strict=True):
        assert float(leaf.lengthscale.log().mean().exp()) == pytest.approx(length, rel=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: kernels.Chosen(ard=False, metric="haversine"), "ard of Matern must be True"),
        (lambda: kernels.Chosen(columns=(-1,)), "columns of Chosen must be"),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make()
