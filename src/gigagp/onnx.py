"""Fitted regressors as ONNX graphs of fixed size, for runtimes without Python or torch; the extra ``onnx`` installs it.

::

    from gigagp import onnx

    onnx.export(gp, "model.onnx")  # X (n, d) to mean and std, as gp.predict(X, return_std=True)
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.correlated import require_apart
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.grid.posterior import GridPosterior
from gigagp.inference.quadruply_stochastic.bases import FourierBasis, InducingBasis, RadialBasis
from gigagp.inference.quadruply_stochastic.posterior import QuadruplyStochasticPosterior
from gigagp.inference.random_features.posterior import FeaturePosterior
from gigagp.inference.sparse_variational.posterior import SparsePosterior
from gigagp.kernels import RBF, Categorical, Constant, Kernel, Linear, Matern, Product, RationalQuadratic, Sum, White
from gigagp.kernels.composite import Composite
from gigagp.kernels.features import waves
from gigagp.kernels.stationary import StationaryKernel
from gigagp.model.likelihoods import Gaussian
from gigagp.model.means import FixedMean
from gigagp.model.target_transform import NoTransform
from gigagp.operators.grid import SumKernel
from gigagp.operators.grid.statistics import GridSum, RegularGrid
from gigagp.operators.grid.statistics.geometry import EDGE
from gigagp.products.dense import triangular_inverse
from gigagp.regression import GPRegressor
from gigagp.settings.fields import Count, checks_arguments
from gigagp.storage.files import check_folder, replacing

__all__ = ["export"]

#: Version of the operators, which onnxruntime reads from 1.10 on.
_OPSET = 15
#: Bytes of numbers that an ONNX file holds, with room for the rest.
_LARGEST = 2**31 - 2**20
#: Points of each kind in the check: of the fit, between them, and this far around them in standard deviations.
_CHECKED, _AROUND = 64, 1.5
#: Largest errors of the graph, in predicted standard deviations of a measurement.
_WORST = {"float64": 1e-3, "float32": 1e-2}
#: Classes whose graph is known; a class derived from them has its own covariance.
_STATIONARY: tuple[type[StationaryKernel], ...] = (RBF, Matern, RationalQuadratic, Categorical)


@checks_arguments
def export(
    gp: Any,
    path: str | os.PathLike[str],
    *,
    dtype: Literal["float64", "float32"] = "float64",
    include_noise: bool = False,
    max_rows: Count = 2000,
    max_nodes: Count = 100_000,
) -> None:
    """Write a fitted regressor as an ONNX graph that maps ``X`` (n, d) to ``mean`` and ``std``.

    When to use: where predictions run in another language, in a browser or on a small device. The graph has a fixed
    size: fits of `inference.Exact` up to ``max_rows`` rows, `inference.SparseVariational`, `inference.RandomFeatures`,
    `inference.RelevanceVectorMachine` and `inference.QuadruplyStochastic`, with constant, linear, RBF, Matern, rational
    quadratic and categorical kernels, and sums and products of them; and fits of `inference.Grid` up to ``max_nodes``
    nodes, with any kernel. Beyond a grid that refuses points there, the graph answers NaN.

    The graph is evaluated at points of the fit, between and around them before it is written, and compared with
    `GPRegressor.predict`. Where rounding in float32 shows beside the error bars, nothing is written.

    Parameters
    ----------
    gp : GPRegressor
        Fitted.
    path : path
        File to write, atomically.
    dtype : {"float64", "float32"}, default "float64"
        Type of the inputs, the outputs and all numbers in between.
    include_noise : bool, default False
        Whether ``std`` is that of a measurement.
    max_rows : int, default 2000
        Most rows of an exact fit, or of an exact covariance, whose graph has n^2 numbers.
    max_nodes : int, default 100,000
        Most nodes of a grid. Each has a number for each posterior sample, or for each column of a low-rank covariance.

    Raises
    ------
    InvalidInputError
        If the model has no graph of fixed size, the message says why; if the graph in this dtype is off by more than a
        hundredth of a standard deviation of a measurement (a thousandth in float64), or larger than the 2 GiB of an
        ONNX file; or if onnx is not installed.
    """
    onnx = _require_onnx()
    check_folder(path)
    _check(gp, max_rows, max_nodes)
    gp = copy.copy(gp)
    gp.__dict__.pop("feature_names_in_", None)  # the graph has no names
    graph = _Graph(onnx, np.dtype(dtype))
    predicted = _predictions(graph, gp, include_noise=include_noise)
    flat = {"mean": gp.predict(gp.scaling_.x_centre[None]).ndim == 1, "std": gp.posterior_.n_targets == 1}
    model = graph.model(gp.posterior_.n_inputs, predicted, flat)
    _compare(onnx, gp, model, dtype, include_noise)
    with replacing(path) as file:
        file.write(model.SerializeToString())


def _require_onnx() -> Any:
    try:
        import onnx
        import onnx.reference
    except ImportError as error:
        raise InvalidInputError('export needs onnx. Install it with pip install "gigagp[onnx]".') from error
    return onnx


def _check(gp: Any, max_rows: int, max_nodes: int) -> None:
    """Refuse what has no graph of fixed size."""
    if not isinstance(gp, GPRegressor):
        msg = f"gp of export must be a fitted GPRegressor; got {type(gp).__name__}. Other models have no graph."
        raise InvalidInputError(msg)
    if not hasattr(gp, "posterior_"):
        raise InvalidInputError("gp of export must be a fitted GPRegressor; this one is not fitted. Call fit first.")
    require_apart(gp, "export")
    posterior = gp.posterior_
    if isinstance(posterior, tuple):
        _refuse("a fit of several targets with hyperparameters of their own", "Export each of gp.estimators_.")
    if posterior.is_mixture:
        _refuse("the average of several kernels", 'Fit with kernel="choose", or with a kernel, such as gp.kernel_.')
    if isinstance(posterior, GridPosterior):
        _check_grid(posterior, max_nodes)
    n_rows = _rows_of_factor(posterior)
    if n_rows is None:
        remedy = "Fit with inference.SparseVariational() or inference.RandomFeatures()."
        _refuse(f"a {posterior.kind} posterior", remedy)
    if n_rows > max_rows:
        remedy = "Fit with inference.SparseVariational(), or raise max_rows."
        _refuse(f"a factor of {n_rows:,} rows, more than max_rows={max_rows:,},", remedy)
    if hasattr(gp, "encoder_"):
        _refuse('a fit with encode="auto" or a panel', "Encode the columns yourself, and fit the numbers.")
    if not isinstance(gp.likelihood_, Gaussian) or not isinstance(gp.target_transform_, NoTransform):
        _refuse("a fit with another likelihood than the Gaussian one, or a target_transform", "Fit without them.")
    if isinstance(posterior.model.mean, FixedMean):
        _refuse("a mean function", "Subtract it from the targets before the fit.")
    if posterior.model.noise_variance.numel() > 1:
        _refuse("a noise variance for each row", "Fit with one noise variance.")


def _check_grid(posterior: GridPosterior, max_nodes: int) -> None:
    if posterior.grid.size > max_nodes:
        remedy = "Fit with a smaller size of inference.Grid, or raise max_nodes."
        _refuse(f"a grid of {posterior.grid.size:,} nodes, more than max_nodes={max_nodes:,},", remedy)
    if posterior.variance_method == "solve":
        _refuse('a grid with variance="solve"', 'Fit with inference.Grid(variance="low_rank").')


def _rows_of_factor(posterior: Posterior) -> int | None:
    """Return how many rows of a factor are in the graph, or points of areas; None if no graph of it is known."""
    if isinstance(posterior, ExactPosterior):
        return len(posterior.table.points)
    if isinstance(posterior, SparsePosterior | FeaturePosterior | GridPosterior):
        return 0
    if not isinstance(posterior, QuadruplyStochasticPosterior) or posterior.augment:
        return None
    if not isinstance(posterior.basis, FourierBasis | InducingBasis | RadialBasis):
        return None
    return max(0 if one is None else len(one.X) for one in (posterior.covariance_of, posterior.open_trend.rows))


def _refuse(what: str, remedy: str) -> NoReturn:
    raise InvalidInputError(f"gp of export must have a graph of fixed size, which {what} has not. {remedy}")


class _Graph:
    """Nodes and constants of an ONNX graph in the making; values are known by their names."""

    def __init__(self, onnx: Any, dtype: np.dtype) -> None:
        self._onnx, self.dtype = onnx, dtype
        self.numbers = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        self.integers = onnx.TensorProto.INT64
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, values: Any) -> str:
        """Return the name of numbers, in the graph's dtype, or of integers as they are."""
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
        array = array if array.dtype.kind == "i" else array.astype(self.dtype)
        name = f"c{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def __call__(self, operator: str, *inputs: str | Tensor | np.ndarray | float, **attributes: Any) -> str:
        """Add a node, and return the name of its result; numbers become constants."""
        names = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        name = f"v{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operator, names, [name], **attributes))
        return name

    def affine(self, function: Callable[[Tensor], Any], X: str, n_inputs: int, what: str) -> str:
        """Return the values (n, k) of an affine function of rows, whose coefficients are read from its values."""
        rows = torch.cat([torch.zeros(1, n_inputs), torch.eye(n_inputs)]).double()
        values = function(rows).double()
        values = values.expand(len(rows), -1)
        offset, slope = values[:1], values[1:] - values[:1]
        tried = torch.from_numpy(np.random.default_rng(0).normal(size=(5, n_inputs)))
        error = (function(tried) - (offset + tried @ slope)).abs().max() if slope.numel() else torch.zeros(())
        if float(error) > 1e-9 * (1 + float(values.abs().max()) if values.numel() else 1):
            _refuse(what, "Fit with another kernel.")
        return self("Add", self("MatMul", X, slope), offset)

    def squares(self, values: str) -> str:
        """Return the sums of squares of the rows, (n, 1)."""
        return self("ReduceSum", self("Mul", values, values), np.array([1]), keepdims=1)

    def model(self, n_inputs: int, outputs: dict[str, str], flat: dict[str, bool]) -> Any:
        """Return the model of the graph from ``X`` (n, n_inputs) to named outputs (n, t), or (n,) if they are flat."""
        helper, kind = self._onnx.helper, self.numbers
        infos = []
        for name, value in outputs.items():
            last = np.array([1])
            self._nodes.append(
                helper.make_node("Squeeze", [value, self.constant(last)], [name])
                if flat[name]
                else helper.make_node("Identity", [value], [name])
            )
            infos.append(helper.make_tensor_value_info(name, kind, ["n"] if flat[name] else ["n", None]))
        given = helper.make_tensor_value_info("X", kind, ["n", n_inputs])
        size = sum(len(one.raw_data) for one in self._constants)
        if size > _LARGEST:
            raise InvalidInputError(
                f"The graph of export has {size:,} bytes of numbers, and an ONNX file holds {_LARGEST:,}. Use "
                'dtype="float32", or a smaller fit.'
            )
        graph = helper.make_graph(self._nodes, "gigagp", [given], infos, self._constants)
        opset = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, producer_name="gigagp", opset_imports=opset, ir_version=8)
        self._onnx.checker.check_model(model)
        return model


