"""
A map and its uncertainty
=========================

Temperatures at 150 simulated stations become a map. The model also shows where the map is uncertain: there is no
station within the white circle.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(0)
stations = rng.uniform(0, 100, (400, 2))  # east and north, in km
stations = stations[np.hypot(stations[:, 0] - 62, stations[:, 1] - 58) > 20][:150]
east, north = stations.T
temperature = 12 + 3 * np.sin(east / 14) * np.cos(north / 18) - 0.03 * north + rng.normal(0, 0.3, 150)

# %%
# ``ard=False`` gives both directions the same lengthscale. The function is predicted on a grid.

gp = GPRegressor(kernels.Matern(nu=2.5, ard=False)).fit(stations, temperature)

axis = np.linspace(0, 100, 101)
grid = np.stack(np.meshgrid(axis, axis), axis=-1)
mean, std = gp.predict(grid.reshape(-1, 2), return_std=True)

# %%
# The stations have the same colour scale as the map, so one that differs from its surroundings would stand out.
# ``gp.plot()`` draws both maps in one line.

figure, axes = plt.subplots(1, 2, figsize=(6.8, 4.4), sharey=True, layout="constrained")
drawn = axes[0].pcolormesh(axis, axis, mean.reshape(101, 101), cmap="viridis")
axes[0].scatter(east, north, c=temperature, cmap="viridis", norm=drawn.norm, edgecolors="white", linewidths=0.7, s=22)
figure.colorbar(drawn, ax=axes[0], orientation="horizontal", label="temperature (°C)")
drawn = axes[1].pcolormesh(axis, axis, std.reshape(101, 101), cmap="cividis", vmin=0)
axes[1].scatter(east, north, color="white", s=6)
axes[1].add_patch(plt.Circle((62, 58), 20, fill=False, color="white", linestyle="--"))
figure.colorbar(drawn, ax=axes[1], orientation="horizontal", label="standard deviation (°C)")
for ax in axes:
    ax.set(aspect="equal", xlabel="east (km)")
axes[0].set_ylabel("north (km)")
plt.show()
