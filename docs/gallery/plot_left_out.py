"""
A row that does not belong
==========================

Each row is predicted from all others, without another fit. A typing error stands out: it is many standard deviations
away from its prediction, and the fit warns about it.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0, 10, size=(80, 1)), axis=0)
y = 20 + 3 * np.sin(X[:, 0]) + 0.3 * rng.normal(size=80)
y[25] -= 2.5  # a typing error

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    gp = GPRegressor(kernels.Matern(nu=2.5)).fit(X, y)
print(warned[0].message)

left_out = gp.leave_one_out()
z = (y - left_out.mean) / left_out.std
far = np.abs(z) > 3

# %%
# Left: the data and the fit. Right: leave-one-out errors in standard deviations. Of eighty rows, about one is expected
# outside the grey band of 2.5; the typing error is far outside.
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.errorbar(X[:, 0], left_out.mean, 2 * left_out.std, fmt=".", color="0.7", label="predicted from the others")
left.plot(X[~far], y[~far], ".", color="tab:blue", label="measured")
left.plot(X[far], y[far], "X", color="tab:red", markersize=8, label="does not belong")
left.set(xlabel="x", ylabel="y")
left.legend(fontsize="small")
right.axhspan(-2.5, 2.5, color="0.92")
right.vlines(np.arange(80), 0, z, color=np.where(far, "tab:red", "tab:blue"))
right.set(xlabel="row", ylabel="error / std")

# %%
print("row that does not belong:", np.flatnonzero(far))
