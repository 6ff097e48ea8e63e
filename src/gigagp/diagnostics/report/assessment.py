"""How good predictions of test rows are, and what to be careful about, in numbers and words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gigagp.estimators import metrics
from gigagp.estimators.description import at_bounds
from gigagp.plots.checks import chance_band
from gigagp.plots.measured import Predicted
from gigagp.plots.view import Rows, View

#: Levels of the intervals that a report checks.
_LEVELS = (0.5, 0.95)
#: Standardized errors beyond which a row is remarkable, and standard errors beyond which an average is.
_FAR, _BEYOND_CHANCE = 5.0, 4.0
_FEW_ROWS = 50
#: Probability of what is called chance: of sound models, few are told that their error bars are wrong.
_SURE = 0.99


@dataclass
class Assessment:
    """What a report says about predictions.

    ``summary`` and ``cautions``, what to be careful about, are sentences. A score has a name, a value and a meaning.
    """

    summary: list[str] = field(default_factory=list)
    scores: list[tuple[str, str, str]] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)


def of_regression(view: View, found: Predicted) -> Assessment:
    """Return the assessment of predictions of measurements."""
    result = Assessment()
    error = found.y - found.mean
    rmse, spread = metrics.rmse(found.y, found.mean), float(found.y.std())
    rmse_error = float(np.std(error**2, ddof=1)) / np.sqrt(found.n) / (2 * rmse) if found.n > 1 and rmse > 0 else 0.0
    explained = 1 - (rmse / spread) ** 2 if spread > 0 else float("nan")
    nll, nll_error = -float(found.log_density.mean()), float(found.log_density.std()) / np.sqrt(found.n)
    rows = f"{found.n:,} test row{'s' * (found.n != 1)}"
    share = f", which explains {_percent(explained)} of their variance" if explained > 0 else ""
    against = f" Always predicting the mean of these rows would miss by {spread:.4g}." if found.n > 1 else ""
    result.summary.append(f"On {rows} predictions miss by {rmse:.4g} (root mean square error){share}.{against}")
    result.scores = [
        ("RMSE", f"{rmse:.4g} ± {rmse_error:.2g}", "error of the mean, in the target's units"),
        ("R²", f"{explained:.4g}", "share of the test rows' variance that is explained; 1 is best"),
        ("NLL", f"{nll:.4g} ± {nll_error:.2g}", "negative log density in nats per row; lower is better"),
    ]
    sides = {}
    for level in _LEVELS:
        inside = found.share_inside(level)
        low, high = (float(end[0]) for end in chance_band(found.n, np.array([level]), _SURE))
        sides[level] = "" if low <= inside <= high else "too narrow" if inside < low else "too wide"
        expected = f"by chance {_percent(low)} to {_percent(high)} in 99 of 100 cases"
        meaning = f"test rows inside their {100 * level:.0f} % interval; {expected}"
        result.scores.append((f"inside {100 * level:.0f} %", _percent(inside), meaning))
    verdict = f"these intervals are {sides[level]}" if sides[level] else "this agrees with 95 %"
    result.summary.append(f"{_percent(inside)} of the rows lie inside their 95 % interval ({expected}): {verdict}.")
    result.cautions += _about_intervals(view, found, sides)
    result.cautions += _about_errors(view, found, error, explained)
    result.cautions += about_the_fit(view)
    return result


def _about_intervals(view: View, found: Predicted, sides: dict[float, str]) -> list[str]:
    """Return a caution if intervals contain more or fewer rows than chance allows."""
    wrong = [level for level in _LEVELS if sides[level]]
    if not wrong:
        return []
    shares = " and ".join(f"intervals of {100 * k:.0f} % contain {_percent(found.share_inside(k))}" for k in wrong)
    kinds = {sides[level] for level in wrong}
    advice = {
        "too narrow": "Predictions are less certain than they say.",
        "too wide": "Predictions are more certain than they say.",
    }
    if len(kinds) == 1:
        return [f"Error bars are {kinds.pop()}: {shares} of the test rows. {advice[sides[wrong[0]]]}"]
    found_is = f"The errors are not spread as predicted: {shares} of the test rows."
    if sides[_LEVELS[0]] == "too narrow":
        return [f"{found_is} Few errors are small, and few are large."]
    remedy = ', which likelihood="student-t" or a target_transform may describe' if view.adds_noise else ""
    return [f"{found_is} Most errors are small and some are large{remedy}."]


def _about_errors(view: View, found: Predicted, error: np.ndarray, explained: float) -> list[str]:
    cautions = []
    if found.n < _FEW_ROWS:
        cautions.append(f"There are only {found.n} test rows: all scores are rough.")
    if explained < 0.1:
        cautions.append("Little of the target is explained: the inputs may not tell it, or the kernel may not suit.")
    if found.n > 1:
        bias, chance = float(error.mean()), float(error.std(ddof=1)) / np.sqrt(found.n)
        if abs(bias) > _BEYOND_CHANCE * chance > 0:
            side = "low" if bias > 0 else "high"
            cautions.append(
                f"Predictions are too {side} by {abs(bias):.3g} on average (standard error {chance:.2g}): "
                "the test rows may differ from the training rows."
            )
    far = int((np.abs(error) > _FAR * found.std).sum())
    if far:
        remedy = ', or fit with likelihood="student-t"' if view.adds_noise else ""
        cautions.append(
            f"{far:,} of {found.n:,} test rows are more than {_FAR:.0f} predicted standard deviations off, more "
            f"than chance explains: look at these rows{remedy}."
        )
    if found.outside > 0:
        cautions.append(
            f"{_percent(found.outside)} of the test rows have an input outside the range of the fit. "
            "Predictions there extrapolate."
        )
    return cautions


def repeated_rows(view: View, rows: Rows) -> str | None:
    """Return a caution if test rows are training rows, whose scores are too good."""
    if view.rows is None:
        return None
    scale = view.regressor.scaling_.x_scale, float(view.regressor.scaling_.y_scale[view.place])
    known = {_key(x, y) for x, y in _rounded(view.rows, *scale)}
    count = sum(_key(x, y) in known for x, y in _rounded(rows, *scale))
    if not count:
        return None
    return (
        f"{count:,} of {len(rows.y):,} test rows equal training rows, in inputs and target. "
        "Scores of rows that a model has seen are too good."
    )


def _rounded(rows: Rows, x_scale: np.ndarray, y_scale: float) -> Any:
    """Yield rows in steps of a billionth of the scales: those of the fit have been scaled and scaled back."""
    with np.errstate(all="ignore"):
        X, y = np.round(rows.X / x_scale * 1e9) + 0.0, np.round(rows.y / y_scale * 1e7) + 0.0
    return zip(X, y, strict=True)


def _key(x: np.ndarray, y: np.float64) -> bytes:
    return x.tobytes() + y.tobytes()


def about_the_fit(view: View) -> list[str]:
    """Return what to be careful about in the fit itself."""
    regressor, cautions = view.regressor, []
    bounds = at_bounds(regressor.posterior_.model)
    if bounds:
        cautions.append(
            f"These hyperparameters ended at a bound: {', '.join(bounds[:6])}. The best values may lie beyond it."
        )
    ended = {
        "learning": "Ctrl-C ended the learning: hyperparameters are the best so far.",
        "time budget": "The time budget ended the learning: hyperparameters are the best so far.",
        "last solve": "Ctrl-C was pressed in the last solve, which was completed.",
    }
    if regressor.history_.interrupted:
        cautions.append(ended[regressor.history_.interrupted])
    final = regressor.posterior_.final_solve
    if final is not None and final.status.lower() != "converged":
        cautions.append(
            f"The last solve ended without reaching its tolerance ({final.status.lower()}), at a relative residual of "
            f"{final.relative_residual_targets:.2g}: predictions have an error that the error bars may not include."
        )
    if regressor.optimizer_ is None:
        cautions.append("Nothing was learned (optimizer=None): the hyperparameters are those that were given.")
    notes = regressor.posterior_.notes()
    if "drawn" in notes:
        cautions.append(f"Part of the rows was used: {notes['drawn']}.")
    return cautions


def of_classes(view: View, classes: np.ndarray, codes: np.ndarray, probability: np.ndarray) -> Assessment:
    """Return the assessment of predicted probabilities of classes."""
    n = len(codes)
    right = probability.argmax(1) == codes
    accuracy = float(right.mean())
    counts = np.bincount(codes, minlength=len(classes))
    usual = float(counts.max() / n)
    losses = -np.log(np.maximum(probability[np.arange(n), codes], np.finfo(float).tiny))
    confidence = float(probability.max(1).mean())
    error = float(np.sqrt(accuracy * (1 - accuracy) / n))
    result = Assessment()
    result.summary = [
        f"Of {n:,} test rows {_percent(accuracy)} get the right class. Always predicting the most frequent class "
        f"would get {_percent(usual)}.",
        f"The predicted probability of the chosen class is {_percent(confidence)} on average.",
    ]
    result.scores = [
        ("accuracy", f"{_percent(accuracy)} ± {100 * error:.2g}", "rows whose most probable class is the true one"),
        (
            "log loss",
            f"{losses.mean():.4g} ± {losses.std() / np.sqrt(n):.2g}",
            "negative log probability of the true class, in nats per row; lower is better",
        ),
        (
            "calibration",
            f"{metrics.calibration_error(codes, probability):.4g}",
            "mean gap between confidence and accuracy, over ten bins",
        ),
    ]
    gap, chance = confidence - accuracy, float(np.sqrt(np.mean(probability.max(1) * (1 - probability.max(1))) / n))
    if abs(gap) > _BEYOND_CHANCE * chance:
        side = "too sure" if gap > 0 else "not sure enough"
        result.cautions.append(
            f"The model is {side}: its confidence is {_percent(confidence)} and its accuracy {_percent(accuracy)}."
        )
    if n < _FEW_ROWS:
        result.cautions.append(f"There are only {n} test rows: all scores are rough.")
    if accuracy <= usual:
        result.cautions.append("The predictions are no better than always predicting the most frequent class.")
    absent = [str(classes[k]) for k in np.flatnonzero(counts == 0)]
    if absent:
        result.cautions.append(f"No test row has the class {', '.join(absent[:5])}: it is not checked.")
    result.cautions += about_the_fit(view)
    return result


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
