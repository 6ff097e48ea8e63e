"""
A skewed target
===============

Concentrations are positive, and their errors grow with their size. A Gaussian process of the concentration itself
ignores this: its intervals reach below zero, and are too wide for small values. ``target_transform="log"`` models the
logarithm instead. All predictions are in the units of the target.

The data are simulated.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor

rng = np.random.default_rng(0)
distance = rng.uniform(0, 10, 200)
concentration = np.exp(3 - 0.35 * distance + 0.8 * np.sin(distance) + rng.normal(0, 0.4, 200))
grid = np.linspace(0, 10, 201)

# %%
# ``predict_quantile`` returns quantiles of a new measurement; three of them give the median and an interval that
# contains 95 % of the measurements. With the transform it stays above zero and widens with the concentration.
# ``target_transform="auto"`` would choose among several transforms.

figure, axes = plt.subplots(2, 1, figsize=(6.4, 6.6), sharex=True, sharey=True, layout="constrained")
for ax, transform in zip(axes, ["none", "log"], strict=True):
    gp = GPRegressor(target_transform=transform).fit(distance[:, None], concentration)
    low, median, high = gp.predict_quantile(grid[:, None], [0.025, 0.5, 0.975]).T
    ax.fill_between(grid, low, high, color="tab:orange", alpha=0.3, linewidth=0, label="95 % of measurements")
    ax.plot(grid, median, color="tab:orange", label="median")
    ax.plot(distance, concentration, ".", color="tab:blue", label="data")
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set_title(f'target_transform="{transform}"')
    ax.set_ylabel("concentration (µg/l)")
axes[0].legend()
axes[1].set_xlabel("distance from the source (km)")
plt.show()
