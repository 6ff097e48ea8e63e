"""Codes and constants that Python, C++ and Triton share: each has the same table."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from engines import HAS_TRITON, NO_EXTENSION, NO_TRITON
from gigagp.kernels import distances
from gigagp.kernels.fused import Profile
from gigagp.operators.grid.statistics.arguments import MAX_INPUTS
from gigagp.operators.grid.statistics.geometry import EDGE
from gigagp.operators.grid.statistics.gram import GROUP
from gigagp.products import NativeTiles
from gigagp.products.program import Operation
from gigagp.products.triton_packing import Method


@pytest.mark.skipif(not NativeTiles.available(), reason=NO_EXTENSION)
def test_the_compiled_extension_has_the_codes_of_python():
    """An extension that was built from other sources would take one profile for another: build it again."""
    native = import_module("gigagp.products._native")
    assert native.profiles == {profile.name: profile.value for profile in Profile}
    assert native.operations == {operation.name: operation.value for operation in Operation}
    assert native.constants["FARTHEST"] == distances.FARTHEST
    assert native.grid_constants == {"MAX_INPUTS": MAX_INPUTS, "EDGE": EDGE, "GROUP": GROUP}


@pytest.mark.skipif(not HAS_TRITON, reason=NO_TRITON)
def test_triton_has_the_codes_of_python():
    kernels = import_module("gigagp.products.triton_kernels")
    for codes in (Profile, Operation, Method):
        for code in codes:
            found = getattr(kernels, code.name, None)
            assert found is None or found.value == code.value, code
    assert [profile.name for profile in Profile if not hasattr(kernels, profile.name)] == []
    assert kernels.FARTHEST.value == distances.FARTHEST
    if NativeTiles.available():
        single, _ = import_module("gigagp.products._native").constants["NEAREST"]
        assert torch.tensor(kernels.NEAREST.value, dtype=torch.float32).item() == single
