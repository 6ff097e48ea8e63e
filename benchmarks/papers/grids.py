"""Faster kernel interpolation for Gaussian processes."""

from __future__ import annotations

from benchmarks.papers.experiment import Paper

PAPER = Paper(
    name="grids",
    title="Faster kernel interpolation for Gaussian processes",
    reference="Yadav, Sheldon and Musco 2021, [arXiv:2101.11751](https://arxiv.org/abs/2101.11751).",
    experiments=(),
)
