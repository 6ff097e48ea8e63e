"""
Error bars that count the computation left out
==============================================

Computation-aware inference conditions on a given number of linear combinations of the rows, called actions. Its error
bars include the uncertainty due to the computation that it skips. They are never narrower than the exact ones, and
approach them as the number of actions grows.

The data are simulated.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, inference

rng = np.random.default_rng(0)
time = np.concatenate([rng.uniform(0, 6, 120), rng.uniform(8, 10, 40)])
signal = np.sin(3 * time) + 0.5 * np.sin(time) + rng.normal(0, 0.2, 160)
grid = np.linspace(0, 10, 401)

exact = GPRegressor(inference=inference.Exact()).fit(time[:, None], signal)

# %%
# All models use the hyperparameters of the exact one. ``return_parts=True`` splits the standard deviation: the
# mathematical part is that of the exact model, and the rest is due to limited computation. It shrinks as the number of
# actions grows.

figure, axes = plt.subplots(3, 1, figsize=(6.4, 7.5), sharex=True, sharey=True, layout="constrained")
for ax, n_actions in zip(axes, [8, 16, 64], strict=True):
    gp = GPRegressor(
        exact.kernel_,
        inference.ComputationAware(n_actions),
        noise_variance=exact.noise_variance_,
        optimizer=None,
    ).fit(time[:, None], signal)
    mean, std, parts = gp.predict(grid[:, None], return_std=True, return_parts=True)
    for part, colour, name in (
        (std, "tab:orange", "all uncertainty"),
        (parts.mathematical, "tab:blue", "mathematical part"),
    ):
        ax.fill_between(grid, mean - 2 * part, mean + 2 * part, color=colour, alpha=0.5, linewidth=0, label=name)
    ax.plot(grid, mean, color="black", linewidth=1, label="mean")
    ax.plot(time, signal, ".", color="gray", markersize=3, label="data")
    ax.set_title(f"{n_actions} actions, {len(time)} rows")
    ax.set_ylabel("signal (V)")
axes[2].legend(ncols=2, fontsize="small", loc="lower left")
axes[2].set_xlabel("time (s)")
plt.show()
