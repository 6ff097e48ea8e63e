"""
Which kernels were tried
========================

If no kernel is given, a fit tries several: a Matern kernel, and sums of a smooth and a rough term. They are compared by
evidence and by leave-one-out densities, and the best ones are averaged. ``gp.kernel_choice_`` says how much each
gained.
"""

import matplotlib.pyplot as plt
import numpy as np

from gigagp import GPRegressor

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(400, 2))
y = 3 * np.sin(X[:, 0]) + np.abs(X[:, 1] - X[:, 0]) + 0.1 * rng.normal(size=400)  # smooth, and with a kink
gp = GPRegressor().fit(X, y)
tried = gp.kernel_choice_.tried

# %%
# Gains over the first kernel, in nats summed over all rows; error bars of the leave-one-out gains are two standard
# errors.
place = np.arange(len(tried))
figure, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
ax.barh(place - 0.2, [one.gain for one in tried], 0.35, label="evidence")
ax.barh(
    place + 0.2,
    [one.left_out_gain for one in tried],
    0.35,
    xerr=[2 * one.standard_error for one in tried],
    label="left-out rows",
)
ax.set(yticks=place, yticklabels=[f"{one.name}, weight {one.weight:.2f}" for one in tried], xlabel="gain (nats)")
ax.invert_yaxis()
ax.legend()
