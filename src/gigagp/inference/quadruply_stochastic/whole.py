"""All rows and all basis functions at once, where a table is small: the best weights in closed form or by Newton."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gigagp.bases import Basis
from gigagp.dense import cholesky
from gigagp.errors import FitWarning, warn
from gigagp.inference.quadruply_stochastic.closed_form import chevron_of
from gigagp.inference.quadruply_stochastic.expectation import latent_derivatives
from gigagp.inference.quadruply_stochastic.latent import learned_basis, least_squares
from gigagp.inference.quadruply_stochastic.trend import OpenTrend
from gigagp.inference.quadruply_stochastic.weights import Weights
from gigagp.likelihoods import Gaussian
from gigagp.model import Model

if TYPE_CHECKING:
    from gigagp.inference.quadruply_stochastic.objective import QuadruplyStochasticObjective

#: Most Newton steps at one model, and the gain in nats an observation that ends them: while hyperparameters move, and
#: for the weights that are kept, whose bound must not depend on where the search started.
_STEPS, _TOLERANCE, _LAST_TOLERANCE = 50, 1e-7, 1e-9
#: Gain in nats an observation that may be missed without a warning.
_MISSED = 1e-3
#: Most halvings of a step.
_HALVINGS = 8
#: Most conjugate gradient steps for the mean's Newton step, and the relative error in its own norm that ends them.
_INNER, _INNER_RESIDUAL = 30, 1e-4
#: Most updates of the precisions of a relevance vector machine, the change of their logarithms that ends them, and the
#: precision, in units of the threshold, beyond which a function is taken out for good; the lowest threshold there.
_UPDATES, _CHANGE, _FAR, _THRESHOLD = 2000, 1e-3, 100.0, 1e4
#: Precisions stay above this, so that the posterior precision has a factor.
_LEAST = 1e-8


class _Start(NamedTuple):
    """Where a search starts: weights (m, t), coefficients of the mean's basis (p, t) and curvatures (n,)."""

    mean: Tensor
    trend: Tensor
    curvature: Tensor


class _Point(NamedTuple):
    """The bound at one mean and the best root for one curvature.

    ``precision`` is ``S + Phi' diag(curvature) Phi``, ``factor`` its Cholesky factor, and ``open_trend`` what the rows
    leave open about ``trend``, the coefficients of the mean's basis. ``slope`` and ``bend`` are the derivatives of the
    expected log-likelihood by the latent means, and minus twice those by the latent variances, (n, t); ``value`` is the
    bound.
    """

    mean: Tensor
    trend: Tensor
    curvature: Tensor
    factor: Tensor
    open_trend: OpenTrend
    root: Tensor
    variance: Tensor
    slope: Tensor
    bend: Tensor
    value: float

    def to_start(self, kept: Tensor | None = None) -> _Start:
        """Return it as a start, with some functions alone."""
        return _Start(self.mean if kept is None else self.mean[kept], self.trend, self.curvature)