# Kernels --------------------------------------------------------------------------------------------------------------


def _block(graph: _Graph, kernel: Kernel, X: str, Z: Tensor) -> str:
    """Return the covariances (n, m) of rows with points (m, d)."""
    d = Z.shape[1]
    if isinstance(kernel, Composite):
        return _folded(graph, _operator(kernel), [_block(graph, part, X, Z) for part in kernel.parts])
    if type(kernel) in (White, Constant):
        return graph("Mul", _ones(graph, X), kernel.block(Z[:1], Z))
    if type(kernel) not in (Linear, *_STATIONARY) or not isinstance(kernel, Linear | StationaryKernel):
        _refuse_kernel(kernel)
    what = f"a {type(kernel).__name__} kernel with this metric"
    scaled = graph.affine(kernel.scale, X, d, what)
    points = kernel.scale(Z)
    if isinstance(kernel, Linear):
        return graph("MatMul", scaled, points.T)
    q = ""  # differences, not norms, so that float32 keeps short distances
    for k in range(points.shape[1]):
        column = graph("Gather", scaled, np.array([k]), axis=1)
        apart = graph("Sub", column, points[:, k][None])
        square = graph("Mul", apart, apart)
        q = graph("Add", q, square) if q else square
    return graph("Mul", _profile(graph, kernel, q), float(kernel.value("variance")))


