"""
Bird counts with different effort
=================================

Observers watch for ten minutes or for ten hours, and there are more of them in winter. The number of birds means little
without the hours. ``exposure`` is the effort of each count, and predictions are birds per hour.

The data are simulated.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(0)
day = np.sort(rng.uniform(0, 365, size=150))


def truth(day):
    return 0.5 + 6 * np.exp(-(((day - 120) / 25) ** 2)) + 3 * np.exp(-(((day - 270) / 20) ** 2))  # birds an hour


hours = 10 ** rng.uniform(-0.8, 0.4, size=150) * (1 + 3 * (np.abs(day - 330) < 40))  # many volunteers in winter
birds = rng.negative_binomial(4, 4 / (4 + truth(day) * hours))

kernel = kernels.Matern(nu=2.5)
fits = {
    "with exposure": GPRegressor(kernel, likelihood="negative-binomial").fit(day[:, None], birds, exposure=hours),
    "without": GPRegressor(kernel, likelihood="negative-binomial").fit(day[:, None], birds),
}

# %%
# With the effort, the curve follows the true rate (dashed). Without it, the winter seems full of birds, but it is only
# full of observers.

grid = np.linspace(0, 365, 300)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, (name, gp) in zip(axes, fits.items(), strict=True):
    low, high = gp.predict_quantile(grid[:, None], [0.025, 0.975], include_noise=False).T
    ax.fill_between(grid, low, high, color="tab:blue", alpha=0.25, linewidth=0, label="95 % band of the rate")
    ax.plot(grid, gp.predict(grid[:, None]), color="tab:blue", label="rate")
    ax.plot(grid, truth(grid), "--", color="black", linewidth=1, label="truth")
    ax.set(title=name, xlabel="day of the year", ylim=(0, 14))
axes[0].scatter(day, birds / hours, 3 + 6 * hours, color="0.4", alpha=0.6, label="birds over hours; size: hours")
axes[1].scatter(day, birds, 6, color="0.4", alpha=0.6, label="birds")
axes[0].set_ylabel("birds an hour")
for ax in axes:
    ax.legend(loc="upper right", fontsize="small")

# %%
# The number of birds to expect in a watch of eight hours in May, from the 5 % to the 95 % quantile:
print(fits["with exposure"].predict_quantile([[120.0]], [0.05, 0.95], exposure=8)[0])
