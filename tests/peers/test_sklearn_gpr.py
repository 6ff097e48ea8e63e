"""scikit-learn's tests of `GaussianProcessRegressor`, run against `GPRegressor`."""

from peers.differences import REGRESSOR
from peers.sklearn_adapter import GaussianProcessRegressor
from peers.upstream import collected

TESTS = collected("sklearn.gaussian_process.tests.test_gpr", GaussianProcessRegressor=GaussianProcessRegressor)
globals().update(TESTS)


def test_the_list_names_tests_that_there_are():
    assert {name.partition("[")[0] for name in REGRESSOR} <= set(TESTS)
    assert len(TESTS) > 30