def _profile(graph: _Graph, kernel: Any, q: str) -> str:
    """Return the correlation at squared distances."""
    if isinstance(kernel, RBF):
        return graph("Exp", graph("Mul", q, -0.5))
    if isinstance(kernel, RationalQuadratic):
        alpha = float(kernel.exponent())
        return graph("Pow", graph("Add", graph("Mul", q, 1 / (2 * alpha)), 1.0), -alpha)
    t = graph("Sqrt", graph("Mul", q, kernel.distance_factor))
    decay = graph("Exp", graph("Neg", t))
    if kernel.nu == 0.5:
        return decay
    factor = graph("Add", t, 1.0)
    if kernel.nu == 2.5:
        factor = graph("Add", factor, graph("Mul", graph("Mul", t, t), 1 / 3))
    return graph("Mul", factor, decay)


def _diagonal(graph: _Graph, kernel: Kernel, X: str, d: int) -> str:
    """Return the prior variance of the latent function, (n, 1)."""
    if isinstance(kernel, Composite):
        return _folded(graph, _operator(kernel), [_diagonal(graph, part, X, d) for part in kernel.parts])
    if isinstance(kernel, Linear):
        return graph.squares(graph.affine(kernel.scale, X, d, "a Linear kernel"))
    variance = float(kernel.diagonal(torch.zeros(1, d, dtype=torch.float64)))
    return graph("Mul", _ones(graph, X), np.full((1, 1), variance))


