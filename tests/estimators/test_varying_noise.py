"""Noise, and scales of functions, that depend on the inputs: found where they are, and not where they are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels, likelihoods
from gigagp.errors import InvalidInputError
from gigagp.estimators.choices.scale_maps import scale_map
from gigagp.kernels.units import Units

#: Noise that begins at the middle of an input, and standard deviations before and behind it.
LOW, HIGH = 0.05, 0.6


def uneven(n: int, seed: int = 0, d: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return rows whose noise is larger where the first input is above 5."""
    draw = np.random.default_rng(seed)
    X = draw.uniform(0, 10, (n, d))
    X[: n // 4, 0] = 2 + 0.5 * draw.normal(size=n // 4)  # a clump
    noise = np.where(X[:, 0] > 5, HIGH, LOW)
    return X, np.sin(X[:, 0]) + noise * draw.normal(size=n)


def even(n: int, seed: int, d: int = 1) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    X = draw.uniform(0, 10, (n, d))
    return X, np.sin(X[:, 0]) + 0.2 * draw.normal(size=n)


def steps(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return plains and mountains: a function, and its noise, that are 30 times as large on one side."""
    draw = np.random.default_rng(seed)
    X = draw.uniform(0, 10, (n, 1))
    scale = np.where(X[:, 0] > 5, 3.0, 0.1)
    return X, scale * (np.sin(3 * X[:, 0]) + 0.1 * draw.normal(size=n))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "method", [inference.Exact(), inference.Vecchia(), inference.Iterative(), inference.Markov()], ids=lambda m: m.label
)
def test_noise_is_learned_where_it_is(method):
    X, y = uneven(300)
    gp = GPRegressor(kernels.Matern(2.5), method, noise="auto").fit(X, y)
    _, latent = gp.predict([[2.0], [8.0]], return_std=True)
    _, std = gp.predict([[2.0], [8.0]], return_std=True, include_noise=True)
    found = np.sqrt(std**2 - latent**2)
    assert 0.6 < found[0] / LOW < 1.6
    assert 0.7 < found[1] / HIGH < 1.4
    assert "varying gains" in gp.describe()
    plain = GPRegressor(kernels.Matern(2.5), method).fit(X, y)  # the control
    assert np.ptp(plain.predict([[2.0], [8.0]], return_std=True, include_noise=True)[1]) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("method", [inference.Exact(), inference.Iterative()], ids=lambda m: m.label)
@pytest.mark.filterwarnings("ignore:The error bars are too small")  # of the fits that are worse
def test_a_scale_is_learned_where_function_and_noise_have_it(method):
    X, y = steps(300)
    gp = GPRegressor(kernels.Matern(2.5), method, noise="auto").fit(X, y)
    assert isinstance(gp.kernel_.parts[1], kernels.LocalVariance)
    new, target = steps(400, seed=1)

    def density(model: GPRegressor) -> float:
        return float(model.predictive_log_density(new, target).mean())

    plain = GPRegressor(kernels.Matern(2.5)).fit(X, y)
    assert density(gp) > density(plain) + 0.5
    assert density(gp) > density(GPRegressor(kernels.Matern(2.5), noise="varying").fit(X, y)) + 0.1
    mean, std = gp.predict(new, return_std=True, include_noise=True)
    for side in (new[:, 0] > 5.3, new[:, 0] < 4.7):
        inside = np.abs(target - mean)[side] < 1.96 * std[side]
        assert 0.88 < inside.mean() <= 1


def places(n: int, seed: int = 0) -> np.ndarray:
    """Return rows of a map: clumped, some at one place, and with inputs of very different sizes."""
    draw = np.random.default_rng(seed)
    X = draw.uniform(0, 1, (n, 2)) * [1e3, 1e-3]
    X[: n // 3] = [500, 5e-4] + 0.01 * draw.normal(size=(n // 3, 2)) * [1e3, 1e-3]
    X[: n // 20] = X[n // 20 : 2 * (n // 20)]
    return X


def mountains(X: np.ndarray) -> np.ndarray:
    """Return a scale that changes by a factor of 50 along the first input, and not at all along the second."""
    return np.exp(np.log(50) * np.clip((X[:, 0] - 300) / 400, 0, 1))


def test_a_map_is_made_of_squared_errors():
    n, draw = 20_000, np.random.default_rng(1)
    X = places(n)
    units = Units(torch.tensor(X.mean(0)), torch.tensor(X.std(0)), 1.0)
    inside = (torch.from_numpy(X) - units.centre) / units.scale
    squares = torch.from_numpy(draw.normal(size=n) ** 2)
    found = scale_map(inside, units, squares * torch.from_numpy(mountains(X) ** 2), [0, 1]).bind(2)
    errors = found.scale(inside)[:, 0].log().numpy() - np.log(mountains(X))
    assert np.sqrt(np.mean(errors**2)) < 0.12
    even = scale_map(inside, units, squares, [0, 1]).bind(2)  # the control
    assert even.scale(inside).log().abs().max() < 0.1
    assert even.log_scale.numel() <= 9
    assert np.log(mountains(X)).std() > 0.5


@pytest.mark.parametrize("rows", [np.zeros((60, 1)), np.arange(60)[:, None] // 30, np.arange(7)[:, None]], ids=len)
def test_a_map_of_rows_at_one_or_two_places_and_of_few_rows(rows):
    X = torch.from_numpy(rows).double()
    units = Units(torch.zeros(1).double(), torch.ones(1).double(), 1.0)
    squares = torch.where(X[:, 0] > 0, 1e6, 0.0)  # exact rows beside others
    scale = scale_map(X, units, squares, [0]).bind(1).scale(X)
    assert torch.isfinite(scale).all()
    assert (scale > 0).all()


def test_many_rows_tell_the_scale_in_many_places():
    draw = np.random.default_rng(0)
    X, new = places(6000), places(3000, 1)

    def target(at: np.ndarray) -> np.ndarray:
        return mountains(at) * (np.sin(at[:, 0] / 30) + 0.5 * np.sin(1e4 * at[:, 1]) + 0.3 * draw.normal(size=len(at)))

    y, truth = target(X), target(new)
    settings = {"kernel": kernels.Matern(2.5), "inference": inference.Vecchia()}
    plain = GPRegressor(**settings).fit(X, y)
    gp = GPRegressor(noise="auto", **settings).fit(X, y)
    assert isinstance(gp.kernel_.parts[1], kernels.ScaleMap)

    def coverage(model: GPRegressor) -> list[float]:
        mean, std = model.predict(new, return_std=True, include_noise=True)
        inside = np.abs(truth - mean) < 1.959964 * std
        return [part.mean() for part in np.array_split(inside[mountains(new).argsort()], 5)]

    # five fifths of 600 rows: .95 within four standard errors
    assert min(coverage(gp)) > 0.91
    assert max(coverage(gp)) < 0.99
    assert min(coverage(plain)) < 0.9  # the control
    assert max(coverage(plain)) > 0.99
    gains = gp.predictive_log_density(new, truth) - plain.predictive_log_density(new, truth)
    assert gains.mean() > 0.5


@pytest.mark.slow
def test_constant_noise_of_many_rows_is_kept():
    for seed in range(3):
        gp = GPRegressor(kernels.Matern(2.5), inference.Vecchia(), noise="auto").fit(*even(6000, seed, 2))
        assert not any(isinstance(leaf, kernels.ScaleMap) for leaf in gp.kernel_.leaves())


def test_constant_noise_is_kept_to_the_bit():
    X, y = even(150, seed=3)
    plain = GPRegressor(kernels.Matern(2.5)).fit(X, y)
    gp = GPRegressor(kernels.Matern(2.5), noise="auto").fit(X, y)
    np.testing.assert_array_equal(gp.predict(X, return_std=True), plain.predict(X, return_std=True))
    assert gp.kernel_ == plain.kernel_
    assert "constant, auto" in gp.describe()


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("d", [1, 2, 5])
def test_constant_noise_is_kept_on_tables_that_have_it(d):
    kept = 0
    for seed in range(50):
        gp = GPRegressor(kernels.Matern(2.5), noise="auto").fit(*even(60 + 4 * seed, seed, d))
        kept += not any(isinstance(leaf, kernels.LocalVariance) for leaf in gp.kernel_.leaves())
    assert kept >= 47  # 95 of 100


def test_noise_depends_on_the_input_of_many_that_it_depends_on():
    X, y = uneven(400, d=5)
    gp = GPRegressor(kernels.Matern(2.5), noise="varying").fit(X, y)
    (local,) = (leaf for leaf in gp.kernel_.leaves() if isinstance(leaf, kernels.LocalVariance))
    assert tuple(local.columns) == (0,)


def test_all_answers_have_the_noise_of_their_place(tmp_path):
    X, y = uneven(200, d=2)
    gp = GPRegressor(kernels.Matern(2.5), noise="varying").fit(X, y)
    new = np.array([[1.0, 3.0], [9.0, 3.0]])
    mean, std = gp.predict(new, return_std=True, include_noise=True)
    assert std[1] > 3 * std[0]
    low, high = gp.predict_quantile(new, [0.025, 0.975], include_noise=True).T
    np.testing.assert_allclose((high - low) / 2, 1.959964 * std, rtol=1e-5)
    normal = -0.5 * np.log(2 * np.pi * std**2) - 0.5 * ((0.3 - mean) / std) ** 2
    np.testing.assert_allclose(gp.predictive_log_density(new, np.array([0.3, 0.3])), normal, rtol=1e-9)
    draws = gp.sample_y(new, n_samples=4000, include_noise=True)
    np.testing.assert_allclose(draws.std(1), std, rtol=5 / np.sqrt(8000))
    gp.save(tmp_path / "m.gp")
    np.testing.assert_array_equal(
        gigagp.load(tmp_path / "m.gp").predict(new, return_std=True, include_noise=True), (mean, std)
    )
    # one more row far from the others at a noisy place moves the mean less than at a quiet one
    moved = [
        abs(gp.condition_on([[place, 3.0]], [5.0]).predict([[place, 3.0]])[0] - gp.predict([[place, 3.0]])[0])
        for place in (1.0, 9.0)
    ]
    assert moved[0] > moved[1]


@pytest.mark.slow
def test_each_of_several_outputs_and_a_transformed_target_have_it():
    X, y = uneven(200)
    both = np.stack([y, np.exp(y)], 1)
    gp = GPRegressor(kernels.Matern(2.5), noise="varying").fit(X, both)
    _, std = gp.predict([[2.0], [8.0]], return_std=True, include_noise=True)
    assert std[1, 0] > 3 * std[0, 0]
    logs = GPRegressor(kernels.Matern(2.5), noise="varying", target_transform="log").fit(X, both[:, 1])
    low, high = logs.predict_quantile([[2.0], [8.0]], [0.025, 0.975], include_noise=True).T
    assert np.log(high / low)[1] > 3 * np.log(high / low)[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"likelihood": likelihoods.StudentT()}, "student-t"),
        ({"optimizer": None}, "learns nothing"),
        ({"noise_variance": np.full(30, 0.1)}, "known noise variance"),
        ({"kernel": kernels.RBF() + kernels.White()}, "White term"),
        ({"inference": inference.RandomFeatures()}, "RandomFeatures"),
        ({"inference": inference.Grid()}, "Grid"),
    ],
)
def test_what_it_does_not_go_with_is_refused(settings, words):
    X, y = uneven(30)
    with pytest.raises(InvalidInputError, match=rf'must be "constant" with.*{words}'):
        GPRegressor(noise="varying", **settings).fit(X, y)


def test_checkpoints_correlated_outputs_streams_and_plans_are_refused(tmp_path):
    X, y = uneven(30)
    gp = GPRegressor(noise="auto")
    with pytest.raises(InvalidInputError, match="a checkpoint"):
        gp.fit(X, y, checkpoint=tmp_path / "c")
    with pytest.raises(InvalidInputError, match="fit_table"):
        gp.fit_table((X, y))
    with pytest.raises(InvalidInputError, match='noise="constant"'):
        gp.plan(X, y)
    with pytest.raises(InvalidInputError, match="noise='auto'"):
        GPRegressor(noise="auto", outputs="correlated").fit(X, np.stack([y, y], 1))
    with pytest.raises(InvalidInputError, match="noise of GPRegressor must be"):
        GPRegressor(noise="wild").fit(X, y)


@pytest.mark.parametrize("n", [3, 12])
def test_few_rows_and_repeated_rows_end_well(n):
    X, y = uneven(n)
    X[:2] = X[0]
    gp = GPRegressor(kernels.Matern(2.5), noise="auto").fit(X, y)
    assert np.isfinite(gp.predict(X, return_std=True, include_noise=True)).all()
    everywhere = GPRegressor(kernels.Matern(2.5), noise="varying").fit(np.ones((n, 1)) * np.arange(n)[:, None] // 2, y)
    assert np.isfinite(everywhere.predict(X, return_std=True, include_noise=True)).all()


def test_descriptions_leave_out_long_lists():
    knots = np.linspace(0.0, 1.0, 30)
    kernel = kernels.ScaleMap([knots.tolist()], np.sin(knots).tolist(), columns=[0]) * kernels.Matern(1.5)
    gp = GPRegressor(kernel, inference.Exact(), None).fit(knots[:, None], np.cos(knots))
    words = gp.describe().split("kernel  ")[1].splitlines()[0]
    assert "[[...]]" in words
    assert words.count("[") == words.count("]")
    assert len(words) < 300
