"""Statistics of two processes (gloo) that read one source together."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gigagp.errors import InvalidInputError
from gigagp.operators.grid.statistics import GridCollector, GridStatistics, RegularGrid

GRID = RegularGrid.around((0, 0), (1, 1), (9, 14))


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(900, 2, dtype=torch.float64, generator=generator)
    return X, torch.randn(900, 2, dtype=torch.float64, generator=generator)


def work(rank: int, folder: str) -> None:
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=wait)
    collector = GridCollector(GRID, 2, 4, 7).read(rows(), chunk_rows=100, share=(rank, 2))
    collector.statistics().all_reduce().save(f"{folder}/{rank}")
    try:  # probes of another seed on one of them: refused on both, so none waits for the other
        GridStatistics.from_rows(GRID, *rows(), 4, seed=rank).all_reduce()
    except InvalidInputError as error:
        Path(f"{folder}/refused{rank}").write_text(str(error), encoding="utf-8")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not there")
def test_two_processes_make_the_whole(tmp_path):
    import gigagp

    # A new process, not a fork: torch has threads here.
    environment = os.environ | {"PYTHONPATH": str(Path(gigagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    other = subprocess.Popen([sys.executable, "-W", "error", __file__, str(tmp_path)], env=environment)
    try:
        work(0, str(tmp_path))
        assert other.wait(timeout=60) == 0
    finally:
        other.kill()
    whole = GridStatistics.from_rows(GRID, *rows(), 4, 7)
    for rank in range(2):
        found = GridStatistics.load(tmp_path / str(rank))
        assert found.n_rows == 900
        assert (found.gram.values - whole.gram.values).abs().max() < 1e-12
        for name in ("cross", "probes", "probe_squares", "target_squares", "cell_counts", "input_low", "input_high"):
            torch.testing.assert_close(getattr(found, name), getattr(whole, name), rtol=1e-13, atol=1e-12, msg=name)
        assert "same grid" in (tmp_path / f"refused{rank}").read_text(encoding="utf-8")


if __name__ == "__main__":
    work(1, sys.argv[1])
