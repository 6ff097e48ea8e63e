"""
Uncertain hyperparameters
=========================

From fifteen rows one cannot tell whether a function is smooth and noisy or rough and noise-free. A fit at the most
likely hyperparameters assumes one of the two. By default, small fits average over the uncertainty of the
hyperparameters.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(3)
X = np.sort(rng.uniform(0, 10, size=(15, 1)), axis=0)
y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=15)
grid = np.linspace(0, 10, 300)[:, None]

# %%
# Left: predictions at the learned hyperparameters, as if these were known. Right: the default, with wider bands.
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, how in zip(axes, ("learned", "laplace"), strict=True):
    gp = GPRegressor(kernels.Matern(nu=1.5), hyperparameters=how).fit(X, y)
    low, high = gp.predict_quantile(grid, [0.025, 0.975], include_noise=False).T
    ax.fill_between(grid[:, 0], low, high, alpha=0.25, linewidth=0, label="95 % of the function")
    ax.plot(grid[:, 0], gp.predict(grid), label="mean")
    ax.plot(grid[:, 0], np.sin(grid[:, 0]), "--", color="black", linewidth=1, label="truth")
    ax.plot(X, y, "o", markersize=4, color="black")
    ax.set(title=f'hyperparameters="{how}"', xlabel="x")
axes[0].legend(loc="lower left", fontsize="small")
