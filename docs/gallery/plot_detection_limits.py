"""
Detection limits in groundwater
===============================

Two laboratories measure a pollutant along a river. The older one reports "below 1.0" if there is little, the newer one
"below 0.3". The common practice of replacing such a report by half the limit biases the curve. A pair of limits for
each target states what is known.

The data are simulated; targets are logarithms of concentrations.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(2)
place = np.sort(rng.uniform(0, 20, size=90))  # kilometres downstream


def truth(place):
    return 2.5 * np.exp(-(((place - 6) / 2.5) ** 2)) - 1.6 + 0.04 * place


measured = truth(place) + 0.35 * rng.normal(size=90)
limit = np.log(np.where(rng.uniform(size=90) < 0.6, 1.0, 0.3))
below = measured < limit
limits = np.column_stack([np.where(below, -np.inf, measured), np.maximum(measured, limit)])

kernel = kernels.Matern(nu=2.5)
known = GPRegressor(kernel, likelihood="censored").fit(place[:, None], limits)
halves = GPRegressor(kernel).fit(place[:, None], np.where(below, limit - np.log(2), measured))

# %%
# Left: with pairs of limits, the curve can fall below the limits. Right: with half the limit, it stays near the
# substituted values.

grid = np.linspace(0, 20, 300)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, gp, name in ((axes[0], known, 'likelihood="censored"'), (axes[1], halves, "half of the limit in its place")):
    low, median, high = np.exp(gp.predict_quantile(grid[:, None], [0.025, 0.5, 0.975])).T
    ax.fill_between(grid, low, high, color="tab:blue", alpha=0.25, linewidth=0, label="95 % band")
    ax.plot(grid, median, color="tab:blue", label="median")
    ax.plot(grid, np.exp(truth(grid)), "--", color="black", linewidth=1, label="truth")
    ax.set(title=name, xlabel="km downstream", yscale="log")
axes[0].plot(place[~below], np.exp(measured[~below]), ".", color="0.3", label="measured")
axes[0].plot(place[below], np.exp(limit[below]), "v", color="tab:orange", markersize=4, label="below this")
axes[1].plot(place[~below], np.exp(measured[~below]), ".", color="0.3")
axes[1].plot(place[below], np.exp(limit[below]) / 2, "x", color="tab:orange", markersize=4, label="half of the limit")
axes[0].set_ylabel("concentration")
for ax in axes:
    ax.legend(loc="upper right", fontsize="small")

# %%
# The probability of less than 0.1 at kilometre 17, which both laboratories would report as below their limit:
reach = np.array([[17.0]])
print(np.exp(known.predictive_log_density(reach, np.array([[-np.inf, np.log(0.1)]])))[0])
