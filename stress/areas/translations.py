"""Kernels of other packages: matrices agree in both directions, or the part without a counterpart is named."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from stress.draw import Draw
from stress.drawn.small import draw_places, draw_values
from stress.oracle import kernel as formulas
from stress.outcome import REFUSED, RIGHT, Wrong

#: Rounding of GPyTorch, which takes roots of differences of squares: 1e-8 between equal rows.
_ROOT = 1e-6


def run(draw: Draw) -> str:
    """Run one case."""
    d = draw.whole(1, 4)
    X, Z = draw_places(draw, draw.whole(2, 8), d, units=False), draw_places(draw, 3, d, units=False)
    way = draw.one_of(["to scikit-learn", "from scikit-learn", "to GPyTorch", "from GPyTorch"])
    draw.note(way)
    return {
        "to scikit-learn": _to_sklearn,
        "from scikit-learn": _from_sklearn,
        "to GPyTorch": _to_gpytorch,
        "from GPyTorch": _from_gpytorch,
    }[way](draw, X, Z)


def _named(error: Exception, package: str) -> str:
    """Return the outcome of a refusal, which says what has no counterpart."""
    if "kernel" not in str(error).lower():
        raise Wrong(f"refused without naming a kernel of {package}: {error}") from error
    return REFUSED


def _ours(draw: Draw, d: int) -> Any:
    kernel = draw_values(draw, d).bind(d)
    if draw.chance(0.3):  # learned numbers, bounds and what is fixed must survive
        names = list(kernel.parameters())
        draw.note(f"parameters {names}")
    return kernel


def _check(what: str, found: np.ndarray, wanted: np.ndarray, share: float = 1e-9) -> None:
    size = float(np.abs(wanted).max(initial=1e-300))
    if found.shape != wanted.shape or not (np.abs(found - wanted) <= share * size).all():
        raise Wrong(f"{what}: {found!r} for {wanted!r}")


def _own(kernel: Any, X: np.ndarray, Z: np.ndarray | None = None) -> np.ndarray:
    """Return the covariances of a kernel of this package by the textbook, of rows themselves with the white part."""
    spec = kernel.to_dict()
    if Z is not None:
        return formulas.block(spec, X, Z)
    return formulas.block(spec, X, X) + np.diag(formulas.white(spec, X))


def _to_sklearn(draw: Draw, X: np.ndarray, Z: np.ndarray) -> str:
    from gigagp import kernels
    from gigagp.errors import InvalidInputError

    kernel = _ours(draw, X.shape[1])
    try:
        theirs = kernels.to_sklearn(kernel)
    except InvalidInputError as error:
        return _named(error, "scikit-learn")
    draw.note(theirs)
    if not _is_white_product(kernel.to_dict()):
        _check("scikit-learn's matrix", theirs(X), _own(kernel, X))
    _check("scikit-learn's cross-covariances", theirs(X, Z), _own(kernel, X, Z))
    again = kernels.from_sklearn(theirs).bind(X.shape[1])
    _check("there and back", _own(again, X, Z), _own(kernel, X, Z))
    return RIGHT


def _is_white_product(spec: dict[str, Any], within: bool = False) -> bool:
    """Whether a white kernel is multiplied, which scikit-learn does entry by entry of repeated rows too."""
    if spec["kernel"] in ("Sum", "Product"):
        return any(_is_white_product(part, within or spec["kernel"] == "Product") for part in spec["parts"])
    return within and spec["kernel"] == "White"


def _from_sklearn(draw: Draw, X: np.ndarray, Z: np.ndarray) -> str:
    from gigagp import kernels
    from gigagp.errors import InvalidInputError

    theirs = _sklearn_kernel(draw, X.shape[1])
    draw.note(theirs)
    try:
        kernel = kernels.from_sklearn(theirs).bind(X.shape[1])
    except InvalidInputError as error:
        return _named(error, "gigagp")
    _check("covariances of scikit-learn's kernel", _own(kernel, X, Z), theirs(X, Z))
    if not _is_white_product(kernel.to_dict()):
        _check("matrix of scikit-learn's kernel", _own(kernel, X), theirs(X))
    return RIGHT


def _sklearn_kernel(draw: Draw, d: int) -> Any:
    from sklearn.gaussian_process import kernels as theirs

    def leaf() -> Any:
        lengths = draw.rng.uniform(0.3, 3, d) if draw.chance(0.4) else draw.log_real(0.1, 10)
        height = draw.log_real(0.1, 10)
        return draw.one_of(
            [
                lambda: theirs.RBF(lengths),
                lambda: theirs.Matern(lengths, nu=draw.one_of([0.5, 1.5, 2.5, np.inf, 0.7])),
                lambda: theirs.RationalQuadratic(height, draw.log_real(0.1, 10)),
                lambda: theirs.ExpSineSquared(height, draw.log_real(0.3, 5)),
                lambda: theirs.DotProduct(draw.one_of([0.0, height])),
                lambda: theirs.ConstantKernel(height, "fixed" if draw.chance(0.3) else (1e-5, 1e5)),
                lambda: theirs.WhiteKernel(height),
                lambda: theirs.Exponentiation(theirs.RBF(), 2),
            ]
        )()

    kernel = leaf()
    for _ in range(draw.whole(0, 3)):
        other = leaf()
        kernel = kernel + other if draw.chance(0.5) else kernel * other
    return kernel


def _to_gpytorch(draw: Draw, X: np.ndarray, Z: np.ndarray) -> str:
    from gigagp import kernels
    from gigagp.errors import InvalidInputError

    kernel = _ours(draw, X.shape[1])
    try:
        theirs = kernels.to_gpytorch(kernel)
    except InvalidInputError as error:
        return _named(error, "GPyTorch")
    _check("GPyTorch's covariances", _dense(theirs, X, Z), _own(kernel, X, Z), _ROOT)
    _check("GPyTorch's matrix", _dense(theirs, X, X), _own(kernel, X, X), _ROOT)
    again = kernels.from_gpytorch(theirs).bind(X.shape[1])
    _check("there and back", _own(again, X, Z), _own(kernel, X, Z))
    return RIGHT


def _dense(kernel: Any, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(kernel(torch.from_numpy(X), torch.from_numpy(Z)).to_dense().numpy())


def _from_gpytorch(draw: Draw, X: np.ndarray, Z: np.ndarray) -> str:
    from gigagp import kernels
    from gigagp.errors import InvalidInputError

    theirs = _gpytorch_kernel(draw, X.shape[1])
    draw.note(theirs)
    try:
        kernel = kernels.from_gpytorch(theirs).bind(X.shape[1])
    except InvalidInputError as error:
        return _named(error, "gigagp")
    _check("covariances of GPyTorch's kernel", _own(kernel, X, Z), _dense(theirs, X, Z), _ROOT)
    return RIGHT


def _gpytorch_kernel(draw: Draw, d: int) -> Any:
    from gpytorch import kernels as theirs

    def leaf() -> Any:
        columns = sorted(draw.rng.choice(d, draw.whole(1, d), replace=False).tolist())
        own: dict[str, Any] = {"active_dims": columns} if draw.chance(0.4) else {}
        k = len(columns) if own else d
        if draw.chance(0.5):
            own["ard_num_dims"] = k
        name = draw.one_of(
            [
                "RBFKernel",
                "MaternKernel",
                "RQKernel",
                "PeriodicKernel",
                "CosineKernel",
                "LinearKernel",
                "ConstantKernel",
            ]
        )
        if name in ("CosineKernel", "ConstantKernel"):
            own.pop("ard_num_dims", None)
        if name == "ConstantKernel":
            own = {}
        if name == "MaternKernel":
            own["nu"] = draw.one_of([0.5, 1.5, 2.5])
        kernel = getattr(theirs, name)(**own).double()
        for one in ("lengthscale", "period_length", "alpha", "variance", "constant"):
            if hasattr(kernel, f"raw_{one}"):
                shape = getattr(kernel, one).shape
                setattr(kernel, one, torch.from_numpy(draw.rng.uniform(0.3, 3, shape)))
        if draw.chance(0.4):
            kernel = theirs.ScaleKernel(kernel).double()
            kernel.outputscale = draw.log_real(0.1, 10)
        return kernel

    kernel = leaf()
    for _ in range(draw.whole(0, 2)):
        other = leaf()
        kernel = kernel + other if draw.chance(0.5) else kernel * other
    return kernel
