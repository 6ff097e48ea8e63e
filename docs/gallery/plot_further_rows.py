"""
Adding rows without another fit
===============================

``condition_on`` quickly adds rows to a fitted model: it keeps the hyperparameters and updates the posterior. Here a
sensor sends ten values a day.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(0)
X = np.linspace(0, 10, 101)[:, None]
y = np.sin(1.3 * X[:, 0]) + 0.1 * rng.normal(size=101)

gp = GPRegressor(kernels.Matern(nu=2.5)).fit(X[:50], y[:50])
states = {"five days": gp, "six days": gp.condition_on(X[50:60], y[50:60])}
states["eight days"] = states["six days"].condition_on(X[60:80], y[60:80])

# %%
# The same model with more and more rows. Each day the band becomes narrow where new values have arrived:
grid = np.linspace(0, 10, 300)[:, None]
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True, layout="constrained")
for ax, (name, model), seen in zip(axes, states.items(), (50, 60, 80), strict=True):
    mean, std = model.predict(grid, return_std=True)
    ax.fill_between(grid[:, 0], mean - 1.96 * std, mean + 1.96 * std, alpha=0.25, linewidth=0, label="95 %")
    ax.plot(grid[:, 0], mean, label="mean")
    ax.plot(X[:seen], y[:seen], ".", markersize=3, color="black", label="seen")
    ax.set(title=name, xlabel="day")
axes[0].legend(loc="upper right", fontsize="small")
