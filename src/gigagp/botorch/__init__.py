"""Fitted regressors as models of BoTorch, for Bayesian optimization; the extra ``botorch`` installs it.

Example
-------
::

    from gigagp.botorch import GigaModel

    model = GigaModel(gp)  # a fitted gigagp.GPRegressor
    acquisition = qLogExpectedImprovement(model, best_f=y.max())
    candidates, value = optimize_acqf(acquisition, bounds, q=4, num_restarts=10, raw_samples=256)
"""

from gigagp.botorch.model import GigaModel
from gigagp.botorch.paths import GigaPaths
from gigagp.botorch.posterior import GigaPosterior

__all__ = ["GigaModel", "GigaPaths", "GigaPosterior"]
