"""
Outliers
========

A sensor that fails now and then pulls an ordinary fit away from the truth, and makes its error bars wide everywhere.
With Student-t noise, an outlier has hardly any influence.

The data are simulated.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor

rng = np.random.default_rng(0)
hour = np.sort(rng.uniform(0, 24, 120))
grid = np.linspace(0, 24, 241)


def truth(hour):
    return 15 - 6 * np.cos(2 * np.pi * (hour - 3) / 24) + np.sin(hour)


temperature = truth(hour) + rng.normal(0, 0.4, 120)
wrong = rng.choice(120, 12, replace=False)
temperature[wrong] += rng.uniform(8, 20, 12)

# %%
# ``noise_weights_`` shows which rows the model treats as outliers: those with weights below 0.1.

figure, axes = plt.subplots(2, 1, figsize=(6.4, 7), sharex=True, sharey=True, layout="constrained")
for ax, likelihood in zip(axes, ["gaussian", "student-t"], strict=True):
    gp = GPRegressor(likelihood=likelihood).fit(hour[:, None], temperature)
    mean, std = gp.predict(grid[:, None], return_std=True)
    ax.fill_between(grid, mean - 2 * std, mean + 2 * std, color="tab:blue", alpha=0.3, linewidth=0)
    ax.plot(grid, mean, color="tab:blue", label="mean, ± 2 standard deviations")
    ax.plot(grid, truth(grid), "--", color="black", label="truth")
    ax.plot(hour, temperature, ".", color="black", alpha=0.6, label="data")
    if likelihood == "student-t":
        found = gp.noise_weights_ < 0.1
        ax.plot(hour[found], temperature[found], "o", color="tab:orange", fillstyle="none", label="outliers found")
    ax.set_title(f'likelihood="{likelihood}"')
    ax.set_ylabel("temperature (°C)")
axes[1].legend(loc="upper left", ncols=2, fontsize="small")
axes[1].set_xlabel("hour of the day")
plt.show()
