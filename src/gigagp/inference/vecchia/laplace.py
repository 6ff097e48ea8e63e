"""The Laplace approximation of the evidence under a Vecchia prior, for targets that are not Gaussian."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import FitWarning, InvalidInputError, warn
from gigagp.inference.contract.input_gradients import derivatives
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.laplace_posterior import LaplacePosterior, LatentGaussian
from gigagp.inference.vecchia.latent import LatentSpace, is_dense
from gigagp.inference.vecchia.learning_rows import spread_and_clustered
from gigagp.inference.vecchia.mode import Curvature, Mode, ModeSearch, terms
from gigagp.kernels import Kernel
from gigagp.model.likelihoods import Likelihood, check_laplace
from gigagp.model.model import NOISE, Model
from gigagp.model.scaling import centre_and_spread
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.factor import Factor
from gigagp.neighbours.neighbourhood import NeighbourGraph, neighbours_of_a_point
from gigagp.neighbours.predictor import LocalPredictor
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.space import ParameterSpace
from gigagp.runtime.memory import require

#: The nugget, an independent part of latent values without which smooth kernels have no inverse in float64. Shares of
#: the prior variance from the least that float64 allows. Rounding changes predictions by its ratio to the nugget, and
#: the nugget itself by its product with the information of a target: at 1e-11 smooth kernels lose digits to the first,
#: and at 1e-9 Matern kernels to the second. A larger one is taken where weights of the least are so large that the
#: errors of the approximation show, which happens beyond the rows of smooth kernels.
NUGGETS = (1e-10, 1e-8, 1e-6, 1e-4)
#: Prior variance of predictions, over the kernel's, above which weights are too large, and above which they are wrong.
TOO_MUCH, FAR_TOO_MUCH = 2.0, 4.0
#: Pairs of rows that `points_around` makes points of.
_PAIRS = 64


def points_around(X: Tensor) -> Tensor:
    """Return points between random pairs of rows (n, d) and beyond them, shape (128, d) for 64 rows or more."""
    generator = torch.Generator().manual_seed(8)
    one, other = (X[torch.randperm(len(X), generator=generator)[:_PAIRS].to(X.device)].double() for _ in range(2))
    return torch.cat([0.5 * (one + other), 2 * one - other])


def variance_ratio(kernel: Kernel, predictor: LocalPredictor, prior_root: Tensor, X: Tensor) -> float:
    """Return the largest prior variance that predictions at points X (q, d) have, over that of the kernel.

    With as many neighbours as rows it is one, and with fewer about one. Above, the weights of a point multiply the
    difference between the covariance of the factor, of which ``prior_root`` (n, r) is a root, and that of the kernel.
    """
    spread, left = predictor.predict(X, prior_root)
    own = kernel.diagonal(X)
    ratio = (left + spread.square().sum(1)) / own
    return float(ratio[own > 0].max()) if bool((own > 0).any()) else 1.0


#: Rows behind a new point, and rows that hyperparameters are learned from.
_PREDICTION_NEIGHBOURS, _LEARNING_ROWS = 60, 20_000
#: Draws behind a gradient, behind a posterior, and directions of a log determinant.
_GRADIENT_DRAWS, _POSTERIOR_DRAWS, _DIRECTIONS = 16, 128, 32
#: Float64 numbers that more than a thousand rows have for each row and these draws.
DRAWN_NUMBERS = 3 * _POSTERIOR_DRAWS
#: Relative error of their solves.
_TOLERANCE = 3e-3
#: Most refinements of a solve for a derivative of the mode, and the relative change that ends them.
_REFINED, _CLOSE = 30, 1e-7
#: Rows up to which learning is exact. An evaluation of 1,000 takes .8 s by dense algebra, and .05 s from draws.
_LEARNING_DENSE = 300
#: Nats an observation that are worth another gradient.
_LEAST_GAIN = 1e-4
#: Gains in nats an observation that end the search for the mode, in learning and for a posterior; and with few rows.
_LEARNING_GAIN, _LAST_GAIN = 1e-7, 1e-9
_EXACT_GAIN, _EXACT_LAST_GAIN = 1e-12, 1e-14
#: Coordinates of the preconditioner's block.
_LEARNING_BLOCK, _LAST_BLOCK = 256, 512
#: Gain in nats an observation that may be missed without a warning.
_MISSED = 1e-4
#: Rows whose pseudo-observations give the expected information.
_INFORMATION_ROWS = 4000
#: Latent values at which the slopes of densities are looked at.
_ANYWHERE = (-30.0, -10.0, -3.0, 0.0, 3.0, 10.0, 30.0)
#: Largest variance of a pseudo-observation, over the prior's.
_LARGEST_NOISE = 1e8


class LaplaceObjective(TableObjective):
    """``log p(Y | f) - f' Q f / 2 - log det(I + L' W L) / 2`` at the most probable latent values f.

    The precision ``Q = (L L')^-1`` of the latent values is that of their conditional distributions given their nearest
    earlier rows (Vecchia 1988). They include a nugget (`NUGGETS`). W is the curvature of the log-likelihood, with
    several targets the mean of theirs in the determinant, as in the posterior's variance. Up to 300 rows everything is
    exact. Beyond, determinants come from random directions, and traces in the gradient from draws of ``m = u - s``: u
    is a draw of the prior, and s, made of the same random numbers, one of the posterior. m is the posterior mean given
    drawn pseudo-observations, and independent of s. So ``tr((Q^-1 - (Q + W)^-1) dQ) = E m' dQ m``, in which there is
    nothing of what the data do not inform. The random numbers are the same for all models. Posteriors are exact up to
    `DENSE_ROWS` rows.

    By default points are conditioned on 60 rows, at least ``n_neighbours``, or on all if each row has all others, and
    hyperparameters are learned from 20,000 rows.

    Rasmussen and Williams 2006, section 5.5.1; Kuendig and Sigrist 2024, arXiv:2310.12000.
    """

    deterministic = True  # the draws and the neighbours stay the same
    has_distant_optima = True  # a smooth function with a steep slope explains labels as well as a rougher one

    def __init__(
        self,
        table: TrainingTable,
        likelihood: Likelihood,
        n_neighbours: int,
        prediction_neighbours: int | None,
        learning_rows: int | None = None,
    ) -> None:
        super().__init__(table)
        self._targets, self._offset = table.beside.given(likelihood, table.Y), table.beside.offset_of(table.Y)
        likelihood.check_targets(self._targets)
        check_laplace(likelihood, self._targets)
        n, self.likelihood = table.n_rows, likelihood
        self._n_neighbours = min(n_neighbours, max(n - 1, 1))
        if prediction_neighbours is None:
            prediction_neighbours = neighbours_of_a_point(n_neighbours, _PREDICTION_NEIGHBOURS, n)
        self._prediction_neighbours = prediction_neighbours
        self._is_complete = is_dense(n) and min(n_neighbours, prediction_neighbours - 1) >= n - 1
        columns = 3 * n if is_dense(n) else DRAWN_NUMBERS
        require(8 * n * columns, table.budget, f"The posterior draws of {n:,} rows", "Use fewer rows.")
        # Rates of an exposure in any unit have no typical size.
        p = table.basis.shape[1] if likelihood.has_trend or table.beside.offset is not None else 0
        self._basis = table.basis.double()[:, :p]
        self._graph: NeighbourGraph | None = None
        self._known: tuple[Tensor, Tensor] | None = None
        #: model of the last evaluation, with the curvature, (n,), and the latent values, (n, t), at its mode
        self._last: tuple[Model, Tensor, Tensor] | None = None
        #: what learns in place of this objective, from some of the rows
        self._learner: LaplaceObjective | None = None
        learning_rows = _LEARNING_ROWS if learning_rows is None else learning_rows
        if learning_rows < n:
            self._rows = spread_and_clustered(table.X, learning_rows)
            self._learner = self._of_rows(self._rows)

    def _of_rows(self, rows: Tensor) -> LaplaceObjective:
        table = self.table.take_rows(rows)
        return LaplaceObjective(table, self.likelihood, self._n_neighbours, self._prediction_neighbours, len(rows))

    # Properties -----------------------------------------------------------------------------------------------------

    @property
    def least_gain(self) -> float:
        """Smallest gain in nats that is worth another gradient: with 2,000 rows about the standard error of a value."""
        return _LEAST_GAIN * self.n_observations

    @property
    def target_variance(self) -> float:
        """Typical variance of the latent function, which sets the scale of the prior of hyperparameters.

        Where targets may be grossly wrong, it comes from medians.
        """
        if self.likelihood.scales_by_medians:
            return float(np.square(centre_and_spread(self.table.Y.double().cpu().numpy(), medians=True)[1]).mean())
        return self.likelihood.signal_variance or super().target_variance

    def subset(self, rows: Tensor) -> LaplaceObjective:  # type: ignore[override]
        """Return the objective on a subset of the rows."""
        return self._of_rows(rows)

    def thin(self, rows: Tensor) -> LaplaceObjective:
        """Return the objective on a subset of the rows, or this one where it learns from a part of the rows."""
        return self if self._learner is not None else self._of_rows(rows)

    def start(self, model: Model) -> Model:
        if self._learner is not None:
            self._learner.start(model.take_rows(self._rows))
        elif self._graph is None or not self._graph.serves(model.kernel, self.table.X, self._n_neighbours):
            self._graph = NeighbourGraph(model.kernel, self.table.X, self._n_neighbours)
        return model

    # The evidence ---------------------------------------------------------------------------------------------------

    def require_limits(self) -> None:
        """Raise `InvalidInputError` if every target is likelier the lower, or the higher, the latent function is.

        Nothing then limits the coefficients of the mean, whose prior is flat: all counts are zero, say.
        """
        if not self._basis.shape[1]:
            return
        likelihood, trials = self.likelihood.at(self.likelihood.start(self.table.Y.double())), self.table.beside.trials
        noise = torch.ones_like(self._offset) if trials is None else trials.to(self._offset)[:, None]
        slopes = []
        with torch.enable_grad():
            for place in _ANYWHERE:
                f = torch.full_like(self._offset, place).requires_grad_()
                slopes.append(terms(likelihood, self._targets, f, noise.expand_as(f))[1].detach())
        of_targets = torch.stack(slopes).transpose(0, 1).flatten(0, 1)  # each column is a target's
        for way, falls in (("lower", of_targets), ("higher", -of_targets)):
            if bool(((falls <= 0).all(0) & (falls < 0).any(0)).any()):
                raise InvalidInputError(
                    f"every target of the {likelihood.name} likelihood is more probable the {way} the latent function "
                    "is, so that nothing limits its learned mean (all counts are 0, or no event was seen, say). "
                    'Give rows with other targets, or use mean="zero".'
                )

    def _noise(self, model: Model) -> Tensor:
        """Return the noise variances of the rows, or their numbers of trials, shape (n,)."""
        X, trials = self.table.X.double(), self.table.beside.trials
        if trials is not None:
            return trials.to(X)
        return model.noise_variance.to(X).expand(len(X)) + model.kernel.white(X)

    def _likelihood(self, model: Model) -> Likelihood:
        """Return the likelihood with the parameters that a model has for it."""
        return self.likelihood.at({name: value.to(self._offset) for name, value in model.of_likelihood.items()})

    def _nugget(self, model: Model, share: float = NUGGETS[0]) -> Tensor:
        return share * model.kernel.diagonal(self.table.X.double())

    def _pool(self, model: Model, noise: Tensor) -> Pool:
        X = self.table.X.double()
        return Pool(model.kernel, X, noise, budget=self.table.budget // 4, latent=True)

    def _space(
        self, model: Model, graph: NeighbourGraph, nugget: Tensor, block: int, dense_rows: int | None = None
    ) -> LatentSpace:
        return LatentSpace(Factor.of(self._pool(model, nugget), graph.neighbours, graph.order), block, dense_rows)

    def _sound_space(self, model: Model, graph: NeighbourGraph) -> tuple[LatentSpace, Tensor, float]:
        """Return the space for a posterior, its nugget (n,) and its `variance_ratio`.

        The nugget is the least at which predictions keep to the prior variance.
        """
        around = model.kernel.admitted(points_around(self.table.X))
        for share in NUGGETS:
            nugget = self._nugget(model, share)
            space = self._space(model, graph, nugget, _LAST_BLOCK)
            given = self.table.X, nugget, graph, self._prediction_neighbours, self.table.budget
            predictor = LocalPredictor(model.kernel, *given)
            ratio = variance_ratio(model.kernel, predictor, space.prior_root(_POSTERIOR_DRAWS), around)
            if ratio <= TOO_MUCH:
                break
        return space, nugget, ratio

    def _mode(self, model: Model, space: LatentSpace, known: tuple[Tensor, Tensor] | None, tolerance: float) -> Mode:
        variance = model.kernel.diagonal(self.table.X.double())
        given = self._likelihood(model), self._targets, self._offset, self._basis, self._noise(model), variance
        return ModeSearch(space, *given).maximise(known, tolerance)

    @torch.no_grad()
    def evaluate(self, model: Model) -> Evaluation:
        """Return the value and the gradient, both from draws if the rows are many."""
        if self._learner is not None:
            found, share = self._learner.evaluate(model.take_rows(self._rows)), self.table.n_rows / len(self._rows)
            assert found.value is not None
            return Evaluation(share * found.value, {name: share * one for name, one in found.gradient.items()})
        if self._graph is None:
            self.start(model)
        assert self._graph is not None
        space = self._space(model, self._graph, self._nugget(model), _LEARNING_BLOCK, _LEARNING_DENSE)
        gain = _EXACT_GAIN if space.is_dense else _LEARNING_GAIN
        mode = self._mode(model, space, self._known, gain)
        self._known = mode.z, mode.coefficients
        curvature = mode.local.curvature.mean(1)
        self._last = model, curvature, self._latent(mode)
        roots = space.roots(curvature, _GRADIENT_DRAWS, _TOLERANCE)
        gradient = self._gradient(model, self._graph, space, mode, *roots)
        determinant = space.log_determinant(curvature, _DIRECTIONS).value
        return Evaluation(mode.value - 0.5 * self.table.n_targets * determinant, gradient)

    def _latent(self, mode: Mode) -> Tensor:
        """Return what the likelihood has as latent values, (n, t)."""
        return mode.f + self._basis @ mode.coefficients + self._offset

    def _gradient(
        self, model: Model, graph: NeighbourGraph, space: LatentSpace, mode: Mode, root: Tensor, prior: Tensor
    ) -> dict[str, Tensor]:
        """Return the gradient from roots of the posterior and of the prior covariance.

        The determinant changes with the mode too, by ``c = -diag((Q + W)^-1) W' / 2`` for each latent value, and the
        mode moves by ``-(Q + W)^-1 dQ f``. So ``h' dQ f`` is needed for ``h = (Q + W)^-1 c``, which is the difference
        of two quadratic forms. All forms are those of log densities of columns, whose determinants cancel: the first
        density has as many columns as the second.
        """
        local, t = mode.local, self.table.n_targets
        variance = root.square().sum(1)[:, None]
        through_mode = -0.5 * variance * local.change
        if bool(through_mode.any()):
            z, of_trend = self._solved_at(space, local, through_mode)
            h = space.colour(z)
        else:
            h, of_trend = torch.zeros_like(through_mode), self._basis.new_zeros(self._basis.shape[1], t)
        pool = self._pool(model, self._nugget(model))
        every = torch.arange(self.table.n_rows, device=self.table.X.device)
        # The mean of u' dQ u - s' dQ s is that of (u - s)' dQ (u - s). From 16 draws on 2,000 labels of six inputs, its
        # errors of the derivatives by logarithms were at most 2 nats instead of 13.
        wide, narrow = (prior, root) if space.is_dense else (prior - root, torch.zeros_like(root))
        plus, minus = (
            pool.derivatives(every, graph.neighbours, torch.cat(columns, 1)).gradient
            for columns in ((mode.f + h, t**0.5 * narrow), (h, t**0.5 * wide))
        )
        gradient = {name: plus[name] - minus[name] for name in plus}
        moved, latent = h + self._basis @ of_trend, self._latent(mode)

        def through_likelihood(values: dict[str, Tensor]) -> Tensor:
            """Return what the evidence gains by noise and parameters at fixed latent values, to first order."""
            there = model.replace(values)
            f, noise = latent.clone().requires_grad_(), self._noise(there)[:, None].expand_as(latent)
            value, slope, _, curvature = terms(self._likelihood(there), self._targets, f, noise)
            return (value + moved * slope - 0.5 * variance * curvature.clamp_min(0)).sum()

        own = model.parameters()
        slopes = derivatives(through_likelihood, own)
        others = {NOISE, *model.likelihood_names()}
        gradient = gradient | {name: torch.zeros_like(one) for name, one in own.items() if name in others}
        found = {name: value.detach() for name, value in gradient.items() if name in own}
        return found | {name: found[name] + slope for name, slope in slopes.items()}

    def _solved_at(self, space: LatentSpace, local: Curvature, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return z and coefficients of ``(Q + H)^-1 r`` for r (n, t) and minus the second derivatives H at the mode.

        Where the curvature of Newton's steps is larger, its solves are refined: H is positive in all at a maximum, but
        not in every row.
        """
        z, trend = torch.zeros_like(right), right.new_zeros(self._basis.shape[1], right.shape[1])
        for _ in range(_REFINED):
            value = right - local.second * (space.colour(z) + self._basis @ trend)
            left = space.colour_transposed(value) - z, self._basis.T @ value
            step, by_trend = space.solve_with_trend(*left, local.hessian, self._basis, _TOLERANCE)
            z, trend = z + step, trend + by_trend
            if torch.equal(local.second, local.hessian) or float(step.norm()) <= _CLOSE * float(z.norm()):
                break
        return z, trend

    def _information_of_parameters(self, model: Model, latent: Tensor) -> Tensor:
        """Return the sum of the squared slopes of all rows by the parameters of the likelihood, (q, q).

        It is their information at known latent values, and so a little more than there is.
        """
        names = model.likelihood_names()
        with torch.enable_grad():
            at = {name: model.parameters()[name].detach().clone().requires_grad_() for name in names}
            there, noise = model.replace(at), self._noise(model)[:, None].expand_as(latent)
            rows = self._likelihood(there).smooth_log_density(self._targets, latent, noise).sum(1)
            weights = torch.ones_like(rows).requires_grad_()
            sums = torch.autograd.grad((weights * rows).sum(), list(at.values()), create_graph=True)
            flat = torch.cat([one.reshape(-1) for one in sums])
            each = [torch.autograd.grad(one, weights, retain_graph=True)[0] for one in flat]
        slopes = torch.stack(each, 1).cpu()
        return slopes.T @ slopes

    @torch.no_grad()
    def fisher(self, space: ParameterSpace, vector: Tensor, probes: Tensor) -> Tensor:
        """Return about the expected information of all observations at a vector; ``probes`` have no effect.

        It is that of Gaussian observations of the latent values with variances ``1 / W``, in Vecchia's approximation.
        """
        if self._learner is not None:
            return self.table.n_rows / len(self._rows) * self._learner.fisher(space, vector, probes)
        model = space.decode(vector)
        if self._last is None or not model.equals(self._last[0]):
            self.evaluate(model)
        assert self._last is not None
        assert self._graph is not None
        least = 1 / (_LARGEST_NOISE * model.kernel.diagonal(self.table.X.double()))
        pool = self._pool(model, 1 / torch.maximum(self._last[1], least))
        n = self.table.n_rows
        rows = torch.arange(n)
        if n > _INFORMATION_ROWS:
            rows = torch.randperm(n, generator=torch.Generator().manual_seed(6))[:_INFORMATION_ROWS].sort().values
        rows = rows.to(self.table.X.device)
        nothing = torch.zeros(n, self.table.n_targets, dtype=torch.float64, device=rows.device)
        found = pool.derivatives(rows, self._graph.neighbours[rows], nothing)
        information = n / len(rows) * found.information
        # a pseudo-observation has a share of the noise variance, or nothing of it
        one = self.likelihood.information(torch.ones((), dtype=torch.float64))
        scale = torch.ones(len(information), dtype=torch.float64)
        scale[found.slices[NOISE]] = 0.0 if one is None else 1 / one
        information, slices = scale[:, None] * information * scale, dict(found.slices)
        if model.of_likelihood:
            of_parameters = self._information_of_parameters(model, self._last[2])
            information = torch.block_diag(information, of_parameters)
            for name in model.likelihood_names():
                start = max(one.stop for one in slices.values())
                slices[name] = slice(start, start + model.parameters()[name].numel())
        index = torch.cat([torch.arange(slices[name].start, slices[name].stop) for name in space.names])
        slope = space.jacobian(vector)
        return slope[:, None] * information[index][:, index] * slope[None, :]

    # The posterior --------------------------------------------------------------------------------------------------

    def current_posterior(self) -> None:
        """Return None: a posterior needs more draws than a gradient."""

    @torch.no_grad()
    def posterior(self, model: Model, generator: torch.Generator) -> LaplacePosterior:
        """Return the posterior at a model, from all rows."""
        graph = self._graph
        if graph is None or not graph.is_of(model.kernel, self.table.X, self._n_neighbours):
            # a model file has no other kernel to find the neighbours with
            graph = NeighbourGraph(model.kernel, self.table.X, self._n_neighbours)
        if self._is_complete:
            X = self.table.X.double()
            space, known, ratio = LatentSpace.of_covariance(model.kernel.block(X, X)), None, 1.0
        else:
            (space, nugget, ratio), known = self._sound_space(model, graph), self._known
        mode = self._mode(model, space, known, _EXACT_LAST_GAIN if space.is_dense else _LAST_GAIN)
        if mode.promised > _MISSED * self.n_observations:
            msg = (
                f"the search for the most probable latent values ended early: its last step promised "
                f"{mode.promised:.3g} nats and gave nothing. Mean and variance may be off."
            )
            warn(msg, FitWarning)
        curvature = mode.local.curvature.mean(1)
        of_trend, explained = space.trend(curvature, self._basis, _TOLERANCE)
        determinant = space.log_determinant(curvature, _DIRECTIONS)
        t, p = self.table.n_targets, self.table.basis.shape[1]
        coefficients, trend_root = mode.f.new_zeros(p, t), mode.f.new_zeros(p, p)
        basis = mode.f.new_zeros(self.table.n_rows, p)
        if self._basis.shape[1]:
            coefficients, trend_root, basis = mode.coefficients, of_trend, explained
        prior = model.kernel.diagonal(self.table.X.double())
        if self._is_complete:
            # Conditioned on Gaussian pseudo-observations, a point needs no inverse of the prior covariance.
            noise = 1 / torch.maximum(curvature, 1 / (_LARGEST_NOISE * prior))
            at_rows, root = mode.f + noise[:, None] * mode.local.slope, mode.f[:, :0]
            basis[:, : self._basis.shape[1]] = self._basis
        else:
            at_rows, noise = mode.f, nugget
            root = space.roots(curvature, _POSTERIOR_DRAWS, _TOLERANCE)[0]
        latent = LatentGaussian(
            at_rows.contiguous(),
            noise,
            (root if space.is_dense else root.float()).contiguous(),
            basis.contiguous(),
            mode.value - 0.5 * t * determinant.value,
            0.5 * t * determinant.standard_error,
        )
        trend = coefficients.to(self.table.Y), trend_root.to(self.table.Y)
        found = LaplacePosterior(model, self.table, graph, self._prediction_neighbours, *trend, latent)
        self._check(found, ratio)
        return found

    def _check(self, found: LaplacePosterior, ratio: float) -> None:
        """Warn if predictions contradict the prior, by its variance around the rows, or the values at the rows."""
        doubts = []
        if not ratio <= FAR_TOO_MUCH:
            doubts.append(f"around the rows they have {ratio:.3g} times the prior variance")
        at_rows = found.contradiction()
        if at_rows is not None:
            doubts.append(at_rows)
        if doubts:
            msg = (
                f"Predictions from neighbours are not sound: {'; '.join(doubts)}. Means and standard deviations may be "
                f"wrong. {self._n_neighbours} neighbours of each row do not suffice for this kernel, or it is not a "
                "covariance function. Raise n_neighbors of inference.Vecchia, or use a rougher kernel, such as Matern."
            )
            warn(msg, FitWarning)

    def left_out_densities(self, model: Model, generator: torch.Generator) -> Tensor | None:
        """Return the log density of each row given all others; None where the covariance is drawn."""
        likelihood = self._likelihood(model)
        found = self.posterior(model, generator).left_out_latent(likelihood)
        if found is None:
            return None
        (mean, variance), noise = found, self._noise(model)[:, None]
        logs = likelihood.predictive_log_density(self._targets, mean + self._offset, variance.sqrt()[:, None], noise)
        return logs.sum(1)

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return where the next search for the mode starts."""
        known = (self._learner or self)._known
        return ({} if known is None else {"z": known[0], "coefficients": known[1]}), {}

    def restore(self, model: Model, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        if "z" in tensors:
            (self._learner or self)._known = tensors.pop("z"), tensors.pop("coefficients")
