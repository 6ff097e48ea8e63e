"""
The history of a fit
====================

A fitted model keeps a record of each step of the optimizer, and can draw it.

The data are scikit-learn's ``make_friedman1``: ten inputs, of which the last five have no influence.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_friedman1

from gigagp import GPRegressor, inference, optimization

X, y = make_friedman1(n_samples=600, noise=1.0, random_state=0)

# %%
# Rows passed as ``validation`` are scored at each step; nothing is learned from them.

gp = GPRegressor(inference=inference.Exact(), optimizer=optimization.Adam(learning_rate=0.1, steps=60))
gp.fit(X[:400], y[:400], validation=(X[400:], y[400:]))

# %%
# Top: each hyperparameter divided by its final value, so that all lines end at one. A line that has become flat has
# converged. Bottom: the error on the validation rows, in units of the target.

figure, (upper, lower) = plt.subplots(2, 1, figsize=(6.4, 8), layout="constrained")
gp.history_.plot(ax=upper)
gp.history_.plot("validation", ax=lower)
plt.show()
