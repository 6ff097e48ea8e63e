"""
Extrapolation
=============

All kernels agree where there are data. Beyond the data each follows its own assumption: that nothing is known, that a
line continues, or that a season repeats.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(0)
t = np.linspace(0, 8, 120)[:, None]
y = 0.3 * t[:, 0] + np.sin(2 * np.pi * t[:, 0]) + 0.15 * rng.normal(size=120)

beliefs = {
    "Matern": kernels.Matern(nu=1.5),
    "Matern + line": kernels.Matern(nu=1.5) + kernels.Linear(),
    "season + line": kernels.Periodic(period=1.0) + kernels.Linear(),
}

# %%
# The dashed line is the truth. The last kernel is right because it contains the right assumption.
grid = np.linspace(0, 12, 400)[:, None]
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True, layout="constrained")
for ax, (name, kernel) in zip(axes, beliefs.items(), strict=True):
    mean, std = GPRegressor(kernel).fit(t, y).predict(grid, return_std=True)
    ax.fill_between(grid[:, 0], mean - 1.96 * std, mean + 1.96 * std, alpha=0.25, linewidth=0, label="95 %")
    ax.plot(grid[:, 0], mean, label="mean")
    ax.plot(grid[:, 0], 0.3 * grid[:, 0] + np.sin(2 * np.pi * grid[:, 0]), "--", color="black", linewidth=1)
    ax.axvline(8, color="0.5", linewidth=1)
    ax.set(title=name, xlabel="year")
axes[0].legend(loc="upper left", fontsize="small")
