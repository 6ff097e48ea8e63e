"""Fits to encoded tables here are of the plain kernel: a choice without time for other kernels is it to the bit."""

import pytest

from gigagp.estimators.choices import allowance


@pytest.fixture(autouse=True)
def _plain_kernel(monkeypatch):
    monkeypatch.setattr(allowance, "_SHARE_BESIDE", 0.0)
    monkeypatch.setattr(allowance, "_LEAST_BESIDE", 0.0)
