"""
A sensor that ends, and one that goes on
========================================

Two sensors move against each other. The first ends at 6. Alone, nothing is known of it from there on. With
``outputs="correlated"`` the model learns how the two belong together, and the second tells of the first.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor

rng = np.random.default_rng(0)
t = np.linspace(0, 10, 80)[:, None]
Y = np.hstack([np.sin(2 * t), -0.7 * np.sin(2 * t) + 0.2 * np.cos(t)]) + 0.1 * rng.normal(size=(80, 2))
first = Y[:, 0].copy()
Y[t[:, 0] > 6, 0] = np.nan
seen = np.isfinite(Y[:, 0])

alone = GPRegressor().fit(t[seen], Y[seen, 0]).predict(t, return_std=True, include_noise=True)
mean, std = GPRegressor(outputs="correlated").fit(t, Y).predict(t, return_std=True, include_noise=True)

# %%
# The band on the right holds the measurements that the model has not seen (circles).
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, name, (centre, spread) in zip(
    axes, ("alone", "with the other sensor"), (alone, (mean[:, 0], std[:, 0])), strict=True
):
    ax.fill_between(t[:, 0], centre - 1.96 * spread, centre + 1.96 * spread, alpha=0.25, linewidth=0, label="95 %")
    ax.plot(t[:, 0], centre, label="mean")
    ax.plot(t[seen], first[seen], ".", color="black", label="measured")
    ax.plot(t[~seen], first[~seen], "o", color="black", markerfacecolor="none", markersize=4, label="not seen")
    ax.set(title=name, xlabel="time")
axes[0].legend(loc="lower left", fontsize="small")
