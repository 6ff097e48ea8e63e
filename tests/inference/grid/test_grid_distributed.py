"""`GPRegressor.fit_table` in two processes (gloo) that share a source and return the same model."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch.distributed as dist

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import GigaGPError, InvalidInputError

N = 3000
RNG = np.random.default_rng(0)
X = RNG.uniform(0, 3, (N, 2)) * [1.0, 20.0]
Y = 7 + 3 * np.sin(2 * X[:, 0]) * np.cos(3 * X[:, 1] / 20) + 0.3 * RNG.normal(size=N)
NEW = pd.DataFrame(RNG.uniform(0.1, 2.9, (50, 2)) * [1.0, 20.0], columns=["x", "z"])


def fit(folder: Path, *, distributed: bool, name: str = "p") -> GPRegressor:
    own = distributed and name == "bad"  # the two ways to ask for it
    gp = GPRegressor(
        kernel=kernels.Matern(2.5),
        inference=inference.Grid(size=(12, 14), distributed=own),
        optimizer=optimization.Auto(subset_sizes=(60, 120)),
        distributed=distributed and not own,
    )
    return gp.fit_table(folder / name, "y", ["x", "z"], chunk_rows=300)


def work(rank: int, folder: str) -> None:
    """Fit in one of the processes, and write the results to files."""
    wait, place = timedelta(seconds=60), Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=wait)
    gp = fit(place, distributed=True)
    gp.save(place / f"{rank}.gp")
    try:  # a damaged file in the share of one process raises in both, so that neither waits for the other
        fit(place, distributed=True, name="bad")
    except GigaGPError as error:
        (place / f"refused{rank}").write_text(str(error), encoding="utf-8")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not there")
def test_two_processes_end_with_the_model_of_one(tmp_path: Path) -> None:
    for name in ("p", "bad"):
        (tmp_path / name).mkdir()
        for k, rows in enumerate(np.array_split(np.arange(N), 5)):
            frame = pd.DataFrame({"x": X[rows, 0], "z": X[rows, 1], "y": Y[rows]})
            if name == "bad" and k == 3:  # in the share of the second process
                frame.loc[17, "y"] = np.nan
            frame.to_parquet(tmp_path / name / f"part-{k}.parquet")
    # Start new processes instead of forking, because torch has started threads.
    environment = os.environ | {"PYTHONPATH": str(Path(gigagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    other = subprocess.Popen([sys.executable, "-W", "error", __file__, str(tmp_path)], env=environment)
    try:
        work(0, str(tmp_path))
        assert other.wait(timeout=100) == 0
    finally:
        other.kill()
    whole = fit(tmp_path, distributed=False)
    first, second = (gigagp.load(tmp_path / f"{rank}.gp") for rank in range(2))
    expected = whole.predict(NEW, return_std=True)
    for found, again, one in zip(
        first.predict(NEW, return_std=True), second.predict(NEW, return_std=True), expected, strict=True
    ):
        assert np.array_equal(found, again)
        np.testing.assert_allclose(found, one, rtol=1e-6)
    assert first.posterior_.n_rows == second.posterior_.n_rows == N
    assert first.kernel_.to_dict() == second.kernel_.to_dict()
    half = GPRegressor(
        kernel=first.kernel_, noise_variance=first.noise_variance_, inference=whole.inference_, optimizer=None
    )
    half.fit_table(tmp_path / "p" / "part-0.parquet", "y", ["x", "z"])
    assert np.abs(half.predict(NEW) - expected[0]).max() > 1e-3  # a control: the result from one share alone
    own, others = ((tmp_path / f"refused{rank}").read_text(encoding="utf-8") for rank in (1, 0))
    assert "part-3.parquet" in own
    assert others == f"process 1 of 2: {own}"


def test_a_distributed_fit_alone_is_refused() -> None:
    gp = GPRegressor(inference=inference.Grid(size=12, distributed=True))
    with pytest.raises(InvalidInputError, match="init_process_group"):
        gp.fit_table((X, Y))


if __name__ == "__main__":
    work(1, sys.argv[1])
