"""Gaussian approximations of the posterior for targets that are not Gaussian, by dense algebra.

Laplace's approximation is at the most probable latent values (Rasmussen and Williams 2006, section 3.4); that of the
best lower bound has the expected slopes and curvatures of the log density in their place (Opper and Archambeau 2009).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg, special

from stress.oracle import kernel as formulas
from stress.oracle.fitted import basis_at
from stress.oracle.kriging import Answer, Problem, solve

#: Nodes of the trapezoidal rule for expectations, in standard deviations.
_NODES = np.linspace(-10, 10, 801)
_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()
#: Largest variance of a pseudo-observation, over the prior's, and the share of the information that a step needs.
_VAGUE, _LEAST = 1e8, 0.05

Array = np.ndarray
#: From a target, a latent value and the noise variance to the log density, its slope and minus its second derivative.
Density = Callable[[Array, Array, Array], tuple[Array, Array, Array]]


def _poisson(y: Array, f: Array, noise: Array) -> tuple[Array, Array, Array]:
    rate = np.exp(np.minimum(f, 700.0))
    return y * f - rate - special.gammaln(y + 1), y - rate, rate


def _logistic(y: Array, f: Array, noise: Array) -> tuple[Array, Array, Array]:
    return -np.logaddexp(0, -y * f), y * special.expit(-y * f), special.expit(f) * special.expit(-f)


def _probit(y: Array, f: Array, noise: Array) -> tuple[Array, Array, Array]:
    z = y * f
    ratio = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - special.log_ndtr(z))
    return special.log_ndtr(z), y * ratio, np.maximum(ratio * (ratio + z), 0.0)


def _laplace_averaged(y: Array, mean: Array, std: Array, noise: Array) -> tuple[Array, Array, Array]:
    b = np.sqrt(noise / 2)
    r = (y - mean) / std
    folded = std * np.sqrt(2 / np.pi) * np.exp(-0.5 * r**2) + (y - mean) * special.erf(r / np.sqrt(2))
    density = np.exp(-0.5 * r**2) / np.sqrt(2 * np.pi)
    return -np.log(2 * b) - folded / b, special.erf(r / np.sqrt(2)) / b, 2 * density / (std * b)


def _laplace(y: Array, f: Array, noise: Array) -> tuple[Array, Array, Array]:
    """Return them averaged over latent values with a standard deviation of a quarter of the scale: there is a kink."""
    return _laplace_averaged(y, f, np.sqrt(noise / 2) / 4, noise)


def _student(df: float) -> Density:
    def density(y: Array, f: Array, noise: Array) -> tuple[Array, Array, Array]:
        scale, e = noise * (df - 2) / df, y - f
        whole = df * scale + e**2
        constant = special.gammaln((df + 1) / 2) - special.gammaln(df / 2) - 0.5 * np.log(df * np.pi * scale)
        value = constant - (df + 1) / 2 * np.log1p(e**2 / (df * scale))
        return value, (df + 1) * e / whole, (df + 1) * (df * scale - e**2) / whole**2

    return density


def density_of(likelihood: Any) -> tuple[Density, Callable[[Array], Array] | None]:
    """Return the density of a likelihood, and its expected information if that stands for the curvature."""
    name = likelihood.name
    if name == "student-t":
        df = 4.0 if likelihood.df is None else likelihood.df
        return _student(df), lambda noise: (df + 1) / ((df + 3) * noise * (df - 2) / df)
    found = {"poisson": _poisson, "logistic": _logistic, "probit": _probit, "laplace": _laplace}[name]
    return found, (lambda noise: 2 / noise) if name == "laplace" else None


def expectations(density: Density, y: Array, mean: Array, var: Array, noise: Array) -> tuple[Array, Array, Array]:
    """Return the expected log density, its slope and its curvature for ``f ~ N(mean, var)``, each (n,)."""
    std = np.sqrt(np.maximum(var, 1e-300))
    if density is _laplace:
        return _laplace_averaged(y, mean, std, noise)
    f = mean[:, None] + std[:, None] * _NODES
    value, slope, bend = density(y[:, None], f, noise[:, None])
    return value @ _WEIGHTS, slope @ _WEIGHTS, bend @ _WEIGHTS


@dataclass(frozen=True)
class Latent:
    """The dense problem of a fitted regressor whose targets are not Gaussian, in the units of the model.

    Attributes
    ----------
    between, cross, prior, basis, new_basis
        As for `Problem`.
    noise : array of shape (n,)
    targets : array of shape (n, t)
    at_rows : array of shape (n, t)
        The package's own latent mean at the rows, where the search starts.
    entry_error : array of shape (m,)
    """

    between: Array
    cross: Array
    prior: Array
    basis: Array
    new_basis: Array
    noise: Array
    targets: Array
    at_rows: Array
    entry_error: Array

    @classmethod
    def of(cls, gp: Any, X: Array, y: Array, new: Array, functions: Callable[[Array], Array] | None = None) -> Latent:
        """Return the problem of a fit; ``functions`` returns those that stand for the kernel at points of the model."""
        posterior, scaling = gp.posterior_, gp.scaling_
        spec, model = posterior.model.kernel.to_dict(), posterior.model
        rows, points = scaling.inputs(X), scaling.inputs(new)
        targets = (np.reshape(y, (len(X), -1)) - scaling.y_centre) / scaling.y_scale
        at_rows = (np.reshape(gp.predict_latent(X), (len(X), -1)) - scaling.y_centre) / scaling.y_scale
        has_noise = gp.likelihood_.has_noise
        name = model.mean.name if has_noise else "zero"
        noise = formulas.white(spec, rows) + model.noise_variance.double().numpy()
        if functions is None:
            blocks = formulas.block(spec, rows, rows), formulas.block(spec, rows, points)
            prior = formulas.diagonal(spec, points)
        else:
            of_rows, of_points = functions(rows), functions(points)
            blocks, prior = (of_rows @ of_rows.T, of_rows @ of_points.T), (of_points**2).sum(1)
        entry = formulas.entry_error(spec, points, float(np.abs(rows).max(initial=0.0)))
        bases = basis_at(name, rows), basis_at(name, points)
        return cls(*blocks, prior, *bases, noise, targets, at_rows, np.minimum(entry, 1.0))

    def _conditioned(self, weights: Array, means: list[Array]) -> Answer | None:
        """Return the answer with the mean curvatures ``weights`` (n,), and given means at the points."""
        least = 1 / (_VAGUE * np.maximum(np.diag(self.between), 1e-300))
        problem = Problem(
            *(self.between, self.cross, self.prior, 1 / np.maximum(weights, least), self.basis, self.new_basis),
            self.at_rows,
        )
        answer = solve(problem, 2.2e-16, self.entry_error)
        return None if answer is None else replace(answer, mean=np.stack(means, 1))

    def laplace(self, density: Density, information: Callable[[Array], Array] | None) -> Answer | None:
        """Return Laplace's approximation, or None if the search does not end or rounding decides."""
        means, bends, value = [], [], 0.0
        for y, start in zip(self.targets.T, self.at_rows.T, strict=True):
            found = self._mode(y, start, density, information)
            if found is None:
                return None
            alpha, beta, f = found
            here, _, bend = density(y, f, self.noise)
            means.append(self._at_points(alpha, beta))
            bends.append(bend if information is None else information(self.noise))
            value += here.sum() - 0.5 * alpha @ self.between @ alpha
        weights = np.mean(bends, 0)
        root = np.sqrt(np.maximum(weights, 0))
        determinant = np.linalg.slogdet(np.eye(len(root)) + root[:, None] * self.between * root)[1]
        answer = self._conditioned(weights, means)
        return None if answer is None else replace(answer, value=float(value - 0.5 * len(bends) * determinant))

    def _mode(self, y: Array, f: Array, density: Density, information: Any) -> tuple[Array, Array, Array] | None:
        """Return weights, coefficients and latent values of the mode near f, by damped Newton steps."""
        K, H = self.between, self._scaled_basis()
        here, alpha, beta = -np.inf, np.zeros(len(y)), np.zeros(H.shape[1])
        for step in range(60):
            _, slope, bend = density(y, f, self.noise)
            weight = bend if information is None else np.maximum(bend, _LEAST * information(self.noise))
            solved = self._step(f, slope, weight)
            if solved is None:
                return None
            share, done = 1.0, False
            while True:
                a, b = (old + share * (new - old) for old, new in zip((alpha, beta), solved, strict=True))
                g = K @ a + H @ b
                value = density(y, g, self.noise)[0].sum() - 0.5 * a @ K @ a
                if step == 0 or value >= here - 1e-12 * abs(here) or share < 1e-6:
                    break
                share /= 2
            done = step > 0 and np.abs(g - f).max() < 1e-9 * (1 + np.abs(g).max())
            alpha, beta, f, here = a, b, g, value
            if not np.isfinite(here):
                return None
            if done:
                return alpha, beta, f
        return None

    def search_error(self, density: Density, information: Callable[[Array], Array], value: float) -> float:
        """Return the error of a latent mean, in prior standard deviations, that may be left where a search ends.

        A step by the curvature H, which is no less than a share of the information, gains at least the smallest
        eigenvalue of ``H^-1 A`` of what is left, where A is minus the second derivative. The package's steps end where
        they gain 1e-14 nats a row, or less than the rounding of the objective, 1e-13 of its value. What is left is
        half of the squared error in the norm of A, which no direction of the prior makes smaller than that of ``K^-1``.
        """
        values, vectors = np.linalg.eigh(self.between)
        root = vectors * np.sqrt(np.maximum(values, 0))
        least, share = _LEAST * information(self.noise), 1.0
        for y, f in zip(self.targets.T, self.at_rows.T, strict=True):
            bend = density(y, f, self.noise)[2]
            exact, taken = (
                np.eye(len(f)) + root.T @ (curvature[:, None] * root) for curvature in (bend, np.maximum(bend, least))
            )
            share = min(share, float(linalg.eigh(exact, taken, eigvals_only=True, subset_by_index=[0, 0])[0]))
        left = max(1e-14 * self.targets.size, 1e-13 * abs(value))
        return float(np.sqrt(2 * left / max(share, 1e-12)))

    def _scaled_basis(self) -> Array:
        return self.basis / np.maximum(np.linalg.norm(self.basis, axis=0), 1e-300)

    def _at_points(self, alpha: Array, beta: Array) -> Array:
        size = np.maximum(np.linalg.norm(self.basis, axis=0), 1e-300)
        return self.new_basis @ (beta / size) + self.cross.T @ alpha

    def _step(self, f: Array, slope: Array, weight: Array) -> tuple[Array, Array] | None:
        """Return weights of rows and coefficients after a full Newton step from latent values f.

        The system has no inverse curvature, which may be tiny.
        """
        K, H, n, p = self.between, self._scaled_basis(), len(f), self.basis.shape[1]
        top = np.hstack([np.eye(n) + weight[:, None] * K, weight[:, None] * H])
        matrix = np.vstack([top, np.hstack([H.T, np.zeros((p, p))])])
        right = np.concatenate([slope + weight * f, np.zeros(p)])
        try:
            solved = np.linalg.solve(matrix, right) if p == 0 else np.linalg.lstsq(matrix, right, rcond=1e-13)[0]
        except np.linalg.LinAlgError:
            return None
        return solved[:n], solved[n:]

    def at_bound(self, density: Density, var: Array) -> Answer | None:
        """Return the answer whose slopes and curvatures are those expected under the package's moments at the rows.

        At the best Gaussian distribution it is that distribution.

        Parameters
        ----------
        density : callable
        var : array of shape (n,)
            Latent variance at the rows.
        """
        parts = [
            expectations(density, y, f, var, self.noise) for y, f in zip(self.targets.T, self.at_rows.T, strict=True)
        ]
        weights = np.mean([part[2] for part in parts], 0)
        means = []
        for f, part in zip(self.at_rows.T, parts, strict=True):
            solved = self._step(f, part[1], weights)
            if solved is None:
                return None
            means.append(self._at_points(*solved))
        return self._conditioned(weights, means)
