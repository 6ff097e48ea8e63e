"""
Two bands: the function and a measurement
=========================================

``return_std=True`` returns the uncertainty of the function, and with ``include_noise=True`` that of the next
measurement. With more rows the first band becomes narrow, and the second does not.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(0)
X = rng.uniform(0, 10, size=(400, 1))
y = np.sin(X[:, 0]) + 0.4 * rng.normal(size=400)

# %%
# Left: twenty rows. Right: four hundred, where only the band of the function is narrower:
grid = np.linspace(0, 10, 300)[:, None]
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, n in zip(axes, (20, 400), strict=True):
    gp = GPRegressor(kernels.Matern(nu=2.5)).fit(X[:n], y[:n])
    mean, of_function = gp.predict(grid, return_std=True)
    _, of_measurement = gp.predict(grid, return_std=True, include_noise=True)
    for std, shade, name in ((of_measurement, 0.15, "the next measurement"), (of_function, 0.4, "the function")):
        low, high = mean - 1.96 * std, mean + 1.96 * std
        ax.fill_between(grid[:, 0], low, high, color="tab:blue", alpha=shade, linewidth=0, label=name)
    ax.plot(grid[:, 0], np.sin(grid[:, 0]), "--", color="black", linewidth=1, label="truth")
    ax.plot(X[:n], y[:n], ".", markersize=3, color="black")
    ax.set(title=f"{n} rows", xlabel="x")
axes[0].legend(loc="upper right", fontsize="small")
