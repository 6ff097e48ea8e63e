"""What an ascent of the weights consists of between two steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.anchor import Anchor
from gigagp.inference.quadruply_stochastic.bases import Basis
from gigagp.inference.quadruply_stochastic.controls import Controls
from gigagp.inference.quadruply_stochastic.rows_covariance import RowsCovariance
from gigagp.inference.quadruply_stochastic.subset_posterior import Subset
from gigagp.inference.quadruply_stochastic.weights import Weights
from gigagp.model.model import Model


@dataclass
class State:
    """An ascent between two steps.

    Attributes
    ----------
    model : Model
        Where the bound was last evaluated.
    basis : Basis
        At the hyperparameters of the start.
    weights : Weights
        Moved in place.
    generator : torch.Generator
        Of the samples to come.
    trend : Tensor of shape (p, t)
        Coefficients of the mean's basis, float64.
    targets : Tensor of shape (n, t)
        Of the held rows, without the trend; labels and counts as they are.
    start : Subset or None
        Rows whose posterior the weights start from; None: they start from zero.
    trend_rows : Subset or None
        Rows that the trend comes from: those of the start where they are enough.
    spread : RowsCovariance or None
        The latent covariance that the rows of the start leave, where it takes the place of the weights' in the bound.
    controls : Controls
    anchor : Anchor or None
    steps_since_anchor : int
        Steps since the anchor was computed, or since the start.
    """

    model: Model
    basis: Basis
    weights: Weights
    generator: torch.Generator
    trend: Tensor
    targets: Tensor
    start: Subset | None
    trend_rows: Subset | None
    spread: RowsCovariance | None
    controls: Controls
    anchor: Anchor | None = None
    steps_since_anchor: int = 0

    def move_anchor(self, X: Tensor, *, with_columns: bool) -> None:
        """Compute the functions of the present weights, of the mean alone or of all, at the held rows ``X``."""
        basis = self.basis.with_kernel(self.model.kernel)
        self.anchor, self.steps_since_anchor = Anchor.at(basis, self.weights, X, with_columns=with_columns), 0

    def restart_controls(self) -> None:
        """Have the control variates follow what the weights are apart from the anchor."""
        self.controls.restart(self.weights, self.targets, self.anchor)
