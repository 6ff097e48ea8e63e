"""The reference of the contract: Gaussian processes by dense float64 algebra, in plain NumPy.

Nothing here comes from gigagp. Covariances are textbook formulas on plain differences; `kriging` is the posterior for
Gaussian noise with the uncertainty of the mean's coefficients (Rasmussen and Williams 2006, eqs. 2.23, 2.24, 2.41 and
2.42 with a vague prior: universal kriging); `variational` is the best Gaussian posterior for other likelihoods (Opper
and Archambeau 2009), with the same rule for the coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import erf, gammaln

Array = np.ndarray
#: From points (n, d) and (m, d) to covariances (n, m).
Covariance = Callable[[Array, Array], Array]


# Covariances ----------------------------------------------------------------------------------------------------------


def squares(A: Array, B: Array, lengthscale: Array | float) -> Array:
    """Return squared distances in lengthscales."""
    return (((A[:, None, :] - B[None, :, :]) / lengthscale) ** 2).sum(2)


def rbf(lengthscale: Array | float, variance: float = 1.0) -> Covariance:
    return lambda A, B: variance * np.exp(-0.5 * squares(A, B, lengthscale))


def matern(nu: float, lengthscale: Array | float, variance: float = 1.0) -> Covariance:
    def covariance(A: Array, B: Array) -> Array:
        t = np.sqrt(2 * nu * squares(A, B, lengthscale))
        polynomial = {0.5: 1.0, 1.5: 1 + t, 2.5: 1 + t + t**2 / 3}[nu]
        return variance * polynomial * np.exp(-t)

    return covariance


def at(places: Callable[[Array], Array], covariance: Covariance) -> Covariance:
    """Return the covariance of other coordinates of the rows."""
    return lambda A, B: covariance(places(A), places(B))


def on_earth(rows: Array) -> Array:
    """Return points in space, in km, of longitudes and latitudes in degrees."""
    longitude, latitude = np.radians(rows[:, 0]), np.radians(rows[:, 1])
    equator = np.cos(latitude)
    return 6371.0088 * np.stack([equator * np.cos(longitude), equator * np.sin(longitude), np.sin(latitude)], 1)


def turned(degrees: float) -> Callable[[Array], Array]:
    """Return a function from rows to coordinates along and across a direction."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return lambda rows: rows @ np.array([[c, -s], [s, c]])


def rational_quadratic(lengthscale: Array | float, variance: float, alpha: float) -> Covariance:
    return lambda A, B: variance * (1 + squares(A, B, lengthscale) / (2 * alpha)) ** -alpha


def periodic(lengthscale: float, variance: float, period: Array | float) -> Covariance:
    def covariance(A: Array, B: Array) -> Array:
        sines = np.sin(math.pi * (A[:, None, :] - B[None, :, :]) / period)
        return variance * np.exp(-2 * ((sines / lengthscale) ** 2).sum(2))

    return covariance


def linear(variance: Array | float) -> Covariance:
    return lambda A, B: (variance * A[:, None, :] * B[None, :, :]).sum(2)


def constant(variance: float) -> Covariance:
    return lambda A, B: np.full((len(A), len(B)), variance)


def outputs(B: Array, column: int) -> Covariance:
    return lambda A, C: B[np.ix_(A[:, column].astype(int), C[:, column].astype(int))]


def added(*parts: Covariance) -> Covariance:
    return lambda A, B: sum((part(A, B) for part in parts), np.zeros((len(A), len(B))))


def multiplied(*parts: Covariance) -> Covariance:
    return lambda A, B: math.prod((part(A, B) for part in parts), start=np.ones((len(A), len(B))))


# Covariances of approximations ----------------------------------------------------------------------------------------


def of_features(features: Callable[[Array], Array], precision: Array | None = None) -> Covariance:
    """Return the covariance of ``phi(x)' w``, ``w ~ N(0, S^-1)``; S is a vector, a matrix, or the identity."""

    def covariance(A: Array, B: Array) -> Array:
        left, right = features(A), features(B)
        if precision is None:
            return left @ right.T
        if precision.ndim == 1:
            return left / precision @ right.T
        return left @ np.linalg.solve(precision, right.T)

    return covariance


