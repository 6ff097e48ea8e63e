"""The start of solves with further rows, from the solutions for the earlier ones and nearest neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.neighbours.predictor import LocalPredictor
from gigagp.products import cross_product

#: Largest numbers of further rows whose covariances given the earlier ones are taken together, and of the neighbours
#: that they may have, whose covariances are stored (32 MiB).
_TOGETHER, _NEIGHBOURS = 256, 2048


def continued_start(
    predictor: LocalPredictor, X: Tensor, further: Tensor, solved: Tensor, values: Tensor, noise: Tensor, budget: int
) -> Tensor:
    """Return an approximate solution of ``H`` with further rows at its end, shape (n + k, s).

    With the solutions ``v_1`` for the earlier rows, the further part is ``v_2 = S^-1 (b_2 - K_21 v_1)`` with
    ``S = H_22 - H_21 H_11^-1 H_12``, and the earlier part becomes ``v_1 - H_11^-1 H_12 v_2``. Both are exact if the
    predictors ``H_11^-1 H_12`` are, in whose place are those from nearest neighbours.

    Parameters
    ----------
    predictor : LocalPredictor
        Predictors from the earlier rows.
    X, further : Tensor of shapes (n, d) and (k, d)
        Earlier and further rows.
    solved : Tensor of shape (n, s)
        Solutions for the earlier rows.
    values : Tensor of shape (k, s)
        Right-hand sides of the further rows.
    noise : Tensor of shape (k,)
        Noise variances of the further rows, including the kernel's white part, float64.
    budget : int
        Memory budget in bytes.
    """
    kernel = predictor.kernel
    left = (values - cross_product(kernel, further, X, solved, budget=budget)).double()
    earlier, later = solved.double().clone(), torch.zeros_like(left)
    together = _TOGETHER if len(X) <= _NEIGHBOURS else max(1, min(_TOGETHER, _NEIGHBOURS // predictor.n_neighbours))
    for rows in torch.arange(len(left), device=left.device).split(together):
        points, local = further[rows], predictor.weights(further[rows])
        spread = predictor.covariances(points[None])[0].double()
        spread.diagonal().add_(noise[rows])
        factor, info = torch.linalg.cholesky_ex(spread)
        if int(info) != 0 or not bool(torch.isfinite(factor).all()):
            continue  # zeros are a start too
        later[rows] = torch.cholesky_solve(left[rows], factor)
        shares = local.weights.double()[:, :, None] * later[rows][:, None, :]
        earlier.index_add_(0, local.rows[local.places.flatten()], -shares.flatten(0, 1))
    return torch.cat([earlier, later]).to(solved)
