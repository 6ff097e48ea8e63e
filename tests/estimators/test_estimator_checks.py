"""scikit-learn's own checks of the estimator contract."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from gigagp import GPRegressor, inference, kernels

ESTIMATORS = [
    GPRegressor(),
    GPRegressor(kernels.Matern(nu=1.5), inference=inference.Iterative(n_samples=16), mean="linear"),
    GPRegressor(inference=inference.Vecchia(5, 8), optimizer=None),  # with partial_fit
    GPRegressor(kernels.Matern(nu=1.5), encode="auto"),
    # a kernel with values: checks hash it before and after a fit
    GPRegressor(kernel=kernels.RBF(1.0) + kernels.White(0.1), optimizer=None, standardize=False),
]


@pytest.mark.few(15)
@pytest.mark.filterwarnings("ignore::gigagp.errors.EncodingWarning")  # some tables have constant columns
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_contract(estimator, check):
    check(estimator)
