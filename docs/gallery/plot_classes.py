"""
Probabilities of classes
========================

``GPClassifier`` predicts probabilities. Far from all data it is uncertain, and they return to one half.

The data are two species of scikit-learn's iris data.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from sklearn.datasets import load_iris

from gigagp import GPClassifier

iris = load_iris()
rows = iris.target > 0
X, species = iris.data[rows][:, [2, 3]], iris.target_names[iris.target[rows]]

# %%
# The columns of ``predict_proba`` are in the order of ``classes_``: *versicolor*, *virginica*.

classifier = GPClassifier().fit(X, species)
length, width = np.linspace(1, 9, 161), np.linspace(0, 4, 121)
grid = np.stack(np.meshgrid(length, width), axis=-1)
probability = classifier.predict_proba(grid.reshape(-1, 2))[:, 1].reshape(grid.shape[:2])

# %%
# Colours and contour lines show the probability of *virginica*. It changes quickly between the two species and fades to
# one half away from the flowers.

figure, ax = plt.subplots(figsize=(6.4, 5), layout="constrained")
colours = LinearSegmentedColormap.from_list("blue to orange", ["tab:blue", "white", "tab:orange"])
drawn = ax.pcolormesh(length, width, probability, cmap=colours, vmin=0, vmax=1)
lines = ax.contour(length, width, probability, levels=[0.1, 0.3, 0.5, 0.7, 0.9], colors="black", linewidths=0.8)
ax.clabel(lines)
for name, colour, marker in zip(classifier.classes_, ["tab:blue", "tab:orange"], ["o", "^"], strict=True):
    chosen = species == name
    ax.scatter(*X[chosen].T, color=colour, marker=marker, edgecolors="black", linewidths=0.6, label=name)
ax.set(xlabel="length of the petal (cm)", ylabel="width of the petal (cm)")
ax.legend(loc="lower right")
figure.colorbar(drawn, label=f"probability of {classifier.classes_[1]}")
plt.show()
