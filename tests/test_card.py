"""The tests of `card_cases`, in processes of their own: torch registers a pretended card for a whole process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("card_cases.py")


def run(*options: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", str(CASES), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CASES.parents[1])
    assert done.returncode == 0, done.stdout[-4000:]


def test_quick_cases():
    run("-m", "not slow")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "group",
    ["inferences", "models", "likelihoods", "kernels", "file or chunks", "same_steps or iteration or auto_takes"],
)
def test_slow_cases(group):
    run("-m", "slow", "-k", group)