def interpolation_weights(X: Array, lower: Array, spacing: Array, shape: tuple[int, ...], scheme: str) -> Array:
    """Return W, shape (n, nodes): cubic convolution (Keys 1981, a = -1/2) or linear, a product over the inputs."""

    def cubic(s: Array) -> Array:
        s = np.abs(s)
        near, far = 1.5 * s**3 - 2.5 * s**2 + 1, -0.5 * s**3 + 2.5 * s**2 - 4 * s + 2
        return np.where(s <= 1, near, np.where(s < 2, far, 0.0))

    weights = np.ones((len(X), 1))
    for axis, count in enumerate(shape):
        apart = ((X[:, axis] - lower[axis]) / spacing[axis])[:, None] - np.arange(count)
        one = cubic(apart) if scheme == "cubic" else np.clip(1 - np.abs(apart), 0, None)
        weights = (weights[:, :, None] * one[:, None, :]).reshape(len(X), -1)
    return weights


def interpolated(
    covariance: Covariance, lower: Array, spacing: Array, shape: tuple[int, ...], scheme: str
) -> Covariance:
    """Return ``W K_G W'``, the covariance of a function on a grid with interpolation between the nodes."""
    axes = [lower[axis] + spacing[axis] * np.arange(count) for axis, count in enumerate(shape)]
    nodes = np.stack([one.ravel() for one in np.meshgrid(*axes, indexing="ij")], 1)
    between = covariance(nodes, nodes)

    def found(A: Array, B: Array) -> Array:
        W, V = (interpolation_weights(part, lower, spacing, shape, scheme) for part in (A, B))
        return W @ between @ V.T

    return found


# Posteriors -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dense:
    """Results of dense algebra.

    Attributes
    ----------
    mean : array of shape (m, t)
    covariance : array of shape (m, m)
        Covariance of the latent function, the same for all targets.
    coefficients : array of shape (p, t)
        Coefficients of the mean's basis.
    evidence : float
        Log marginal likelihood at these coefficients (or its bound), summed over targets.
    condition : float
        Condition number of the matrix of the solve.
    """

    mean: Array
    covariance: Array
    coefficients: Array
    evidence: float
    condition: float

    @property
    def variance(self) -> Array:
        return np.diag(self.covariance)


def no_basis(X: Array) -> Array:
    return np.zeros((len(X), 0))


def _balanced(Phi: Array) -> Array:
    """Return the size of each column; without scaling, normal equations of columns of different size lose digits."""
    size = np.sqrt((Phi**2).mean(0)) if len(Phi) else np.ones(Phi.shape[1])
    return np.where(size > 0, size, 1.0)


def kriging(
    covariance: Covariance,
    X: Array,
    Y: Array,
    new: Array,
    noise: Array,
    basis: Callable[[Array], Array] = no_basis,
    *,
    rest: Covariance | None = None,
    actions: Array | None = None,
) -> Dense:
    """Return the posterior for Gaussian noise, by universal kriging.

    Parameters
    ----------
    covariance : Covariance
    X, Y, new : arrays of shape (n, d), (n, t), (m, d)
    noise : array of shape (n,)
        Variances.
    basis : callable
        Basis functions of the mean, whose coefficients are unknown.
    rest : Covariance or None
        Covariance of the process whose posterior covariance is returned, if it differs from that of the mean.
    actions : array of shape (n, i) or None
        Actions S, to condition on ``S' y`` alone.
    """
    if rest is not None:
        of_mean, of_rest = (kriging(one, X, Y, new, noise, basis) for one in (covariance, rest))
        condition, value = (
            max(of_mean.condition, of_rest.condition),
            _bound_of_two(covariance, rest, X, Y, noise, basis),
        )
        return replace(of_mean, covariance=of_rest.covariance, condition=condition, evidence=value)
    H, cross, Phi = covariance(X, X) + np.diag(noise), covariance(X, new), basis(X)
    S = np.eye(len(H)) if actions is None else actions
    inverse = S @ np.linalg.solve(S.T @ H @ S, S.T)
    size = _balanced(Phi)
    Phi, phi = Phi / size, basis(new) / size
    gram = Phi.T @ inverse @ Phi
    coefficients = np.linalg.solve(gram, Phi.T @ inverse @ Y)
    residual = Y - Phi @ coefficients
    solved = inverse @ residual
    left = phi - cross.T @ inverse @ Phi
    spread = left @ np.linalg.solve(gram, left.T)
    n, t = Y.shape
    # Rasmussen and Williams 2006, eq. 2.30
    evidence = -0.5 * float((residual * solved).sum()) - 0.5 * t * (np.linalg.slogdet(H)[1] + n * math.log(2 * math.pi))
    return Dense(
        phi @ coefficients + cross.T @ solved,
        covariance(new, new) - cross.T @ inverse @ cross + spread,
        coefficients / size[:, None],
        evidence,
        float(np.linalg.cond(H)),
    )


