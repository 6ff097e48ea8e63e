"""Conversion of words on the command line to inference objects."""

from __future__ import annotations

import pytest

from gigagp import gradients, inference, solvers
from gigagp.commands.diagnose import choose_method
from gigagp.errors import InvalidInputError
from gigagp.solvers.truncation import ExponentialDecay, SingleSample


def test_words_become_objects():
    assert choose_method("iterative") == inference.Iterative()
    assert choose_method("exact") == inference.Exact()
    assert choose_method("random-features", features=40) == inference.RandomFeatures(40)
    assert isinstance(choose_method("random-features", truncation="60,20").truncation, SingleSample)
    full = choose_method("iterative", solver="cg", max_epochs=7, preconditioner="none", gradient="hutchinson", probes=3)
    assert full.solver == solvers.ConjugateGradients(tolerance=1e-12, max_epochs=7, preconditioner=None)
    assert full.gradient == gradients.Hutchinson(n_probes=3)
    ranked = choose_method("iterative", preconditioner="5", tolerance=0.1, features=60)
    assert ranked.solver == solvers.ConjugateGradients(tolerance=0.1, preconditioner=solvers.PivotedCholesky(rank=5))
    assert ranked.gradient == gradients.Pathwise(n_probes=16, n_features=60)
    for word, kind in (
        ("ap", "AlternatingProjections"),
        ("sgd", "StochasticGradientDescent"),
        ("cholesky", "Cholesky"),
    ):
        assert type(choose_method("iterative", solver=word).solver).__name__ == kind
    truncated = choose_method("iterative", truncation="40,10", preconditioner="none", gradient="exact")
    assert isinstance(truncated.solver.truncation, ExponentialDecay)
    assert truncated.solver.preconditioner is None
    assert truncated.gradient == gradients.Exact()


@pytest.mark.parametrize(
    ("inferred", "words", "message"),
    [
        ("auto", {}, "--inference of diagnose must be"),
        ("variational", {}, "--inference must be one of"),
        ("exact", {"solver": "cg"}, "--solver does not apply to --inference exact"),
        ("random-features", {"probes": 3}, "--probes does not apply to --inference random-features"),
        ("exact", {"features": 10}, "--features does not apply to --inference exact"),
        ("random-features", {"truncation": "60,20", "features": 10}, "--features cannot be combined with --truncation"),
        ("random-features", {"features": 3}, "n_features of RandomFeatures must be an even int"),
        ("iterative", {"solver": "newton"}, "--solver must be one of auto, cg"),
        ("iterative", {"solver": "sgd", "truncation": "40"}, "--solver must be cg, got 'sgd'"),
        ("iterative", {"solver": "ap", "preconditioner": "5"}, "--preconditioner belongs to --solver cg"),
        ("iterative", {"preconditioner": "five"}, "--preconditioner must be auto, none or a rank; got 'five'"),
        ("iterative", {"solver": "cholesky", "tolerance": 0.1}, "--solver cholesky has no --max-epochs"),
        ("iterative", {"gradient": "newton"}, "--gradient must be one of auto, pathwise"),
        ("iterative", {"gradient": "hutchinson", "features": 10}, "--features belongs to --gradient pathwise"),
        ("iterative", {"gradient": "exact", "probes": 10}, "--gradient exact has no --probes"),
        ("iterative", {"max_epochs": -1.0}, "max_epochs of ConjugateGradients must be"),
    ],
)
def test_words_that_do_not_fit_are_refused(inferred, words, message):
    with pytest.raises(InvalidInputError, match=message):
        choose_method(inferred, **words)