def _operator(kernel: Composite) -> str:
    if type(kernel) not in (Sum, Product):
        _refuse_kernel(kernel)
    return "Add" if isinstance(kernel, Sum) else "Mul"


def _refuse_kernel(kernel: Kernel) -> NoReturn:
    known = "constants, Linear, RBF, Matern, RationalQuadratic, Categorical, and sums and products of them"
    _refuse(f"the kernel {type(kernel).__name__}", f"Fit with {known}.")


def _folded(graph: _Graph, operator: str, parts: list[str]) -> str:
    found = parts[0]
    for part in parts[1:]:
        found = graph(operator, found, part)
    return found


def _ones(graph: _Graph, X: str) -> str:
    """Return ones, (n, 1)."""
    return graph("Add", graph("Mul", graph("Gather", X, np.array([0]), axis=1), 0.0), 1.0)


def _sines(graph: _Graph, waves: Callable[[Tensor], Any], X: str, d: int, operators: tuple[str, ...]) -> list[str]:
    """Return amplitudes times sines or cosines of phases, both affine in the rows, or amplitudes without phases."""
    amplitude = graph.affine(lambda rows: waves(rows)[0], X, d, "a product of several linear kernels")
    if waves(torch.zeros(1, d, dtype=torch.float64))[1] is None:
        return [amplitude]
    phase = graph.affine(lambda rows: waves(rows)[1], X, d, "a kernel with this metric")
    return [graph("Mul", amplitude, graph(operator, phase)) for operator in operators]


def _random_features(graph: _Graph, posterior: FeaturePosterior, X: str) -> str:
    """Return random features, (n, m)."""
    kernel, draw, d = posterior.model.kernel, posterior.draw, posterior.n_inputs
    columns = []
    for term in range(len(draw.terms)):

        def of_term(rows: Tensor, term: int = term) -> Any:
            return waves(kernel, rows, draw)[term]

        columns += _sines(graph, of_term, X, d, ("Sin", "Cos"))
    return graph("Concat", *columns, axis=1)


def _basis_functions(graph: _Graph, posterior: QuadruplyStochasticPosterior, X: str) -> tuple[str, Tensor]:
    """Return the basis functions that count, (n, m), and their numbers in the order of the columns."""
    basis, kept, kernel = posterior.basis, posterior.kept, posterior.model.kernel
    if not isinstance(basis, FourierBasis):
        assert isinstance(basis, InducingBasis | RadialBasis)
        return _block(graph, kernel, X, basis.points[kept].double()), kept
    columns, order = [], []
    for place in range(basis.n_terms):
        index = kept[kept % basis.n_terms == place]
        inner = torch.div(index, basis.n_terms, rounding_mode="floor")

        def of_term(rows: Tensor, place: int = place, inner: Tensor = inner) -> Any:
            return basis.waves(rows, place, inner)

        columns += _sines(graph, of_term, X, posterior.n_inputs, ("Sin",))
        order.append(index)
    return graph("Concat", *columns, axis=1), torch.cat(order)


