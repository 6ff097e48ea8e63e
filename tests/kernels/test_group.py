"""The kernel of groups of rows, and what estimators make of it, against dense algebra."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels
from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.answering import predictor_of
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.without_groups import WithoutGroups
from gigagp.inference.vecchia import grouped
from gigagp.kernels import Group, Matern
from gigagp.model.means import ConstantMean
from gigagp.model.model import Model
from gigagp.operators import KernelMatrix
from gigagp.products import NativeTiles, native_tiles
from gigagp.products.engine import weights_of
from helpers import close, generator


def rows(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows with an input, a group of unbalanced levels of which some have one row, and a small second group."""
    rng = np.random.default_rng(seed)
    first = np.floor(30 * rng.uniform(size=n) ** 2)
    X = np.column_stack([rng.uniform(0, 5, n), first, rng.integers(0, 4, n)])
    effect = rng.normal(size=30)
    y = np.sin(X[:, 0]) + effect[first.astype(int)] + X[:, 2] * (1 + 0.2 * X[:, 0]) + 0.3 * rng.normal(size=n)
    return X, y


def dense(kernel: kernels.Group, X: torch.Tensor) -> torch.Tensor:
    """Return the covariance of a group by loops over pairs."""
    variance, centre = kernel.value("variance"), 0.0 if kernel.centre is None else kernel.centre
    found = torch.zeros(len(X), len(X), dtype=torch.float64)
    for i, k in itertools.product(range(len(X)), repeat=2):
        if all(X[i, c] == X[k, c] for c in kernel.level_columns):
            slopes = [((X[i, c] - centre) * (X[k, c] - centre)) for c in kernel.slope_columns]
            found[i, k] = variance[0] + sum(v * s for v, s in zip(variance[1:], slopes, strict=True))
    return found


@pytest.mark.parametrize(
    "kernel", [Group(1), Group([1, 2]), Group(1, [0], [0.5, 0.2]), Group(2, [0], [0.5, 0.2], centre=1.5)], ids=repr
)
def test_group_is_the_covariance_of_effects_and_slopes(kernel: Group) -> None:
    X = torch.from_numpy(rows(40)[0])
    bound = kernel.bind(3)
    wanted = dense(bound, X)
    torch.testing.assert_close(bound.block(X, X), wanted)
    torch.testing.assert_close(bound.diagonal(X), wanted.diagonal())
    V = torch.from_numpy(np.random.default_rng(1).normal(size=(40, 2)))
    torch.testing.assert_close(KernelMatrix(bound, X, noise_variance=0.1) @ V, wanted @ V + 0.1 * V)
    assert kernels.from_dict(bound.to_dict()) == bound
    assert not torch.allclose(bound.block(X, X), dense(Group(0).bind(3), X))  # a control


def test_levels_are_apart_in_any_units() -> None:
    y, given = np.array([1.0, 1.2, -1.0, -1.1]), Group(0)
    plain, shifted = (
        GPRegressor(given, noise_variance=0.1, optimizer=None).fit(codes[:, None], y)
        for codes in (np.array([0.0, 0, 1, 1]), np.array([70.0, 70, 3, 3]))
    )
    np.testing.assert_allclose(plain.predict([[0.0], [1.0]]), shifted.predict([[70.0], [3.0]]), atol=1e-12)


