"""Kernels by their textbook formulas with plain differences, from the description of a fitted kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

_UNIT = float(np.finfo(float).eps)


def block(spec: dict[str, Any], X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """Return the covariance of every pair of points, shape (n, m); ``spec`` is ``kernel.to_dict()``."""
    name = spec["kernel"]
    if name in ("Sum", "Product"):
        parts = [block(part, X, Z) for part in spec["parts"]]
        return np.sum(parts, 0) if name == "Sum" else np.prod(parts, 0)
    if name == "White":
        return np.zeros((len(X), len(Z)))
    if name == "Constant":
        return np.full((len(X), len(Z)), float(spec["variance"]))
    X, Z = _active(spec, X), _active(spec, Z)
    if name == "Linear":
        return (X * np.asarray(spec["variance"])) @ Z.T
    with np.errstate(over="ignore"):  # an infinite distance is right there
        difference = X[:, None, :] - Z[None, :, :]
        if name in ("Periodic", "Cosine"):
            turns = np.where(np.isfinite(difference), difference, 0.0) / np.asarray(spec["period"])
            if name == "Cosine":
                return spec["variance"] * np.cos(2 * np.pi * turns).prod(2)
            q = ((np.sin(np.pi * turns) / np.asarray(spec["lengthscale"])) ** 2).sum(2)
            return spec["variance"] * np.exp(-2 * q)
        r = np.sqrt(((difference / np.asarray(spec["lengthscale"])) ** 2).sum(2))
        return spec["variance"] * _profile(spec, np.minimum(r, 1e150))


def _profile(spec: dict[str, Any], r: np.ndarray) -> np.ndarray:
    if spec["kernel"] == "RBF":
        return np.exp(-0.5 * r**2)
    if spec["kernel"] == "RationalQuadratic":
        return np.exp(-spec["alpha"] * np.log1p(r**2 / (2 * spec["alpha"])))
    t = np.sqrt(2 * spec["nu"]) * r
    return {0.5: 1.0, 1.5: 1 + t, 2.5: 1 + t + t**2 / 3}[spec["nu"]] * np.exp(-np.minimum(t, 800.0))


def diagonal(spec: dict[str, Any], X: np.ndarray) -> np.ndarray:
    """Return k(x, x) without its white part, shape (n,)."""
    return np.array([block(spec, row[None], row[None])[0, 0] for row in X])


def white(spec: dict[str, Any], X: np.ndarray) -> np.ndarray:
    """Return the white part of the variance at points, shape (n,).

    In a product, the white variance is multiplied by the other kernels' variances; sums add up.
    """
    return _with_white(spec, X) - diagonal(spec, X)


def _with_white(spec: dict[str, Any], X: np.ndarray) -> np.ndarray:
    if spec["kernel"] == "White":
        return np.full(len(X), float(spec["variance"]))
    if spec["kernel"] in ("Sum", "Product"):
        parts = [_with_white(part, X) for part in spec["parts"]]
        return np.sum(parts, 0) if spec["kernel"] == "Sum" else np.prod(parts, 0)
    return diagonal(spec, X)


def entry_error(spec: dict[str, Any], X: np.ndarray, largest: float) -> np.ndarray:
    """Return a bound on the effect of rounding of float64 inputs on entries of a row, as a share of the variance.

    Parameters
    ----------
    spec : dict
        Description of the kernel.
    X : array of shape (m, d)
        The rows.
    largest : float
        Largest absolute value of the training inputs.
    """
    size = np.maximum(np.abs(X).max(1, initial=0.0), largest)
    return 200 * _UNIT + 16 * _UNIT * size / _finest(spec)


def _finest(spec: dict[str, Any]) -> float:
    """Return the smallest distance over which the kernel changes appreciably."""
    if "parts" in spec:
        return min(_finest(part) for part in spec["parts"])
    weight = float(np.max(spec.get("input_weights", 1.0)))
    lengths = [1e300]
    for name in ("lengthscale", "period"):
        if name in spec:
            lengths.append(float(np.min(spec[name])))
    if spec["kernel"] == "Periodic":  # its lengthscale is in units of the circle's radius
        return float(np.min(spec["period"])) / 7 * min(1.0, float(np.min(spec["lengthscale"]))) / weight
    return min(lengths) / weight


def _active(spec: dict[str, Any], X: np.ndarray) -> np.ndarray:
    """Return the columns that a kernel uses, weighted if it has one lengthscale for inputs with different units."""
    X = X if spec.get("columns") is None else X[:, list(spec["columns"])]
    if spec.get("centre") is not None:
        X = X - np.asarray(spec["centre"])
    return X if spec.get("input_weights") is None else X * np.asarray(spec["input_weights"])
