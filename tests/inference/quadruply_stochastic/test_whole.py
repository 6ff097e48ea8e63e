"""All rows and functions at once: the exact posterior, the best bound of other likelihoods, their derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPClassifier, GPRegressor, kernels, load, optimization
from gigagp.errors import FitWarning, InvalidInputError
from gigagp.estimators import checkpoint
from gigagp.inference import Exact, Inference, QuadruplyStochastic, RelevanceVectorMachine
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic import latent, whole
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample
from gigagp.inference.quadruply_stochastic.latent import LatentObjective, Sites, sites_from
from gigagp.inference.quadruply_stochastic.newton import WeightSearch
from gigagp.inference.quadruply_stochastic.whole import WholeObjective
from gigagp.model.likelihoods import Gaussian, Laplace, Logistic, Poisson, Probit
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from helpers import draw_targets, generator, new_trace, points
from weight_bounds import best_chevron, exact_weights, log_evidence

X = points(30, 2)
KERNEL = kernels.RBF([0.9, 1.4], 1.7).bind(2)
Y = draw_targets(KERNEL, X, 0.1, columns=2)
COUNTS = (Y - Y.min()).round()
LIKELIHOODS = {
    "gaussian": (Gaussian(), Y),
    "logistic": (Logistic(), Y.sign()),
    "probit": (Probit(), Y.sign()),
    "poisson": (Poisson(), COUNTS),
    "laplace": (Laplace(), Y),
}


def make(settings, likelihood=None, Y=Y, kernel=KERNEL, noise=0.2):
    objective = settings.objective(TrainingTable(X, Y, ZeroMean(), 2**28), generator(0), likelihood or Gaussian())
    model = Model(kernel, ZeroMean(), torch.tensor(noise, dtype=torch.float64))
    return objective, objective.start(model)


def sampled_bound(objective, model, weights):
    """The bound that steps on samples estimate, on all rows and functions."""
    samples = objective.sampled()
    samples.begin(model)
    samples.state.weights = weights
    index = torch.arange(samples.state.basis.size)
    sample = BasisSample.from_indices(index, index, len(index), n_head=weights.n_columns)
    found = samples.evaluate_sample(model, torch.arange(objective.n_rows), sample)
    gradient = {name: value for name, value in found.gradient.items()}
    return found.value, gradient


def test_a_gaussian_likelihood_is_solved_exactly():
    objective, model = make(QuadruplyStochastic(n_basis=24))
    posterior = objective.posterior(model, generator(0))
    index = torch.arange(24)
    Phi, S = objective.basis.columns(X, index), torch.eye(24).double()
    for one in range(2):
        mean, root = exact_weights(Phi, S, Y[:, one], 0.2)
        torch.testing.assert_close(posterior.weights.mean[:, one], mean)
        torch.testing.assert_close(posterior.weights.root(), root)
    evidence = sum(log_evidence(Phi, S, one, 0.2) for one in Y.T)
    assert posterior.log_marginal_likelihood(generator()).value == pytest.approx(evidence, rel=1e-10)
    assert objective.evaluate(model).value == pytest.approx(evidence, rel=1e-10)


@pytest.mark.few(4)
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("name", ["logistic", "poisson", "laplace", "gaussian"])
def test_few_rows_lead_to_the_same_weights(name, columns, monkeypatch):
    """The search among latent values ends where the search among weights does."""
    likelihood, targets = LIKELIHOODS[name]
    searches, fit_few_rows = [], whole.fit_few_rows
    monkeypatch.setattr(
        whole, "fit_few_rows", lambda search, *rest: searches.append(search) or fit_few_rows(search, *rest)
    )
    objective, model = make(QuadruplyStochastic(n_basis=70), likelihood, targets[:, :columns])
    found = objective._fit(model, 1e-13)
    (search,) = searches
    expected, _ = search.maximise(search.start(None), 1e-13)
    assert found.point.value == pytest.approx(expected.value, rel=1e-9)
    assert found.promised < 1e-6
    torch.testing.assert_close(found.point.mean, expected.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.point.root, expected.root, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.point.trend, expected.trend, rtol=1e-4, atol=1e-5)


def test_a_chevron_is_the_best_one():
    for n_columns in (0, 5):
        objective, model = make(QuadruplyStochastic(n_basis=24, n_columns=n_columns))
        weights = objective.posterior(model, generator(0)).weights
        Phi = objective.basis.columns(X, torch.arange(24))
        torch.testing.assert_close(weights.root(), best_chevron(Phi, torch.eye(24).double(), 0.2, n_columns))


@pytest.mark.few(4)
@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("n_columns", [None, 3])
def test_nothing_is_left_to_climb(name, n_columns):
    """The bound is the one that samples estimate, and its slope in mean and root is zero."""
    likelihood, targets = LIKELIHOODS[name]
    objective, model = make(QuadruplyStochastic(n_basis=16, n_columns=n_columns), likelihood, targets)
    value = objective.evaluate(model).value
    weights = objective.current_posterior().weights
    found, gradient = sampled_bound(objective, model, weights)
    assert found == pytest.approx(value, rel=1e-9)
    k = weights.n_columns
    slopes = [gradient["mean"], gradient["log_scale"]]
    if k:
        below = torch.arange(16)[:, None] > torch.arange(k)
        slopes.append(gradient["columns"] * below)
    steepest = max(float(slope.abs().max()) for slope in slopes)
    weights.mean += 0.1  # the control
    _, far = sampled_bound(objective, model, weights)
    assert steepest < 0.01 * float(far["mean"].abs().max())


@pytest.mark.few(3)
@pytest.mark.parametrize("basis", ["fourier", "inducing"])
@pytest.mark.parametrize("name", ["gaussian", "logistic", "laplace"])
def test_the_gradient_is_that_of_the_best_bound(name, basis):
    likelihood, targets = LIKELIHOODS[name]
    objective, model = make(QuadruplyStochastic(n_basis=12, basis=basis), likelihood, targets)
    found = objective.evaluate(model)
    for key, gradient in found.gradient.items():
        value, h = model.parameters()[key], 1e-4
        if key == "noise_variance" and not likelihood.has_noise:
            assert float(gradient) == 0
            continue
        direction = torch.ones_like(value)
        up, down = (objective.evaluate(model.replace({key: value + step * direction})).value for step in (h, -h))
        assert (up - down) / (2 * h) == pytest.approx(float(gradient.sum()), rel=2e-3, abs=2e-3)


def test_many_functions_reach_the_latent_bound():
    """The limit, with the kernel itself in place of functions, and its derivatives."""
    for name in ("gaussian", "logistic", "poisson", "laplace"):
        likelihood, targets = LIKELIHOODS[name]
        exact = LatentObjective(TrainingTable(X, targets, ZeroMean(), 2**28), likelihood, 101)
        objective, model = make(QuadruplyStochastic(n_basis=30, basis="inducing"), likelihood, targets)
        found = exact.evaluate(model)
        assert objective.evaluate(model).value == pytest.approx(found.value, rel=1e-5)
        for key, gradient in found.gradient.items():
            value, h = model.parameters()[key], 1e-4
            if key == "noise_variance" and not likelihood.has_noise:
                continue
            up, down = (exact.evaluate(model.replace({key: value + step})).value for step in (h, -h))
            assert (up - down) / (2 * h) == pytest.approx(float(gradient.sum()), rel=2e-3, abs=2e-3)


def test_the_latent_bound_of_a_gaussian_likelihood_is_its_evidence():
    table = TrainingTable(X, Y, ZeroMean(), 2**28)
    model = Model(KERNEL, ZeroMean(), torch.tensor(0.2, dtype=torch.float64))
    found = LatentObjective(table, Gaussian(), 101).evaluate(model)
    exact = Exact().objective(table, generator(0)).evaluate(model)
    assert found.value == pytest.approx(exact.value, rel=1e-9)
    for name, gradient in exact.gradient.items():
        torch.testing.assert_close(found.gradient[name], gradient, rtol=1e-6, atol=1e-6)


def test_what_decides():
    def decides(n=1000, **settings):
        return QuadruplyStochastic(**settings).for_all_at_once(n)

    assert decides().n_basis == 1000
    assert decides(100).n_basis == 1000
    assert decides(5000).n_basis == 2000
    assert decides(n_basis=300).n_basis == 300
    assert decides(100, basis="inducing").n_basis == 100
    for settings in (
        {"row_batch": 10},
        {"basis_batch": 10},
        {"n_support": 5},
        {"linear_control": True},
        {"replacement": True},
        {"bound": "as_printed"},
        {"n_basis": 20_000},
    ):
        assert decides(**settings) is None
    assert decides(10**6) is None
    assert decides(10**6, n_basis=200) is not None
    assert RelevanceVectorMachine().for_all_at_once(500).n_basis == 500
    small = TrainingTable(X, Y, ZeroMean(), 2**17)
    assert QuadruplyStochastic(n_basis=24, basis_batch=4).objective(small, generator(0)).deterministic is False
    assert not QuadruplyStochastic(n_basis=64).objective(small, generator(0)).deterministic


def test_a_sparse_optimizer_still_samples():
    objective, model = make(QuadruplyStochastic(n_basis=24))
    samples = objective.sampled()
    samples.begin(model)
    assert samples.state.weights.n_columns == 0
    assert samples.state.basis == objective.basis
    with pytest.raises(InvalidInputError, match="where rows and functions are sampled"):
        samples.start(model)


def test_the_posterior_is_of_the_samples_once_a_sparse_optimizer_asks_for_them():
    objective, model = make(QuadruplyStochastic(n_basis=24))
    best = objective.posterior(model, generator(0))
    assert best.from_samples is False
    ascent = optimization.SparseAdam(steps=3, hyper_learning_rate=0.0)
    ascent.run(objective, model, new_trace(), generator(0))
    objective.learn_remaining(model, generator(0))
    learned = objective.posterior(model, generator(0))
    assert learned.from_samples
    assert learned.weights is objective.sampled().state.weights
    assert not torch.equal(learned.weights.mean, best.weights.mean)


@pytest.mark.parametrize("basis", ["fourier", "inducing", "grid"])
def test_every_basis_ends_at_the_noise(basis):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (300, 2))
    y = np.sin(4 * x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=300)
    settings = QuadruplyStochastic(n_basis=100, basis=basis)
    gp = GPRegressor(kernels.RBF([0.5, 1.0], 1.0), settings, None, noise_variance=0.02).fit(x[:250], y[:250])
    mean, std = gp.predict(x[250:], return_std=True, include_noise=True)
    # 50 targets with a noise of 0.1, up to four standard errors
    assert np.sqrt(np.mean((mean - y[250:]) ** 2)) < 0.1 * (1 + 4 / np.sqrt(2 * 50))
    assert bool((std > 0.1).all())


def test_a_classifier_without_settings_is_quick_and_good(tmp_path):
    from sklearn.datasets import load_iris

    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)
    X, y = X[order], y[order]
    gp = GPClassifier(kernels.RBF(), inference=QuadruplyStochastic(n_basis=200)).fit(X[:100], y[:100])
    probability = gp.predict_proba(X[100:])
    loss = -np.log(probability[np.arange(50), y[100:]]).mean()
    # scikit-learn's logistic regression on 1,000 random features had 0.081 here, its Gaussian process 0.267
    assert loss < 0.15
    assert gp.latent_.history_.to_dict()["stage"][-1] == "bound, 100 rows"
    assert gp.latent_.solver_ == "all rows and functions at once, 200 fourier functions"
    gp.save(tmp_path / "iris.gp")
    again = load(tmp_path / "iris.gp")
    assert np.array_equal(again.predict_proba(X), gp.predict_proba(X))
    assert again.latent_.solver_ == gp.latent_.solver_


def test_a_killed_fit_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    y = (X[:, 0] > X[:, 1]).numpy()
    settings = QuadruplyStochastic(n_basis=30)

    def fit(**given):
        return GPClassifier(kernels.RBF([1.0, 1.0]), settings, optimization.LBFGS(6)).fit(X.numpy(), y, **given)

    straight = fit()
    kept, taken = WholeObjective.evaluate, 0

    def dying(self, model):
        nonlocal taken
        taken += 1
        if taken == 4:
            raise KeyboardInterrupt
        return kept(self, model)

    monkeypatch.setattr(WholeObjective, "evaluate", dying)
    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint=tmp_path / "c")
    resumed = fit(checkpoint=tmp_path / "c")
    assert np.array_equal(resumed.predict_proba(X.numpy()), straight.predict_proba(X.numpy()))


@pytest.mark.slow
def test_relevance_vectors_of_a_noisy_sinc():
    """T15: the deterministic limit keeps 8 to 12 functions; the paper's stochastic one 13 of 500."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-10, 10, (300, 1)), 0)
    truth = np.sinc(x[:, 0] / np.pi)
    y = truth + 0.1 * rng.normal(size=300)
    gp = GPRegressor(
        kernels.RBF([1.5], 1.0), RelevanceVectorMachine(), None, noise_variance=0.01, mean="zero", standardize=False
    ).fit(x, y)
    assert 5 <= len(gp.posterior_.relevance_vectors) <= 16
    assert np.sqrt(np.mean((gp.predict(x) - truth) ** 2)) < 0.03
    weights, index = gp.posterior_.weights, gp.posterior_.kept
    squares = weights.mean[index, 0].square() + weights.root().square().sum(1)[index]
    assert float((weights.log_precision[index].exp() * squares - 1).abs().max()) < 1e-6


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore:Squared errors")  # few functions, given noise
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("threshold", [0.5, 0.01, 1e-300])
def test_a_threshold_that_drops_every_vector_keeps_the_most_relevant_and_says_so(threshold, seed, tmp_path):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(24, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(24)
    gp = GPRegressor(inference=RelevanceVectorMachine(threshold=threshold), optimizer=None, noise_variance=0.02)
    precision = GPRegressor(inference=RelevanceVectorMachine(), optimizer=None, noise_variance=0.02).fit(X, y)
    precision = precision.posterior_.weights.log_precision.exp()
    below = int((precision < threshold).sum())
    if below:
        gp.fit(X, y)
    else:
        with pytest.warns(FitWarning, match="threshold of RelevanceVectorMachine is .* was kept"):
            gp.fit(X, y)
    # the threshold decides which weights of the optimum are dropped, and does not move it
    torch.testing.assert_close(gp.posterior_.weights.log_precision.exp().log(), precision.log())
    assert len(gp.posterior_.relevance_vectors) == max(below, 1)
    mean, std = gp.predict(X[:5], return_std=True)
    assert np.isfinite(mean).all()
    assert (std < 2 * y.std()).all()
    gp.save(tmp_path / "rvm.gp")
    np.testing.assert_array_equal(load(tmp_path / "rvm.gp").predict(X[:5]), mean)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:Squared errors of the latent function")  # of the control
@pytest.mark.parametrize("mean", ["zero", "linear"])
@pytest.mark.parametrize("basis", ["fourier", "inducing", "grid"])
def test_the_covariance_is_that_of_the_exact_process(basis, mean, tmp_path):
    """With noise for every row; the mean is that of the weights, whose own covariance is smaller (the control)."""
    random = np.random.default_rng(0)
    X = np.concatenate([random.uniform(size=(40, 2)), 0.8 + 0.02 * random.normal(size=(20, 2))])
    X = np.concatenate([X, X[:5]])
    y, noise = np.sin(6 * X[:, 0]) + X[:, 1], np.linspace(0.01, 0.1, len(X))
    new = random.uniform(size=(30, 2))

    def fit(method: Inference) -> GPRegressor:
        arguments = {"noise_variance": noise, "optimizer": None, "mean": mean, "random_state": 0}
        return GPRegressor(kernels.RBF([0.3, 0.5]), method, **arguments).fit(X, y)

    m = 60 if basis == "fourier" else 8
    exact = fit(Exact())
    of_rows = fit(QuadruplyStochastic(n_basis=m, basis=basis))
    of_weights = fit(QuadruplyStochastic(n_basis=m, basis=basis, n_columns=m))
    found, expected = (gp.predict(new, return_cov=True)[1] for gp in (of_rows, exact))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert np.diag(of_weights.predict(new, return_cov=True)[1]).mean() < 0.9 * np.diag(expected).mean()
    np.testing.assert_allclose(of_rows.predict(new), of_weights.predict(new), atol=1e-6 if mean == "zero" else 0.1)
    assert "covariance of 65 rows" in of_rows.describe()
    samples = of_rows.sample_y(new, 4000)
    np.testing.assert_allclose(samples.std(1), np.sqrt(np.diag(expected)), rtol=5 / np.sqrt(2 * 4000), atol=0.02)
    of_rows.save(tmp_path / "gp")
    kept = load(tmp_path / "gp").predict(new, return_cov=True)[1]
    np.testing.assert_array_equal(kept, found)


# Rows that say much ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [1e-4, 1e-9, 1e-13])
def test_few_rows_with_little_noise_keep_the_digits_of_small_variances(noise):
    """The covariance of the weights was a difference, whose error was a rounding of the prior variance."""
    rows = X[:12]
    kernel = kernels.Matern(0.5, [0.9, 1.4], 1.7).bind(2)
    table = TrainingTable(rows, Y[:12], ZeroMean(), 2**28)
    objective = QuadruplyStochastic(n_basis=60).objective(table, generator(0), Gaussian())
    model = objective.start(Model(kernel, ZeroMean(), torch.tensor(noise, dtype=torch.float64)))
    point = objective._fit(model, 1e-9).point
    Phi = objective.basis.columns(rows, torch.arange(60))
    values, vectors = torch.linalg.eigh(Phi @ Phi.T)
    expected = (vectors * (values * noise / (values + noise))) @ vectors.T
    found = Phi @ point.root
    torch.testing.assert_close(found @ found.T, expected, rtol=1e-5, atol=1e-5 * noise)
    torch.testing.assert_close(Phi @ point.mean, Y[:12], rtol=0, atol=1e3 * noise / float(values.min()) + 1e-9)
    evidence = sum(log_evidence(Phi, torch.eye(60).double(), one, noise) for one in Y[:12].T)
    assert point.value == pytest.approx(evidence, rel=1e-6)
    scaled = Phi.T @ Phi / noise + torch.eye(60).double()
    by_precision = Phi @ torch.linalg.inv(scaled) @ Phi.T
    error = float((by_precision - expected).abs().max()) / noise
    assert (error > 1e-5) == (noise < 1e-10)  # the control: through the precision, digits are lost


@pytest.mark.parametrize("name", ["laplace", "gaussian"])
def test_fits_of_few_rows_never_search_among_many_weights(name, monkeypatch):
    """A step costs O(m^3) there: 45 rows with little noise took more than six seconds, and take one."""

    def search(*given):
        raise AssertionError

    monkeypatch.setattr(WeightSearch, "maximise", search)
    y = 1e5 * Y[:, 0].numpy()
    kernel, settings = kernels.Matern(0.5) + kernels.RBF(), {"noise_variance": 0.1, "likelihood": name}
    gp = GPRegressor(kernel, QuadruplyStochastic(), optimization.LBFGS(3), **settings).fit(X.numpy(), y)
    assert np.abs(gp.predict(X.numpy()) - y).max() < 0.01 * np.abs(y).max()


# Several classes, and the starts of searches --------------------------------------------------------------------------


def three_classes(n=90):
    """Rows in clumps, some of them twice, on inputs of different scales, and signs of three classes."""
    rng = np.random.default_rng(3)
    rows = np.concatenate([rng.normal(size=(n // 3, 2)) * 0.2 + centre for centre in ((0, 0), (1, 1), (3, -1))])
    rows[5:10] = rows[:5]
    codes = (rows[:, 0] > 0.6).astype(int) + (rows[:, 1] > 0.5) + (rng.random(n) < 0.1)
    signs = np.where(codes[:, None] % 3 == np.arange(3), 1.0, -1.0)
    return TrainingTable(torch.from_numpy(rows), torch.from_numpy(signs), ZeroMean(), 2**28)


@pytest.mark.parametrize("scale", [1.0, 400.0])
def test_a_step_of_several_targets_is_that_of_dense_algebra(scale):
    """Each target has its own curvature, from nothing at all to far above the prior's."""
    rng = np.random.default_rng(0)
    table = three_classes()
    K = scale * KERNEL.block(table.X, table.X)
    bend = torch.from_numpy(10 ** rng.uniform(-12, 1, size=table.Y.shape))
    bend[::7] = 0.0
    sites, n = Sites(torch.from_numpy(rng.normal(size=table.Y.shape)), bend), table.n_rows
    basis = torch.ones(n, 1, dtype=torch.float64)
    for phi in (basis[:, :0], basis):
        known = torch.from_numpy(rng.normal(size=table.Y.shape)), torch.zeros(phi.shape[1], 3, dtype=torch.float64)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(latent, "_INNER", 500)
            patch.setattr(latent, "_INNER_RESIDUAL", 1e-12)
            alpha, coefficients, _ = latent.newton_target(K, phi, sites, bend.mean(1), known)
        for k in range(3):
            W = bend[:, k, None]
            system = torch.linalg.inv(torch.eye(n).double() + W * K)
            solved, of_basis = system @ sites.pull[:, k], system @ (W * phi)
            trend = torch.linalg.solve(phi.T @ of_basis, phi.T @ solved)
            torch.testing.assert_close(coefficients[:, k], trend, rtol=1e-6, atol=1e-8)
            expected = K @ (solved - of_basis @ trend)
            torch.testing.assert_close(K @ alpha[:, k], expected, rtol=1e-6, atol=1e-8 * scale)


def test_variances_hold_for_rows_that_say_nothing_and_rows_that_say_all():
    table = three_classes()
    K = 9 * KERNEL.block(table.X, table.X)
    curvature = 10 ** torch.linspace(-14, 3, table.n_rows, dtype=torch.float64)
    found = latent._variance(K, curvature, latent.bent_factor(K, curvature.sqrt()))
    root = curvature.sqrt()
    inner = torch.linalg.solve(torch.eye(table.n_rows).double() + root[:, None] * K * root, root[:, None] * K)
    expected = (K - (root[:, None] * K).T @ inner).diagonal()
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_a_curvature_that_swings_is_met_in_the_middle():
    bend = torch.tensor([[2.0, 4.0], [1.0, 1.0]], dtype=torch.float64)
    here, best = torch.tensor([3.8, 0.0], dtype=torch.float64), torch.tensor([3.0, 1.0], dtype=torch.float64)
    swing = (best - here) / -0.8  # the step before went as much too far as makes this one turn back
    met = latent.next_curvature(here, swing, bend)
    torch.testing.assert_close(met, here + (best - here) / 1.8)
    for moved in (torch.zeros(2).double(), 5 * swing, -swing):  # first, nearly there, still on the way
        torch.testing.assert_close(latent.next_curvature(here, moved, bend), best)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_sites_of_some_rows_are_near_those_of_all(name, monkeypatch):
    """A search that starts there ends at the same bound after fewer steps.

    Counts far above the predicted ones have sites from which steps would go to rates of 1e50; they are not taken.
    """
    table, likelihood = three_classes(), LIKELIHOODS[name][0]
    if name == "poisson":
        table = TrainingTable(table.X, 3 * (table.Y + 1) + 40 * (table.X[:, :1] > 2.5), ZeroMean(), 2**28)
    model = Model(KERNEL.replace({"variance": torch.tensor(40.0).double()}), ZeroMean(), torch.tensor(0.0).double())
    steps, expected_fit = [], latent.expected_fit
    monkeypatch.setattr(latent, "expected_fit", lambda *rest: steps.append(1) or expected_fit(*rest))
    exact = LatentObjective(table, likelihood, 101).evaluate(model)
    from_nothing = len(steps)
    rows = torch.arange(0, table.n_rows, 2) if name == "logistic" else torch.arange(60)  # two of three clumps
    few = LatentObjective(table.take_rows(rows), likelihood, 101)
    start = sites_from(few, rows, model, table)
    given = model.kernel.block(table.X, table.X), table.X[:, :0], torch.zeros(table.n_rows).double(), table.Y
    steps.clear()
    best = latent.best_latent(*given, likelihood, 101, start)
    taken = len(steps)
    search = WeightSearch(
        torch.linalg.cholesky(given[0] + 1e-9 * torch.eye(90)),
        torch.ones(90).double(),
        given[2],
        table.Y,
        given[1],
        likelihood,
        None,
        101,
    )
    among_weights, _ = search.maximise(start, 1e-9)
    assert among_weights.value == pytest.approx(exact.value, rel=1e-4)
    assert best.value == pytest.approx(exact.value, rel=1e-6)
    assert taken < from_nothing if name == "logistic" else taken <= from_nothing + 2


def test_a_search_among_weights_starts_at_sites():
    """The best distribution under sites of the likelihood at its optimum is that optimum."""
    table = three_classes()
    objective = QuadruplyStochastic(n_basis=50).objective(table, generator(0), Logistic())
    model = objective.start(Model(KERNEL, ZeroMean(), torch.tensor(0.0).double()))
    fitted = objective._fit(model, 1e-12)
    point = fitted.point
    search = WeightSearch(
        objective.basis.columns(table.X, torch.arange(50)),
        torch.ones(50).double(),
        torch.zeros(table.n_rows).double(),
        table.Y,
        table.X[:, :0],
        Logistic(),
        None,
        101,
    )
    sites = Sites(point.fit.bend * (search.Phi @ point.mean) + point.fit.slope, point.fit.bend)
    found = search._at_sites(sites)
    assert found.value == pytest.approx(point.value, rel=1e-7)
    torch.testing.assert_close(found.mean, point.mean, rtol=1e-3, atol=1e-4)
