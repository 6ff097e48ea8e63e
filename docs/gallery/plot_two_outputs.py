"""
A sensor that ends, and one that continues
==========================================

Two sensors are negatively correlated. The first ends at 6. On its own, nothing is known about it from there on. With
``outputs="correlated"`` the model learns the correlation, and predicts the first sensor from the second.
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
# Left: the first sensor on its own. Right: with the second sensor, the band is much narrower and follows the
# measurements that the model has not seen (circles).
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
