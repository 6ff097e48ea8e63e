"""Settings and whole fitted models, through a file and back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.base import clone

import gigagp
from gigagp import GPRegressor, actions, gradients, inference, kernels, optimization, presets, solvers, truncation
from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.estimators.saving.configuration import from_plain, to_plain
from gigagp.model.means import LinearMean
from gigagp.solvers.preconditioners import Nystrom, PivotedCholesky, RandomlyPivotedCholesky, TwoLevel
from helpers import draw_targets, points

SETTINGS = [
    None,
    True,
    3,
    1.5e-300,
    float("inf"),
    "auto",
    (1, "a", (2.0, None)),
    kernels.RBF([1.0, 2.0]) * kernels.Periodic(columns=[0], fixed=True) + 0.3,
    inference.Exact(),
    inference.ComputationAware(n_actions=7, loss="projected"),
    inference.ComputationAware(policy=actions.Learned("shuffled", initial="random")),
    inference.ComputationAware(3, actions.ConjugateGradients(1e-3, absolute_tolerance=0.1)),
    inference.ComputationAware(4, actions.Lanczos(ritz=True)),
    inference.ComputationAware(policy=actions.UnitVectors("pivoted")),
    inference.ComputationAware(policy=actions.Random("rademacher", structure="blocks")),
    inference.ComputationAware(policy=actions.TopEigenvectors()),
    inference.ComputationAware(policy=actions.PseudoInputs()),
    inference.Iterative(),
    inference.Iterative(gradient=gradients.Exact(), warm_start="previous", final_tolerance=1e-5),
    inference.Markov(),
    inference.Vecchia(40, prediction_neighbors=None, learning_rows=500),
    inference.RandomFeatures(200, truncation.SingleSample(truncation.OneOverJ(50, step=10)), redraw=True),
    gradients.Exact(),
    gradients.Hutchinson(3, law="rademacher"),
    gradients.Pathwise(5, 100, "exact", "joint"),
    solvers.Cholesky(),
    solvers.ConjugateGradients(preconditioner=PivotedCholesky(rank=7), nats=(1.0, 5.0)),
    solvers.ConjugateGradients(preconditioner=None),
    solvers.ConjugateGradients(truncation=truncation.ExponentialDecay(0.05, 80)),
    solvers.ConjugateGradients(truncation=truncation.RussianRoulette(truncation.Geometric(0.9, 5), True)),
    truncation.SingleSample(truncation.OneOverJ(350, 750, step=50)),
    truncation.ExponentialDecay(0.1, 3, step=2),
    truncation.RussianRoulette(truncation.Uniform(2)),
    truncation.Geometric(0.9, 4, 30),
    truncation.OneOverJ(5, 90),
    truncation.Uniform(3, 9),
    truncation.Fixed(4),
    solvers.AlternatingProjections(block_size=7, partition="contiguous"),
    solvers.StochasticGradientDescent(learning_rate=3.0),
    PivotedCholesky(rank=4),
    Nystrom(rank=4),
    RandomlyPivotedCholesky(rank=4),
    TwoLevel(rank=3, block_size=5),
    solvers.CompletePanel(most_gaps=50),
    inference.Curves(n_neighbors=4),
    solvers.Vecchia(7, rank=3),
    solvers.ConjugateGradients(preconditioner=solvers.Vecchia(9)),
    inference.SparseVariational(40, batch_size=30, start="greedy", learn_inducing_points=False),
    inference.SparseVariational(jitter=1e-6),
    inference.QuadruplyStochastic(500, row_batch=64, n_columns=3, n_support=20, bound="linear"),
    inference.RelevanceVectorMachine(400, threshold=1e3),
    optimization.SparseAdaGrad(0.2, steps=300),
    optimization.SparseAdam(0.02, steps=300, beta1=0.9),
    optimization.SparseSGD(1e-3, steps=300),
    inference.Grid(size=(30, 40), outside="clamp", variance="low_rank", rank=20),
    optimization.Adam(0.3, 4),
    optimization.LBFGS(steps=3),
    optimization.Auto(subset_sizes=(100, 200)),
    optimization.Auto(bound_polish=optimization.LBFGS(7), stochastic_polish=optimization.Adam(0.02, 5)),
    optimization.SubsetStart(optimization.Adam(), n_centroids=3),
    optimization.SubsetFirst(500, then=optimization.SparseAdam(0.05, steps=20)),
    optimization.Restarts(optimization.LBFGS(steps=3), 2, spread=5.0),
    optimization.Unsaved("Search()"),
    *presets.lin2024("ap", "standard").values(),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=repr)
def test_settings_survive_json(setting):
    again = from_plain(json.loads(json.dumps(to_plain(setting))))
    assert type(again) is type(setting)
    assert again == setting


def test_every_setting_of_the_public_rooms_can_be_saved():
    """Otherwise a forgotten class would be found only when a user's fit of an hour cannot be written."""
    built = {type(setting) for setting in SETTINGS}
    for room in (inference, gradients, solvers, optimization, truncation):
        for name in room.__all__:
            item = getattr(room, name)
            results = (
                optimization.Evaluation,
                optimization.SolveRecord,
                optimization.Step,
                optimization.History,
                inference.Abilities,
            )
            fields = getattr(item, "__dataclass_fields__", None)
            if (
                fields is None
                or item in results
                or item.__name__ in ("Solution", "Start", "Truncated", "PathwiseProbes")
                or item is optimization.Minimiser  # code, which is saved as `Unsaved`; see test_own_optimizer.py
            ):
                continue
            assert item in built, f"{name} has no example in SETTINGS"


