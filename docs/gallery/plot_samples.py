"""
Samples of the function
=======================

Which temperature is best? Neither the mean nor its error bars answer this, because it depends on the values at many
temperatures jointly. Samples of the whole function do: each has one maximum.

The data are seven simulated experiments.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

temperature = np.array([22.0, 27.0, 34.0, 43.0, 58.0, 69.0, 76.0])
product = np.array([28.0, 41.0, 57.0, 63.0, 66.0, 52.0, 37.0])

# %%
# So few rows say little about the hyperparameters. They are given here, and ``optimizer=None`` keeps them fixed.

kernel = kernels.RBF(lengthscale=10.0, variance=300.0)
gp = GPRegressor(kernel, noise_variance=1.0, optimizer=None)
gp.fit(temperature[:, None], product)

grid = np.linspace(20, 80, 241)
samples = gp.sample_y(grid[:, None], n_samples=2000)
best = grid[samples.argmax(axis=0)]

# %%
# The upper picture shows ten samples, each with its maximum. The lower one is a histogram of the maxima of all samples:
# the distribution of the best temperature.

figure, (upper, lower) = plt.subplots(2, 1, figsize=(6.4, 6), height_ratios=(2, 1), sharex=True, layout="constrained")
upper.plot(grid, samples[:, :10], color="tab:blue", linewidth=1, alpha=0.6)
upper.plot(best[:10], samples[:, :10].max(axis=0), "v", color="tab:orange", label="maximum of a sample")
upper.plot(temperature, product, "o", color="black", label="experiments")
upper.set_ylabel("yield (%)")
upper.legend(loc="lower center")
lower.hist(best, bins=np.arange(20, 81, 1.5), weights=np.full(len(best), 100 / len(best)), color="tab:orange")
lower.set_xlabel("temperature (°C)")
lower.set_ylabel("samples with the\nmaximum here (%)")
plt.show()
