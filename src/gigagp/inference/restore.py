"""A posterior from the tensors of a model file."""

from __future__ import annotations

from typing import Any

import torch

from gigagp.errors import ModelFileError
from gigagp.inference.computation_aware import ComputationAwarePosterior
from gigagp.inference.exact import ExactPosterior
from gigagp.inference.grid.posterior import GridPosterior
from gigagp.inference.pathwise_posterior import PathwisePosterior
from gigagp.inference.posterior import Posterior
from gigagp.inference.quadruply_stochastic.posterior import QuadruplyStochasticPosterior
from gigagp.inference.random_features_posterior import FeaturePosterior
from gigagp.inference.sparse_variational.posterior import SparsePosterior
from gigagp.model import Model
from gigagp.solvers import Solver


def restore_posterior(
    header: dict[str, Any], tensors: dict[str, torch.Tensor], model: Model, budget: int, solver: Solver | str
) -> Posterior:
    """Return the posterior that was saved."""
    if header["kind"] == ExactPosterior.kind:
        return ExactPosterior.from_state(tensors, model, budget)
    if header["kind"] == FeaturePosterior.kind:
        return FeaturePosterior.from_state(tensors, header, model, budget)
    if header["kind"] == ComputationAwarePosterior.kind:
        return ComputationAwarePosterior.from_state(tensors, header, model, budget)
    if header["kind"] == GridPosterior.kind:
        return GridPosterior.from_state(tensors, header, model, budget)
    if header["kind"] == SparsePosterior.kind:
        return SparsePosterior.from_state(tensors, header, model, budget)
    if header["kind"] == QuadruplyStochasticPosterior.kind:
        return QuadruplyStochasticPosterior.from_state(tensors, header, model, budget)
    if header["kind"] == PathwisePosterior.kind and isinstance(solver, Solver):
        return PathwisePosterior.from_state(tensors, header, model, budget, solver)
    msg = f"the model file holds a posterior of an unknown kind: {header['kind']!r}."
    raise ModelFileError(msg)
