"""One thread for each parallel process, set before torch is imported; the cases of pairs of settings."""

from __future__ import annotations

import os
import signal

import pytest

from pairs import mark_full

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Shells start background jobs with SIGINT ignored, and processes started by tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_full(items)
