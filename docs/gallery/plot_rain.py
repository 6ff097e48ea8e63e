"""
Rain, with its dry days
=======================

Many days are dry. Amounts of rain are positive and dry days are exactly zero, which no noise distribution of plain
numbers describes. One solution is to model the cube root of the amount as a latent value that falls below zero on dry
days: a dry day is then a censored target, known to be at most zero.

The data are simulated.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import ndtr

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(4)
day = np.arange(1.0, 366.0, 2)


def wetness(day):
    return 0.5 + 0.9 * np.cos(2 * np.pi * (day - 20) / 365)  # the mean of the cube root


root = wetness(day) + 0.9 * rng.normal(size=len(day))
rain = np.clip(root, 0, None) ** 3  # in mm

dry = rain == 0
limits = np.column_stack([np.where(dry, -np.inf, np.cbrt(rain)), np.cbrt(rain)])
gp = GPRegressor(kernels.Matern(nu=2.5), likelihood="censored").fit(day[:, None], limits)

# %%
# ``predictive_log_density`` of the limits ``(-inf, 0)`` is the log probability of a dry day. Quantiles are cubed, and
# those below zero mean a dry day.

chance = np.exp(gp.predictive_log_density(day[:, None], np.column_stack([np.full(len(day), -np.inf), 0 * day])))
middle, high = np.clip(gp.predict_quantile(day[:, None], [0.5, 0.95], include_noise=True), 0, None).T ** 3
figure, axes = plt.subplots(2, 1, figsize=(7, 5.4), sharex=True, layout="constrained")
axes[0].vlines(day[~dry], 0, rain[~dry], color="0.5", linewidth=1.5, label="rain")
axes[0].plot(day[dry], np.zeros(dry.sum()), "|", color="tab:orange", label="dry")
axes[0].plot(day, high, color="tab:blue", label="95 % quantile of a day")
axes[0].plot(day, middle, color="tab:blue", linestyle=":", label="median")
axes[0].set_ylabel("rain in mm")
axes[1].plot(day, chance, color="tab:blue", label="chance of a dry day")
axes[1].plot(day, ndtr(-wetness(day) / 0.9), "--", color="black", label="truth")
weeks = np.array_split(np.arange(len(day)), 26)
axes[1].plot([day[w].mean() for w in weeks], [dry[w].mean() for w in weeks], ".", color="0.4", label="in two weeks")
axes[1].set(xlabel="day of the year", ylabel="probability", ylim=(0, 1))
for ax in axes:
    ax.legend(loc="upper right", fontsize="small")

# %%
# The probability of more than 5 mm of rain on a day in January and in July:
for name, one in (("January", 15.0), ("July", 200.0)):
    above = np.array([[np.cbrt(5.0), np.inf]])
    print(f"{name}: {np.exp(gp.predictive_log_density([[one]], above))[0]:.2f}")
