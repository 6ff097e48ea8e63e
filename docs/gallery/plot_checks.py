"""
Can the error bars be trusted?
==============================

Two pictures check a fitted model. The residuals should have no trend, and intervals should hold as many rows as they
promise.

Here no rows are set aside. Each row is predicted from all others, which costs no further fit. The table is that of the
progression of diabetes, which comes with scikit-learn.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes

from gigagp import GPRegressor, plots

X, y = load_diabetes(return_X_y=True)
gp = GPRegressor().fit(X, y)

# %%
# Orange points are means of residuals over groups of rows, with two standard errors. The grey band of the lower picture
# is what chance allows a model whose intervals are right.

figure, (upper, lower) = plt.subplots(2, 1, figsize=(5.6, 8.6), layout="constrained")
plots.residuals(gp, ax=upper, label="progression after a year")
plots.calibration(gp, ax=lower)
plt.show()
