"""Where learning on a grid starts: the exact likelihood of a few dense blocks of rows and of rows spread over all.

Random rows of a long record or a large map lie many lengthscales apart: their likelihood sees noise and what is long
(sound, 59,309 rows: fitted to 1,000 random rows, a lengthscale of 17,900 samples and no signal; it is about 10). Rows
of a small block see the short scale and the noise and nothing else. The sum of both likelihoods costs the same whatever
the number of rows is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gigagp.errors import NotPositiveDefiniteError
from gigagp.inference.exact import ExactObjective, ExactPosterior
from gigagp.inference.objective import TableObjective
from gigagp.inference.table import TrainingTable
from gigagp.means import resolve_mean
from gigagp.model import NOISE, Model
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.space import ParameterSpace

#: Dense blocks, and their rows as a share of the rows that are spread.
N_BLOCKS, BLOCK_SHARE = 8, 0.4
#: Factors of lengthscales and of the noise variance that the search for a start tries: down to a few samples of a
#: record of a million.
_LENGTHSCALE_FACTORS = tuple(4.0**-k for k in range(-1, 10))
_NOISE_FACTORS = (1.0, 0.1, 0.01, 0.001)


class CompositeObjective(TableObjective):
    """The sum of the exact log marginal likelihoods of several small tables, as if they knew nothing of each other.

    When to use: as the start of learning on any number of rows of a few inputs. Its Fisher information is the sum of
    those of the parts; the correlation between parts that lie close is not counted, so what follows on all rows has the
    last word.

    Parameters
    ----------
    spread : TrainingTable
        Rows from everywhere. The mean function is fitted to them by least squares; the likelihoods are of what
        remains.
    blocks : sequence of TrainingTable
        Rows that are neighbours.
    """

    def __init__(self, spread: TrainingTable, blocks: Sequence[TrainingTable]) -> None:
        whole = (spread, *blocks)
        super().__init__(replace(spread, X=torch.cat([part.X for part in whole]), Y=torch.cat([p.Y for p in whole])))
        zero = resolve_mean("zero")
        # Not a mean of each block's own: that would take the long scale out of the blocks.
        trend = torch.linalg.lstsq(spread.basis, spread.Y).solution if spread.basis.shape[1] else None
        self.parts = [
            ExactObjective(replace(part, Y=part.Y if trend is None else part.Y - part.basis @ trend, mean=zero))
            for part in whole
        ]

    @property
    def deterministic(self) -> bool:
        """Exact numbers are."""
        return True

    def evaluate(self, model: Model) -> Evaluation:
        """Return value and gradient."""
        found = [part.evaluate(model) for part in self.parts]
        gradient = {name: torch.stack([one.gradient[name] for one in found]).sum(0) for name in found[0].gradient}
        return Evaluation(sum(one.value or 0.0 for one in found), gradient)

    def value(self, model: Model) -> float:
        """Return the value alone; minus infinity where a matrix has no factor."""
        try:
            return sum(part.value(model) for part in self.parts)
        except NotPositiveDefiniteError:
            return -torch.inf

    def fisher(self, space: ParameterSpace, vector: Tensor, probes: Tensor) -> Tensor:
        """Return the Fisher information of all parts where `evaluate` was last called."""
        shares = probes.split([part.n_rows for part in self.parts])
        found = [part.fisher(space, vector, share) for part, share in zip(self.parts, shares, strict=True)]
        return torch.stack(found).sum(0)

    def start(self, model: Model) -> Model:
        """Return the best of a few dozen models whose lengthscales, periods and noise are multiples of the given ones.

        All distances together with the noise first, then those of each part of the kernel by themselves (two parts
        that start equal would stay so), twice. Fisher scoring from a lengthscale a thousandfold too long does not find
        the way.
        """
        learned = model.learned_names()
        names = [name for name in learned if name.endswith(("lengthscale", "period")) and not _on_circle(name, model)]
        noises = _NOISE_FACTORS if NOISE in learned else (1.0,)
        best, best_value = model, self.value(model)
        sweeps = [(names, noises)] + (2 * [([name], (1.0,)) for name in names] if len(names) > 1 else [])
        for chosen, levels in sweeps:
            centre = best
            for factor, level in itertools.product(_LENGTHSCALE_FACTORS if chosen else (1.0,), levels):
                trial = _scaled(centre, {**dict.fromkeys(chosen, factor), NOISE: level})
                value = self.value(trial)
                if value > best_value:
                    best, best_value = trial, value
        return best

    def thin(self, rows: Tensor) -> TableObjective:
        """Raise: it is small already."""
        raise NotImplementedError

    def current_posterior(self) -> None:
        """Return None: the parts have no posterior together."""
        return

    def posterior(self, model: Model, generator: torch.Generator) -> ExactPosterior:
        """Raise: the parts have no posterior together."""
        raise NotImplementedError


def _on_circle(name: str, model: Model) -> bool:
    """Whether this is the lengthscale of a periodic kernel, which is no distance."""
    return name.endswith("lengthscale") and name.removesuffix("lengthscale") + "period" in model.parameters()


def _scaled(model: Model, factors: dict[str, float]) -> Model:
    values, bounds = model.parameters(), model.kernel.bounds()
    scaled = {name: values[name] * factor for name, factor in factors.items()}
    return model.replace(
        {name: bounds[name].clip(value) if name in bounds else value for name, value in scaled.items()}
    )


def composite(table: TrainingTable, rows: Tensor) -> CompositeObjective:
    """Return the composite of some rows, spread over a table, and of the neighbourhoods of the first few of them."""
    size = max(int(BLOCK_SHARE * len(rows)), 2)
    blocks = [table.take_rows(table.nearest(int(row), size)) for row in rows[:: max(1, len(rows) // N_BLOCKS)]]
    return CompositeObjective(table.take_rows(rows), blocks[:N_BLOCKS])
