"""
Measurements of different precision
===================================

Forty readings come from a cheap sensor and eight from a precise one. If the noise variance of each row is known, a
precise reading has more weight, and the curve passes through it.

The data are simulated.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(0)
depth = np.concatenate([rng.uniform(0, 50, 40), np.linspace(3, 47, 8)])
error = np.concatenate([np.full(40, 1.0), np.full(8, 0.1)])  # standard deviations
grid = np.linspace(0, 50, 201)


def truth(depth):
    return 12 + 6 / (1 + np.exp((depth - 20) / 3)) + 0.8 * np.sin(depth / 4)


temperature = truth(depth) + error * rng.normal(size=48)

# %%
# Top: one learned variance; the curve misses precise readings. Bottom: ``noise_variance`` with the variance of each
# row.

figure, axes = plt.subplots(2, 1, figsize=(6.4, 6.6), sharex=True, sharey=True, layout="constrained")
for ax, known, title in zip(
    axes, [None, error**2], ["one learned variance", "the known variance of each row"], strict=True
):
    gp = GPRegressor(kernels.Matern(nu=2.5), noise_variance=known).fit(depth[:, None], temperature)
    mean, std = gp.predict(grid[:, None], return_std=True)
    ax.fill_between(grid, mean - 2 * std, mean + 2 * std, color="tab:blue", alpha=0.3, linewidth=0)
    ax.plot(grid, mean, color="tab:blue", label="mean, ± 2 standard deviations")
    ax.plot(grid, truth(grid), "--", color="black", label="truth")
    ax.plot(depth[:40], temperature[:40], ".", color="gray", label="cheap sensor")
    ax.plot(depth[40:], temperature[40:], "D", color="tab:orange", markersize=5, label="precise sensor")
    ax.set_title(title)
    ax.set_ylabel("temperature (°C)")
axes[0].legend(fontsize="small")
axes[1].set_xlabel("depth (m)")
plt.show()
