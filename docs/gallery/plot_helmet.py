"""
A helmet in a crash
===================

The acceleration of a head in a crash test is still at first, swings hard after the impact, and comes to rest. The noise
swings with it, so that one noise variance is too large before the impact and too small during it.

The data are simulated, in the spirit of those of Silverman (1985, https://doi.org/10.1111/j.2517-6161.1985.tb01327.x).
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(1)
time = np.sort(rng.uniform(2, 58, size=130))  # milliseconds after the impact of the car


def truth(time):
    swing = np.exp(-(((time - 24) / 10) ** 2)) * np.sin((time - 13) / 5.5)
    return np.where(time > 13, -120 * swing, 0.0)  # in g


deviation = 1.5 + 26 / (1 + np.exp(-(time - 15))) * np.exp(-np.clip(time - 35, 0, None) / 25)
acceleration = truth(time) + deviation * rng.normal(size=130)

fits = {
    noise: GPRegressor(kernels.Matern(nu=2.5), noise=noise).fit(time[:, None], acceleration)
    for noise in ("constant", "varying")
}

# %%
# Each band holds 95 % of new measurements by its own model.

grid = np.linspace(2, 58, 300)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, (noise, gp) in zip(axes, fits.items(), strict=True):
    low, high = gp.predict_quantile(grid[:, None], [0.025, 0.975], include_noise=True).T
    ax.fill_between(grid, low, high, color="tab:blue", alpha=0.25, linewidth=0, label="95 % of new measurements")
    ax.plot(grid, gp.predict(grid[:, None]), color="tab:blue", label="mean")
    ax.plot(grid, truth(grid), "--", color="black", linewidth=1, label="truth")
    ax.plot(time, acceleration, ".", color="0.3", markersize=3)
    ax.set(title=f'noise="{noise}"', xlabel="time in ms")
axes[0].set_ylabel("acceleration in g")
axes[0].legend(loc="lower right", fontsize="small")

# %%
# Before the impact, the standard deviation of a new measurement is:
for noise, gp in fits.items():
    std = gp.predict([[8.0]], return_std=True, include_noise=True)[1][0]
    print(f"noise={noise!r}: {std:.1f} g, true {np.interp(8.0, time, deviation):.1f} g")
