"""``gigagp fit --distributed`` in two processes: one model, one message."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist

import gigagp
from gigagp.commands.fit import _take_card, all_processes
from gigagp.errors import InvalidInputError

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not there")

N = 1200
RNG = np.random.default_rng(0)
X = RNG.uniform(0, 3, (N, 2))
Y = np.sin(3 * X[:, 0]) + np.cos(2 * X[:, 1]) + 0.1 * RNG.normal(size=N)
FIT = ["-m", "gigagp", "fit", "--target", "y", "--inference", "vecchia", "--kernel", "matern32", "--quiet"]
SOURCE = str(Path(gigagp.__file__).parents[1])


def write(path: Path, target: np.ndarray) -> Path:
    np.savetxt(path, np.column_stack([X, target]), delimiter=",", header="a,b,y", comments="", fmt="%.17g")
    return path


def run(command: list[str], **environment: str) -> subprocess.Popen[str]:
    settings = os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"} | environment
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *command], env=settings, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.slow
def test_torchrun_gives_the_model_of_one_process(tmp_path):
    table = write(tmp_path / "t.csv", Y)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    both = run([*torchrun, *FIT, str(table), "--out", str(tmp_path / "two.gp"), "--distributed"])
    output, errors = both.communicate(timeout=120)
    assert both.returncode == 0, errors
    assert output.count("Fitted 1,200 rows") == 1
    alone = run([*FIT, str(table), "--out", str(tmp_path / "one.gp")])
    alone.communicate(timeout=120)
    one, two = (gigagp.load(tmp_path / f"{name}.gp") for name in ("one", "two"))
    new = pd.DataFrame(X[:50], columns=["a", "b"])
    for expected, found in zip(*(gp.predict(new, return_std=True) for gp in (one, two)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.slow
def test_other_rows_on_one_process_end_both_with_one_message(tmp_path):
    tables = [write(tmp_path / "t.csv", Y), write(tmp_path / "other.csv", Y + (np.arange(N) == 700))]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    out = tmp_path / "two.gp"
    running = [
        run([*FIT, str(table), "--out", str(out), "--distributed"], RANK=str(rank), **place)
        for rank, table in enumerate(tables)
    ]
    messages = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [2, 2]
    assert messages[0].startswith("gigagp: process 1 of 2 has a different y than process 0")
    assert messages[0].count("\n") == 1
    assert messages[1] == ""
    assert not out.exists()


def test_without_torchrun_it_is_refused(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InvalidInputError, match="--distributed needs the processes"), all_processes(True):
        pass
    with all_processes(False) as saves:
        assert saves


@pytest.mark.parametrize(("cards", "local", "taken"), [(4, "6", [2]), (1, "1", []), (0, "1", [])])
def test_each_process_of_a_machine_takes_a_card(monkeypatch, cards, local, taken):
    chosen: list[int] = []
    monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    _take_card()
    assert chosen == taken
