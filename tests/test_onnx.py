"""`gigagp.onnx`: graphs answer in onnxruntime as the model does, in float64 and float32, or are refused."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

from gigagp import GPRegressor, inference, kernels
from gigagp.errors import GigaGPWarning, InvalidInputError
from gigagp.onnx import export

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

#: Settings here are given, and small: how well they suit the rows is not the question.
pytestmark = pytest.mark.filterwarnings("ignore::gigagp.errors.FitWarning")

#: A first kernel for each class, and the others in sums and products of it.
KERNELS = {
    "half": kernels.Matern(0.5, ard=False),
    "sum": kernels.RBF(columns=[1, 2]) + kernels.Linear() + 0.5 + kernels.White(0.01),
    "product": kernels.Matern(2.5, columns=[0, 1]) * kernels.RationalQuadratic(columns=[2]),
    "rough": kernels.Matern(1.5),
    "categories": kernels.Matern(1.5, columns=[0]) * kernels.Categorical(columns=[1, 2], fixed=["variance"]),
}
WAYS = {
    "exact": inference.Exact(),
    "sparse": inference.SparseVariational(15),
    "features": inference.RandomFeatures(60),
    "relevance": inference.RelevanceVectorMachine(),
    "quadruply": inference.QuadruplyStochastic(n_basis=60),
    "columns": inference.QuadruplyStochastic(n_basis=60, n_columns=20),
}


def rows(n=120, seed=0):
    """Uneven rows in their own units: a far offset, a clump, and repeated rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [1.0, 0.05, 300.0] + [0.0, 7.0, 2e4]
    X[: n // 4] = X[0] + 0.02 * (X[: n // 4] - X[0])
    X[n // 2 : n // 2 + 5] = X[n // 2]
    return X, 50 + 10 * (np.sin(2 * X[:, 0]) + (X[:, 2] - 2e4) / 600) + rng.normal(size=n)


AUGMENTED = inference.QuadruplyStochastic(n_basis=20, basis="inducing", augment=True)


class OwnSum(kernels.Sum):
    """A sum of a class that the graph does not know."""


def fitted(kernel, how, *, mean="constant", targets=1, noise=1.0, **options):
    X, y = rows()
    y = y if targets == 1 else np.stack([y, 3 - y**2], 1)
    gp = GPRegressor(kernel, how, mean=mean, optimizer=None, noise_variance=noise, **options)
    return gp.fit(X, y)


def answers(path, X):
    return onnxruntime.InferenceSession(path).run(["mean", "std"], {"X": X})


@pytest.mark.few(2)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("way", WAYS)
def test_the_graph_answers_as_the_model(kernel, way, tmp_path):
    gp = fitted(KERNELS[kernel], WAYS[way], mean="linear" if kernel == "rough" else "constant")
    X = np.concatenate([rows(30, seed=1)[0], rows(10)[0], rows(3)[0] + 1e3])
    for noise in (False, True):
        export(gp, tmp_path / "model.onnx", include_noise=noise)
        mean, std = answers(tmp_path / "model.onnx", X)
        right, spread = gp.predict(X, return_std=True, include_noise=noise)
        unit = gp.predict(X, return_std=True, include_noise=True)[1]
        assert mean.dtype == std.dtype == np.float64
        assert mean.shape == std.shape == (len(X),)
        np.testing.assert_allclose((mean - right) / unit, 0.0, atol=1e-7)
        np.testing.assert_allclose((std - spread) / unit, 0.0, atol=1e-7)
    single = answers(tmp_path / "model.onnx", X[:1])
    np.testing.assert_allclose(single[0], mean[:1], rtol=1e-12)


#: Lengthscales that span several cells of the grids.
LONG = [3.0, 0.2, 1000.0]
#: A kernel, settings of the grid and a mean for each kind of variance, interpolation, and point beyond the grid.
GRIDS = {
    "exact": (kernels.Matern(1.5, lengthscale=LONG), inference.Grid(size=[12, 10, 9]), "constant"),
    "samples": (kernels.RBF(lengthscale=LONG), inference.Grid(size=9, exact_nodes=0, outside="prior"), "linear"),
    "low rank": (
        kernels.Matern(2.5, lengthscale=LONG) + kernels.White(0.01),
        inference.Grid(size=9, exact_nodes=0, variance="low_rank", rank=20, outside="clamp"),
        "linear",
    ),
    "linear": (
        kernels.Matern(1.5, lengthscale=LONG),
        inference.Grid(size=10, interpolation="linear", outside="clamp"),
        "constant",
    ),
    "sum": (
        kernels.Matern(1.5, lengthscale=3.0, columns=[0])
        + kernels.RBF(lengthscale=LONG[1:], columns=[1, 2])
        + kernels.RBF(lengthscale=3.0, columns=[3])
        + kernels.Linear(),
        inference.Grid(size=12, outside="prior"),
        "constant",
    ),
    "zero mean": (kernels.RationalQuadratic(lengthscale=2.0), inference.Grid(size=16, outside="prior"), "zero"),
}


def grid_fit(name, **options):
    """Return a fit on a grid, in the units of `rows`, and points in and beyond it."""
    kernel, how, mean = GRIDS[name]
    X, y = rows()
    X = X[:, :1] if name == "zero mean" else np.c_[X, X[:, 0] ** 2] if name == "sum" else X
    gp = GPRegressor(kernel, how, mean=mean, optimizer=None, noise_variance=1.0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GigaGPWarning)  # of small grids, which leave out variance
        gp.fit(X, y)
    rng = np.random.default_rng(2)
    within = rng.uniform(X.min(0), X.max(0), size=(40, X.shape[1]))
    return gp, np.concatenate([within, X[:20], [X.min(0)], [X.max(0)]]), within + 2 * np.ptp(X, axis=0)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", GRIDS)
def test_graphs_of_grids_answer_as_the_model_within_and_beyond_them(name, tmp_path):
    gp, within, beyond = grid_fit(name)
    path = tmp_path / "model.onnx"
    export(gp, path, include_noise=name == "samples")
    X = np.concatenate([within, beyond]) if gp.inference.outside != "refuse" else within
    right, spread = gp.predict(X, return_std=True, include_noise=name == "samples")
    mean, std = answers(path, X)
    unit = gp.predict(X, return_std=True, include_noise=True)[1]
    np.testing.assert_allclose((mean - right) / unit, 0.0, atol=1e-7)
    np.testing.assert_allclose((std - spread) / unit, 0.0, atol=1e-7)
    if gp.inference.outside == "refuse":
        assert np.isnan(answers(path, beyond)).all()
    export(gp, path, dtype="float32", include_noise=True)
    X = X.astype(np.float32)
    mean, std = answers(path, X)
    right, spread = gp.predict(X.astype(float), return_std=True, include_noise=True)
    assert mean.dtype == std.dtype == np.float32
    np.testing.assert_allclose((mean - right) / spread, 0.0, atol=1e-2)
    np.testing.assert_allclose(std / spread, 1.0, atol=1e-2)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["exact", pytest.param("samples", marks=pytest.mark.slow), "zero mean", "linear"])
def test_graphs_of_grids_answer_nan_to_nan_and_nothing_to_nothing(name, tmp_path):
    gp, within, _ = grid_fit(name)
    export(gp, tmp_path / "model.onnx")
    for k in range(within.shape[1]):
        X = within[:3].copy()
        X[1, k] = np.nan
        mean, std = answers(tmp_path / "model.onnx", X)
        assert np.isnan([mean[1], std[1]]).all()
        assert np.isfinite([mean[[0, 2]], std[[0, 2]]]).all()
    assert answers(tmp_path / "model.onnx", within[:0])[0].shape == (0,)


def test_a_grid_of_several_targets_has_a_graph(tmp_path):
    X, y = rows()
    gp = GPRegressor(kernels.Matern(1.5, lengthscale=LONG), inference.Grid(size=10), optimizer=None, outputs="shared")
    gp.fit(X, np.stack([y, 3 - y**2], 1))
    export(gp, tmp_path / "model.onnx")
    mean, std = answers(tmp_path / "model.onnx", X[:20])
    right, spread = gp.predict(X[:20], return_std=True)
    np.testing.assert_allclose(mean, right, rtol=1e-8)
    np.testing.assert_allclose(std, spread, rtol=1e-6)


def test_grids_beyond_the_stated_size_and_variances_by_solves_are_refused(tmp_path):
    gp = fitted(kernels.Matern(1.5, lengthscale=LONG), inference.Grid(size=10), noise=9.0)
    with pytest.raises(InvalidInputError, match="a grid of 1,000 nodes, more than max_nodes=500, has not"):
        export(gp, tmp_path / "model.onnx", max_nodes=500)
    gp = fitted(
        kernels.Matern(1.5, lengthscale=LONG), inference.Grid(size=10, exact_nodes=0, variance="solve"), noise=9.0
    )
    with pytest.raises(InvalidInputError, match=r'variance="solve" has not. Fit with .*variance="low_rank"'):
        export(gp, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_graphs_beyond_the_size_of_a_file_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("gigagp.onnx._LARGEST", 100_000)
    with pytest.raises(InvalidInputError, match=r'an ONNX file holds 100,000. Use dtype="float32"'):
        export(fitted(kernels.Matern(1.5), inference.Exact()), tmp_path / "model.onnx")


@pytest.mark.few(6)
@pytest.mark.parametrize("way", WAYS)
def test_float32_is_as_good_as_its_rounding(way, tmp_path):
    gp = fitted(kernels.Matern(1.5, lengthscale=[1.0, 0.1, 500.0]), WAYS[way])
    export(gp, tmp_path / "model.onnx", dtype="float32", include_noise=True)
    X = rows(30, seed=1)[0].astype(np.float32)
    mean, std = answers(tmp_path / "model.onnx", X)
    right, spread = gp.predict(X.astype(np.float64), return_std=True, include_noise=True)
    assert mean.dtype == std.dtype == np.float32
    np.testing.assert_allclose((mean - right) / spread, 0.0, atol=1e-2)
    np.testing.assert_allclose(std / spread, 1.0, atol=1e-2)


def test_float32_is_refused_where_its_rounding_shows(tmp_path):
    X = np.linspace(0, 1, 60)[:, None]
    kernel = kernels.RBF(lengthscale=1.0)
    gp = GPRegressor(kernel, inference.Exact(), noise_variance=1e-8, optimizer=None).fit(X, np.sin(6 * X[:, 0]))
    with pytest.raises(
        InvalidInputError, match=r"(mean|std) of the graph of export in float32 .* Use dtype=\"float64\""
    ):
        export(gp, tmp_path / "model.onnx", dtype="float32")
    assert not (tmp_path / "model.onnx").exists()


def test_several_targets_and_fits_in_float32(tmp_path):
    gp = fitted(kernels.Matern(1.5), inference.Exact(), targets=2, outputs="shared")
    export(gp, tmp_path / "model.onnx")
    X = rows(20, seed=1)[0]
    mean, std = answers(tmp_path / "model.onnx", X)
    right, spread = gp.predict(X, return_std=True)
    assert mean.shape == std.shape == (20, 2)
    np.testing.assert_allclose(mean, right, rtol=1e-8)
    np.testing.assert_allclose(std, spread, rtol=1e-6)
    small = fitted(kernels.Matern(1.5), inference.SparseVariational(15), dtype="float32")
    export(small, tmp_path / "model.onnx", dtype="float32", include_noise=True)


def test_names_of_columns_are_of_the_model_alone(tmp_path):
    frames = pytest.importorskip("pandas")
    X, y = rows()
    gp = GPRegressor(kernels.Matern(1.5), inference.Exact(), optimizer=None).fit(
        frames.DataFrame(X, columns=["a", "b", "c"]), y
    )
    export(gp, tmp_path / "model.onnx")
    assert list(gp.feature_names_in_) == ["a", "b", "c"]
    right = gp.predict(frames.DataFrame(X[:5], columns=["a", "b", "c"]))
    np.testing.assert_allclose(answers(tmp_path / "model.onnx", X[:5])[0], right, rtol=1e-8)


def test_a_wrong_graph_is_not_written(tmp_path, monkeypatch):
    """The control of all comparisons: a profile that is off by a little."""
    import gigagp.onnx as module

    right = module._profile
    monkeypatch.setattr(module, "_profile", lambda graph, kernel, q: right(graph, kernel, graph("Mul", q, 1.1)))
    with pytest.raises(InvalidInputError, match="of the graph of export in float64 is off by"):
        export(fitted(kernels.Matern(1.5), inference.Exact()), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: "model", "must be a fitted GPRegressor; got str"),
        (GPRegressor, "this one is not fitted. Call fit first"),
        (lambda: fitted(kernels.Matern(1.5), inference.Vecchia(10)), "a vecchia posterior has not"),
        (lambda: fitted(kernels.Matern(1.5), inference.Exact(), mean=lambda X: X[:, 0]), "a mean function has not"),
        (lambda: fitted(kernels.Matern(1.5), inference.Exact(), targets=2), "Export each of gp.estimators_"),
        (lambda: fitted(kernels.Periodic(1.0), inference.Exact()), "the kernel Periodic has not"),
        (lambda: fitted(kernels.Matern(metric="rotated", columns=[0, 1]), inference.Exact()), None),
        (lambda: fitted(kernels.Matern(1.5), inference.Exact(), target_transform="log"), "or a target_transform"),
        (lambda: fitted(kernels.Matern(1.5), inference.Exact(), likelihood="student-t"), "another likelihood"),
        (
            lambda: fitted(kernels.Matern(1.5), inference.Exact(), encode="auto"),
            'a fit with encode="auto" or a panel has not',
        ),
        (lambda: fitted(kernels.Matern(1.5), inference.Exact(), noise=np.ones(120)), "a noise variance for each row"),
        (lambda: fitted(OwnSum(kernels.Matern(1.5), 1.0), inference.Exact()), "the kernel OwnSum has not"),
        (
            lambda: fitted(kernels.Matern(1.5), AUGMENTED),
            "a quadruply stochastic posterior has not",
        ),
    ],
)
def test_what_has_no_graph_is_refused(make, match, tmp_path):
    model = make()
    if match is None:  # a rotation is linear, and so it has a graph
        export(model, tmp_path / "model.onnx")
        return
    with pytest.raises(InvalidInputError, match=match):
        export(model, tmp_path / "model.onnx")


