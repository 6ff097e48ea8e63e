"""
Where to measure next
=====================

`Search` learns from the points tried so far, and suggests the most promising next one: where the mean is high, or where
little is known. Twelve measurements find the higher of two peaks.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels
from gigagp.search import Search


def yield_of(x):
    return np.exp(-((x - 0.2) ** 2) / 0.04) + 1.4 * np.exp(-((x - 0.75) ** 2) / 0.02)


search = Search([(0, 1)], maximize=True, n_initial=3)
for _ in range(12):
    (x,) = search.ask()
    search.tell(x, float(yield_of(x[0])))

# %%
# The model after five and after twelve trials. Numbers show the order of the trials; the later ones gather at the
# higher peak.
grid = np.linspace(0, 1, 300)[:, None]
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
for ax, count in zip(axes, (5, 12), strict=True):
    gp = GPRegressor(kernels.Matern(nu=2.5)).fit(search.X[:count], search.y[:count])
    mean, std = gp.predict(grid, return_std=True)
    ax.fill_between(grid[:, 0], mean - 1.96 * std, mean + 1.96 * std, alpha=0.25, linewidth=0, label="95 %")
    ax.plot(grid[:, 0], mean, label="mean")
    ax.plot(grid[:, 0], yield_of(grid[:, 0]), "--", color="black", linewidth=1, label="truth")
    for number, (place, value) in enumerate(zip(search.X[:count, 0], search.y[:count], strict=True), start=1):
        ax.plot(place, value, "o", color="black", markersize=4)
        ax.annotate(str(number), (place, value), xytext=(3, 4), textcoords="offset points", fontsize="small")
    ax.set(title=f"after {count} trials", xlabel="setting")
axes[0].set_ylabel("yield")
axes[0].legend(fontsize="small")
