"""
Which inputs matter, and how
============================

The sensitivity of an input is the fraction of the variance of the fitted function that remains if all other inputs are
known. Partial dependence shows the direction of its effect: the average of the function over all rows, as one input is
varied.

The data are scikit-learn's diabetes data: age, sex, body mass index (bmi), blood pressure (bp) and six blood
measurements (s1 to s6).
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

from gigagp import GPRegressor, plots

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
gp = GPRegressor().fit(X, y)

# %%
# The curves of the three most relevant inputs share one scale. Their bands are those of the average over rows, and the
# marks at the bottom show where the rows are. ``gp.plot()`` draws a similar picture in one line.

relevance = plots.relevance_values(gp)
most = np.argsort(-relevance.sensitivity)[:3]

figure, axes = plt.subplots(2, 2, figsize=(6.8, 6.4), layout="constrained")
plots.relevance(gp, ax=axes[0, 0], found=relevance)
for ax, k in zip(axes.flat[1:], most, strict=True):
    plots.partial_dependence(gp, relevance.names[k], ax=ax, label="progression after a year")
    ax.set_ylim(50, 280)
plt.show()
