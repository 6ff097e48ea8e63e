"""A mixture of exact posteriors, against sums over dense algebra in float64."""

import math

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.inference.contract.exact_posterior import ExactPosterior, Factorised
from gigagp.inference.contract.saved import Saved
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.kernels import RBF, Matern
from gigagp.model.likelihoods import Gaussian
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model

KERNELS = (Matern(1.5, [0.7, 1.3], 0.9), RBF(1.1, 1.4) + Matern(0.5, 0.4, 0.2), RBF([3.0, 0.5], 2.0))
NOISES, WEIGHTS = (0.05, 0.2, 0.01), (0.2, 0.5, 0.3)


def made_table(seed: int = 0, n: int = 30, mean: str = "linear", targets: int = 1) -> TrainingTable:
    """Return rows in clumps, with a pair of equal inputs and one far row."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(5, 2)).repeat(n // 5, 0) + 0.1 * draw.normal(size=(n // 5 * 5, 2))
    X[1], X[2] = X[0], 20.0
    Y = np.sin(X @ draw.normal(size=(2, targets))) + 0.1 * draw.normal(size=(len(X), targets))
    return TrainingTable(torch.from_numpy(X), torch.from_numpy(Y), resolve_mean(mean), 2**30)


def made_mixture(table: TrainingTable, weights: tuple[float, ...] = WEIGHTS) -> MixturePosterior:
    parts = []
    for kernel, noise in zip(KERNELS, NOISES, strict=True):
        model = Model(kernel.bind(2), table.mean, torch.tensor(noise, dtype=torch.float64))
        parts.append(ExactPosterior(Factorised.of(model, table)))
    return MixturePosterior(parts, torch.tensor(weights, dtype=torch.float64))


def dense(table: TrainingTable, k: int, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (m,) and covariance of component k by universal kriging (Rasmussen and Williams 2006, eq. 2.41)."""
    kernel, X, y = KERNELS[k].bind(2), table.X, table.Y[:, 0].numpy()
    K, C, S = (
        kernel.block(one, two).numpy()
        for one, two in ((X, X), (torch.from_numpy(new), X), (torch.from_numpy(new),) * 2)
    )
    H = np.linalg.inv(K + NOISES[k] * np.eye(len(y)))
    B, N = table.basis.numpy(), table.mean.basis(torch.from_numpy(new)).numpy()
    A = np.linalg.inv(B.T @ H @ B)
    beta = A @ B.T @ H @ y
    R = N - C @ H @ B
    return N @ beta + C @ H @ (y - B @ beta), S - C @ H @ C.T + R @ A @ R.T


