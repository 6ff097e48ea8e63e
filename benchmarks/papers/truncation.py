"""Bias-free scalable Gaussian processes via randomized truncations."""

from __future__ import annotations

from benchmarks.papers.experiment import Paper

PAPER = Paper(
    name="truncation",
    title="Bias-free scalable Gaussian processes via randomized truncations",
    reference="Potapczynski, Wu, Biderman, Pleiss and Cunningham 2021, [arXiv:2102.06695](https://arxiv.org/abs/2102.06695).",
    experiments=(),
)
