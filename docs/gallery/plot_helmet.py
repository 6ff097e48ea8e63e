"""
A helmet in a crash
===================

In a crash test the acceleration of the head is constant at first, swings strongly after the impact, and comes to rest.
The noise changes with it, so a single noise variance is too large before the impact and too small during it.

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
# The lower picture shows the standard deviation of a new measurement. The learned one rises and falls with the true
# one. A constant one is too large before the impact and too small during it.

grid = np.linspace(2, 58, 300)
figure, (upper, lower) = plt.subplots(2, 1, figsize=(7, 5.5), sharex=True, height_ratios=[3, 2], layout="constrained")
for (noise, gp), colour, line in zip(fits.items(), ("tab:orange", "tab:blue"), (":", "-"), strict=True):
    low, high = gp.predict_quantile(grid[:, None], [0.025, 0.975], include_noise=True).T
    upper.plot(grid, low, line, color=colour, label=f'95 % of new measurements, noise="{noise}"')
    upper.plot(grid, high, line, color=colour)
    std = gp.predict(grid[:, None], return_std=True, include_noise=True)[1]
    lower.plot(grid, std, line, color=colour, label=f'noise="{noise}"')
upper.plot(time, acceleration, ".", color="0.3", markersize=4, label="measured")
lower.plot(time, deviation, "--", color="black", linewidth=1, label="truth")
upper.set_ylabel("acceleration in g")
lower.set(xlabel="time in ms", ylabel="std in g", ylim=(0, None))
for ax in (upper, lower):
    ax.axvline(13, color="0.8", linewidth=1, zorder=0)  # the impact
    ax.legend(fontsize="small")
