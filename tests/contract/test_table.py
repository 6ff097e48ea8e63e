"""The contract includes every inference method."""

from __future__ import annotations

from contract.problems import problem
from contract.systems import SYSTEMS
from gigagp import inference


def test_every_inference_is_under_the_contract():
    cell = problem(0, "one", "zero", "one", "float64")
    under = {type(system.make(cell)).__name__ for system in SYSTEMS}
    under.add("Markov")  # of one input alone: tests/inference/test_markov.py holds it to the same answers
    under.add("Curves")  # of panels alone: tests/inference/test_curves.py
    assert under == {kind.__name__ for kind in inference.registered().values()}