def _bound_of_two(
    covariance: Covariance, rest: Covariance, X: Array, Y: Array, noise: Array, basis: Callable[[Array], Array]
) -> float:
    """Return the evidence lower bound if mean and covariance are the posteriors of two different processes."""
    n, t = Y.shape
    of_mean = kriging(covariance, X, Y, X, noise, basis)
    trend = basis(X) @ of_mean.coefficients
    solved = np.linalg.solve(covariance(X, X) + np.diag(noise), Y - trend)
    variance = kriging(rest, X, Y, X, noise).variance
    fit = -0.5 * ((Y - of_mean.mean) ** 2 / noise[:, None] + np.log(2 * math.pi * noise)[:, None]).sum()
    fit -= 0.5 * t * (variance / noise).sum()
    B = np.eye(n) + rest(X, X) / np.sqrt(noise[:, None] * noise)
    divergence = 0.5 * (solved * (covariance(X, X) @ solved)).sum()
    divergence += 0.5 * t * (np.trace(np.linalg.inv(B)) - n + np.linalg.slogdet(B)[1])
    return float(fit - divergence)


#: Functions of targets, latent means, standard deviations and noise, each (n,), that return ``E log g``, its derivative
#: by the mean, and the negative second derivative.
Expectation = Callable[[Array, Array, Array, Array], tuple[Array, Array, Array]]

_PLACES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(101)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def laplace(y: Array, mean: Array, std: Array, noise: Array) -> tuple[Array, Array, Array]:
    """``exp(-|y - f| / b) / (2 b)`` with the variance ``2 b^2``, by the closed form of the mean of a folded normal."""
    b, gap = np.sqrt(noise / 2), y - mean
    density = np.exp(-0.5 * (gap / std) ** 2) / math.sqrt(2 * math.pi)
    side = erf(gap / (std * math.sqrt(2)))
    return -np.log(2 * b) - (2 * std * density + gap * side) / b, side / b, 2 * density / (std * b)


def student(y: Array, mean: Array, std: Array, noise: Array) -> tuple[Array, Array, Array]:
    """Student's density with four degrees of freedom and the variance ``noise``, at the mean alone."""
    square, gap = noise / 2, y - mean
    value = gammaln(2.5) - gammaln(2.0) - 0.5 * np.log(4 * math.pi * square) - 2.5 * np.log1p(gap**2 / (4 * square))
    below = 4 * square + gap**2
    return value, 5 * gap / below, 5 * (4 * square - gap**2) / below**2


def poisson(y: Array, mean: Array, std: Array, noise: Array) -> tuple[Array, Array, Array]:
    """Counts with the rate ``exp(f)``."""
    rate = np.exp(mean + 0.5 * std**2)
    return y * mean - rate - gammaln(y + 1), y - rate, rate


def logistic(y: Array, mean: Array, std: Array, noise: Array) -> tuple[Array, Array, Array]:
    """Signs with the log-odds f, by quadrature."""
    f = mean[:, None] + std[:, None] * _PLACES
    share = 1 / (1 + np.exp(-f))
    value = -np.logaddexp(0, -y[:, None] * f) @ _WEIGHTS
    return value, 0.5 * (y + 1) - share @ _WEIGHTS, (share * (1 - share)) @ _WEIGHTS


EXPECTATIONS: dict[str, Expectation] = {
    "laplace": laplace,
    "student-t": student,
    "poisson": poisson,
    "logistic": logistic,
}


