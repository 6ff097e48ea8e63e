"""
Noise that varies with the input
================================

An instrument is ten times as precise in one half of its range as in the other. With one noise variance the band is too
wide on the left and too narrow on the right. ``noise="auto"`` detects this from leave-one-out errors.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0, 10, size=(250, 1)), axis=0)
y = np.sin(X[:, 0]) + np.where(X[:, 0] > 5, 0.6, 0.06) * rng.normal(size=250)

fits = {noise: GPRegressor(kernels.Matern(nu=2.5), noise=noise).fit(X, y) for noise in ("constant", "auto")}

# %%
# The bands should contain 95 % of new measurements. Only the one that varies does so on both sides.
x = np.linspace(0, 10, 400)[:, None]
fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
for ax, (noise, gp) in zip(axes, fits.items(), strict=True):
    low, high = gp.predict_quantile(x, [0.025, 0.975], include_noise=True).T
    ax.fill_between(x[:, 0], low, high, alpha=0.3, label="95 % of new measurements")
    ax.plot(x[:, 0], gp.predict(x), label="mean")
    ax.plot(X[:, 0], y, ".", markersize=3, color="black", label="measurements")
    ax.set(title=f'noise="{noise}"', xlabel="x")
axes[0].legend(loc="upper left", fontsize="small")

# %%
# What was tried, and how much it gained:
print(fits["auto"].describe().splitlines()[1])
