"""One thread for each parallel process, set before torch is imported; cases and random numbers whatever the order."""

from __future__ import annotations

import os
import signal
import zlib
from typing import Any

import pytest

from pairs import mark_cases

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Shells start background jobs with SIGINT ignored, and processes started by tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_cases(items)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    seed_generators(getattr(request, "module", None), fixturedef.argname)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    seed_generators(pyfuncitem.module, pyfuncitem.nodeid)


def seed_generators(module: Any, name: str) -> None:
    """Seed the generators among a module's variables by the name of what draws from them next.

    What a test draws then does not depend on the tests before it.
    """
    import numpy as np
    import torch

    seed = zlib.crc32(name.encode())
    for value in vars(module).values() if module is not None else ():
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = type(value.bit_generator)(seed).state
        elif isinstance(value, torch.Generator):
            value.manual_seed(seed)
