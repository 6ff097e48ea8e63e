"""Checks of all answers of a fitted regressor."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import gammaln

from stress.draw import Draw
from stress.oracle import kernel as formulas
from stress.oracle.fitted import expected
from stress.oracle.further import check_joint, check_left_out, check_uncertain
from stress.outcome import Wrong

#: Coordinates of points far from everything, on which the rest of a batch must not depend.
FAR = (1e4, 1e10, 1e100, 1e300)


def check_regressor(
    gp: Any, X: np.ndarray, y: np.ndarray, draw: Draw, *, warned: bool = False, folder: Path | None = None
) -> None:
    """Compare a fitted regressor with the oracle; raise `Wrong` at the first difference.

    Parameters
    ----------
    gp : GPRegressor
    X, y : arrays
        The rows of the fit, float64.
    draw : Draw
        Chooses points and checks.
    warned : bool
        Whether the fit issued a warning, in which case the answers only have to be finite.
    folder : Path, optional
        Folder in which the model can be saved and loaded again.
    """
    from gigagp.errors import InvalidInputError

    if len(gp.estimators_) > 1:
        _check_each_output(gp, X, y, draw, warned, folder)
        return
    new = points_for(gp, X, draw)
    mean, std = gp.predict(new, return_std=True)
    shape = (len(new),) if np.ndim(y) == 1 else (len(new), y.shape[1])
    if mean.shape != shape or std.shape != shape:
        raise Wrong(f"shape: mean {mean.shape}, std {std.shape}, expected {shape}")
    if not np.isfinite(mean).all():
        raise Wrong(f"mean not finite: {mean!r}")
    if not (np.isfinite(std).all() and (std >= 0).all()):
        raise Wrong(f"std not finite or negative: {std!r}")
    check_against_dense(gp, X, y, new, draw, warned)
    _check_units(gp, X)
    _check_batches(gp, new, mean, std, draw)
    n_samples = draw.whole(1, 3)
    samples = gp.sample_y(new, n_samples, random_state=draw.whole(0, 3))
    if samples.shape != (*shape, n_samples) or not np.isfinite(samples).all():
        raise Wrong(f"samples: shape {samples.shape} for {(*shape, n_samples)}, or not finite")
    if draw.chance(0.2):
        check_seeds(gp, new, std)
    if draw.chance(0.2):
        covariance = np.asarray(gp.predict(new, return_cov=True)[1])
        if not np.isfinite(covariance).all():
            raise Wrong("covariance not finite")
    if draw.chance(0.5):
        check_left_out(gp, X, y, draw, warned=warned)
    if draw.chance(0.2):
        check_joint(gp, new, mean, std)
    if draw.chance(0.05):
        check_uncertain(gp, new)
    if draw.chance(0.3):
        score = gp.score(X, y)
        if not np.isfinite(score) and np.ptp(y, axis=0).min() > 0 and np.abs(y).max() < 1e150:
            raise Wrong(f"score: {score}")
    if draw.chance(0.1):
        again = pickle.loads(pickle.dumps(gp))
        _check_same(again, new, mean, std, "after pickling")
    if folder is not None and draw.chance(0.2):
        import gigagp

        path = folder / "model.gp"
        try:
            gp.save(path)
        except InvalidInputError:  # a mean function or a user-defined kernel
            path = None
        if path is not None:
            _check_same(gigagp.load(path), new, mean, std, "after save and load")
    _check_far_row(gp, new, mean, std, draw)


def _check_each_output(gp: Any, X: np.ndarray, y: np.ndarray, draw: Draw, warned: bool, folder: Path | None) -> None:
    """Compare every output that has a model of its own with the oracle, and the answers of all with these models."""
    mean, std = gp.predict(X[:5], return_std=True)
    for k, (one, column) in enumerate(zip(gp.estimators_, y.T, strict=True)):
        alone = one.predict(X[:5], return_std=True)
        if not (np.array_equal(mean[:, k], alone[0]) and np.array_equal(std[:, k], alone[1])):
            raise Wrong(f"output {k} of all: {mean[:, k]!r} and {std[:, k]!r} for {alone!r}")
        check_regressor(one, X, column, draw, warned=warned, folder=folder)


def as_answered(gp: Any, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return targets with one axis if the model's answers for a single target have one, and with two otherwise."""
    flat = np.asarray(y, dtype=float).reshape(len(X), -1)
    return flat[:, 0] if flat.shape[1] == 1 and np.ndim(gp.predict(X[:1])) == 1 else flat


def points_for(gp: Any, X: np.ndarray, draw: Draw) -> np.ndarray:
    """Return points at the rows, between them and, unless a grid refuses them, beyond them."""
    m = draw.whole(1, 6)
    rows = X[draw.rng.integers(0, len(X), (2, m))]
    share = draw.rng.uniform(0, 1, (m, 1))
    new = rows[0] * share + rows[1] * (1 - share)
    if draw.chance(0.3):
        new[0] = X[draw.whole(0, len(X) - 1)]
    if gp.posterior_.kind != "grid" and draw.chance(0.4):
        spread = np.minimum(np.ptp(X / 4, axis=0) * 4, 1e300) + 1e-300
        new[-1] = X[0] + np.minimum(spread, 1e300) * draw.rng.normal(size=X.shape[1])
    return new


