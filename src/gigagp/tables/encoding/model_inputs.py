"""The inputs of an estimator, encoded where it asks for that."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError

from gigagp.errors import InvalidInputError
from gigagp.tables import intake
from gigagp.tables.encoding.encoder import Panel, TableEncoder


def model_inputs(
    estimator: Any, X: Any, *, reset: bool, min_rows: int = 1, opens: bool = False, grows: bool = False
) -> np.ndarray:
    """Return the inputs of an estimator's `fit` (``reset``) or of its predictions, float64 of shape (n, n_encoded).

    A fit with ``encode="auto"`` or a ``panel`` sets ``encoder_``, which later tables go through. Number and names of
    the columns are checked as by `gigagp.tables.intake.estimator_inputs`, and are those of the table before it is
    encoded. With ``opens``, some missing cells are NaN (`TableEncoder.transform`). With ``grows``, the estimator's
    encoder knows the new entities of a panel from then on.
    """
    if reset:
        estimator.__dict__.pop("encoder_", None)  # of an earlier fit
    encoder, panel = fitted_encoder(estimator), _panel(estimator) if reset else None
    if encoder is None and not (reset and (estimator.encode == "auto" or panel is not None)):
        return intake.estimator_inputs(estimator, X, reset=reset, min_rows=min_rows)
    X = intake.without_levels(X)
    intake.check_features(estimator, X, reset=reset, min_rows=min_rows)
    budget = estimator.memory_budget if reset else estimator._arguments["memory_budget"]
    if encoder is None:
        encoder = estimator.encoder_ = TableEncoder.fit(X, memory_budget=budget, panel=panel)
    if grows:
        encoder = estimator.encoder_ = encoder.grown(X)
    return encoder.transform(X, memory_budget=budget, opens=opens)


def _panel(estimator: Any) -> Panel | None:
    """Return the columns of entity and time of an estimator that may have them; a classifier has none."""
    found: Panel | None = getattr(estimator, "panel", None)
    return found


def fitted_encoder(estimator: Any) -> TableEncoder | None:
    """Return the encoder of a fitted estimator; None if it has none."""
    found: TableEncoder | None = getattr(estimator, "encoder_", None)
    return found


def scaled_inputs(estimator: Any) -> np.ndarray | None:
    """Return which encoded columns are standardized, shape (n_encoded,); None for all."""
    encoder = fitted_encoder(estimator)
    return None if encoder is None else encoder.is_scaled


def encoded_validation(encoder: TableEncoder | None, validation: Any) -> Any:
    """Return validation rows with their inputs encoded; anything else than a pair is left for its own check."""
    if encoder is None or not isinstance(validation, tuple | list) or len(validation) != 2:
        return validation
    return encoder.transform(validation[0], "validation X"), validation[1]


def points_to_predict(estimator: Any, X: Any) -> np.ndarray | None:
    """Return the argument ``predict_at`` of a fit, which has set the encoder, as numbers (q, n_encoded), or None."""
    if X is None:
        return None
    encoder = fitted_encoder(estimator)
    X = X if encoder is None else intake.without_levels(X)
    intake.check_features(estimator, X, reset=False)
    return intake.inputs(X, "predict_at") if encoder is None else encoder.transform(X, "predict_at")


def refuse_before_fit(estimator: Any) -> None:
    """Raise `NotFittedError` if only a fit can say how the columns are encoded."""
    if estimator.encode == "auto" or _panel(estimator) is not None:
        given = 'encode="auto"' if _panel(estimator) is None else "a panel"
        raise NotFittedError(
            f"This {type(estimator).__name__} with {given} is not fitted yet. Call fit first, which decides how the "
            "columns are encoded."
        )


def refuse_streams(estimator: Any) -> None:
    """Raise `InvalidInputError` if rows that are read in chunks were to be encoded."""
    if _panel(estimator) is not None:
        raise InvalidInputError("panel of GPRegressor must be None for fit_table, which reads numbers only. Use fit.")
    if estimator.encode != "strict":
        raise InvalidInputError(
            'encode of GPRegressor and GPClassifier must be "strict" for fit_table, which reads numbers only; got '
            f"{estimator.encode!r}. Use fit for tables with text, dates or missing cells, or turn them into numbers."
        )