# Posteriors -----------------------------------------------------------------------------------------------------------


class _Parts(NamedTuple):
    """What a posterior gives at each row, in the units of the model."""

    mean: str  # without the trend, (n, t)
    explained: str  # of the mean's basis, (n, p)
    variances: list[str]  # parts of the variance at given coefficients of the trend, (n, 1)


def _moved(graph: _Graph, posterior: Posterior, X: str) -> str:
    """Return the rows, moved into the grid where the posterior moves them."""
    if not isinstance(posterior, GridPosterior) or posterior.settings.outside != "clamp":
        return X
    low, high = posterior.grid.accepted
    return graph("Max", graph("Min", X, np.array([high])), np.array([low]))


def _parts(graph: _Graph, posterior: Posterior, X: str) -> _Parts:
    if isinstance(posterior, GridPosterior):
        return _grid_parts(graph, posterior, X)
    kernel, d = posterior.model.kernel, posterior.n_inputs

    def left(rows: str, whitening: Tensor) -> str:
        """Return what is left of the prior variance."""
        taken = graph.squares(graph("MatMul", rows, whitening))
        return graph("Max", graph("Sub", _diagonal(graph, kernel, X, d), taken), 0.0)

    if isinstance(posterior, FeaturePosterior):
        space, h = posterior.space, _random_features(graph, posterior, X)
        spread = graph.squares(graph("MatMul", h, triangular_inverse(space.factor).T))
        return _Parts(graph("MatMul", h, space.weights), graph("MatMul", h, space.basis_weights), [spread])
    if isinstance(posterior, SparsePosterior):
        h = _block(graph, kernel, X, posterior.inducing_points)
        whitening = triangular_inverse(posterior.points.factor).T
        spread = graph.squares(graph("MatMul", h, whitening @ posterior.whitened_root))
        explained = graph("MatMul", h, posterior.basis_weights)
        return _Parts(graph("MatMul", h, posterior.weights), explained, [left(h, whitening), spread])
    if isinstance(posterior, ExactPosterior):
        wide = posterior.in_float64()
        per_point = wide.table.spread
        h = _block(graph, kernel, X, wide.table.points)
        explained = graph("MatMul", h, per_point(wide.basis_solutions))
        variance = left(h, per_point(triangular_inverse(wide.factor).T))
        return _Parts(graph("MatMul", h, per_point(wide.target_solutions)), explained, [variance])
    assert isinstance(posterior, QuadruplyStochasticPosterior)
    h, index = _basis_functions(graph, posterior, X)
    weights, known, rows = posterior.weights, posterior.open_trend, posterior.covariance_of
    solutions = known.solutions
    if known.rows is not None:
        explained = graph("MatMul", _block(graph, kernel, X, known.rows.X.double()), solutions)
    else:
        solutions = solutions[index] if len(solutions) else solutions.new_zeros(len(index), solutions.shape[1])
        explained = graph("MatMul", h, solutions)
    if rows is not None:
        variances = [left(_block(graph, kernel, X, rows.X.double()), rows.whitening())]
    else:
        squares = weights.diagonal_scales(index).square()[:, None]
        variances = [graph("MatMul", graph("Mul", h, h), squares)]
        variances.append(graph.squares(graph("MatMul", h, weights.root_rows(index))))
    return _Parts(graph("MatMul", h, weights.mean[index]), explained, variances)