def check_against_dense(
    gp: Any,
    X: np.ndarray,
    y: np.ndarray,
    new: np.ndarray,
    draw: Draw,
    warned: bool,
    offset: np.ndarray | None = None,
) -> None:
    """Compare the latent function at points with dense algebra.

    Parameters
    ----------
    gp : GPRegressor
    X, y : arrays
        The rows of the fit. After a transform of the target, ``y`` is transformed; a known mean is subtracted.
    new : array of shape (m, d)
    draw : Draw
    warned : bool
        Whether the fit issued a warning, in which case nothing is compared.
    offset : array of shape (m,), optional
        The known mean at the points.
    """
    kind = gp.posterior_.kind
    answer = expected(gp, X, y, new)
    if answer is None:
        draw.note("no dense answer")
        return
    draw.note(f"dense answer for {kind}, typical error {np.median(answer.variance_error):.1g}")
    # The dense answer is at the learned hyperparameters; those of few rows are averaged over draws by default.
    mean, std = gp.predict_latent(new, return_std=True, variance="solve", hyperparameters="learned")
    scaling = gp.scaling_
    known = np.zeros(len(new)) if offset is None else offset
    in_units = (np.asarray(mean).reshape(len(new), -1) - known[:, None] - scaling.y_centre) / scaling.y_scale
    spreads = np.asarray(std).reshape(len(new), -1) / scaling.y_scale
    if not np.allclose(spreads, spreads[:, :1], rtol=1e-9, atol=0):
        raise Wrong(f"deviations of outputs that share a kernel are not alike in units of each: {spreads!r}")
    variance = spreads[:, 0] ** 2
    # Digits are lost when an answer is converted to the target's units and back.
    back = 8 * np.finfo(float).eps * (1 + np.abs(scaling.y_centre / scaling.y_scale).max())
    back = back + np.finfo(float).smallest_subnormal / np.abs(scaling.y_scale).min()  # tiny targets have few digits
    back = back + 8 * np.finfo(float).eps * float(np.abs(known / scaling.y_scale.min()).max())
    off = np.abs(in_units - answer.mean)
    allowed = answer.mean_error[:, None] + back + 1e-13 * np.abs(answer.mean)
    if warned:
        return
    if (off > allowed).any():
        worst = np.unravel_index(np.argmax(off / allowed), off.shape)
        raise Wrong(
            f"mean of {kind} off the dense one: {in_units[worst]!r} for {answer.mean[worst]!r} (standardized; rounding "
            f"allows {allowed[worst]:.2g}) at {new[worst[0]]!r}"
        )
    allowed = (
        answer.variance_error + 1e-13 * np.abs(answer.variance) + back * np.sqrt(np.abs(answer.variance)) + back**2
    )
    off = np.abs(variance - np.maximum(answer.variance, 0))
    if (off > allowed).any():
        worst = int(np.argmax(off / allowed))
        raise Wrong(
            f"variance of {kind} off the dense one: {variance[worst]!r} for {answer.variance[worst]!r} (standardized; "
            f"rounding allows {allowed[worst]:.2g}) at {new[worst]!r}"
        )
    if kind == "exact":
        value, wanted = gp.log_marginal_likelihood(standardized=True).value, answer.value + student_terms(gp)
        if abs(value - wanted) > answer.value_error + 1e-9 * abs(wanted) + 1e-9:
            raise Wrong(f"log marginal likelihood: {value!r} for {wanted!r} (allowed {answer.value_error:.2g})")


def student_terms(gp: Any) -> float:
    """Return what the bound for Student-t noise adds to the evidence with Gaussian noise of the rows' variances."""
    student = gp.posterior_.model.student
    if student is None:
        return 0.0
    a, c, weights = (student.df + 1) / 2, student.df / 2, gp.noise_weights_
    constant = gammaln(a) - gammaln(c) - a * np.log(a) + a + c * np.log(c)
    return float(len(weights) * constant + c * (np.log(weights) - weights).sum())


def _check_units(gp: Any, X: np.ndarray) -> None:
    """Compare the kernel that users read, at raw inputs, with the one used for predictions."""
    scaling, own = gp.scaling_, getattr(gp, "hyperparameter_units", "") == "own"
    scales = np.concatenate([scaling.x_scale, scaling.y_scale])
    if not own or gp.scaling_.y_scale.size != 1 or not (scales.min() > 1e-100 and scales.max() < 1e100):
        return  # numbers this extreme have few digits or none
    rows = X[:8]
    inner, variance = gp.posterior_.model.kernel.to_dict(), float(scaling.y_scale[0]) ** 2
    standardized = (rows - scaling.x_centre) / scaling.x_scale
    expected = formulas.block(inner, standardized, standardized) * variance
    found = formulas.block(gp.kernel_.to_dict(), rows, rows)
    if not np.isfinite(expected).all():
        return
    # Raw inputs far from zero have fewer digits for small distances.
    size = np.finfo(float).eps * float(np.max(np.abs(rows) / scaling.x_scale, initial=1.0))
    allowed = 1e-9 + 1e3 * size * float(np.median(formulas.entry_error(inner, standardized, 1.0))) / np.finfo(float).eps
    off = float(np.abs(found - expected).max() / np.abs(expected).max())
    if off > allowed:
        raise Wrong(f"kernel_ is not what predicts: covariances off by {off:.3g} of the largest ({gp.kernel_!r})")


