"""Fits with Student-t noise by any inference that takes known noise variances of rows.

Exact inference maximises the bound itself (`gigagp.inference.exact.student`). For other methods 1,000 rows give a start
of the hyperparameters, their neighbours give weights to all rows, the method learns with the noise variances that
follow from these, and its posterior gives the last weights.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gigagp.estimators.arguments import Arguments
from gigagp.estimators.choices.trials import learned, n_learned
from gigagp.inference import Exact, Inference
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.student import StudentObjective, check_student, improved, with_weights
from gigagp.inference.vecchia.likelihood import Regression, pool_of
from gigagp.model.likelihoods import Gaussian, StudentT
from gigagp.model.model import Model
from gigagp.model.student_noise import START_DF, StudentNoise, expected_weights, most_likely_noise
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.runtime import interruption
from gigagp.settings.random import spawn

#: Neighbours of a row, rows that determine the mean's coefficients, and rows that are conditioned at once.
_NEIGHBOURS, _TREND_ROWS, _BLOCK = 30, 5000, 2**14
#: Passes in which a row is predicted from the others alone, and passes of the bound's weights after them.
_LEFT_OUT_PASSES, _PASSES = 2, 3


def begin(
    arguments: Arguments, inference: Inference, table: TrainingTable, model: Model, generator: torch.Generator
) -> tuple[TableObjective, Model]:
    """Return the objective of a fit that weights rows, and the start of its learning."""
    likelihood = arguments.likelihood
    assert isinstance(likelihood, StudentT)
    check_student(model, table.n_targets)
    df, learns = likelihood.df, arguments.optimizer is not None
    model = with_squared_scale(model, df)
    if isinstance(inference, Exact):
        return StudentObjective(table, df if learns else df or START_DF), model
    seed = spawn(generator)
    objective = inference.objective_of(model, table, seed, Gaussian())
    noise = StudentNoise(df or START_DF, float(model.noise_variance))
    if learns:
        rows = torch.randperm(table.n_rows, generator=spawn(seed))[: n_learned(table.n_rows, arguments.budget)].sort()
        few = table.take_rows(rows.values.to(table.X.device))
        few = replace(few, X=few.X.double(), Y=few.Y.double())
        bound = StudentObjective(few, df)
        found = bound.posterior(learned(bound, model, arguments.optimizer, spawn(seed))).model
        assert found.student is not None
        model, noise = replace(model, kernel=found.kernel), found.student
    return objective, weighted_by_neighbours(model, table, noise, learns_df=df is None if learns else None)


def end(arguments: Arguments, objective: TableObjective, posterior: Posterior, generator: torch.Generator) -> Posterior:
    """Return the posterior at the weights that it gives to the rows itself, if it has weights and is not exact."""
    if posterior.model.student is None or isinstance(objective, StudentObjective):
        return posterior
    assert isinstance(arguments.likelihood, StudentT)
    learns_df, learns = arguments.likelihood.df is None, arguments.optimizer is not None
    model = improved(posterior, objective.table, learns_df=learns_df, learns_scale=learns)
    return objective.posterior(model, generator)


def with_squared_scale(model: Model, df: float | None) -> Model:
    """Return the model with the squared scale in place of the noise variance."""
    degrees = df or START_DF
    return replace(model, noise_variance=model.noise_variance * (degrees - 2) / degrees)


def weighted_by_neighbours(model: Model, table: TrainingTable, noise: StudentNoise, *, learns_df: bool | None) -> Model:
    """Return the model with the weights of all rows of one target, for given hyperparameters of the kernel.

    ``noise`` is the start. ``learns_df`` says whether the degrees of freedom are learned with the scale; None: neither
    is.
    """
    n, double = table.n_rows, table.X.double()
    table = replace(table, X=double, Y=table.Y.double())
    graph = NeighbourGraph(model.kernel, double, min(_NEIGHBOURS, n - 1))
    rows = torch.arange(n, device=double.device)
    blocks = [(block, graph.neighbourhood.others(block, min(_NEIGHBOURS, n - 1))) for block in rows.split(_BLOCK)]
    known = replace(model, noise_variance=torch.full((n,), noise.squared_scale, dtype=torch.float64), student=noise)
    few = torch.randperm(n, generator=torch.Generator().manual_seed(5))[:_TREND_ROWS].to(rows)
    trend_rows = [(few, graph.neighbourhood.others(few, min(_NEIGHBOURS, n - 1)))]
    for k in range(_LEFT_OUT_PASSES + _PASSES):
        pool = pool_of(known, table)
        trend = Regression.of(pool, table, trend_rows).trend
        values = table.Y - table.basis @ trend.coefficients
        errors, variances = [], []
        for block, neighbours in blocks:
            interruption.check()
            found = pool.conditionals(block, neighbours, values)
            assert found.residual is not None
            errors.append(found.residual[:, 0].cpu())
            variances.append(found.variance.cpu())
        error, variance = torch.cat(errors), torch.cat(variances)
        own = known.noise_variance
        latent = (variance - own).clamp_min(0)
        if k < _LEFT_OUT_PASSES:
            squares = error.square() * noise.squared_scale / (latent + noise.squared_scale)
            rows_noise = noise.squared_scale / expected_weights(squares, noise)
            known = replace(known, noise_variance=rows_noise)
            continue
        share = own / (latent + own)
        squares = (share * error).square() + own * (1 - share)
        if learns_df is not None:
            noise = most_likely_noise(squares, noise, learns_df=learns_df)
        known = with_weights(known, squares, noise)
    return known
