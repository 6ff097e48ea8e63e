"""Fit in several workers of Ray Train: ``python examples/ray_train.py``. Ray starts them and joins them by gloo."""

from __future__ import annotations

import numpy as np
import ray.train
from ray.train.torch import TorchConfig, TorchTrainer

from gigagp import GPRegressor, inference


def fit(config: dict[str, object]) -> None:
    """Run in every worker; the first one saves."""
    generator = np.random.default_rng(0)  # in a real fit every worker reads the same file
    X = generator.uniform(0, 3, (int(str(config["rows"])), 2))
    y = np.sin(3 * X[:, 0]) + np.cos(2 * X[:, 1]) + 0.1 * generator.normal(size=len(X))
    gp = GPRegressor(inference=inference.Vecchia(), distributed=True).fit(X, y)
    if ray.train.get_context().get_world_rank() == 0:
        gp.save(str(config["out"]))


def train(out: str, rows: int = 5000, workers: int = 2) -> None:
    """Start the workers and wait for them."""
    trainer = TorchTrainer(
        fit,
        train_loop_config={"rows": rows, "out": out},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
    )
    trainer.fit()


if __name__ == "__main__":
    train("/tmp/model.gp")
