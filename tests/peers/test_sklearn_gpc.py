"""scikit-learn's tests of `GaussianProcessClassifier`, run against `GPClassifier`."""

import pytest

from peers.differences import CLASSIFIER
from peers.sklearn_adapter import GaussianProcessClassifier
from peers.upstream import collected

TESTS = collected("sklearn.gaussian_process.tests.test_gpc", GaussianProcessClassifier=GaussianProcessClassifier)
globals().update(TESTS)


@pytest.fixture
def global_random_seed():
    """Return what scikit-learn's own configuration gives."""
    return 42


def test_the_list_names_tests_that_there_are():
    assert {name.partition("[")[0] for name in CLASSIFIER} <= set(TESTS)
    assert len(TESTS) > 10
