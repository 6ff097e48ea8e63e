"""
A table with text and missing cells
===================================

``encode="auto"`` takes a table as it is: text becomes categorical, and missing cells are filled and marked. Prices of
flats depend on the area, the year and the city; some cells are empty.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from gigagp import GPRegressor

rng = np.random.default_rng(0)
n = 300
table = pd.DataFrame(
    {
        "area": rng.uniform(30, 150, n),
        "year": rng.integers(1900, 2025, n).astype(float),
        "city": rng.choice(["Bern", "Oslo", "Rome"], n),
    }
)
price = 4 * table["area"] + 80 * (table["city"] == "Oslo") + 60 * np.cos((table["year"] - 1900) / 20)
price = price + rng.normal(0, 25, n)
table.loc[rng.random(n) < 0.15, "year"] = np.nan
table.loc[rng.random(n) < 0.1, "city"] = None

gp = GPRegressor(encode="auto").fit(table, price)

# %%
# Predicted prices of flats of 80 square metres. On the right the year is missing: the error bars are wider, because any
# year is possible.
years = np.arange(1900, 2025.0)
figure, ax = plt.subplots(figsize=(7.5, 4), layout="constrained")
for city, colour in (("Bern", "tab:blue"), ("Oslo", "tab:orange")):
    points = pd.DataFrame({"area": 80.0, "year": years, "city": city})
    mean, std = gp.predict(points, return_std=True, include_noise=True)
    ax.fill_between(years, mean - 1.96 * std, mean + 1.96 * std, color=colour, alpha=0.25, linewidth=0)
    ax.plot(years, mean, color=colour, label=city)
    unknown = pd.DataFrame({"area": [80.0], "year": [np.nan], "city": [city]})
    (middle,), (wide,) = gp.predict(unknown, return_std=True, include_noise=True)
    ax.errorbar(2032 + 4 * (city == "Oslo"), middle, 1.96 * wide, fmt="o", color=colour, capsize=4)
ax.text(2030, ax.get_ylim()[0], "year unknown", fontsize="small", ha="center", va="bottom")
ax.set(xlabel="year", ylabel="price (thousands)")
ax.legend()