def test_foreign_objects_are_refused():
    with pytest.raises(InvalidInputError, match="a setting of type Generator cannot be saved"):
        to_plain(torch.Generator())
    for data, match in (
        ({"class": "os.system", "settings": {}}, "names a setting that is not gigagp's: 'os.system'"),
        ({"class": None}, "must be plain or have a class"),
        ({"other": 1}, "must be plain or have a class"),
        ([1], "a list is not a setting"),
    ):
        with pytest.raises(InvalidInputError, match=match):
            from_plain(data)


# Whole models ---------------------------------------------------------------------------------------------------------

X, X_NEW = points(90, 3).numpy(), points(20, 3, seed=1).numpy()
Y = 5 + 3 * draw_targets(kernels.Matern(1.5, 1.0), torch.from_numpy(X), 0.1, columns=2).numpy()
MODELS = {
    "exact": GPRegressor(optimizer=optimization.Adam(steps=2), noise_variance=0.2, random_state=5),
    "sum": GPRegressor(
        kernels.RBF([1.0, 2.0, 3.0]) * kernels.Periodic(columns=[1])
        + kernels.Linear(columns=[0, 2])
        + kernels.RationalQuadratic(ard=False, fixed=["alpha"])
        + kernels.Constant(0.1)
        + kernels.White(0.01),
        optimizer=optimization.LBFGS(steps=2),
        mean="linear",
    ),
    "zero mean": GPRegressor(kernels.Matern(2.5), optimizer=None, mean="zero", standardize=False, dtype="float32"),
    "known noise": GPRegressor(optimizer=None, noise_variance=np.linspace(0.1, 1, 90), mean=LinearMean()),
    "iterative": GPRegressor(
        kernels.Matern(1.5) + kernels.Linear(),
        inference=inference.Iterative(n_samples=8),
        optimizer=optimization.Adam(steps=2),
        memory_budget="200MB",
    ),
    "iterative float32": GPRegressor(
        inference=inference.Iterative(solver=solvers.AlternatingProjections(tolerance=1e-3), n_samples=8),
        optimizer=None,
        dtype="float32",
    ),
    "truncated": GPRegressor(
        inference=inference.Iterative(
            solver=solvers.ConjugateGradients(truncation=truncation.ExponentialDecay(0.2, 10)),
            warm_start=False,
            n_samples=4,
        ),
        optimizer=optimization.Adam(steps=2),
    ),
    "hutchinson": GPRegressor(
        inference=inference.Iterative(gradient=gradients.Hutchinson(3), n_samples=4),
        optimizer=optimization.Adam(steps=1),
    ),
}


def answers(gp):
    single = {"random_state": 3}
    return [
        gp.predict(X_NEW),
        *gp.predict(X_NEW, return_std=True),
        gp.predict(X_NEW, return_std=True, variance="solve")[1],
        gp.predict(X_NEW, return_cov=True)[1],
        gp.sample_y(X_NEW, 3, **single),
        gp.sample_functions(2, **single)(X_NEW),
        np.array(gp.log_marginal_likelihood(**single)),
        np.array(gp.score(X, Y if gp.predict(X_NEW).ndim == 2 else Y[:, 0])),
    ]


