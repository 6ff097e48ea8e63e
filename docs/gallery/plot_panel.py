"""
Curves that end early
=====================

Thirty machines wear out, each at its own rate, which depends on its load. Some have been observed for fifty days,
others for ten. One model of all machines continues each curve, from its own beginning and from what all share.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from gigagp import GPRegressor

rng = np.random.default_rng(0)
load = rng.uniform(0, 1, 30)
speed = 0.5 + load + 0.2 * rng.normal(size=30)
days = np.arange(50.0)
wear = np.sqrt(speed[:, None] * days) + 0.1 * rng.normal(size=(30, 50))
last = rng.choice([10, 25, 50], 30)

rows = [(f"machine {k}", day, load[k], wear[k, int(day)]) for k in range(30) for day in days[: last[k]]]
table = pd.DataFrame(rows, columns=["machine", "day", "load", "wear"])
gp = GPRegressor(panel=("machine", "day")).fit(table.drop(columns="wear"), table["wear"])

# %%
# The grey points are the future, which the model has not seen. Of the new machine, only the load is known, and its band
# is wider.
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True, layout="constrained")
shown = [int(np.flatnonzero(last == 10)[0]), int(np.flatnonzero(last == 25)[0])]
asked = [(f"machine {k}", load[k]) for k in shown] + [("new", 0.9)]
for ax, (machine, own) in zip(axes, asked, strict=True):
    points = pd.DataFrame({"machine": machine, "day": days, "load": own})
    mean, std = gp.predict(points, return_std=True, include_noise=True)
    ax.fill_between(days, mean - 1.96 * std, mean + 1.96 * std, alpha=0.25, linewidth=0, label="95 %")
    ax.plot(days, mean, label="forecast")
    ax.set(title=f"{machine}, load {own:.2f}", xlabel="day")
for ax, k in zip(axes, shown, strict=False):
    ax.plot(days[: last[k]], wear[k, : last[k]], ".", color="black", label="measured")
    ax.plot(days[last[k] :], wear[k, last[k] :], ".", color="0.6", label="what comes")
axes[0].set_ylabel("wear")
axes[0].legend(fontsize="small")