def _grid_parts(graph: _Graph, posterior: GridPosterior, X: str) -> _Parts:
    """Return what the values at the nodes give; beyond the grid the prior's, or NaN where the model refuses points."""
    grid, kernel = posterior.grid, posterior.kernel
    if isinstance(grid, GridSum):
        grids, columns, places = grid.grids, grid.columns, grid.places
    else:
        grids, columns, places = (grid,), (tuple(range(grid.n_inputs)),), [slice(0, grid.size)]
    pairs = zip(grids, columns, strict=True)
    stencils = [_stencil(graph, one, graph("Gather", X, np.array(own), axis=1)) for one, own in pairs]
    inside = graph("Concat", *(one.inside for one in stencils), axis=1)
    n_hits = sum(map(len, columns))
    covered = graph("Greater", graph("ReduceSum", inside, np.array([1]), keepdims=1), n_hits - 0.5)
    shifted = [graph("Add", one.nodes, np.array([place.start])) for one, place in zip(stencils, places, strict=True)]
    nodes = graph("Concat", *shifted, axis=1)
    weights = graph("Unsqueeze", graph("Concat", *(one.weights for one in stencils), axis=1), np.array([1]))

    def interpolated(values: Tensor) -> str:
        found = graph("MatMul", weights, graph("Gather", values, nodes, axis=0))  # (n, 1, q) with (n, q, k)
        return graph("Squeeze", found, np.array([1]))

    priors = []
    for own_kernel, one, own in kernel.pieces:
        w = stencils[columns.index(own)].weights
        corner = replace(one, shape=(one.scheme.width,) * one.n_inputs).nodes()
        product = graph("Mul", graph("MatMul", w, own_kernel.block(corner, corner)), w)
        priors.append(graph("ReduceSum", product, np.array([1]), keepdims=1))
    if isinstance(kernel, SumKernel) and kernel.slopes:
        priors.append(graph.squares(interpolated(kernel.slope_root)))
    prior = _folded(graph, "Add", priors)
    if posterior.variance_method == "samples":
        count = posterior.deviations.shape[1]
        variance = graph("Min", graph("Mul", graph.squares(interpolated(posterior.deviations)), 1 / count), prior)
    else:
        taken = graph.squares(interpolated(posterior.low_rank.root))
        variance = graph("Max", graph("Sub", prior, taken), 0.0)
    if posterior.settings.outside == "prior":
        zero = graph("Mul", graph("ReduceSum", X, np.array([1]), keepdims=1), 0.0)  # NaN where an input is
        beyond = graph("Add", _diagonal(graph, posterior.model.kernel, X, posterior.n_inputs), zero)
    else:
        zero = beyond = graph.constant(np.full((1, 1), np.nan))
    mean, explained = interpolated(posterior.values), interpolated(posterior.basis_values)
    return _Parts(
        graph("Where", covered, mean, zero),
        graph("Where", covered, explained, zero),
        [graph("Where", covered, variance, beyond)],
    )


class _Stencil(NamedTuple):
    """Where rows lie on a grid of d inputs."""

    nodes: str  # their numbers, (n, q)
    weights: str  # (n, q)
    inside: str  # 1 for each input that is within the grid, else 0, (n, d)


def _stencil(graph: _Graph, grid: RegularGrid, X: str) -> _Stencil:
    """Return the nodes around rows and their weights; see `RegularGrid.stencil`."""
    scheme, d = grid.scheme, grid.n_inputs
    low, last = float(scheme.before), np.array([grid.cells], dtype=float) - 1 + scheme.before
    position = graph("Mul", graph("Sub", X, np.array([grid.lower])), 1 / np.array([grid.spacing]))
    edge = max(EDGE, 4 * float(np.finfo(graph.dtype).eps) * max(grid.shape))
    above = graph("GreaterOrEqual", position, low - edge)
    inside = graph("And", above, graph("LessOrEqual", position, last + 1 + edge))
    position = graph("Where", inside, position, low)  # any place on the grid
    start = graph("Max", graph("Min", graph("Floor", position), last), low)
    first = graph("Cast", graph("Sub", start, low), to=graph.integers)
    steps = np.stack(np.meshgrid(*[np.arange(scheme.width)] * d, indexing="ij"), -1).reshape(-1, d)
    corner = graph("ReduceSum", graph("Mul", first, np.array([grid.strides])), np.array([1]), keepdims=1)
    nodes = graph("Add", corner, (steps @ np.array(grid.strides))[None])
    offset = graph("Unsqueeze", graph("Sub", graph("Sub", position, start), 0.5), np.array([2]))
    polynomials = np.array(scheme.coefficients)
    value: Any = polynomials[:, -1]
    for power in range(scheme.degree - 1, -1, -1):  # Horner's rule, for (n, d, width)
        value = graph("Add", graph("Mul", offset, value), polynomials[:, power])
    weights = graph("Gather", value, np.array([0]), axis=1)
    for k in range(1, d):
        wide = graph("Reshape", weights, np.array([0, scheme.width**k, 1]))
        weights = graph("Mul", wide, graph("Gather", value, np.array([k]), axis=1))
    weights = graph("Reshape", weights, np.array([0, scheme.width**d]))
    return _Stencil(nodes, weights, graph("Cast", inside, to=graph.numbers))