def _check_batches(gp: Any, new: np.ndarray, mean: np.ndarray, std: np.ndarray, draw: Draw) -> None:
    """Check that predictions of a point do not depend on the other points of the batch."""
    order = draw.rng.permutation(len(new))
    cut = draw.whole(0, len(new))
    parts = [order[:cut], order[cut:]]
    for part in parts:
        if len(part):
            _compare(gp, new, gp.predict(new[part], return_std=True), mean[part], std[part], "split batch")


def _check_far_row(gp: Any, new: np.ndarray, mean: np.ndarray, std: np.ndarray, draw: Draw) -> None:
    """Check that a point far from all others does not change the predictions for the others."""
    if gp.posterior_.kind == "grid":
        return  # refused
    far = np.full((1, new.shape[1]), draw.one_of(FAR)) * draw.rng.choice([-1.0, 1.0], (1, new.shape[1]))
    try:
        found = gp.predict(np.concatenate([new, far]), return_std=True)
    except ValueError:
        return  # the batch was refused as a whole
    _compare(gp, new, (found[0][:-1], found[1][:-1]), mean, std, f"far row ({abs(far[0, 0]):g}) in the batch")


def _compare(gp: Any, new: np.ndarray, found: Any, mean: np.ndarray, std: np.ndarray, what: str) -> None:
    unit = max(1e-4 if str(gp.dtype) == "float32" else 1e-7, _rounding(gp, new))
    scale = np.abs(mean).max() + std.max() + np.abs(gp.scaling_.y_scale).max()
    off = np.abs(found[0] - mean).max(initial=0.0)
    if not off <= unit * scale:
        raise Wrong(f"mean depends on the batch, {what}: off by {off:.3g} (scale {scale:.3g})")
    # A variance is a difference of two numbers of the prior's size.
    off = np.abs((found[1] / scale) ** 2 - (std / scale) ** 2).max(initial=0.0)
    if not off <= unit:
        raise Wrong(f"std depends on the batch, {what}: {found[1]!r} for {std!r}")


def _rounding(gp: Any, new: np.ndarray) -> float:
    """Return the effect of rounding: with noise far below the prior variance, and on the phases of sampled waves."""
    model = gp.posterior_.model
    points = gp.posterior_.places()[:50]
    prior = float(model.kernel.diagonal(points.double()).max()) if len(points) else 1.0
    unit = np.finfo(np.float32 if str(gp.dtype) == "float32" else np.float64).eps
    found = float(64 * unit * gp.posterior_.n_rows * prior / float(model.noise_variance.min()))
    lengths = [float(v.min()) for name, v in model.kernel.parameters().items() if "length" in name or "period" in name]
    if gp.posterior_.kind in ("pathwise", "random features", "quadruply stochastic") and lengths:
        # A frequency of a hundred inverse lengthscales is drawn occasionally.
        farthest = float(np.abs(gp.scaling_.inputs(new)).max())
        found = max(found, 64 * unit * 100 * farthest / min(lengths))
    return found


def check_seeds(gp: Any, new: np.ndarray, std: np.ndarray) -> None:
    """Check that the same seed gives the same bits, and another seed another sample."""
    first, again, other = (gp.sample_y(new, 2, random_state=seed) for seed in (11, 11, 12))
    if not np.array_equal(first, again):
        raise Wrong("sample_y: the same seed gave other bits")
    size = np.abs(first).max() + np.abs(gp.scaling_.y_centre).max()
    if np.array_equal(first, other) and std.max() > 1e-6 * size:
        raise Wrong(f"sample_y ignores random_state: seeds 11 and 12 are identical ({gp.posterior_.kind})")


def _check_same(gp: Any, new: np.ndarray, mean: np.ndarray, std: np.ndarray, when: str) -> None:
    """Compare answers up to rounding, because the memory address of an array can affect the last bit of a product."""
    found = gp.predict(new, return_std=True)
    scale = float(np.abs(mean).max() + std.max()) or 1.0
    off = max(np.abs(found[0] - mean).max(), np.abs((found[1] / scale) ** 2 - (std / scale) ** 2).max() * scale)
    if off > (1e-4 if str(gp.dtype) == "float32" else 1e-10) * scale:
        raise Wrong(f"other answers {when}: {gp.posterior_.kind}, off by {off:.3g} of {scale:.3g}")