def test_compiled_gradients_with_many_levels_are_those_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels are far apart, and no gradient reads their distances: it needs no slow sums of differences."""
    X = torch.randn(80, 2, generator=generator(0), dtype=torch.float64)
    X[:, 1] = torch.randint(0, 5, (80,), generator=generator(1)).double() * 50_000
    kernel = (Matern(columns=[0]) * Group(1) + Group(1, [0], [0.5, 0.2])).bind(2)
    weights = torch.randn(80, 80, generator=generator(2), dtype=torch.float64)
    moved = {name: value.clone().requires_grad_() for name, value in kernel.parameters().items()}
    (kernel.replace(moved).block(X, X) * weights).sum().backward()
    monkeypatch.setattr(native_tiles, "gradient_apart", None)
    found = NativeTiles().gradient(kernel, X, X, weights_of(weights), symmetric=False, budget=2**30)
    for name, value in moved.items():
        close(found[name], value.grad, condition=1e3)


@pytest.mark.parametrize("few", [True, False])
def test_gradients_of_grouped_vecchia_are_those_of_dense_algebra(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = (torch.from_numpy(one) for one in rows(60))
    kernel = (Matern(columns=[0]) + Group(1) + Group(2, [0], [0.5, 0.2])).bind(3)
    model = Model(kernel, ConstantMean(), torch.tensor(0.3, dtype=torch.float64))
    table = TrainingTable(X, torch.stack([y, y**2], 1), ConstantMean(), 2**30)
    if not few:  # by draws, of which there are so many here that errors of two percent are four standard errors
        monkeypatch.setattr(grouped, "_FEW_EFFECTS", 0)
        monkeypatch.setattr(grouped, "_MOST_DRAWS", 4000)
    exact = ExactObjective(table).evaluate(model)
    found = grouped.GroupedObjective(table, 59, 60).evaluate(model)
    for name, wanted in exact.gradient.items():
        torch.testing.assert_close(found.gradient[name], wanted, rtol=1e-9 if few else 0.03, atol=1e-9 if few else 0.3)
    assert (found.value is None) != few
    if few:
        assert found.value == pytest.approx(exact.value, rel=1e-10)


@pytest.mark.parametrize("kernel", [Group(1, variance=0.5), Group(1, [0], [0.5, 0.2])], ids=repr)
def test_the_information_of_effects_is_that_of_dense_algebra(kernel: Group) -> None:
    X, _ = (torch.from_numpy(one) for one in rows(60))
    noise, eye = torch.tensor(0.3, dtype=torch.float64), torch.eye(60, dtype=torch.float64)
    model = Model(kernel.bind(3), ConstantMean(), noise)
    objective = grouped.GroupedObjective(TrainingTable(X, X[:, :1], ConstantMean(), 2**30), 59, 60)
    found, own = objective.known_information(model), model.kernel.value("variance")
    inverse = torch.linalg.inv(dense(model.kernel, X) + noise * eye)
    for place in range(len(own)):
        alone = dense(model.kernel.replace({"variance": own * eye[place, : len(own)]}), X)
        solved = inverse @ alone
        wanted = 0.5 * (solved * solved.T).sum()
        torch.testing.assert_close(found["variance"][place], wanted, rtol=1e-9, atol=0.0)
    wanted = 0.5 * (noise * inverse).square().sum()  # of which the rows that effects leave over are most
    assert wanted < found["noise_variance"] < 1.3 * wanted < 0.5 * 60
    assert objective.least_gain == 0.1


@pytest.mark.parametrize("gain", ["levels", "observations"])
def test_variances_of_many_levels_are_learned_to_their_standard_error(
    gain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, levels, n = np.random.default_rng(3), (2000, 200), 20_000
    X = np.column_stack([rng.integers(0, count, n) for count in levels]).astype(float)
    effects = [rng.normal(0, 0.7, count) for count in levels]
    y = effects[0][X[:, 0].astype(int)] + effects[1][X[:, 1].astype(int)] + rng.normal(0, 0.5, n)
    if gain == "observations":  # the control: as it was
        monkeypatch.setattr(grouped.GroupedObjective, "least_gain", float("inf"))
        monkeypatch.setattr(grouped.GroupedObjective, "known_information", lambda *_: {})
    gp = GPRegressor(Group(0) + Group(1), mean="zero", inference=inference.Vecchia(10)).fit(X, y)
    monkeypatch.undo()
    model = gp.posterior_.model
    objective = grouped.GroupedObjective(gp.posterior_.table, 10, 60)
    slopes, known = objective.evaluate(model).gradient, objective.known_information(model)
    left = [
        float(slopes[f"{k}.variance"] * model.kernel.parameters()[f"{k}.variance"] / known[f"{k}.variance"])
        for k in (0, 1)
    ]
    # how far the logarithms of the variances are from the optimum, in standard errors
    off = [abs(one) * float(known[f"{k}.variance"]) ** 0.5 for k, one in enumerate(left)]
    assert (max(off) < 0.1) == (gain == "levels")


def fitted(method: object, **arguments: object) -> GPRegressor:
    X, y = rows()
    kernel = Matern(lengthscale=2.0, variance=0.5) + Group(1) + Group(2, [0], [1.0, 0.1])
    arguments = {"noise_variance": 0.1, "optimizer": None, **arguments}
    return GPRegressor(kernel, method, **arguments).fit(X, y)


def points() -> np.ndarray:
    """Return points of known levels, and of two that no row has."""
    X = rows(12, seed=5)[0]
    X[:3, 1], X[3, 2] = 1000, 77
    return X


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_vecchia_with_groups_and_all_neighbours_is_exact(mean: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, X = fitted(inference.Exact(), mean=mean), points()
    for most_dense in (6000, 0):
        monkeypatch.setattr("gigagp.inference.vecchia.effects.MOST_DENSE", most_dense)
        gp = fitted(inference.Vecchia(119), mean=mean)
        wanted, found = (one.predict(X, return_cov=True) for one in (exact, gp))
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-6, atol=1e-6)
        std = gp.predict(X, return_std=True, variance="solve")[1]
        np.testing.assert_allclose(std**2, np.diag(found[1]), rtol=1e-6)
    few = fitted(inference.Vecchia(10, 20), mean=mean)
    np.testing.assert_allclose(few.predict(X), wanted[0], atol=0.1)


def test_log_likelihood_with_all_neighbours_is_exact() -> None:
    exact, gp = (fitted(one).log_marginal_likelihood().value for one in (inference.Exact(), inference.Vecchia(119)))
    assert gp == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("method", [inference.Exact(), inference.Vecchia(119)], ids=repr)
def test_prediction_without_groups_is_that_of_the_other_parts(method: object) -> None:
    gp, (X, y), new = fitted(method, standardize=False, mean="zero"), rows(), points()
    rest, whole = gp.kernel_.parts[0], gp.kernel_
    X, y, new = (torch.from_numpy(one) for one in (X, y, new))
    H = whole.block(X, X) + 0.1 * torch.eye(len(X), dtype=torch.float64)
    cross = rest.block(new, X)
    mean, cov = gp.predict(new.numpy(), return_cov=True, groups=False)
    np.testing.assert_allclose(mean, cross @ torch.linalg.solve(H, y), atol=1e-8)
    wanted = rest.block(new, new) - cross @ torch.linalg.solve(H, cross.T)
    np.testing.assert_allclose(cov, wanted, atol=1e-8)
    assert np.abs(gp.predict(new.numpy()) - mean).max() > 0.1  # a control


def test_a_mixture_without_groups_is_that_of_its_components() -> None:
    """Mixed by hand; that of the learned hyperparameters is the control."""
    X, y = rows(40)
    gp, new = GPRegressor(Matern(), groups=[1], hyperparameters="laplace").fit(X[:, :2], y), points()[:, :2]
    mixture = predictor_of(gp).posterior
    scaled = torch.from_numpy(gp.scaling_.inputs(new))
    each = [WithoutGroups(one) for one in mixture.components]
    means = torch.stack([one.mean(scaled) for one in each])
    weights = mixture.weights[:, None, None]
    centre = (weights * means).sum(0)
    apart = means - centre
    wanted = (weights * torch.stack([one.covariance(scaled) for one in each]) + weights * apart @ apart.mT).sum(0)
    unit = float(gp.scaling_.y_scale[0])
    mean, cov = gp.predict(new, return_cov=True, groups=False)
    np.testing.assert_allclose(mean, unit * centre[:, 0].numpy() + gp.scaling_.y_centre[0], rtol=1e-9)
    np.testing.assert_allclose(cov, unit**2 * wanted.numpy(), atol=1e-9 * float(np.var(y)))
    std = gp.predict(new, return_std=True, groups=False)[1]
    np.testing.assert_allclose(std**2, np.diag(cov), rtol=1e-6)
    learned = gp.predict(new, return_std=True, groups=False, hyperparameters="learned")[1]
    assert np.abs(learned / std - 1).max() > 1e-3


@pytest.mark.parametrize("method", [inference.Vecchia(119), inference.Exact()], ids=["neighbours", "exact"])
def test_effects_of_levels_are_those_of_dense_algebra(method) -> None:
    gp, (X, y) = fitted(method, standardize=False, mean="zero"), rows()
    X, y = torch.from_numpy(X), torch.from_numpy(y)
    H = gp.kernel_.block(X, X) + 0.1 * torch.eye(len(X), dtype=torch.float64)
    found = gp.group_effects_["1"]
    Z = (X[:, 1][:, None] == torch.from_numpy(found.level)).double()
    np.testing.assert_allclose(found.effect, Z.T @ torch.linalg.solve(H, y), atol=1e-8)
    variance = 1 - (Z * torch.linalg.solve(H, Z)).sum(0)
    np.testing.assert_allclose(found.std**2, variance, atol=1e-8)
    assert gp.group_effects_["2"].effect.shape == (4, 2)


def test_exact_inference_has_the_effects_and_slopes_that_neighbours_have() -> None:
    """With all rows as neighbours, for a mean that is learned, in the units of inputs and target."""
    exact, near = (fitted(method).group_effects_ for method in (inference.Exact(), inference.Vecchia(119)))
    assert exact.keys() == near.keys()
    assert len(exact) > 1
    for name, one in exact.items():
        np.testing.assert_array_equal(one.level, near[name].level)
        np.testing.assert_allclose(one.effect, near[name].effect, atol=1e-7)
        np.testing.assert_allclose(one.std, near[name].std, atol=1e-7)


def test_effects_of_a_mixture_have_the_moments_of_its_draws() -> None:
    X, y = rows(40)
    gp = GPRegressor(Matern(), groups=[1], hyperparameters="laplace").fit(X[:, :2], y)
    mixture, unit = predictor_of(gp).posterior, float(gp.scaling_.y_scale[0])
    each = [one.group_effects()[0] for one in mixture.components]
    means, stds = torch.stack([one[2][:, 0, 0] for one in each]), torch.stack([one[3][:, 0] for one in each])
    mean = mixture.weights @ means
    variance = mixture.weights @ (stds.square() + (means - mean).square())
    found = gp.group_effects_["1"]
    np.testing.assert_allclose(found.effect, unit * mean, rtol=1e-10)
    np.testing.assert_allclose(found.std**2, unit**2 * variance, rtol=1e-10)
    assert (variance > (mixture.weights @ stds) ** 2).all()


def test_who_holds_no_effects_says_what_would() -> None:
    gp = fitted(inference.Iterative())
    assert not hasattr(gp, "group_effects_")
    with pytest.raises(AttributeError, match=r"inference\.Exact or Vecchia"):
        _ = gp.group_effects_


def test_samples_have_the_moments_of_predictions() -> None:
    gp, X = fitted(inference.Vecchia(30)), points()
    mean, cov = gp.predict(X, return_cov=True)
    samples = gp.sample_y(X, n_samples=4000, random_state=0)
    error = 5 * np.sqrt(np.diag(cov) / 4000)
    assert (np.abs(samples.mean(1) - mean) < error).all()
    functions = gp.posterior_.sample_functions(4000, torch.Generator().manual_seed(0))
    drawn = functions(torch.from_numpy(gp.scaling_.inputs(X)))[:, 0].numpy() * gp.scaling_.y_scale
    np.testing.assert_allclose(np.cov(drawn), cov, atol=0.1 * cov.max())


@pytest.mark.parametrize("method", [inference.Iterative(), inference.SparseVariational()], ids=repr)
def test_other_inferences_take_groups_as_any_leaf(method: object) -> None:
    exact, gp, X = fitted(inference.Exact()), fitted(method), points()
    np.testing.assert_allclose(gp.predict(X), exact.predict(X), atol=0.1)


def test_a_saved_model_predicts_the_same(tmp_path: object) -> None:
    gp, X = fitted(inference.Vecchia(20)), points()
    gp.save(tmp_path / "model.gp")  # type: ignore[operator]
    loaded = gigagp.load(tmp_path / "model.gp")  # type: ignore[operator]
    for one in (False, True):
        wanted, found = (model.predict(X, return_std=True, groups=one) for model in (gp, loaded))
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
    assert gp.condition_on(*rows(20, seed=9)).predict(X).shape == (12,)


def test_groups_argument_learns_variances() -> None:
    X, y = rows(300)
    gp = GPRegressor(groups=[1, Group(2, [0])], inference=inference.Vecchia(20), mean="linear").fit(X, y)
    assert gp.kernel_.parts[0].columns == (0,)  # without the columns of levels
    assert 0.3 < float(gp.kernel_.parameters()["1.variance"]) < 3
    assert "30 levels" in gp.describe() or "levels" in gp.describe()


def test_texts_are_levels_with_encode() -> None:
    pandas = pytest.importorskip("pandas")
    X, y = rows()
    table = pandas.DataFrame({"x": X[:, 0], "shop": [f"shop {int(one)}" for one in X[:, 1]]})
    by_text = GPRegressor(groups=["shop"], encode="auto", kernel=Matern(), optimizer=None, noise_variance=0.1)
    by_number = GPRegressor(groups=[1], kernel=Matern(), optimizer=None, noise_variance=0.1)
    found = by_text.fit(table, y).predict(table)
    np.testing.assert_allclose(found, by_number.fit(X[:, :2], y).predict(X[:, :2]), atol=1e-8)


def test_classifier_takes_groups() -> None:
    X, y = rows()
    gp = GPClassifier(groups=[1], inference=inference.Vecchia(119), optimizer=None).fit(X[:, :2], y > 1)
    assert gp.predict_proba(X[:, :2]).shape == (120, 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Group([]), "at least one"),
        (lambda: Group(1, slopes=[1]), "different columns"),
        (lambda: Group("shop").bind(3), "have no names"),
        (lambda: GPRegressor(groups="shop").fit(*rows()), "must be a list"),
        (lambda: GPRegressor(groups=[0]).fit(*rows()), "whole numbers"),
        (lambda: GPRegressor(groups=[1], panel=(2, 0)).fit(*rows()), "with a panel must be empty"),
        (lambda: GPRegressor(Matern()).fit(*rows(20)).predict(rows()[0], groups=False), "no kernels.Group"),
    ],
)
def test_bad_arguments_are_refused(make: object, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        make()  # type: ignore[operator]
