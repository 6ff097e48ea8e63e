"""Write a fitted model as an ONNX graph and predict without gigagp: ``pip install "gigagp[onnx]" onnxruntime``."""

import numpy as np
import onnxruntime

from gigagp import GPRegressor, inference, kernels, onnx

random = np.random.default_rng(0)
X = random.uniform(0, 10, size=(400, 2))
y = np.sin(X[:, 0] / 2) + 0.1 * X[:, 1] + 0.1 * random.normal(size=400)
gp = GPRegressor(kernels.Matern(2.5), inference.SparseVariational(60)).fit(X, y)
onnx.export(gp, "model.onnx")  # X to mean and std, as gp.predict(X, return_std=True)

session = onnxruntime.InferenceSession("model.onnx")
mean, std = session.run(["mean", "std"], {"X": X[:5]})
print("largest difference", np.abs(mean - gp.predict(X[:5])).max())