#: Known noise in the target's units requires a single target.
CASES = [(name, n_targets) for name in MODELS for n_targets in (1, 2) if name != "known noise" or n_targets == 1]


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "n_targets"), CASES)
def test_a_loaded_model_gives_the_same_bits(name, n_targets, tmp_path):
    gp = clone(MODELS[name]).set_params(outputs="shared").fit(X, Y if n_targets == 2 else Y[:, 0])
    gp.save(tmp_path / "model.gp")
    loaded = gigagp.load(tmp_path / "model.gp")
    for expected, found in zip(answers(gp), answers(loaded), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert loaded.kernel_ == gp.kernel_
    np.testing.assert_array_equal(loaded.noise_variance_, gp.noise_variance_)
    assert loaded.history_.to_dict() == gp.history_.to_dict()
    assert loaded.inference_ == gp.inference_
    assert loaded.optimizer_ == gp.optimizer_
    assert loaded.solver_ == gp.solver_
    assert loaded.engine_ == gp.engine_
    assert loaded.describe() == gp.describe()
    # Fitted again, it is the same model, because the constructor's arguments are saved too.
    again = loaded.fit(X, Y if n_targets == 2 else Y[:, 0])
    np.testing.assert_allclose(again.predict(X_NEW), gp.predict(X_NEW), rtol=1e-12)
    np.testing.assert_array_equal(np.shape(again.noise_variance_), np.shape(gp.noise_variance_))
    again.save(tmp_path / "again.gp")
    np.testing.assert_array_equal(gigagp.load(tmp_path / "again.gp").predict(X_NEW), again.predict(X_NEW))


def test_loading_solves_nothing(tmp_path, monkeypatch):
    """An iterative model stores its solutions, so a model of a hundred thousand rows loads in a moment."""
    gp = MODELS["iterative"].fit(X, Y[:, 0])
    expected = gp.predict(X_NEW, return_std=True)
    gp.save(tmp_path / "model.gp")

    def refused(*arguments, **named):
        raise AssertionError

    monkeypatch.setattr(solvers.ConjugateGradients, "solve", refused)
    loaded = gigagp.load(tmp_path / "model.gp")
    np.testing.assert_array_equal(loaded.predict(X_NEW, return_std=True), expected)
    loaded.sample_y(X_NEW, 8)
    with pytest.raises(AssertionError):
        loaded.predict(X_NEW, return_cov=True)


def test_names_of_columns_travel_with_the_model(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    GPRegressor(optimizer=None).fit(frame, Y[:, 0]).save(tmp_path / "model.gp")
    loaded = gigagp.load(tmp_path / "model.gp")
    assert list(loaded.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(frame[["c", "b", "a"]])


def test_what_cannot_be_saved_says_so_and_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.gp"
    GPRegressor(optimizer=None).fit(X, Y[:, 0]).save(path)
    before = path.read_bytes()
    with pytest.raises(InvalidInputError, match=r"no name by which gigagp.load could find it.*subtract it from y"):
        GPRegressor(optimizer=None, mean=lambda X: X[:, 0]).fit(X, Y[:, 0]).save(path)
    with pytest.raises(ValueError, match="not fitted"):
        GPRegressor().save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_generators_and_meters_do_not_stop_a_model_from_being_saved(tmp_path):
    gp = GPRegressor(
        optimizer=None, random_state=np.random.RandomState(0), verbose=gigagp.runtime.progress.NoProgress()
    )
    gp.fit(X, Y[:, 0]).save(tmp_path / "model.gp")
    np.testing.assert_array_equal(gigagp.load(tmp_path / "model.gp").predict(X_NEW), gp.predict(X_NEW))


def test_a_truncated_model_is_a_clear_error(tmp_path):
    path = tmp_path / "model.gp"
    GPRegressor(optimizer=None).fit(X, Y[:, 0]).save(path)
    content = path.read_bytes()
    for length in (0, 7, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError):
            gigagp.load(path)


@pytest.mark.parametrize("settings", [inference.QuadruplyStochastic(n_columns=3), inference.RelevanceVectorMachine()])
def test_settings_that_a_class_no_longer_has_are_read_where_they_changed_nothing(settings):
    plain = to_plain(settings)
    assert "order" not in plain["settings"]
    assert from_plain({**plain, "settings": plain["settings"] | {"order": "given"}}) == settings
    with pytest.raises(InvalidInputError, match=r"order of .* must be 'given'.*got 'information'.* Fit the model"):
        from_plain({**plain, "settings": plain["settings"] | {"order": "information"}})
    with pytest.raises(InvalidInputError, match="arguments that it does not take"):
        from_plain({**plain, "settings": plain["settings"] | {"sequence": "given"}})