def variational(
    covariance: Covariance,
    X: Array,
    Y: Array,
    new: Array,
    noise: Array,
    expectation: Expectation,
    basis: Callable[[Array], Array] = no_basis,
    *,
    rest: Covariance | None = None,
) -> Dense:
    """Return the Gaussian posterior with the largest bound, one covariance for all targets; ``rest`` as in `kriging`.

    At the optimum the covariance is that of Gaussian noise of variance ``1 / w``, ``w`` the mean of ``-E (log g)''``
    over targets, and ``K^-1 (m - trend) = E (log g)'`` (Opper and Archambeau 2009, eqs. 10 and 11). Damped steps
    converge to this fixed point, which is unique because the bound is concave. The mean's coefficients are those of the
    largest bound; their uncertainty is that of kriging with the same noise.
    """
    n, t = Y.shape
    K, cross, Phi = covariance(X, X), covariance(X, new), basis(X)
    size = _balanced(Phi)

    def smoother(weights: Array) -> Array:
        """Return P: with noise ``N = 1 / weights``, kriging of z is ``z - N P z``, and its covariance is N - NPN."""
        inverse, own = np.linalg.inv(K + np.diag(1 / weights)), Phi / size
        return inverse - inverse @ own @ np.linalg.solve(own.T @ inverse @ own, own.T @ inverse)

    def state(mean: Array, weights: Array, spread: Array = K) -> tuple[Array, Array, Array]:
        """Return expected log-likelihoods, first and negative second derivatives, each (n, t)."""
        inverse = np.linalg.inv(spread + np.diag(1 / weights))  # at given coefficients
        std = np.sqrt(np.clip(1 / weights - np.diag(inverse) / weights**2, 1e-300, None))
        parts = [expectation(Y[:, k], mean[:, k], std, noise) for k in range(t)]
        value, slope, bend = (np.stack([part[place] for part in parts], 1) for place in range(3))
        return value, slope, np.clip(bend, 1e-7, None)  # smaller curvatures are negligible beside the prior's precision

    mean, weights, rate, before = np.zeros((n, t)), np.full(n, 0.5), 0.7, np.inf
    for _ in range(4000):
        _, slope, bend = state(mean, weights)
        step = np.empty_like(mean)
        for k in range(t):  # Newton's step is kriging of working targets
            working = mean[:, k] + slope[:, k] / bend[:, k]
            step[:, k] = working - smoother(bend[:, k]) @ working / bend[:, k] - mean[:, k]
        ratio = bend.mean(1) / weights
        change = max(np.abs(step).max(), np.abs(np.log(ratio)).max())
        if change < 1e-8:
            break
        rate = min(1.02 * rate, 0.7) if change < before else 0.8 * rate  # damp steps that overshoot
        before = change
        share = rate * min(1.0, 2.0 / max(np.abs(step).max(), 1e-300))
        mean, weights = mean + share * step, weights * ratio ** (0.7 * rate)
    # steps end at the rounding of the inverse; a reference that is off by more than a cell's tolerance fails the cell
    assert change < 1e-4, f"the reference did not converge: {change:.2g}"
    slope = state(mean, weights)[1]
    found = kriging(rest or covariance, X, Y, new, 1 / weights, basis)
    coefficients = np.linalg.lstsq(Phi / size, mean - K @ slope, rcond=None)[0] / size[:, None]
    # divergence of N(m, V) from the prior, with V = (K^-1 + diag(w))^-1 and the slopes as K^-1 m
    spread = (rest or covariance)(X, X)
    value = state(mean, weights, spread)[0]
    root = np.sqrt(weights)
    B = np.eye(n) + root[:, None] * spread * root
    divergence = 0.5 * (mean * slope).sum() + 0.5 * t * (np.trace(np.linalg.inv(B)) - n + np.linalg.slogdet(B)[1])
    predicted = basis(new) @ coefficients + cross.T @ slope
    return replace(found, mean=predicted, coefficients=coefficients, evidence=float(value.sum() - divergence))