class WholeTable:
    """The weights that maximise the bound on all rows and functions, and its derivatives by the hyperparameters there.

    For a Gaussian likelihood the exact posterior of the weights, in one step. For the others Newton's method for the
    mean, while the root's precision follows ``S + Phi' W Phi``, ``W = -E (log g)''`` at every row: natural gradient
    steps of length one, halved where the bound would fall (Khan and Lin 2017, https://arxiv.org/abs/1703.04265). Where
    the root is a chevron, its columns are the best ones for the same precision.

    O(n m^2 + m^3) a step.

    Parameters
    ----------
    objective : QuadruplyStochasticObjective
        With a basis.
    """

    def __init__(self, objective: QuadruplyStochasticObjective) -> None:
        self.objective = objective
        #: the mean's basis, without a column where its coefficients are held at zero
        self._basis = learned_basis(objective.table, objective.likelihood)
        #: where the next search starts
        self._last: _Start | None = None
        #: gain in nats that the last Newton step promised: what a search that ended early left
        self._promised = 0.0
        #: what is left open about the mean's coefficients
        self.open_trend: OpenTrend | None = None

    # The weights ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def fit(self, model: Model, *, to_the_end: bool = False) -> tuple[Weights, float]:
        """Return the best weights at a model, and the bound there; ``to_the_end``: those that are kept."""
        objective = self.objective
        index = torch.arange(objective.basis.size, device=objective.table.X.device)
        X = objective.table.X.double()
        basis = objective.basis.with_kernel(model.kernel)
        Phi, noise = basis.columns(X, index), self._noise(model)
        if objective.settings.learns_precision:
            found = self._relevance(model, Phi, noise)
        else:
            found = self._weights_at(basis, index, Phi, noise, _LAST_TOLERANCE if to_the_end else _TOLERANCE)
        if to_the_end:
            self._warn_of_the_end()
        return found

    def _weights_at(
        self, basis: Basis, index: Tensor, Phi: Tensor, noise: Tensor, tolerance: float
    ) -> tuple[Weights, float]:
        S = basis.prior_diagonal(index) if basis.has_diagonal_prior else basis.prior_block(index, index)
        found = self._maximise(Phi, S, noise, self._start(Phi, noise), tolerance)
        self._last = found.to_start()
        self._settle_trend(found)
        return self._weights(found), found.value

    def _warn_of_the_end(self) -> None:
        """Warn where the search stopped below the optimum, as it does at kinks of the likelihood."""
        if self._promised > _MISSED * self.objective.n_observations:
            msg = (
                f"the search for the best weights ended early: its last step promised {self._promised:.3g} nats and "
                "gave nothing. Mean and variance may be off. Use a larger noise_variance or another likelihood."
            )
            warn(msg, FitWarning)

    def _settle_trend(self, found: _Point) -> None:
        """Take the trend off the targets; coefficients of labels and counts are held at zero."""
        if self.objective.likelihood.has_noise:
            self.objective.set_trend(found.trend)
            self.open_trend = found.open_trend

    def _weights(self, found: _Point) -> Weights:
        like, k = self.objective.table.X, self._n_columns(len(found.mean))
        columns = found.root[:, :k].to(like) if k else None
        return Weights(found.mean.to(like), found.root.diagonal().log().to(like), columns)

    def _n_columns(self, m: int) -> int:
        asked = self.objective.settings.n_columns
        return m if asked is None else min(asked, m)

    def _noise(self, model: Model) -> Tensor:
        rows = torch.arange(self.objective.n_rows, device=self.objective.table.X.device)
        return self.objective.noise(model, rows, self.objective.table.X.double())

    def _start(self, Phi: Tensor, noise: Tensor) -> _Start:
        """Return where to start: at the model before, or nothing known."""
        likelihood, targets = self.objective.likelihood, self.objective.table.Y
        start = self._last
        if start is None:
            mean = Phi.new_zeros(Phi.shape[1], targets.shape[1])
            flat = Phi.new_full((len(Phi),), likelihood.start_curvature(targets, float(noise.mean())))
            start = _Start(mean, least_squares(self._basis, targets), flat)
        return start._replace(curvature=1 / noise) if isinstance(likelihood, Gaussian) else start

    def _maximise(self, Phi: Tensor, S: Tensor, noise: Tensor, start: _Start, tolerance: float = _TOLERANCE) -> _Point:
        here = self._at(Phi, S, noise, start)
        for _ in range(_STEPS):
            step, by_trend, self._promised = self._newton(Phi, S, here)
            bend = here.bend.mean(1)
            share, there = 1.0, here
            for _ in range(_HALVINGS):
                curvature = here.curvature + share * (bend - here.curvature)
                trial = _Start(here.mean + share * step, here.trend + share * by_trend, curvature)
                there = self._at(Phi, S, noise, trial, here)
                if there.value >= here.value:
                    break
                share *= 0.5
            else:
                break
            gain, here = there.value - here.value, there
            if gain < tolerance * self.objective.n_observations:
                break
        return here

    def _at(self, Phi: Tensor, S: Tensor, noise: Tensor, place: _Start, known: _Point | None = None) -> _Point:
        """Return the bound and what the next step needs; the root of a known point serves the same curvature."""
        mean, trend, curvature = place
        if known is not None and torch.allclose(curvature, known.curvature, rtol=1e-10, atol=0.0):
            factor, open_trend, root, variance = known.factor, known.open_trend, known.root, known.variance
        else:
            precision = Phi.T @ (Phi * curvature[:, None])
            if S.ndim == 1:
                precision.diagonal().add_(S)
            else:
                precision += S
            factor = cholesky(precision, "the posterior precision of the weights")
            open_trend = OpenTrend.at_weights(Phi, curvature, factor, self._basis)
            root = chevron_of(precision, self._n_columns(len(S)))
            variance = (Phi @ root).square().sum(1)
        objective = self.objective
        targets, nodes = objective.table.Y.double(), objective.settings.quadrature_nodes
        latent = Phi @ mean + self._basis @ trend
        fit, slope, bend, _ = latent_derivatives(objective.likelihood, targets, latent, variance, noise, nodes)
        value = fit - float(self._divergence(S, mean, root))
        return _Point(mean, trend, curvature, factor, open_trend, root, variance, slope, bend, value)

    def _newton(self, Phi: Tensor, S: Tensor, here: _Point) -> tuple[Tensor, Tensor, float]:
        """Return the Newton step of the mean, (m, t), and of the trend, (p, t), and the gain that it promises.

        By conjugate gradients. Every target has a curvature of its own. The root has one for all, and its precision is
        the preconditioner; where they agree the first step is exact.
        """
        m, basis, (root, solutions) = Phi.shape[1], self._basis, (here.open_trend.root, here.open_trend.solutions)
        cross = Phi.T @ (here.curvature[:, None] * basis)

        def product(v: Tensor) -> Tensor:
            weighed = here.bend * (Phi @ v[:m] + basis @ v[m:])
            return torch.cat([Phi.T @ weighed + _times(S, v[:m]), basis.T @ weighed])

        def precondition(v: Tensor) -> Tensor:
            weights = torch.cholesky_solve(v[:m], here.factor)
            trend = root @ (root.T @ (v[m:] - cross.T @ weights))
            return torch.cat([weights - solutions @ trend, trend])

        gradient = residual = torch.cat([Phi.T @ here.slope - _times(S, here.mean), basis.T @ here.slope])
        step = torch.zeros_like(residual)
        direction = conditioned = precondition(residual)
        inner = first = (residual * conditioned).sum(0)
        for _ in range(_INNER):
            if bool((inner <= _INNER_RESIDUAL**2 * first).all()):
                break
            image = product(direction)
            length = inner / (direction * image).sum(0).clamp_min(1e-300)
            step = step + length * direction
            residual = residual - length * image
            conditioned = precondition(residual)
            before, inner = inner, (residual * conditioned).sum(0)
            direction = conditioned + (inner / before.clamp_min(1e-300)) * direction
        return step[:m], step[m:], 0.5 * float((gradient * step).sum())

    def _divergence(self, S: Tensor, mean: Tensor, root: Tensor) -> Tensor:
        """Return the divergence from the prior, all targets, differentiable in S."""
        t, m = mean.shape[1], len(S)
        if S.ndim == 1:
            determinant, spread = S.log().sum(), S @ root.square().sum(1)
        else:
            determinant = 2 * cholesky(S, "the prior precision").diagonal().log().sum()
            spread = (root * (S @ root)).sum()
        log_scales = 2 * root.diagonal().log().sum()
        return 0.5 * ((mean * _times(S, mean)).sum() + t * (spread - log_scales - determinant - m))

    def snapshot(self) -> dict[str, Tensor]:
        """Return where the next search starts."""
        return {} if self._last is None else self._last._asdict()

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take over a snapshot."""
        if "mean" in tensors:
            self._last = _Start(**{name: tensors.pop(name) for name in _Start._fields})

    # Hyperparameters ------------------------------------------------------------------------------------------------

    def gradient(self, model: Model, weights: Weights) -> dict[str, Tensor]:
        """Return the derivatives of the best bound by the hyperparameters, at the best weights.

        The bound is at its highest in the weights there, so they count as constants. Hyperparameters without a
        derivative (those that make the functions of a grid, or of a relevance vector machine) have zeros.
        """
        objective = self.objective
        mean, root = weights.mean.double(), weights.root()
        found = {name: torch.zeros_like(value) for name, value in model.parameters().items()}
        names = objective.learned_names(model)
        if not names:
            return found
        with torch.enable_grad():
            values = {name: model.parameters()[name].detach().clone().requires_grad_() for name in names}
            live = model.replace(values)
            index = torch.arange(objective.basis.size, device=mean.device)
            basis = objective.basis.with_kernel(live.kernel)
            if weights.log_precision is not None:
                S = weights.log_precision.double().exp()
            elif basis.has_diagonal_prior:
                S = basis.prior_diagonal(index)
            else:
                S = basis.prior_block(index, index)
            Phi = basis.columns(objective.table.X.double(), index)
            std = (Phi @ root).square().sum(1).clamp_min(1e-30).sqrt()
            fit = objective.likelihood.expected_log_density(
                objective.targets.double(),
                Phi @ mean,
                std[:, None],
                self._noise(live)[:, None],
                objective.settings.quadrature_nodes,
            ).sum()
            value = fit - self._divergence(S, mean, root)
            slopes = torch.autograd.grad(value, list(values.values()), allow_unused=True)
        found |= {name: slope for name, slope in zip(values, slopes, strict=True) if slope is not None}
        return found

    # Relevance vectors ----------------------------------------------------------------------------------------------

    def _relevance(self, model: Model, Phi: Tensor, noise: Tensor) -> tuple[Weights, float]:
        """Return the weights of a relevance vector machine: precisions by MacKay's update, which far ones leave.

        ``s_i = (1 - s_i Sigma_ii) / mu_i^2`` has the fixed points of ``s_i = 1 / E w_i^2`` and gets there in a tenth of
        the steps; what it does not need goes to infinity in a few (Tipping 2001, eq. 16).
        """
        objective, m = self.objective, Phi.shape[1]
        own = float(model.kernel.diagonal(objective.table.X).mean())
        precision = Phi.new_full((m,), float(Phi.square().sum()) / len(Phi) / own)
        kept = torch.arange(m, device=Phi.device)
        # a low threshold drops more of the same optimum; it does not move it
        far = _FAR * max(getattr(objective.settings, "threshold", 0.0), _THRESHOLD)
        self._last = None
        start = self._start(Phi, noise)
        for _ in range(_UPDATES):
            found = self._maximise(Phi[:, kept], precision[kept], noise, start)
            variance = found.root.square().sum(1)
            known = (1 - precision[kept] * variance).clamp_min(1e-12)
            updated = (known / found.mean.square().mean(1).clamp_min(1e-300)).clamp_min(_LEAST)
            change = float((updated.clamp_max(far).log() - precision[kept].log()).abs().max())
            precision[kept] = updated.clamp_max(far)
            left = updated < far
            if not bool(left.any()):
                left[updated.argmin()] = True
            kept, start = kept[left], found.to_start(left)
            if change < _CHANGE and bool(left.all()):
                break
        # at the end the precisions are exactly those that the bound wants for these weights
        found = self._maximise(Phi[:, kept], precision[kept], noise, start)
        self._settle_trend(found)
        if self.open_trend is not None:  # functions that were left out have no weight
            solutions = Phi.new_zeros(m, self.open_trend.solutions.shape[1])
            solutions[kept] = self.open_trend.solutions
            self.open_trend = replace(self.open_trend, solutions=solutions)
        like = objective.table.X
        mean, log_scale = like.new_zeros(m, found.mean.shape[1]), (-0.5 * precision.log()).to(like)
        root = like.new_zeros(m, m)
        mean[kept], log_scale[kept] = found.mean.to(like), found.root.diagonal().log().to(like)
        root[kept[:, None], kept] = found.root.to(like)
        squares = found.mean.square().mean(1) + found.root.square().sum(1)
        precision[kept] = 1 / squares
        value = found.value  # the divergence at the precisions before; they differ by less than the tolerance
        return Weights(mean, log_scale, root, precision.log().to(like)), value


def _times(S: Tensor, v: Tensor) -> Tensor:
    return S[:, None] * v if S.ndim == 1 else S @ v