def summed(table: TrainingTable, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of the mixture from second moments."""
    parts = [dense(table, k, new) for k in range(3)]
    mean = sum(w * m for w, (m, _) in zip(WEIGHTS, parts, strict=True))
    second = sum(w * (C + np.outer(m, m)) for w, (m, C) in zip(WEIGHTS, parts, strict=True))
    return mean, second - np.outer(mean, mean)


NEW = np.array([[0.1, -0.3], [1.0, 0.7], [19.0, 20.5], [-5.0, 2.0], [0.4, 0.4]])


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
def test_moments_are_direct_sums(mean):
    table = made_table(mean=mean)
    mixture, points = made_mixture(table), torch.from_numpy(NEW)
    expected, covariance = summed(table, NEW)
    found, variance = mixture.mean_and_variance(points)
    np.testing.assert_allclose(mixture.mean(points)[:, 0], expected, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(variance, np.diag(covariance), rtol=1e-7)
    np.testing.assert_allclose(mixture.covariance(points), covariance, rtol=1e-7, atol=1e-9)
    within = sum(w * np.diag(dense(table, k, NEW)[1]) for k, w in enumerate(WEIGHTS))
    assert (np.diag(covariance) > 1.01 * within).any(), "the means differ, which the components' variances leave out"
    noise = sum(w * noise for w, noise in zip(WEIGHTS, NOISES, strict=True))
    np.testing.assert_allclose(mixture.noise_at(points), noise)


def test_the_heaviest_component_comes_first():
    mixture = made_mixture(made_table())
    assert mixture.weights.tolist() == pytest.approx([0.5, 0.3, 0.2])
    assert mixture.model is mixture.components[0].model
    assert float(mixture.model.noise_variance) == NOISES[1]


def test_one_component_is_that_posterior():
    table = made_table()
    mixture, points = made_mixture(table, (1.0, 1e-300, 1e-300)), torch.from_numpy(NEW)
    alone = mixture.components[0]
    torch.testing.assert_close(mixture.covariance(points), alone.covariance(points))
    torch.testing.assert_close(mixture.mean_and_variance(points), alone.mean_and_variance(points))


@pytest.mark.parametrize("sample", ["at", "functions"])
def test_the_moments_of_samples(sample):
    table, count = made_table(), 4000
    mixture, points = made_mixture(table), torch.from_numpy(NEW)
    generator = torch.Generator().manual_seed(3)
    if sample == "at":
        values = mixture.sample_at(points, count, generator)[:, 0].numpy()
    else:
        values = mixture.sample_functions(count, generator)(points)[:, 0].numpy()
    mean, covariance = summed(table, NEW)
    error = np.sqrt(np.diag(covariance) / count)
    features = 0.03 if sample == "functions" else 0.0  # samples as functions have the error of random features
    assert (np.abs(values.mean(1) - mean) < 4 * error + features).all()
    fourth = ((values - mean[:, None]) ** 4).mean(1)
    spread = np.sqrt((fourth - np.diag(covariance) ** 2) / count)
    wrong = np.abs(values.var(1) - np.diag(covariance))
    assert (wrong < 4 * spread + features * np.diag(covariance)).all()
    own = np.diag(dense(table, 1, NEW)[1])
    assert (np.abs(values.var(1) - own) > 4 * spread).any(), "the heaviest component alone has another variance"


def test_each_sample_is_of_one_component():
    """Two components that are sure of different values: samples are at one of them, and never between."""
    X = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]], dtype=torch.float64)
    table = TrainingTable(
        X, torch.tensor([[1.0], [1.0], [1.0], [1.0]], dtype=torch.float64), resolve_mean("zero"), 2**30
    )
    models = [
        Model(RBF(scale, 1.0).bind(2), table.mean, torch.tensor(1e-6, dtype=torch.float64)) for scale in (0.05, 8.0)
    ]
    parts = [ExactPosterior(Factorised.of(model, table)) for model in models]
    mixture = MixturePosterior(parts, torch.tensor([0.5, 0.5], dtype=torch.float64))
    values = mixture.sample_functions(200, torch.Generator().manual_seed(0))(
        torch.tensor([[1.5, 0.0], [1.5, 0.2]]).double()
    )
    far = (values[:, 0] - 1.0).abs()
    smooth = (far < 0.05).all(0)
    assert 75 < int(smooth.sum()) < 125
    between = ((far > 0.05) & (far < 0.5)).all(0)  # where a normal distribution with the same moments has samples
    assert int(between.sum()) < 20
    assert float(values[0, 0, ~smooth].mean().abs()) < 0.4, "the other component knows nothing there"


def test_quantiles_and_densities_are_those_of_the_mixture():
    table = made_table()
    mixture, points = made_mixture(table), torch.from_numpy(NEW)
    marginals = mixture.marginals(points, include_noise=True)
    means, stds = marginals.means[:, :, 0].numpy(), marginals.variances.sqrt().numpy()
    weights = marginals.weights.numpy()[:, None]
    for probability in (0.001, 0.25, 0.5, 0.975):
        at = marginals.quantile(probability)[:, 0].numpy()
        np.testing.assert_allclose((weights * ndtr((at - means) / stds)).sum(0), probability, rtol=1e-9)
    y = mixture.mean(points) + 0.3
    z = (y[:, 0].numpy() - means) / stds
    density = (weights * np.exp(-0.5 * z**2) / (stds * math.sqrt(2 * math.pi))).sum(0)
    np.testing.assert_allclose(marginals.log_density(y)[:, 0], np.log(density), rtol=1e-10)
    alone = mixture.components[0].marginals(points, include_noise=True)
    np.testing.assert_allclose(
        alone.quantile(0.975), alone.means[0] + 1.959963984540054 * alone.variances[0].sqrt()[:, None]
    )


def test_the_likelihood_is_that_of_a_mixture_of_priors():
    mixture, generator = made_mixture(made_table()), torch.Generator()
    values = [one.log_marginal_likelihood(generator).value for one in mixture.components]
    expected = np.logaddexp.reduce(np.array(values) + np.log(mixture.weights.numpy()))
    assert mixture.log_marginal_likelihood(generator).value == pytest.approx(expected, rel=1e-12)


def test_gradients_by_the_points():
    mixture = made_mixture(made_table())
    points = torch.from_numpy(NEW).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: mixture.mean_and_variance(x), (points,), atol=1e-6)


def test_several_targets_are_refused():
    with pytest.raises(InvalidInputError, match="one target"):
        made_mixture(made_table(targets=2))


# Model files ----------------------------------------------------------------------------------------------------------


def saved_with(model: Model) -> Saved:
    return Saved(model, 2**30, "cholesky", Gaussian(), 1)


@pytest.mark.parametrize("known", [False, True])
def test_a_state_gives_the_same_answers(known):
    table = made_table()
    mixture = made_mixture(table)
    if known:
        noise = torch.linspace(0.1, 0.3, table.n_rows, dtype=torch.float64)
        models = [Model(kernel.bind(2), table.mean, noise) for kernel in KERNELS]
        parts = [ExactPosterior(Factorised.of(model, table)) for model in models]
        mixture = MixturePosterior(parts, torch.tensor(WEIGHTS, dtype=torch.float64))
    tensors, header = mixture.state()
    again = MixturePosterior.from_state(tensors, header, saved_with(mixture.model))
    points = torch.from_numpy(NEW)
    assert torch.equal(again.covariance(points), mixture.covariance(points))
    assert torch.equal(again.mean(points), mixture.mean(points))
    assert torch.equal(again.weights, mixture.weights)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda t, h: t.update(weights=-t["weights"]), "weights"),
        (lambda t, h: t.update(weights=t["weights"][:2]), "weights"),
        (lambda t, h: t.pop("weights"), "weights"),
        (lambda t, h: h.pop("others"), "others"),
        (lambda t, h: h.update(others=h["others"] * 200), "others"),
        (lambda t, h: h.update(groups=[0, 1]), "groups"),
        (lambda t, h: h["others"][0].update(noise_variance=None), "noise"),
        (lambda t, h: h["others"][0].update(noise_variance=-1.0), "noise_variance"),
        (lambda t, h: h["others"][0].update(kernel=RBF(1.0).bind(3).to_dict()), "n_inputs|bound"),
        (lambda t, h: h["others"][0].update(kernel={"kernel": "RBF"}), "bound to 2 inputs"),
        (lambda t, h: h["others"][1].update(kind="mixture"), "no component of kind 'mixture'"),
        (lambda t, h: h["first"].update(state=3), "state"),
        (lambda t, h: h.update(temperature=0.0), "temperature"),
        (lambda t, h: t.update({"others.7.X": t["X"]}), "others.7.X"),
        (lambda t, h: t.update({"others.0.gram": t["X"]}), "gram"),
    ],
)
def test_a_state_that_is_not_sound_is_refused(change, word):
    mixture = made_mixture(made_table())
    tensors, header = mixture.state()
    change(tensors, header)
    with pytest.raises((ModelFileError, InvalidInputError), match=word):
        MixturePosterior.from_state(tensors, header, saved_with(mixture.model))


def test_a_state_of_an_earlier_version_has_exact_components():
    mixture = made_mixture(made_table())
    tensors, header = mixture.state()
    header = {"others": [{name: one[name] for name in ("kernel", "noise_variance")} for one in header["others"]]}
    again = MixturePosterior.from_state(tensors, header, saved_with(mixture.model))
    points = torch.from_numpy(NEW)
    assert torch.equal(again.covariance(points), mixture.covariance(points))
    assert again.temperature == 1.0


def test_weights_of_a_file_keep_their_bits():
    """Sums of scaled weights may be off 1 by rounding, so that scaling them twice would change predictions."""
    table = made_table()
    off = 0
    for seed in range(40):
        mixture = made_mixture(table, tuple(np.random.default_rng(seed).uniform(0.1, 3.0, size=len(WEIGHTS)).tolist()))
        off += not torch.equal(mixture.weights / mixture.weights.sum(), mixture.weights)
        assert float(mixture.weights.sum()) == pytest.approx(1, abs=1e-14)
        assert torch.equal(MixturePosterior(mixture.components, mixture.weights).weights, mixture.weights)
    assert off  # the control


def test_a_component_that_rows_rule_out_is_left_out():
    """Its weight is below the smallest number, of which further rows and model files made errors."""
    table, more = made_table(), torch.tensor([[0.3, 0.3], [1.3, 1.3]], dtype=torch.float64)
    values = torch.tensor([[60.0], [0.5]], dtype=torch.float64)
    once = made_mixture(table).with_rows(more[:1], values[:1])
    assert once.weights.tolist() == [1.0]
    grown = once.with_rows(more[1:], values[1:])
    expected = made_mixture(table).components[0].with_rows(more, values)
    tensors, header = grown.state()
    again = MixturePosterior.from_state(tensors, header, saved_with(grown.model))
    points = torch.from_numpy(NEW)
    for found in (grown, again):
        torch.testing.assert_close(found.mean_and_variance(points), expected.mean_and_variance(points))


def test_parts_of_a_mixture_are_sums_over_its_components(monkeypatch):
    mixture, points = made_mixture(made_table()), torch.from_numpy(NEW)
    for name in ("explained_basis", "prior_variance"):
        each = [getattr(one, name)(points) for one in mixture.components]
        expected = sum(weight * one for weight, one in zip(mixture.weights, each, strict=True))
        torch.testing.assert_close(getattr(mixture, name)(points), expected)
        assert not torch.allclose(each[0], expected)  # the control
    parts = mixture.variance_parts(points)
    assert torch.equal(parts.mathematical, mixture.mean_and_variance(points)[1])
    assert not parts.computational.any()
    assert mixture.left_out() is not None
    monkeypatch.setattr(mixture.components[1], "left_out", lambda: None)
    assert mixture.left_out() is None
