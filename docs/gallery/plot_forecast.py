"""
A curve with a forecast
=======================

For one input, ``gp.plot()`` draws the data, the mean, and bands that contain 50 and 95 % of the probability.
Extrapolation has another colour.

The data are simulated monthly CO2 concentrations, with a trend and a season. Three years are missing.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from gigagp import GPRegressor, kernels

rng = np.random.default_rng(0)
year = 1990 + np.arange(240) / 12
year = year[(year < 2000) | (year >= 2003)]
trend = 354 + 1.8 * (year - 1990) + np.sin(year / 1.5)
co2 = trend + 3 * np.sin(2 * np.pi * year) + rng.normal(0, 0.3, len(year))
frame = pd.DataFrame({"year": year})

# %%
# The kernel states what to expect: a smooth trend, plus a pattern that repeats each year. Everything else is learned
# from the data. The bands widen where the trend is unknown, in the gap and in the future, and the season continues.

kernel = kernels.RBF() + kernels.Periodic(period=1.0)
gp = GPRegressor(kernel, mean="linear").fit(frame, co2)
figure = gp.plot(upper=2015, label="CO2 (ppm)")
figure.set_size_inches(6.4, 4.8)
plt.show()
