"""
Can the error bars be trusted?
==============================

Two pictures check a fitted model. The residuals should have no trend, and intervals should contain the stated fraction
of the rows.

Here no rows are held out: each row is predicted from all others, which needs no further fit. The data are
scikit-learn's diabetes data.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes

from gigagp import GPRegressor, plots

X, y = load_diabetes(return_X_y=True)
gp = GPRegressor().fit(X, y)

# %%
# Orange points are mean residuals of groups of rows, with two standard errors; they should scatter around zero. The
# curve in the lower picture should stay within the grey band, which is the range expected by chance if the intervals
# are right.

figure, (upper, lower) = plt.subplots(2, 1, figsize=(5.6, 8.6), layout="constrained")
plots.residuals(gp, ax=upper, label="progression after a year")
plots.calibration(gp, ax=lower)
plt.show()
