"""Quadruply stochastic Gaussian processes."""

from __future__ import annotations

from benchmarks.papers.experiment import Paper

PAPER = Paper(
    name="quadruply",
    title="Quadruply stochastic Gaussian processes",
    reference="Evans and Nair 2020, [arXiv:2006.03015](https://arxiv.org/abs/2006.03015).",
    experiments=(),
)
