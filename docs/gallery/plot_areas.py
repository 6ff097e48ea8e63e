"""
From averages of areas to a map
===============================

Census counts, votes and crime are known for districts, but we want to know where within them they are high. ``fit``
with ``blocks`` takes the points of each district and its average, and predicts the function at the points.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(0)
side = 24
cells = np.stack(np.meshgrid(*[(np.arange(side) + 0.5) / side] * 2), -1).reshape(-1, 2)
truth = GPRegressor(kernels.Matern(lengthscale=0.3, ard=False)).sample_y(cells, random_state=4)[:, 0]  # of the prior
seats = rng.uniform(size=(60, 2))
district = np.unique(np.square(cells[:, None] - seats).sum(2).argmin(1), return_inverse=True)[1]
y = np.bincount(district, truth) / np.bincount(district) + 0.05 * rng.normal(size=district.max() + 1)

gp = GPRegressor(kernels.Matern(nu=1.5, ard=False)).fit(cells, y, blocks=district)
mean, std = gp.predict(cells, return_std=True)

# %%
# From left to right: the averages of the districts, the predicted function, the truth, and the standard deviation. The
# prediction shows variation within districts that the averages hide:
fig, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
pictures = {"districts": y[district], "predicted": mean, "truth": truth, "standard deviation": std}
for ax, (title, values) in zip(axes, pictures.items(), strict=True):
    limits = {} if values is std else {"vmin": truth.min(), "vmax": truth.max()}
    image = ax.imshow(values.reshape(side, side), origin="lower", cmap="viridis", **limits)
    ax.set(title=title, xticks=[], yticks=[])
    fig.colorbar(image, ax=ax, shrink=0.7)

# %%
# How many intervals of cells contain the truth, and the error, compared with the district's average at all of its
# cells:
inside = np.abs(truth - mean) < 1.96 * std
print(f"{inside.mean():.0%} of the cells are within their intervals of 95 %")
error, copied = (np.sqrt(np.mean((truth - one) ** 2)) for one in (mean, y[district]))
print(f"root mean square error {error:.3f}; with the district's value at all of its cells {copied:.3f}")
