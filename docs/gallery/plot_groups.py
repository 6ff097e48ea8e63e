"""
Shops, each with its own effect
===============================

Forty shops sell the same goods. Some have fifty weeks of sales, some have two. Each has its own effect. The effect of a
shop with few weeks is shrunk towards the average of all shops, and its error bar is wider.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from gigagp import GPRegressor

rng = np.random.default_rng(0)
weeks_of = np.repeat([2, 5, 20, 50], 10)
effect = rng.normal(0, 1, 40)
table = pd.DataFrame({"shop": [f"shop {k:02d}" for k in np.repeat(np.arange(40), weeks_of)]})
table["week"] = rng.uniform(0, 52, len(table))
sales = np.sin(table["week"] / 8) + np.repeat(effect, weeks_of) + rng.normal(0, 1, len(table))

gp = GPRegressor(groups=["shop"], encode="auto").fit(table, sales)
shops = gp.group_effects_["shop"]
order = np.argsort(shops.level)

# %%
# Crosses are the averages of each shop's own sales. For shops with two weeks of sales they can be far from the truth;
# the learned effects are shrunk, and have wide error bars.
own = (sales - np.sin(table["week"] / 8)).groupby(table["shop"]).mean().to_numpy()
place = np.arange(40)
figure, ax = plt.subplots(figsize=(9, 3.8), layout="constrained")
ax.errorbar(
    place, shops.effect[order], 2 * shops.std[order], fmt="o", color="tab:blue", markersize=4, label="learned, two std"
)
ax.plot(place, own - own.mean(), "x", color="tab:orange", label="average of own sales")
ax.plot(place, effect - effect.mean(), "_", color="black", markersize=10, label="truth")
ax.set(xticks=[4.5, 14.5, 24.5, 34.5], xticklabels=["2 weeks", "5 weeks", "20 weeks", "50 weeks"], ylabel="effect")
ax.legend(ncols=3, fontsize="small")
