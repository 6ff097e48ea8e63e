"""The contract includes every inference method, and every family has its test file."""

from __future__ import annotations

from pathlib import Path

from contract.problems import problem
from contract.systems import SYSTEMS
from gigagp import inference


def test_every_inference_is_under_the_contract():
    cell = problem(0, "one", "zero", "one", "float64")
    under = {type(system.make(cell)).__name__ for system in SYSTEMS}
    assert under == {kind.__name__ for kind in inference.registered().values()}


def test_every_family_has_its_file():
    files = "".join(path.read_text() for path in Path(__file__).parent.glob("test_gaussian_*.py"))
    for system in SYSTEMS:
        assert f'"{system.name.split(",")[0]}"' in files
