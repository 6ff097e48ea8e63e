"""Quadruply stochastic fits to rows that are not held: the same bound, errors that name the file, resumed fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization
from gigagp.errors import InvalidInputError, MemoryBudgetError, UnreadableRowsError
from gigagp.estimators import checkpoint
from gigagp.inference.contract.streaming import StreamJob
from gigagp.inference.quadruply_stochastic import streamed
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample
from gigagp.model.likelihoods import resolve_likelihood
from gigagp.model.means import resolve_mean
from gigagp.model.model import StartModel
from gigagp.optimization.sparse_ascent import SparseRun
from gigagp.settings.random import generator_from
from gigagp.tables.rows import RowSource
from helpers import largest_tensor

N = 1600
RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (N, 2)) * [1.0, 10.0] + [5.0, -40.0]
TRUTH = np.sin(2 * (X[:, 0] - 5)) * np.cos((X[:, 1] + 40) / 10)
Y = 7 + 3 * TRUTH + 0.3 * RNG.normal(size=N)
LABEL = np.where(RNG.random(N) < 1 / (1 + np.exp(-4 * TRUTH)), "up", "down")
FRAME = pd.DataFrame({"a": X[:, 0], "note": "text", "y": Y, "b": X[:, 1], "label": LABEL})
INPUTS = ["a", "b"]
#: small enough for a test, sampled also where a table is held, and without what only a held table has: anchors, and a
#: start from any of the rows
SETTINGS = inference.QuadruplyStochastic(n_basis=150, row_batch=40, basis_batch=100, start_rows=0, anchor=False)
QUICK = optimization.SparseAdam(0.05, steps=150)
OPTIONS = {
    "kernel": kernels.RBF([0.7, 0.7]),
    "inference": SETTINGS,
    "optimizer": QUICK,
    "hyperparameter_units": "standardized",
}


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(streamed, "WINDOW_ROWS", 300)
    monkeypatch.setattr(streamed, "SAMPLE_ROWS", 200)


def folder(path: Path, frame: pd.DataFrame = FRAME, parts: int = 4) -> Path:
    path.mkdir()
    for k, rows in enumerate(np.array_split(np.arange(len(frame)), parts)):
        frame.iloc[rows].to_parquet(path / f"part-{k}.parquet", row_group_size=(90, 400, 130, 250)[k % 4])
    return path


def started(settings, source, likelihood="gaussian", **options):
    """Return the fit that `stream` begins on a source, after `begin`."""
    mean = resolve_mean("constant")
    rows = RowSource(*source, offset=mean.offset)
    start = StartModel(kernels.RBF([0.7, 0.8]), mean, torch.tensor(0.1, dtype=torch.float64), "standardized")
    model = start.bound(2)
    job = StreamJob(rows, start, True, 2**30, likelihood=resolve_likelihood(likelihood), **options)
    found = settings.stream(job, generator_from(0))
    found.objective.begin(model)
    return found


def everything(objective):
    m = objective.state.basis.size
    return BasisSample.from_indices(torch.arange(m), torch.arange(m), m)


# The same bound -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("likelihood", ["gaussian", "laplace"])
def test_batches_of_a_pass_add_up_to_the_bound_of_all_rows(tmp_path, likelihood):
    """With all functions and fixed weights the mean over a pass is the bound itself, and so is its gradient."""
    found = started(SETTINGS, (folder(tmp_path / "p"), "y", INPUTS), likelihood)
    objective, sample = found.objective, everything(found.objective)
    generator = generator_from(1)
    for array in objective.arrays().values():
        array.add_(0.1 * torch.randn(array.shape, generator=generator, dtype=array.dtype))
    parts = [
        objective.evaluate_sample(
            found.model, objective.batches.draw(objective.state.generator), sample, hyperparameters=True
        )
        for _ in range(N // 40)
    ]
    # the control: all rows at once, in the same units and with the same basis and trend
    scaled = found.scaling
    rows = torch.from_numpy(scaled.inputs(X)), torch.from_numpy(scaled.targets(Y[:, None]))
    objective.batches._last = rows[0], rows[1] - objective.state.trend
    whole = objective.evaluate_sample(found.model, torch.arange(N), sample, hyperparameters=True)
    assert abs(np.mean([part.value for part in parts]) / whole.value - 1) < 1e-10
    for name, gradient in whole.gradient.items():
        mean = torch.stack([part.gradient[name] for part in parts]).mean(0)
        torch.testing.assert_close(mean, gradient, rtol=1e-8, atol=1e-8 * float(gradient.abs().max()))
    for name, slope in whole.hyperparameters.items():
        mean = torch.stack([part.hyperparameters[name] for part in parts]).mean(0)
        torch.testing.assert_close(mean, slope, rtol=1e-8, atol=1e-8)
    few = np.mean([part.value for part in parts[:-1]])
    assert abs(few / whole.value - 1) > 1e-7  # without the last batch it is not


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Squared errors")  # few steps, given noise
def test_a_table_no_larger_than_a_window_is_fitted_as_fit_does(tmp_path):
    path = folder(tmp_path / "p")
    for estimator, target in ((GPRegressor, "y"), (GPClassifier, "label")):
        options = {**OPTIONS, "optimizer": optimization.SparseAdam(0.05, steps=40)}
        memory = estimator(**options).fit(FRAME[INPUTS], FRAME[target])
        table = estimator(**options).fit_table(path, target, INPUTS)
        one, other = (gp.latent_ if isinstance(gp, GPClassifier) else gp for gp in (memory, table))
        for mine, theirs in zip(weights(one), weights(other), strict=True):  # to the rounding of the scaling
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Squared errors of the latent function")  # of few steps
@pytest.mark.usefixtures("small_windows")
def test_streamed_rows_are_learned_as_well_as_rows_in_memory(tmp_path):
    path = folder(tmp_path / "p", FRAME.sort_values("a"))  # the worst order
    options = {**OPTIONS, "optimizer": optimization.SparseAdam(0.05, steps=300)}
    fits = {
        "table": GPRegressor(**options).fit_table(path, "y", INPUTS),
        "memory": GPRegressor(**options).fit(FRAME[INPUTS], Y),
    }
    errors = {name: np.sqrt(np.mean((gp.predict(FRAME[INPUTS]) - 7 - 3 * TRUTH) ** 2)) for name, gp in fits.items()}
    assert errors["table"] < 1.3 * errors["memory"]
    assert errors["memory"] < 0.3 * Y.std()
    table = fits["table"]
    assert table.posterior_.n_rows == N
    assert list(table.feature_names_in_) == INPUTS
    assert abs(table.scaling_.y_scale[0] / Y.std() - 1) < 0.2  # by a sample
    value, error = table.log_marginal_likelihood()
    memory = fits["memory"].log_marginal_likelihood()
    shift = N * np.log(table.scaling_.y_scale[0] / Y.std())  # other units
    assert abs(value - shift - memory.value) < 4 * np.hypot(error, memory.standard_error) + 0.1 * N
    table.save(tmp_path / "t.gp")
    np.testing.assert_array_equal(
        gigagp.load(tmp_path / "t.gp").predict(FRAME[INPUTS][:9]), table.predict(FRAME[INPUTS][:9])
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Squared errors")  # few steps, given noise
@pytest.mark.usefixtures("small_windows")
def test_the_rows_of_the_sample_are_a_start_for_all():
    errors = {}
    for start_rows in (0, None):
        options = {**OPTIONS, "inference": replace(SETTINGS, start_rows=start_rows)}
        gp = GPRegressor(**options, noise_variance=0.02).fit_table((X, Y))
        errors[start_rows] = np.sqrt(np.mean((gp.predict(X) - 7 - 3 * TRUTH) ** 2))
    assert errors[None] < 0.5 * errors[0]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize(
    "changes",
    [
        {"n_support": 30, "n_columns": 5},
        {"basis": "inducing", "n_support": 30, "prior_control": True},
        {"basis": "grid", "bound": "linear"},
        {"replacement": True},
    ],
    ids=["controls", "inducing", "grid", "replacement"],
)
@pytest.mark.filterwarnings("ignore:Squared errors")  # few steps, given noise
def test_every_basis_and_control(changes):
    options = {**OPTIONS, "inference": replace(SETTINGS, row_batch=None, **changes)}
    gp = GPRegressor(**options, noise_variance=0.02).fit_table((X, Y))
    assert np.sqrt(np.mean((gp.predict(X) - 7 - 3 * TRUTH) ** 2)) < 0.8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Squared errors")  # few steps, given noise
@pytest.mark.usefixtures("small_windows")
def test_relevance_vectors_are_rows_of_the_sample():
    settings = inference.RelevanceVectorMachine(n_basis=100)
    gp = GPRegressor(kernels.RBF([0.7, 0.7]), settings, QUICK, noise_variance=0.02).fit_table((X, Y))
    assert len(gp.posterior_.relevance_vectors) <= 100
    assert np.sqrt(np.mean((gp.predict(X) - 7 - 3 * TRUTH) ** 2)) < 0.8


@pytest.mark.usefixtures("small_windows")
def test_the_diagonal_in_closed_form_is_of_all_rows():
    settings = inference.QuadruplyStochastic(n_basis=150, row_batch=40, diagonal="closed_form")
    found = started(settings, ((X, Y),))
    objective = found.objective
    objective.settle(found.model)
    index = torch.arange(objective.state.basis.size)
    Phi = objective.state.basis.columns(torch.from_numpy(found.scaling.inputs(X)), index)
    precision = Phi.square().sum(0) / 0.1 + objective.state.weights.prior_diagonal(objective.state.basis, index)
    torch.testing.assert_close(objective.state.weights.log_scale, -0.5 * precision.log(), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_are_learned_from_a_folder(tmp_path, classes):
    frame = FRAME
    if classes == 3:
        label = np.where(TRUTH > 0.4, "high", np.where(TRUTH < -0.4, "low", "middle"))
        frame = FRAME.assign(label=label)
    gp = GPClassifier(**OPTIONS).fit_table(folder(tmp_path / "p", frame.sort_values("label")), "label", INPUTS)
    assert gp.classes_.tolist() == sorted(set(frame.label))
    memory = GPClassifier(**OPTIONS).fit(FRAME[INPUTS], frame.label)
    assert gp.score(FRAME[INPUTS], frame.label) > memory.score(FRAME[INPUTS], frame.label) - 0.03
    probability = gp.predict_proba(FRAME[INPUTS])
    assert probability.shape == (N, classes)
    if classes == 2:
        errors = [
            np.abs(found[:, 1] - 1 / (1 + np.exp(-4 * TRUTH))).mean()
            for found in (probability, memory.predict_proba(FRAME[INPUTS]))
        ]
        assert errors[0] < 1.2 * errors[1]
    gp.save(tmp_path / "c.gp")
    np.testing.assert_array_equal(
        gigagp.load(tmp_path / "c.gp").predict(FRAME[INPUTS][:9]), gp.predict(FRAME[INPUTS][:9])
    )
    with pytest.raises(ValueError, match="feature names"):
        gp.predict(FRAME[["b", "a"]])


@pytest.mark.slow
def test_the_rows_are_never_held(monkeypatch):
    monkeypatch.setattr(streamed, "WINDOW_ROWS", 500)
    monkeypatch.setattr(streamed, "SAMPLE_ROWS", 130)
    n = 40_000
    x = np.random.default_rng(1).uniform(size=(n, 1))
    y = np.sin(9 * x[:, 0])
    options = {
        **OPTIONS,
        "kernel": kernels.RBF(0.5),
        "inference": inference.QuadruplyStochastic(40, row_batch=20, start_rows=60),
    }

    def chunks():
        return ((x[k : k + 400], y[k : k + 400]) for k in range(0, n, 400))

    with largest_tensor() as spy:
        GPRegressor(**{**options, "optimizer": optimization.SparseAdam(0.05, steps=60)}).fit_table(chunks)
    assert spy.elements < n / 2
    with largest_tensor() as spy:
        GPRegressor(**{**options, "optimizer": optimization.SparseAdam(0.05, steps=60)}).fit(x, y)
    assert spy.elements >= n


# Errors in the middle, kills, and resumed fits --------------------------------------------------------------------


def damage(file: Path, columns: tuple[int, ...] = (0, 2, 3)) -> bytes:
    """Overwrite columns of the last row group of a Parquet file; return its former contents."""
    whole = file.read_bytes()
    broken, metadata = bytearray(whole), pq.read_metadata(file)
    for column in columns:
        chunk = metadata.row_group(metadata.num_row_groups - 1).column(column)
        start = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
        broken[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    file.write_bytes(broken)
    return whole


def weights(gp) -> list[torch.Tensor]:
    latent = gp.latent_ if isinstance(gp, GPClassifier) else gp
    values = latent.kernel_.parameters().values()
    return [*latent.posterior_.weights.arrays().values(), *values, torch.tensor(latent.noise_variance_)]


def same(one, other) -> None:
    for mine, theirs in zip(weights(one), weights(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:Squared errors")  # few steps, given noise
@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("estimator", [GPRegressor, GPClassifier])
def test_a_file_damaged_in_the_middle_of_a_fit_is_named_and_the_same_call_goes_on(tmp_path, monkeypatch, estimator):
    path, target = folder(tmp_path / "p"), "y" if estimator is GPRegressor else "label"
    options = {**OPTIONS, "optimizer": optimization.SparseAdam(0.05, steps=61)}
    call = {"inputs": INPUTS, "checkpoint": tmp_path / "fit.state"}
    whole = estimator(**options).fit_table(path, target, INPUTS)
    gp = estimator(**options).fit_table((X, Y if estimator is GPRegressor else LABEL))
    before = weights(gp)
    contents, steps = {}, []
    original = SparseRun._take_step

    def take_step(self):
        steps.append(self.step)
        if len(steps) == 23:
            contents.update({file: damage(file) for file in sorted(path.iterdir())})
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(SparseRun, "_take_step", take_step)
        with pytest.raises(UnreadableRowsError, match=r"part-\d\.parquet cannot be read .*is kept in.*mend the file"):
            gp.fit_table(path, target, **call)
    assert 23 <= len(steps) < 40  # at the next window
    for mine, theirs in zip(before, weights(gp), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(InvalidInputError, match="cannot be read"):  # again, as long as it is not mended
        gp.fit_table(path, target, **call)
    for file, content in contents.items():
        file.write_bytes(content)
    with pytest.raises(InvalidInputError, match="belongs to another fit"):
        estimator(**{**options, "random_state": 1}).fit_table(path, target, **call)
    repeated = []
    monkeypatch.setattr(SparseRun, "_take_step", lambda self: repeated.append(self.step) or original(self))
    same(gp.fit_table(path, target, **call), whole)
    assert repeated == list(range(steps[-1], 62))  # nothing is done twice
    assert not call["checkpoint"].exists()


@pytest.mark.usefixtures("small_windows")
def test_an_error_without_a_checkpoint_says_how_to_have_one(tmp_path, monkeypatch):
    path = folder(tmp_path / "p")
    original = SparseRun._take_step

    def take_step(self):
        if self.step == 3:
            for file in path.iterdir():
                damage(file)
        return original(self)

    monkeypatch.setattr(SparseRun, "_take_step", take_step)
    with pytest.raises(UnreadableRowsError, match=r"cannot be read .* Give fit_table a checkpoint"):
        GPRegressor(**OPTIONS).fit_table(path, "y", INPUTS)


@pytest.mark.few(2)
@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("when", ["at the first sample", "in the pass at the end"])
def test_damage_before_the_first_step_and_after_the_last(tmp_path, monkeypatch, when):
    path = folder(tmp_path / "p")
    settings = inference.QuadruplyStochastic(n_basis=50, row_batch=40, diagonal="closed_form")
    options = {**OPTIONS, "inference": settings, "optimizer": optimization.SparseAdam(0.05, steps=20)}
    call = {"target": "y", "inputs": INPUTS, "checkpoint": tmp_path / "fit.state"}
    whole = GPRegressor(**options).fit_table(path, "y", INPUTS)
    contents = {file: file.read_bytes() for file in path.iterdir()}
    first = when == "at the first sample"
    name = "_look_at_start" if first else "_look_back"
    original = getattr(SparseRun, name)

    def spoil(self):
        if first or self.step == 20:
            for file in path.iterdir():
                damage(file)
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(SparseRun, name, spoil)
        with pytest.raises(UnreadableRowsError, match=r"cannot be read .*(Nothing had been|is kept in)") as caught:
            GPRegressor(**options).fit_table(path, **call)
    assert first == ("Nothing had been" in str(caught.value)) == (not call["checkpoint"].exists())
    for file, content in contents.items():
        file.write_bytes(content)
    steps = []
    take_step = SparseRun._take_step
    monkeypatch.setattr(SparseRun, "_take_step", lambda self: steps.append(0) or take_step(self))
    same(GPRegressor(**options).fit_table(path, **call), whole)
    assert len(steps) == (20 if first else 0)


@pytest.mark.few(1)
@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize(
    "changes",
    [{}, {"n_support": 20}, {"n_support": 20, "n_columns": 9, "column_batch": 4}],
    ids=["plain", "controls", "sampled columns"],
)
def test_a_killed_fit_goes_on_to_the_same_model(tmp_path, monkeypatch, changes):
    path = folder(tmp_path / "p")
    options = {**OPTIONS, "inference": inference.QuadruplyStochastic(n_basis=150, basis_batch=100, **changes)}
    options["optimizer"] = optimization.SparseAdam(0.05, steps=66)
    call = {"target": "y", "inputs": INPUTS, "checkpoint": tmp_path / "fit.state"}
    whole = GPRegressor(**options).fit_table(path, "y", INPUTS)
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)

    class Killed(BaseException):
        pass

    original = SparseRun._take_step
    for last in (21, 41):

        def take_step(self, last=last):
            if self.step == last:
                raise Killed
            return original(self)

        with monkeypatch.context() as patch:
            patch.setattr(SparseRun, "_take_step", take_step)
            with pytest.raises(Killed):
                GPRegressor(**options).fit_table(path, **call)
        assert call["checkpoint"].exists()
    repeated = []
    monkeypatch.setattr(SparseRun, "_take_step", lambda self: repeated.append(self.step) or original(self))
    resumed = GPRegressor(**options).fit_table(path, **call)
    assert repeated[0] > 35
    same(resumed, whole)
    assert [step.objective for step in resumed.history_] == [step.objective for step in whole.history_]


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "options", "match"),
    [
        ({"label": "up"}, {}, r"has labels of only one class, 'up'; at least two"),
        ({}, {"classes": ["up", "left"]}, r"part-0\.parquet: column 'label', row \d+: the label 'down' is not one of"),
        ({"label": None}, {}, r"part-0\.parquet: column 'label', row 1: the label is missing"),
        ({"a": np.nan}, {}, r"part-0\.parquet: column 'a', row 1: the"),
        ({}, {"target": "lable"}, r"has no column 'lable'\. Did you mean 'label'"),
        ({}, {"target": None}, "target of fit_table must name the column"),
        ({}, {"target": ["label", "y"]}, "target of GPClassifier.fit_table must be a text or None"),
        ({}, {"target": "y"}, r"is not a class label\. Use GPRegressor"),
        ({}, {"inputs": ["a", "note"]}, r"column 'note', row 1: 'text' is not a number"),
    ],
)
@pytest.mark.parametrize("windows", [300, 10_000])
def test_tables_that_cannot_be_learned(tmp_path, monkeypatch, windows, change, options, match):
    monkeypatch.setattr(streamed, "WINDOW_ROWS", windows)
    path = folder(tmp_path / "p", FRAME.assign(**change))
    with pytest.raises(InvalidInputError, match=match):
        GPClassifier(**OPTIONS).fit_table(path, **{"target": "label", "inputs": INPUTS, **options})


@pytest.mark.usefixtures("small_windows")
def test_what_else_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for estimator in (GPClassifier(**OPTIONS), GPRegressor(**OPTIONS)):
        with pytest.raises(InvalidInputError, match="is a folder without Parquet or CSV files"):
            estimator.fit_table(tmp_path / "empty", "label")
        with pytest.raises(InvalidInputError, match="does not exist"):
            estimator.fit_table(tmp_path / "none.parquet", "label")
    with pytest.raises(InvalidInputError, match=r"bounds of GPRegressor\.fit_table must be None with"):
        GPRegressor(**OPTIONS).fit_table((X, Y), bounds=(X.min(0), X.max(0)))
    with pytest.raises(InvalidInputError, match="checkpoint of fit_table needs a file"):
        GPClassifier(**OPTIONS).fit_table((X, LABEL), checkpoint=tmp_path / "c")
    settings = inference.QuadruplyStochastic(n_basis=50, basis="inducing", augment=True)
    with pytest.raises(InvalidInputError, match="augment of QuadruplyStochastic must be False"):
        GPRegressor(inference=settings).fit_table((X, Y))
    with pytest.raises(MemoryBudgetError, match="A window of 40 rows needs"):
        GPRegressor(**OPTIONS, memory_budget=5000).fit_table((X, Y))
    with pytest.raises(InvalidInputError, match=r'likelihood of GPClassifier must be "logistic"'):
        GPClassifier(likelihood="poisson").fit_table((X, LABEL))
    with pytest.raises(InvalidInputError, match="must be finite; got NaN in column 0, row 1234"):
        GPClassifier(**OPTIONS).fit_table((np.where(np.arange(N)[:, None] == 1234, np.nan, X), LABEL))
    with pytest.raises(InvalidInputError, match="only one class"):
        GPClassifier(**OPTIONS).fit_table((X[k : k + 100], np.zeros(100)) for k in range(0, N, 100))
    counts = FRAME.assign(y=np.where(np.arange(N) == 1300, -1.0, 2.0))
    with pytest.raises(InvalidInputError, match=r"part-3\.parquet: .*poisson|part-3\.parquet: .*Poisson"):
        GPRegressor(**OPTIONS, likelihood="poisson").fit_table(folder(tmp_path / "p", counts), "y", INPUTS)
    refused = GPClassifier(**OPTIONS).fit(X, LABEL)
    with pytest.raises(InvalidInputError, match="only one class"):
        refused.fit_table((X, np.zeros(N)))
    assert refused.classes_.tolist() == ["down", "up"]


@pytest.mark.parametrize("windows", [16, 1000])
def test_fewer_rows_than_a_batch(monkeypatch, windows):
    monkeypatch.setattr(streamed, "WINDOW_ROWS", windows)
    gp = GPRegressor(**{**OPTIONS, "optimizer": optimization.SparseAdam(0.05, steps=50)}).fit_table((X[:30], Y[:30]))
    assert np.isfinite(gp.predict(X[:5])).all()
    assert gp.posterior_.n_rows == 30