def test_large_exact_fits_and_missing_folders_are_refused(tmp_path):
    gp = fitted(kernels.Matern(1.5), inference.Exact())
    with pytest.raises(InvalidInputError, match="a factor of 120 rows, more than max_rows=100, has not"):
        export(gp, tmp_path / "model.onnx", max_rows=100)
    with pytest.raises(InvalidInputError, match="does not exist"):
        export(gp, tmp_path / "nowhere" / "model.onnx")
    with pytest.raises(InvalidInputError, match="dtype of export"):
        export(gp, tmp_path / "model.onnx", dtype="float16")


def test_without_onnx_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    gp = fitted(kernels.Matern(1.5), inference.Exact())
    monkeypatch.setitem(sys.modules, "onnx.reference", None)
    with pytest.raises(InvalidInputError, match=r'pip install "gigagp\[onnx\]"'):
        export(gp, tmp_path / "model.onnx")


def test_noise_that_depends_on_the_inputs_is_refused_where_it_is_asked_for(tmp_path):
    gp = fitted(kernels.Matern(1.5) + kernels.White(1.0) * kernels.Linear(), inference.Exact())
    with pytest.raises(InvalidInputError, match="noise that depends on the inputs has not"):
        export(gp, tmp_path / "model.onnx", include_noise=True)
    export(gp, tmp_path / "model.onnx")
    X = rows()[0][:9]
    mean, std = gp.predict(X, return_std=True)
    found = answers(tmp_path / "model.onnx", X)
    np.testing.assert_allclose(found[0], mean, rtol=1e-6)
    np.testing.assert_allclose(found[1], std, rtol=1e-5)
