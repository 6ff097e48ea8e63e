"""Fuzzed labels for `GPClassifier`."""

from __future__ import annotations

from typing import Any

import numpy as np

from stress.draw import Draw
from stress.drawn.rows import Rows, draw_rows
from stress.outcome import RIGHT, Wrong
from stress.scratch import scratch


def run(draw: Draw) -> str:
    """Run one case of the tables' area."""
    from gigagp import GPClassifier, inference, kernels

    rows = draw_rows(draw, most=40)
    labels = draw_labels(draw, rows)
    settings = {
        "kernel": draw.one_of([None, kernels.Matern(nu=1.5), kernels.RBF(ard=False)]),
        "inference": draw.one_of(["auto", inference.QuadruplyStochastic(n_basis=20), inference.Vecchia(8)]),
        "optimizer": draw.weighted({None: 0.8, "auto": 0.2}),
        "likelihood": draw.one_of(["logistic", "probit"]),
        "standardize": draw.chance(0.9),
    }
    draw.note(f"GPClassifier {settings}, labels {str(labels)[:80]}")
    classifier = GPClassifier(**settings).fit(rows.X, labels)
    if not rows.is_finite and not np.isfinite(rows.X).all():
        raise Wrong("accepted what has no meaning: a cell is not finite")
    check_classifier(classifier, rows.X, labels, draw)
    return RIGHT


def draw_labels(draw: Draw, rows: Rows) -> Any:
    """Return class labels of a random kind for rows."""
    n = len(rows.X)
    n_classes = draw.weighted({1: 0.05, 2: 0.6, 3: 0.25, 5: 0.1})
    with np.errstate(all="ignore"):
        score = np.nan_to_num(np.asarray(rows.y, dtype=float).reshape(n, -1)[:, 0] if n else np.zeros(0))
    codes = np.argsort(np.argsort(score)) * n_classes // max(n, 1)
    kind = draw.one_of(["int", "text", "bool", "float", "object", "mixed", "missing", "bytes", "dates", "continuous"])
    draw.note(f"labels: {kind}, {n_classes} classes")
    if kind == "text":
        return np.array(["a", "b", "ü", "", "x y"])[codes]
    if kind == "bool":
        return codes > 0
    if kind == "float":
        return codes.astype(float)
    if kind == "object":
        return np.array(["p", "q", "r", "s", "t"], dtype=object)[codes]
    if kind == "mixed":
        return np.array([1, "b", 2.5, "d", "e"], dtype=object)[codes]
    if kind == "missing":
        return np.array([None, "b", float("nan"), "d", "e"], dtype=object)[codes]
    if kind == "bytes":
        return np.array([b"a", b"b", b"c", b"d", b"e"])[codes]
    if kind == "dates":
        return np.datetime64("2024-01-01") + codes
    return score if kind == "continuous" else codes * 7 - 3


def check_classifier(classifier: Any, X: np.ndarray, labels: Any, draw: Draw) -> None:
    """Raise `Wrong` unless probabilities are valid and agree with the classes."""
    new = X[draw.rng.integers(0, len(X), draw.whole(1, 5))]
    probability = classifier.predict_proba(new)
    classes = list(classifier.classes_)
    if probability.shape != (len(new), len(classes)):
        raise Wrong(f"shape: probabilities {probability.shape} for {len(classes)} classes")
    if not (np.isfinite(probability).all() and (probability >= 0).all() and (probability <= 1 + 1e-12).all()):
        raise Wrong(f"probabilities outside of [0, 1]: {probability!r}")
    if np.abs(probability.sum(1) - 1).max() > 1e-9:
        raise Wrong(f"probabilities do not add up to 1: {probability.sum(1)!r}")
    known = set(np.asarray(labels).tolist())
    predicted = classifier.predict(new)
    if not all(one in known for one in np.asarray(predicted).tolist()):
        raise Wrong(f"predicted a class that was never given: {predicted!r}")
    decision = classifier.decision_function(new)
    if len(classes) == 2 and np.any((decision > 1e-9) & (probability[:, 1] < 0.5 - 1e-9)):
        raise Wrong("decision_function and predict_proba disagree")
    order = draw.rng.permutation(len(new))
    if np.abs(classifier.predict_proba(new[order]) - probability[order]).max() > 1e-7:
        raise Wrong("probabilities depend on the batch")
    if draw.chance(0.3) and len(new) > 1:
        far = np.concatenate([new, np.full((1, X.shape[1]), draw.one_of([1e4, 1e10, 1e300]))])
        try:
            found = classifier.predict_proba(far)[:-1]
        except ValueError:
            return
        if np.abs(found - probability).max() > 1e-6:
            raise Wrong("probabilities depend on a far row in the batch")
    if draw.chance(0.15):
        import gigagp
        from gigagp.errors import InvalidInputError

        with scratch() as folder:
            try:
                classifier.save(folder / "model.gp")
            except InvalidInputError:
                return
            again = gigagp.load(folder / "model.gp")
            if not np.array_equal(again.predict_proba(new), probability):
                raise Wrong("other probabilities after save and load")
            if again.classes_.tolist() != classifier.classes_.tolist():
                raise Wrong("other classes after save and load")
