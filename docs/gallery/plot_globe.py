"""
A map of the globe
==================

Longitudes of 179 and -179 degrees are two degrees apart, and at the poles all longitudes meet. A kernel with
``metric="haversine"`` uses distances on the sphere. A kernel of plain degrees does not, and its map has a break along
the date line.

The data are 150 simulated stations, spread evenly over the sphere.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(0)
stations = np.stack([rng.uniform(-180, 180, 150), np.degrees(np.arcsin(rng.uniform(-1, 1, 150)))], axis=1)

# %%
# The true temperatures are a sample of a Gaussian process: a model that has not been fitted samples its prior. Its
# lengthscale is in km.

prior = GPRegressor(kernels.Matern(nu=2.5, lengthscale=3000.0, variance=60.0, metric="haversine"))
temperature = 10 + prior.sample_y(stations, random_state=3)[:, 0] + rng.normal(0, 0.5, 150)

# %%
# Both models get the same rows. The inputs are longitude and latitude, in this order. The date line is in the middle of
# the maps; only the kernel of degrees has a break there.

degrees_from_date_line, latitude = np.arange(-179, 180, 2), np.arange(-89, 90, 2)
longitude = degrees_from_date_line % 360 - 180
grid = np.stack(np.meshgrid(longitude, latitude), axis=-1)

figure, axes = plt.subplots(2, 1, figsize=(6.4, 7.2), subplot_kw={"projection": "mollweide"}, layout="constrained")
for ax, metric in zip(axes, ["haversine", "euclidean"], strict=True):
    gp = GPRegressor(kernels.Matern(nu=2.5, metric=metric)).fit(stations, temperature)
    mean = gp.predict(grid.reshape(-1, 2)).reshape(grid.shape[:2])
    drawn = ax.pcolormesh(
        np.radians(degrees_from_date_line), np.radians(latitude), mean, vmin=-10, vmax=30, rasterized=True
    )
    ax.scatter(np.radians(stations[:, 0] % 360 - 180), np.radians(stations[:, 1]), color="white", s=5)
    ax.set_title(f'metric="{metric}"')
    ax.set_xticks([0], ["date line"])
    ax.set_yticks(np.radians([-60, -30, 0, 30, 60]), ["60° S", "30° S", "0°", "30° N", "60° N"])
figure.colorbar(drawn, ax=axes, orientation="horizontal", extend="both", shrink=0.7, label="temperature (°C)")
plt.show()
