"""The posterior of a Vecchia-Laplace approximation: points conditioned on the latent values of the nearest rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.batches import within_batches
from gigagp.inference.contract.left_out import without_own_terms
from gigagp.inference.contract.posterior import GrowingPosterior, SampleFunctions, VarianceMethod
from gigagp.inference.contract.rows_posterior import ROWS, RowsPosterior
from gigagp.inference.contract.saved import Saved
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.mode import Curvature
from gigagp.inference.vecchia.posterior import by_neighbours, corrected_functions, error_covariance
from gigagp.model.estimate import Estimate
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.model.scaling import Scaling
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.neighbours.predictor import LocalPredictor
from gigagp.runtime.memory import require
from gigagp.settings.random import standard_normal
from gigagp.settings.schema import Field, check_tensors, number, optional, part, positive, record, whole
from gigagp.tables.beside import Beside

#: Rows at which predictions are held against the values there, how far means may be from them in standard deviations,
#: and by which factor these may differ.
_CHECKED_ROWS, _SHIFT, _RATIO = 256, 0.5, 1.5


class LatentGaussian(NamedTuple):
    """The Gaussian approximation of values at the rows that points are predicted from, and the evidence.

    The values are the latent ones, which are the function and a nugget (`NUGGETS` in `laplace.py`), with their
    distribution given the targets. Where all rows are neighbours, they are Gaussian pseudo-observations of the function
    that stand for the targets. These are known: r = 0.
    """

    mean: Tensor  # without the mean function, (n, t)
    #: variance of the independent part of the values: the nugget, or that of the pseudo-observations, (n,)
    noise: Tensor
    #: ``root root'`` is the covariance given the mean's coefficients, the same for all targets: exact, or that of r
    #: draws, (n, r)
    root: Tensor
    explained: Tensor  # the mean's basis functions in the place of ``mean``, (n, p)
    value: float  # log evidence
    standard_error: float


def _two_columns(tensor: Tensor) -> str | None:
    return None if tensor.shape[1] == 2 else "of two columns"


class LaplacePosterior(RowsPosterior, GrowingPosterior):
    """Predictions ``w_x' f_N`` from latent values at the m rows nearest to each point x.

    The latent values have the distribution N(f, R R') of a Laplace approximation of all rows. The variance of a
    prediction is what the values of the neighbours leave plus ``|R' w_x|^2``. Where R holds draws, its relative
    standard error is at most the root of 2 / r.

    The values have a nugget, in the approximation as in the predictions. Without it, rows of a smooth kernel determine
    each other to the last digit: weights are as large as the inverse of that rounding, and the values that they
    multiply have their own errors.
    """

    kind = "vecchia-laplace"
    covariance_is_cheap = True

    def __init__(
        self,
        model: Model,
        table: TrainingTable,
        graph: NeighbourGraph,
        n_neighbours: int,
        coefficients: Tensor,
        coefficient_root: Tensor,
        latent: LatentGaussian,
    ) -> None:
        self.model, self.table, self.budget, self._graph = model, table, table.budget, graph
        self.coefficients, self.coefficient_root, self.latent = coefficients, coefficient_root, latent
        self._predictor = LocalPredictor(model.kernel, table.X, latent.noise, graph, n_neighbours, table.budget)

    def solver_name(self) -> str:
        return f"{self._graph.n_neighbours} neighbours of each row, {self._predictor.n_neighbours} of each new point"

    @property
    def _exact(self) -> bool:
        return self.latent.root.shape[1] in (0, self.n_rows)

    def notes(self) -> dict[str, str]:
        """Return whether rows were left out, and where the variances come from."""
        source = "exact" if self._exact else f"from {self.latent.root.shape[1]} draws"
        return {**self.table.describe_drawn(), "latent": f"Laplace approximation, covariance at the rows {source}"}

    def row_refusal(self, X: Tensor, scaling: Scaling, names: Sequence[str] | None) -> InvalidInputError:
        """Return the error: every row moves the most probable values of all others."""
        msg = (
            "inference.Vecchia adds rows to a fit under the gaussian likelihood alone; others have a Laplace "
            "approximation of all rows together. Use fit with all rows."
        )
        return InvalidInputError(msg)

    def with_rows(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> NoReturn:
        raise AssertionError("rows of a Laplace approximation are refused before")

    def contradiction(self) -> str | None:
        """Return in words how predictions at the rows differ from what the approximation says of the values there.

        None: they do not. Values that are pseudo-observations say nothing about predictions.
        """
        if not self.latent.root.shape[1]:
            return None
        values = self._values()
        found, left = self._predictor.predict(self.X[:_CHECKED_ROWS], values)
        values = values[:_CHECKED_ROWS]
        moved, spread = (found - values)[:, : self.n_targets], found[:, self.n_targets :].square().sum(1)
        nugget = self.latent.noise[:_CHECKED_ROWS]
        own, predicted = values[:, self.n_targets :].square().sum(1) + nugget, left + spread
        shift = float((moved.abs() / own.sqrt()[:, None]).max())
        # where targets leave less of a value open than its nugget, a prediction has a part of the nugget alone
        low, high = float(((predicted + nugget) / own).sqrt().min()), float((predicted / own).sqrt().max())
        if shift <= _SHIFT and high <= _RATIO and low * _RATIO >= 1:
            return None
        return (
            f"at the rows their means are up to {shift:.3g} standard deviations off, and their standard deviations are "
            f"{low:.3g} to {high:.3g} times as large as those of the values"
        )

    def _values(self) -> Tensor:
        """Return the values at the rows and the root of their covariance, shape (n, t + r)."""
        return torch.cat([self.latent.mean, self.latent.root.to(self.latent.mean)], 1)

    # Predictions ----------------------------------------------------------------------------------------------------

    def mean(self, X: Tensor) -> Tensor:
        return self.trend(X) + self._predictor.predict(X, self.latent.mean)[0].to(X)

    def explained_basis(self, X: Tensor) -> Tensor:
        return self._predictor.predict(X, self.latent.explained)[0].to(X)

    def mean_and_variance_given_trend(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return mean and variance at given coefficients of the mean; ``method`` has no effect."""
        found, left = self._predictor.predict(X, self._values())
        mean, spread = found[:, : self.n_targets], found[:, self.n_targets :]
        return self.trend(X) + mean.to(X), (left + spread.square().sum(1)).to(X)

    def covariance_given_trend(self, X: Tensor) -> Tensor:
        """Return the covariance that values of the neighbours would leave, plus that of these values."""
        if X.ndim == 3:
            left = by_neighbours(
                self._predictor,
                X,
                lambda one: error_covariance(self, self._predictor.weights(one), self.latent.noise, one),
            )
            spread = within_batches(self._predictor.predict(X.flatten(0, 1), self.latent.root.double())[0], X)
            return left + (spread @ spread.mT).to(left)
        q, r = len(X), self.latent.root.shape[1]
        require(8 * q * r * self._predictor.n_neighbours, self.budget, f"The covariance of {q:,} points", "")
        local = self._predictor.weights(X)
        spread = local.combine(self.latent.root)
        return (error_covariance(self, local, self.latent.noise, X) + spread @ spread.T).to(X)

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return samples as functions, ``g(x) + w_x' (f - g(X) - noise)``: prior functions g, draws f of the values.

        These samples have the error of the random features of g. At a few thousand points, `sample_at` samples
        without it.
        """
        kernel, t, root = self.model.kernel, self.n_targets, self.latent.root
        needed = n_samples * t  # targets are independent given the hyperparameters
        prior = PriorSamples.for_sample_functions(kernel, self.n_inputs, needed, generator)
        draws = standard_normal(root.shape[1], needed, generator=generator).to(self.latent.mean)
        values = self.latent.mean.repeat_interleave(n_samples, 1) + root.to(draws) @ draws
        noise = standard_normal(self.n_rows, needed, generator=generator).to(draws)
        at_rows = prior.evaluate(kernel, self.X.double(), self.budget) + self.latent.noise.sqrt()[:, None] * noise
        rest = values - at_rows
        return corrected_functions(self, self._predictor, prior, rest)

    def left_out_latent(self, likelihood: Likelihood) -> tuple[Tensor, Tensor] | None:
        """Return the distributions without the rows' own terms, of Laplace's approximation; None if they are drawn."""
        if not self._exact:
            return None
        beside, X, Y = self.table.beside, self.X.double(), self.table.Y
        mean, variance = (one.double() for one in self.mean_and_variance(self.X))
        noise = self.model.noise_variance.to(X).expand(len(X)) + self.model.kernel.white(X)
        noise = noise if beside.trials is None else beside.trials.to(X)
        local = Curvature.of(likelihood, beside.given(likelihood, Y), mean + beside.offset_of(Y), noise)
        return without_own_terms(mean, variance, local.slope, local.curvature.mean(1), self.prior_variance(X))

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the Laplace approximation on all rows; its standard error is that of the determinant."""
        return Estimate(self.latent.value, self.latent.standard_error)

    # Files ----------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state for a model file; the order of the rows is found again on loading."""
        tensors = {
            "X": self.table.X,
            "Y": self.table.Y,
            "coefficients": self.coefficients,
            "coefficient_root": self.coefficient_root.contiguous(),
            "latent": self.latent.mean,
            "noise": self.latent.noise,
            "root": self.latent.root,
            "explained": self.latent.explained,
        }
        tensors |= {f"beside.{name}": value for name, value in self.table.beside.state().items()}
        return tensors, {
            "value": self.latent.value,
            "standard_error": self.latent.standard_error,
            "row_neighbours": self._graph.n_neighbours,
            "point_neighbours": self._predictor.n_neighbours,
            "drawn_from": self.table.drawn_from,
        }

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved) -> LaplacePosterior:
        numbers = {"value": number(), "standard_error": number()}
        numbers |= {"row_neighbours": whole(1), "point_neighbours": whole(1)}
        record(numbers, {"drawn_from": optional(whole(1))})(header, "posterior")
        fields = ROWS | {
            "coefficients": Field("p t", "real"),
            "coefficient_root": Field("p p", "real"),
            "latent": Field("n t", "float64"),
            "noise": Field("n", "float64"),
            "root": Field("n r"),
            "explained": Field("n p", "float64"),
        }
        fields |= {
            "beside.offset?": Field("n", "float64"),
            "beside.trials?": Field("n", "float64", positive),
            "beside.limits?": Field("n k", "float64", _two_columns, may_be_infinite=True),
        }
        if "noise" not in tensors:  # files of the time when latent values had no independent part
            tensors = tensors | {"noise": torch.zeros(len(tensors["X"]), dtype=torch.float64)}
        check_tensors(tensors, fields, saved.sizes)
        given = tensors["X"], tensors["Y"], saved.model.mean, saved.budget
        beside = Beside.from_state(part(tensors, "beside."))
        table = TrainingTable(*given, drawn_from=header.get("drawn_from"), beside=beside)
        graph = NeighbourGraph(saved.model.kernel, table.X, header["row_neighbours"])
        latent = LatentGaussian(
            tensors["latent"],
            tensors["noise"],
            tensors["root"],
            tensors["explained"],
            header["value"],
            header["standard_error"],
        )
        trend = tensors["coefficients"], tensors["coefficient_root"]
        return cls(saved.model, table, graph, header["point_neighbours"], *trend, latent)
