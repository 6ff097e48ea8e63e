"""Weights of all rows for Student-t noise, from the rows around each of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.student import with_weights
from gigagp.inference.vecchia.likelihood import Regression, pool_of
from gigagp.model.model import Model
from gigagp.model.student_noise import StudentNoise, expected_weights, most_likely_noise
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.runtime import interruption

#: Neighbours of a row, rows that determine the mean's coefficients, and rows that are conditioned at once.
_NEIGHBOURS, _TREND_ROWS, _BLOCK = 30, 5000, 2**14
#: Passes in which a row is predicted from the others alone, and passes of the bound's weights after them.
_LEFT_OUT_PASSES, _PASSES = 2, 3


def weighted_by_neighbours(model: Model, table: TrainingTable, noise: StudentNoise, *, learns_df: bool | None) -> Model:
    """Return the model with the weights of all rows, for given hyperparameters of the kernel.

    Parameters
    ----------
    model : Model
        Its noise is not used.
    table : TrainingTable
        Training rows in the model's units, with one target.
    noise : StudentNoise
        Start of the noise.
    learns_df : bool or None
        Whether the degrees of freedom are learned with the scale; None: neither is.
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
