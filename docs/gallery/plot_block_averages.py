"""
Averages over fields, with the right error bars
===============================================

A farmer wants to know the yield of a field, not that of a point. Errors at nearby points are correlated, so they do not
average out as independent errors would. ``predict_average`` takes this into account.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(1)


def truth(places):
    return 5 + 1.5 * np.sin(5 * places[:, 0]) * np.cos(4 * places[:, 1])


X = rng.uniform(0, 1, size=(40, 2))
y = truth(X) + 0.3 * rng.normal(size=40)
gp = GPRegressor(kernels.Matern(nu=2.5)).fit(X, y)

axis = (np.arange(40) + 0.5) / 40
lattice = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
field = (4 * lattice[:, 0]).astype(int) + 4 * (4 * lattice[:, 1]).astype(int)  # sixteen fields
mean, std = gp.predict_average(lattice, field, return_std=True)
true = np.array([truth(lattice[field == k]).mean() for k in range(16)])

# %%
# Blue: error bars from the joint distribution of the points. Orange: error bars that assume independent errors at the
# points; they are too short and often miss the truth.
at_points = gp.predict(lattice, return_std=True)[1]
independent = np.array([np.sqrt((at_points[field == k] ** 2).sum()) / (field == k).sum() for k in range(16)])
figure, ax = plt.subplots(figsize=(9, 3.6), layout="constrained")
ax.errorbar(np.arange(16), mean, 1.96 * std, fmt="o", markersize=4, capsize=3, label="predict_average, 95 %")
ax.errorbar(np.arange(16) + 0.25, mean, 1.96 * independent, fmt="s", markersize=3, capsize=3, label="if independent")
ax.plot(np.arange(16) + 0.12, true, "_", color="black", markersize=12, label="truth")
ax.set(xlabel="field", ylabel="average yield (t/ha)", xticks=range(16))
ax.legend(fontsize="small", ncols=3)
