"""Start of learning on a grid: the exact likelihood of a few dense blocks of rows and of rows spread over the data.

Random rows of a long record or a large map lie many lengthscales apart, so their likelihood sees only the noise and
long lengthscales. (On sound, with 59,309 rows, a fit to 1,000 random rows gave a lengthscale of 17,900 samples and no
signal; the lengthscale is about 10.) Rows of a small block see only the short lengthscale and the noise. The sum of
both likelihoods has a cost that does not depend on the number of rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gigagp.errors import NotPositiveDefiniteError
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective, ExactPosterior
from gigagp.model.means import resolve_mean
from gigagp.model.model import NOISE, Model
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.space import ParameterSpace

#: Number of dense blocks, and the number of rows of each as a share of the spread rows.
N_BLOCKS, BLOCK_SHARE = 8, 0.4
#: Factors of lengthscales and of the noise variance in the search for a start. The smallest reach a few samples of a
#: record of a million.
_LENGTHSCALE_FACTORS = tuple(4.0**-k for k in range(-1, 10))
_NOISE_FACTORS = (1.0, 0.1, 0.01, 0.001)


class CompositeObjective(TableObjective):
    """Sum of the exact log marginal likelihoods of several small tables, treated as independent.

    When to use: at the start of learning on any number of rows of a few inputs. Its Fisher information is the sum over
    the parts. Correlations between parts that lie close are ignored, so optimization on all rows must follow.

    The mean function is fitted by least squares to the rows that are spread over the data, and the likelihoods are
    those of the residuals. ``resolves`` says whether the finest grid that can be had shows the lengthscales of a model;
    others are no start.
    """

    deterministic = True

    def __init__(
        self,
        spread: TrainingTable,
        blocks: Sequence[TrainingTable],
        resolves: Callable[[Model], bool] | None = None,
    ) -> None:
        self._resolves = resolves
        whole = (spread, *blocks)
        super().__init__(replace(spread, X=torch.cat([part.X for part in whole]), Y=torch.cat([p.Y for p in whole])))
        zero = resolve_mean("zero")
        # A separate mean for each block would remove the long lengthscale from the blocks.
        trend = torch.linalg.lstsq(spread.basis, spread.Y).solution if spread.basis.shape[1] else None
        self.parts = [
            ExactObjective(replace(part, Y=part.Y if trend is None else part.Y - part.basis @ trend, mean=zero))
            for part in whole
        ]

    def evaluate(self, model: Model) -> Evaluation:
        found = [part.evaluate(model) for part in self.parts]
        gradient = {name: torch.stack([one.gradient[name] for one in found]).sum(0) for name in found[0].gradient}
        return Evaluation(sum(one.value or 0.0 for one in found), gradient)

    def value(self, model: Model) -> float:
        """Return the value without its gradient; minus infinity if a matrix has no factor."""
        try:
            return sum(part.value(model) for part in self.parts)
        except NotPositiveDefiniteError:
            return -torch.inf

    def fisher(self, space: ParameterSpace, vector: Tensor, probes: Tensor) -> Tensor:
        """Return the sum over the parts of the Fisher information at the last evaluated model."""
        shares = probes.split([part.n_rows for part in self.parts])
        found = [part.fisher(space, vector, share) for part, share in zip(self.parts, shares, strict=True)]
        return torch.stack(found).sum(0)

    def start(self, model: Model) -> Model:
        """Return the best of a few dozen models with scaled lengthscales, periods and noise variance.

        The search scales all distances and the noise together first, and then twice the distances of each term of the
        kernel separately, because two terms with equal starting values would remain equal. Fisher scoring does not
        converge from a lengthscale that is too long by a factor of a thousand. Distances that the user has given stay,
        and none becomes so short that no grid shows it: noise is as likely as a function of such a lengthscale, whose
        gradient is zero.
        """
        learned = model.learned_names()
        names = [
            name
            for name in learned
            if name.endswith(("lengthscale", "period")) and name not in model.given and not _on_circle(name, model)
        ]
        noises = _NOISE_FACTORS if NOISE in learned else (1.0,)
        best, best_value = model, self.value(model)
        sweeps = [(names, noises)] + (2 * [([name], (1.0,)) for name in names] if len(names) > 1 else [])
        for chosen, levels in sweeps:
            centre = best
            for factor, level in itertools.product(_LENGTHSCALE_FACTORS if chosen else (1.0,), levels):
                trial = _scaled(centre, {**dict.fromkeys(chosen, factor), NOISE: level})
                if factor < 1 and self._resolves is not None and not self._resolves(trial):
                    continue
                value = self.value(trial)
                if value > best_value:
                    best, best_value = trial, value
        return best

    def thin(self, rows: Tensor) -> TableObjective:
        """Raise `NotImplementedError`: the tables are already small."""
        raise NotImplementedError

    def current_posterior(self) -> None:
        """Return None: there is no joint posterior of the parts."""
        return

    def posterior(self, model: Model, generator: torch.Generator) -> ExactPosterior:
        """Raise `NotImplementedError`: there is no joint posterior of the parts."""
        raise NotImplementedError


def _on_circle(name: str, model: Model) -> bool:
    """Whether the parameter is the lengthscale of a periodic kernel, which is not a distance between inputs."""
    return name.endswith("lengthscale") and name.removesuffix("lengthscale") + "period" in model.parameters()


def _scaled(model: Model, factors: dict[str, float]) -> Model:
    values, bounds = model.parameters(), model.kernel.bounds()
    scaled = {name: values[name] * factor for name, factor in factors.items()}
    return model.replace(
        {name: bounds[name].clip(value) if name in bounds else value for name, value in scaled.items()}
    )


def composite(
    table: TrainingTable, rows: Tensor, resolves: Callable[[Model], bool] | None = None
) -> CompositeObjective:
    """Return the composite objective of rows spread over a table and of neighbourhoods of the first few of them."""
    size = max(int(BLOCK_SHARE * len(rows)), 2)
    blocks = [table.take_rows(table.nearest(int(row), size)) for row in rows[:: max(1, len(rows) // N_BLOCKS)]]
    return CompositeObjective(table.take_rows(rows), blocks[:N_BLOCKS], resolves)
