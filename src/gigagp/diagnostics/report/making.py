"""`gigagp.report`: a fitted model and its predictions of test rows on one page."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from gigagp import __version__
from gigagp.classification import GPClassifier
from gigagp.diagnostics.report.assessment import Assessment, about_the_fit, of_classes, of_regression, repeated_rows
from gigagp.diagnostics.report.illustrations import of_the_function, of_the_history
from gigagp.diagnostics.report.page import Picture, page, picture
from gigagp.errors import GigaGPWarning, InvalidInputError
from gigagp.estimators import metrics
from gigagp.estimators.description import facts, hyperparameters
from gigagp.plots.checks import calibration, residuals
from gigagp.plots.classes import draw_confusion, draw_reliability
from gigagp.plots.measured import predicted
from gigagp.plots.view import Rows, View
from gigagp.regression import GPRegressor
from gigagp.settings.fields import CountOrZero, checks_arguments
from gigagp.storage.figures import require_matplotlib
from gigagp.storage.files import check_folder, replacing
from gigagp.tables.beside import Beside
from gigagp.tables.encoding import fitted_encoder


@checks_arguments
def report(
    model: Any,
    X: Any,
    y: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    label: str | None = None,
    target: CountOrZero | None = None,
    title: str | None = None,
    exposure: Any = None,
) -> str:
    """Describe a fitted model and its predictions of test rows on one HTML page.

    When to use: to see, or to show others, what was fitted, how good it is, and what to be careful about. The page has
    a description in words, scores, the function, residuals, calibration, relevance of the inputs, the course of the
    learning, and the hyperparameters in both units. It is one file that needs no network and no scripts, and can be
    read on a phone and printed.

    Parameters
    ----------
    model : GPRegressor or GPClassifier
        A fitted model.
    X : array-like of shape (m, d)
        Inputs of test rows, which the fit has not seen.
    y : array-like of shape (m,) or (m, n_targets)
        Their targets, or labels of classes.
    path : str or path, optional
        File of the page, ``.html``, written atomically. None: the page is only returned.
    label : str, optional
        Name of the target, with its unit.
    target : int, optional
        Number of the target, from 0, if there are several. None: the first one. Of a classifier with more than two
        classes, it is the class whose probability is drawn. None: all classes where there are one or two inputs.
    title : str, optional
        Heading of the page.
    exposure : array-like of shape (m,), float or None, default None
        That of the test rows, as in `GPRegressor.predict`. Pictures of the function show targets over exposure.

    Returns
    -------
    str
        The page.

    Raises
    ------
    InvalidInputError
        If matplotlib is not installed (``pip install "gigagp[plot]"``), the file cannot be written, the model is not
        fitted, or the rows do not suit it. Raised before any picture is drawn.
    """
    require_matplotlib()
    if path is not None:
        if Path(path).suffix.lower() not in (".html", ".htm"):
            raise InvalidInputError(f"a report must be a file that ends in .html; got {os.fspath(path)}.")
        check_folder(path)
    if not isinstance(model, GPRegressor | GPClassifier):
        msg = f"model of report must be a fitted GPRegressor or GPClassifier; got {type(model).__name__}."
        raise InvalidInputError(msg)
    view = View(model, 0 if target is None else target)
    every = target is None and len(view.classes) > 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        content = _content(view, X, y, label, title, exposure, every=every)
        remarks = list(dict.fromkeys(str(one.message) for one in caught if issubclass(one.category, GigaGPWarning)))
    for one in caught:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    content["assessment"].cautions.extend(remarks)
    found = page(**content)
    if path is not None:
        with replacing(path) as file:
            file.write(found.encode())
    return found


def _content(
    view: View, X: Any, y: Any, label: str | None, title: str | None, exposure: Any, *, every: bool
) -> dict[str, Any]:
    """Return what the page shows."""
    rows, regressor = view.given(X, y), view.regressor
    if exposure is not None:
        effort = Beside.of(view.regressor.likelihood_, len(rows.y), exposure).exposure()
        assert effort is not None
        rows = rows._replace(y=rows.y / effort.numpy())
    if isinstance(view.model, GPClassifier):
        assessment, errors = _classes(view, X, rows)
        called = label or "class"
    else:
        assessment, errors = _errors(view, X, y, rows, label, exposure)
        called = label or "target"
    numbers, hidden = hyperparameters(regressor, view.names)
    encoder = fitted_encoder(regressor)
    inputs = _counted(len(view.columns), "input")
    return {
        "title": title or f"Gaussian process for {called}",
        "lead": f"{regressor.posterior_.n_rows:,} rows, {inputs}, {len(rows.y):,} test rows",
        "fitted": _what_was_fitted(view, called),
        "assessment": assessment,
        "errors": errors,
        "function": of_the_function(view, X, rows, label, every=every),
        "learning": of_the_history(view),
        "hyperparameters": [
            (one.label, f"{one.standardized:.4g}", "not known" if one.own is None else f"{one.own:.4g}")
            for one in numbers
        ],
        "hidden": [f"{count} more of {name}" for name, count in hidden.items()],
        "facts": facts(regressor),
        "columns": [] if encoder is None else [(column.label, column.describe()) for column in encoder.columns],
        "version": __version__,
    }


def _what_was_fitted(view: View, called: str) -> list[str]:
    regressor = view.regressor
    names = [axis.name for axis in view.columns]
    listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    kind = "classifier" if view.is_classifier else "regression"
    learned = len(regressor.history_)
    seconds = f" in {regressor.history_[-1].seconds:.3g} seconds" if learned else ""
    steps = f"Its hyperparameters were learned{seconds}, by {_counted(learned, 'step')}." if learned else ""
    inference = type(regressor.inference_).__name__
    return [
        f"A Gaussian-process {kind} predicts {called} from {_counted(len(names), 'input')}: {listed}.",
        f"It was fitted to {regressor.posterior_.n_rows:,} rows with inference.{inference}.",
        steps,
    ]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _errors(
    view: View, X: Any, y: Any, rows: Rows, label: str | None, exposure: Any
) -> tuple[Assessment, list[Picture]]:
    """Return the assessment of predictions of numbers, and its pictures."""
    repeated = repeated_rows(view, rows)
    if not view.noise_is_known:
        value = f"{metrics.rmse(rows.y, view.mean(rows.X)):.4g}"
        found = Assessment(
            summary=[f"On {len(rows.y):,} test rows predictions miss by {value} (root mean square error)."],
            scores=[("RMSE", value, "error of the mean, in the target's units")],
            cautions=[
                "The error bars are not checked: the noise of new rows is not known, because the noise of each row of "
                "the fit was given."
            ],
        )
        found.cautions += [*([repeated] if repeated else []), *about_the_fit(view)]
        return found, []
    measured = predicted(view.model, X, y, target=view.target, exposure=exposure)
    assessment = of_regression(view, measured)
    if repeated:
        assessment.cautions.insert(0, repeated)
    inside = 100 * measured.share_inside(0.95)
    pictures = [
        picture(
            lambda ax: residuals(view.model, ax=ax, label=label, found=measured),
            f"Scatter of measured minus predicted {label or 'target'} of {measured.n:,} rows, against predictions.",
            "Residuals of the test rows. Orange points are means over groups with two standard errors; a trend in them "
            "is what the model has missed.",
        ),
        picture(
            lambda ax: calibration(view.model, ax=ax, found=measured),
            f"Curve of the share of test rows inside central intervals against their probability; {inside:.1f} "
            "percent are inside the 95 percent interval.",
            "Calibration. Inside the grey band, the curve differs from the diagonal by no more than chance.",
            height=4.8,
        ),
    ]
    return assessment, pictures


def _classes(view: View, X: Any, rows: Rows) -> tuple[Assessment, list[Picture]]:
    """Return the assessment of probabilities of classes, and its pictures."""
    codes = rows.y
    probability = view.model.predict_proba(X)
    assessment = of_classes(view, view.model.classes_, codes, probability)
    classes = view.classes
    stated = f"of {classes[1]}" if len(classes) == 2 else "of the predicted class"
    found = [
        picture(
            lambda ax: draw_confusion(ax, classes, codes, probability),
            "Table of the numbers of test rows by true and predicted class.",
            "True and predicted classes of the test rows; percentages are of the rows of a true class.",
            height=4.6,
        ),
        picture(
            lambda ax: draw_reliability(ax, classes, codes, probability),
            f"Share of rows {stated} against its predicted probability, in groups.",
            "Calibration of the probabilities. Bars are what chance allows in each group of test rows.",
            height=4.8,
        ),
    ]
    return assessment, found
