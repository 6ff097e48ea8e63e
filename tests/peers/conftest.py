"""What of scikit-learn's tests is expected to fail: the written differences, strictly."""

from __future__ import annotations

import pytest
import sklearn

from peers.differences import CLASSIFIER, REGRESSOR, VERSION

LISTS = {"test_sklearn_gpr": REGRESSOR, "test_sklearn_gpc": CLASSIFIER}


def pytest_collection_modifyitems(items):
    """Mark what is listed; skip all with another version of scikit-learn, whose tests are others."""
    for item in items:
        module = item.path.stem
        if item.path.parent.name != "peers" or module not in LISTS:
            continue
        if not sklearn.__version__.startswith(f"{VERSION}."):
            item.add_marker(pytest.mark.skip(reason=f"the differences are written for scikit-learn {VERSION}"))
            continue
        reason = LISTS[module].get(item.name, LISTS[module].get(item.originalname))
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