def _predictions(graph: _Graph, gp: GPRegressor, *, include_noise: bool) -> dict[str, str]:
    """Return mean (n, t) and standard deviation (n, t) in the targets' own units."""
    posterior, scaling = gp.posterior_, gp.scaling_
    d = posterior.n_inputs
    X = graph("Mul", graph("Sub", "X", scaling.x_centre[None]), 1 / scaling.x_scale[None])
    X = _moved(graph, posterior, X)
    mean, explained, variances = _parts(graph, posterior, X)
    if len(posterior.coefficients):
        basis = graph.affine(posterior.model.mean.basis, X, d, "this mean")
        mean = graph("Add", mean, graph("MatMul", basis, posterior.coefficients))
        open_part = graph("MatMul", graph("Sub", basis, explained), posterior.coefficient_root)
        variances = [*variances, graph.squares(open_part)]
    if include_noise:
        if not _has_plain_noise(posterior.model.kernel):
            _refuse("noise that depends on the inputs", "Export without include_noise.")
        noise = float(posterior.noise_at(torch.zeros(1, d, dtype=torch.float64)))
        variances = [*variances, graph("Mul", _ones(graph, X), np.full((1, 1), noise))]
    std = graph("Sqrt", _folded(graph, "Add", variances))
    return {
        "mean": graph("Add", graph("Mul", mean, scaling.y_scale[None]), scaling.y_centre[None]),
        "std": graph("Mul", std, scaling.y_scale[None]),
    }


def _has_plain_noise(kernel: Kernel) -> bool:
    """Whether the white terms of a kernel are the same everywhere."""
    whites = [term for term in kernel.terms() if any(leaf.is_white for leaf in term)]
    return all(len([leaf for leaf in term if not isinstance(leaf, Constant)]) == 1 for term in whites)


def _tried(posterior: Posterior) -> np.ndarray:
    """Return training rows, and points between and around them, in the units of the model."""
    rows, draw = posterior.places().double().cpu().numpy(), np.random.default_rng(0)
    if isinstance(posterior, GridPosterior):  # the places are two corners
        others = draw.uniform(rows[0], rows[1], size=(_CHECKED, posterior.n_inputs))
        if posterior.settings.outside == "refuse":
            return others
    else:
        rows = rows[draw.permutation(len(rows))[:_CHECKED]] if len(rows) else np.zeros((1, posterior.n_inputs))
        others = rows[draw.integers(len(rows), size=_CHECKED)]
    around = others + _AROUND * draw.normal(size=others.shape)
    return np.concatenate([rows, 0.5 * (others + others[::-1]), around])


def _compare(onnx: Any, gp: GPRegressor, model: Any, dtype: str, include_noise: bool) -> None:
    """Refuse a graph whose predictions are not those of the model."""
    posterior, scaling = gp.posterior_, gp.scaling_
    rows = _tried(posterior)
    X = scaling.original_inputs(rows).astype(dtype)
    found = onnx.reference.ReferenceEvaluator(model).run(None, {"X": X})
    wide = X.astype(np.float64)
    worst = max(_WORST[dtype], _WORST[str(posterior.dtype).removeprefix("torch.")])  # the model rounds, too
    known: dict[str, Any] = {"return_std": True, "hyperparameters": "learned"}  # of which the graph is
    mean, std = gp.predict(wide, include_noise=include_noise, **known)
    _, unit = gp.predict(wide, include_noise=True, **known)
    for name, got, right in (("mean", found[0], mean), ("std", found[1], std)):
        off = float((np.abs(got - right) / unit).max())
        if not off <= worst:
            remedy = 'Use dtype="float64".' if dtype == "float32" else "Fit with a larger noise variance."
            raise InvalidInputError(
                f"{name} of the graph of export in {dtype} is off by {off:.2g} standard deviations of a measurement, "
                f"more than {worst:g}. {remedy}"
            )
