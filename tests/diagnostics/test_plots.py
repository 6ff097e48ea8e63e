from __future__ import annotations

import sys

import pytest
import torch

from gigagp import diagnostics
from gigagp.diagnostics.bias import BiasReport, BiasRow
from gigagp.diagnostics.plots import _shown
from gigagp.errors import InvalidInputError


def report(n_rows=3, bias=0.0):
    draws = torch.randn(50, n_rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + bias
    rows = tuple(
        BiasRow(f"number {i}", 0.0, float(one.mean()), float(one.std()), 1.0, 50) for i, one in enumerate(draws.T)
    )
    return BiasReport("a method\nof some length", 100, 50, rows, draws, 0.1, 0.2, None)


@pytest.mark.few(2)
@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_plot_is_a_file(tmp_path, ending):
    diagnostics.plot_bias(report(), tmp_path / f"one.{ending}")
    diagnostics.plot_bias({"one": report(), "other": report(2, bias=3.0)}, tmp_path / f"two.{ending}")
    for name in ("one", "two"):
        content = (tmp_path / f"{name}.{ending}").read_bytes()
        assert len(content) > 2000
        assert content.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending])


def test_a_plot_says_what_it_shows(tmp_path):
    diagnostics.plot_bias({"one": report(), "other": report(bias=3.0)}, tmp_path / "two.svg")
    text = (tmp_path / "two.svg").read_text(encoding="utf-8")
    for word in ("number 2", "one", "other", "50 draws, 100 rows"):
        assert f"<!-- {word} -->" in text


def test_the_worst_lines_are_kept_in_their_order():
    rows = _shown({"": report(60, bias=torch.linspace(0, 3, 60))})
    assert len(rows) == 40
    assert rows == sorted(rows, key=lambda name: int(name.split()[1]))
    assert rows[-1] == "number 59"


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="must hold at least one report"):
        diagnostics.plot_bias({}, tmp_path / "plot.png")


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"ends in .png, .pdf, .svg; got"):
        diagnostics.plot_bias(report(), tmp_path / "plot.txt")


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidInputError, match=r'pip install "gigagp\[plot\]"'):
        diagnostics.plot_bias(report(), tmp_path / "plot.png")