def laplace_approximation(
    covariance: Covariance,
    X: Array,
    Y: Array,
    new: Array,
    noise: Array,
    likelihood: str,
    basis: Callable[[Array], Array] = no_basis,
) -> Dense:
    """Return Laplace's approximation, one covariance for all targets (Rasmussen and Williams 2006, section 3.4).

    Log densities with a kink are averaged over latent values with a standard deviation of a quarter of their scale,
    and the curvature of noise with heavy tails is the expected information.
    """
    t, K, Phi, expectation = Y.shape[1], covariance(X, X), basis(X), EXPECTATIONS[likelihood]
    size = _balanced(Phi)
    own, scale = Phi / size, np.sqrt(noise / 2)
    std = scale / 4 if likelihood == "laplace" else np.full(len(X), 1e-9)
    information = {"laplace": 1 / scale**2, "student-t": 5 / (7 * scale**2)}.get(likelihood)
    means, slopes, bends, coefficients, evidence = [], [], [], [], 0.0
    for y in Y.T:
        alpha, beta = np.zeros(len(X)), np.linalg.lstsq(own, y, rcond=None)[0]

        def value(alpha: Array, beta: Array, y: Array = y) -> float:
            with np.errstate(over="ignore"):
                fit = expectation(y, K @ alpha + own @ beta, std, noise)[0].sum()
            return float(fit - 0.5 * alpha @ K @ alpha)

        for _ in range(300):  # damped Newton steps
            _, slope, bend = expectation(y, K @ alpha + own @ beta, std, noise)
            weight = bend if information is None else np.maximum(bend, 0.05 * information)
            top = np.hstack([np.eye(len(X)) + weight[:, None] * K, weight[:, None] * own])
            matrix = np.vstack([top, np.hstack([own.T @ (weight[:, None] * K), own.T @ (weight[:, None] * own)])])
            step = np.linalg.lstsq(matrix, np.concatenate([slope - alpha, own.T @ slope]), rcond=1e-14)[0]
            share, here = 1.0, value(alpha, beta)
            while share > 1e-6:
                trial = alpha + share * step[: len(X)], beta + share * step[len(X) :]
                if value(*trial) >= here:
                    break
                share /= 2
            else:
                break
            alpha, beta = trial
        mean = K @ alpha + own @ beta
        _, slope, bend = expectation(y, mean, std, noise)
        evidence += value(alpha, beta)
        means.append(mean)
        slopes.append(alpha)
        bends.append(bend if information is None else information)
        coefficients.append(beta / size)
    weights = np.clip(np.mean(bends, 0), 1e-12, None)
    found = kriging(covariance, X, Y, new, 1 / weights, basis)
    root = np.sqrt(weights)
    evidence -= 0.5 * t * np.linalg.slogdet(np.eye(len(X)) + root[:, None] * K * root)[1]
    beta = np.stack(coefficients, 1)
    predicted = basis(new) @ beta + covariance(X, new).T @ np.stack(slopes, 1)
    return replace(found, mean=predicted, coefficients=beta, evidence=float(evidence))


def count_moments(mean: Array, covariance: Array) -> tuple[Array, Array, Array, Array]:
    """Return the mean of counts, the variance of their rate, that of counts, and the covariance of rates."""
    variance = np.diag(covariance)
    rate = np.exp(mean + variance / 2)
    of_rate = np.exp(mean[:, None] + mean + (variance[:, None] + variance) / 2) * np.expm1(covariance)
    return rate, np.diag(of_rate), np.diag(of_rate) + rate, of_rate


def sign_moments(mean: Array, covariance: Array) -> tuple[Array, Array, Array, Array]:
    """Return the same of signs with log-odds f, by quadrature over two latent values at a time."""
    std = np.sqrt(np.clip(np.diag(covariance), 0, None))
    one = mean[:, None] + std[:, None] * _PLACES
    centre = np.tanh(one / 2) @ _WEIGHTS
    both = np.empty_like(covariance)
    for i in range(len(mean)):
        for j in range(len(mean)):
            slope = covariance[i, j] / std[i] if std[i] > 0 else 0.0
            rest = math.sqrt(max(std[j] ** 2 - slope**2, 0.0))
            given = mean[j] + slope * _PLACES[:, None] + rest * _PLACES
            both[i, j] = (np.tanh(one[i] / 2) * (np.tanh(given / 2) @ _WEIGHTS)) @ _WEIGHTS
    of_mean = both - centre[:, None] * centre
    return centre, np.diag(of_mean), 1 - centre**2, of_mean


#: Moments of targets from a latent mean (m,) and covariance (m, m).
TARGETS = {"poisson": count_moments, "logistic": sign_moments}
