"""Policies: how actions are chosen (Wenger et al. 2024, sections 3 and S3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from gigagp.actions.base import Actions
from gigagp.actions.block import BlockActions, balanced_bounds
from gigagp.actions.dense import DenseActions, RowActions
from gigagp.actions.sequence import Sequence, Stop
from gigagp.fields import NotNegative, Settings, ShareBelowOne
from gigagp.memory import require
from gigagp.operators import KernelMatrix
from gigagp.preconditioners import pivoting
from gigagp.preconditioners.clusters import clustered_into
from gigagp.random import standard_normal

#: Singular values below this share of the largest are dropped where actions are made orthonormal.
_RANK = 1e-12


class Choice(NamedTuple):
    """Actions, and what choosing them has found already.

    Attributes
    ----------
    actions : Actions
    product : Tensor of shape (n, i) or None
        ``H @ S``, where it is known.
    note : str
        Why there are fewer actions than asked for; empty if there are not.
    """

    actions: Actions
    product: Tensor | None = None
    note: str = ""


class Policy(Settings, ABC):
    """A way of choosing actions; an immutable value without data."""

    #: whether the entries are learned with the hyperparameters
    is_learned: ClassVar[bool] = False
    #: whether choosing multiplies with the matrix again and again, so that storing it pays where it fits
    multiplies_often: ClassVar[bool] = False

    def order(self, matrix: KernelMatrix, count: int, generator: torch.Generator) -> Tensor:
        """Return the order in which `choose` is to see the rows, shape (n,): random, unless the policy knows better."""
        return torch.randperm(matrix.n, generator=generator).to(matrix.device)

    @abstractmethod
    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
        """Choose up to ``count`` actions.

        Parameters
        ----------
        matrix : KernelMatrix
            H at the current hyperparameters; its rows are in the order that `order` gave.
        targets : Tensor of shape (n, t)
            The mean subtracted.
        count : int
            At most the number of rows.
        generator : torch.Generator
            The same at every call of a fit, so that a policy's random choices stay the same.
        """


@dataclass(frozen=True)
class Learned(Policy):
    """Block-sparse actions whose entries are learned with the hyperparameters (CaGP-Opt).

    When to use: always. Of the policies whose cost allows large tables it is the only one that adapts to the data.

    Parameters
    ----------
    blocks : {"clusters", "shuffled"}, default "clusters"
        Which rows share an action. ``"shuffled"`` is the paper's: random rows, so that every block sees the whole
        table. ``"clusters"``: neighbours, so that blocks do not repeat each other; on parkinsons, protein, kin40k and
        elevation it ended 0.04 to 0.26 nats a row better in test likelihood after as many steps (and 0.04 worse on one
        input with 20 actions). Either way all rows are in a block, and sizes differ by at most one.
    initial : {"eigenvectors", "targets", "random"}, default "eigenvectors"
        What blocks start from: the dominant eigenvector of the block's kernel matrix at the first hyperparameters; the
        block's targets; standard normal numbers over the root of the block's size (the authors' code).
    """

    is_learned: ClassVar[bool] = True
    blocks: Literal["clusters", "shuffled"] = "clusters"
    initial: Literal["eigenvectors", "targets", "random"] = "eigenvectors"

    def order(self, matrix: KernelMatrix, count: int, generator: torch.Generator) -> Tensor:
        """Return a random order, or one in which clusters at the current lengthscales lie together."""
        if self.blocks == "shuffled":
            return super().order(matrix, count, generator)
        return torch.cat(clustered_into(matrix.coordinates(), count).blocks)

    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
        """Return the initial blocks."""
        bounds = balanced_bounds(matrix.n, count)
        values = standard_normal(matrix.n, generator=generator).to(targets.device)
        blocks = list(pairwise(bounds))
        if self.initial == "random":
            for start, end in blocks:
                values[start:end] /= (end - start) ** 0.5
        elif self.initial == "targets":
            for start, end in blocks:
                part = targets[start:end].double().mean(1)
                values[start:end] = part / part.norm() if bool(part.norm() > 0) else (end - start) ** -0.5
        else:
            for start, end in blocks:
                block = matrix.block(slice(start, end), slice(start, end)).double()
                values[start:end] = torch.linalg.eigh(block).eigenvectors[:, -1]
        return Choice(BlockActions(values, bounds))


@dataclass(frozen=True)
class Random(Policy):
    """Random actions that stay as they are drawn: what learning has to beat.

    Parameters
    ----------
    law : {"gaussian", "rademacher"}, default "gaussian"
    structure : {"dense", "blocks"}, default "dense"
        Every action combines all rows, or those of its own block.
    """

    law: Literal["gaussian", "rademacher"] = "gaussian"
    structure: Literal["dense", "blocks"] = "dense"

    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
        """Draw."""
        shape = (matrix.n, count) if self.structure == "dense" else (matrix.n,)
        values = standard_normal(*shape, generator=generator).to(targets.device)
        values = values.sign() if self.law == "rademacher" else values
        if self.structure == "blocks":
            return Choice(BlockActions(values, balanced_bounds(matrix.n, count)))
        return Choice(DenseActions(values / matrix.n**0.5))


@dataclass(frozen=True)
class UnitVectors(Policy):
    """Each action is one row: exact inference on a subset of the data.

    Parameters
    ----------
    choice : {"random", "pivoted"}, default "random"
        Which rows: the first of a random order, or greedily the one with the largest variance that is left (the
        pivots of a partial Cholesky factor).
    """

    choice: Literal["random", "pivoted"] = "random"

    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
        """Choose rows."""
        if self.choice == "random":
            rows = torch.randperm(matrix.n, generator=generator)[:count].to(targets.device)
        else:
            rows = pivoting.greedy(matrix, count).pivots
        note = "" if len(rows) == count else "the kernel matrix has no higher rank in this precision"
        return Choice(RowActions(rows, matrix.n), None, note)


@dataclass(frozen=True)
class TopEigenvectors(Policy):
    """The eigenvectors of H with the largest eigenvalues: the actions that tell most about the function.

    When to use: as a reference on small tables; they cost as much as exact inference (n^3).

    References
    ----------
    Wenger et al. 2024, eq. 12 and lemma S5.
    """

    multiplies_often: ClassVar[bool] = True

    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
        """Decompose."""
        remedy = "Use actions.Learned()."
        require(4 * matrix.n**2 * 8, matrix.memory_budget, f"The eigenvectors of {matrix.n:,} rows", remedy)
        values, vectors = torch.linalg.eigh(matrix.to_dense().double())
        chosen = vectors[:, -count:].flip(1)
        return Choice(DenseActions.trusted(chosen), chosen * values[-count:].flip(0))


@dataclass(frozen=True)
class PseudoInputs(Policy):
    """Actions ``k(X, z_j)``: the counterpart of inducing points z_j, which are random rows.

    Directions in which the columns are dependent are dropped.
    """

    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
        """Choose rows and compute their columns."""
        rows = torch.randperm(matrix.n, generator=generator)[:count].sort().values.to(targets.device)
        columns = RowActions(rows, matrix.n).kernel_product(matrix).double()
        left, singular, _ = torch.linalg.svd(columns, full_matrices=False)
        basis = left[:, singular > _RANK * singular[0]]
        note = "" if basis.shape[1] == count else "pseudo-inputs were dependent in this precision"
        return Choice(DenseActions.trusted(basis), None, note)


class SequentialPolicy(Policy):
    """A policy that chooses each action knowing the residual that those before it left.

    To write one, derive from it and write `next_action`.
    """

    multiplies_often: ClassVar[bool] = True
    #: stopping rules, see `Sequence.run`
    tolerance: float
    absolute_tolerance: float = 0.0

    @abstractmethod
    def next_action(self, sequence: Sequence) -> Tensor | None:
        """Return the next action, shape (n,); None where there is none."""

    def run(self, matrix: KernelMatrix, targets: Tensor, count: int) -> tuple[Sequence, Stop]:
        """Run the iterative algorithm."""
        sequence = Sequence(matrix, targets, count)

        def propose(state: Sequence) -> Tensor | Stop:
            found = self.next_action(state)
            return Stop.EXHAUSTED if found is None else found

        stop = sequence.run(propose, relative_tolerance=self.tolerance, absolute_tolerance=self.absolute_tolerance)
        return sequence, stop

    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
        """Run the iterative algorithm and return its actions with their products."""
        require(
            3 * 8 * matrix.n * count,
            matrix.memory_budget,
            f"{count} dense actions of {matrix.n:,} rows",
            "Use fewer, or actions.Learned().",
        )
        sequence, stop = self.run(matrix, targets, count)
        if sequence.count == 0:  # targets that are zero everywhere: any one action will do
            sequence.append(torch.ones(matrix.n, dtype=torch.float64, device=targets.device))
        note = "" if sequence.count == count else stop.value
        return Choice(DenseActions.trusted(sequence.actions), sequence.products, note)


@dataclass(frozen=True)
class ConjugateGradients(SequentialPolicy):
    """The residuals of conjugate gradients (CaGP-CG): the posterior mean is that of CG after as many steps.

    When to use: a few hundred actions from ``n^2`` operations each; the best mean for its number of actions, and
    actions that depend on the targets. Several targets: the next action is the residual that is largest relative to
    its target.

    Parameters
    ----------
    tolerance : float, default 1e-4
        Relative residual at which it stops.
    absolute_tolerance : float, default 0
        Norm of the residual at which it stops.

    Notes
    -----
    Residuals are mutually orthogonal in exact arithmetic and lose that in floating point; they are orthogonalised
    against all before them, twice, which changes no span. It stops with fewer actions where nothing is left to add.
    """

    tolerance: ShareBelowOne = 1e-4
    absolute_tolerance: NotNegative = 0.0

    def next_action(self, sequence: Sequence) -> Tensor | None:
        """Return the residual (Wenger et al. 2024, section 3; S3.1)."""
        sizes = sequence.residual.norm(dim=0) / sequence.targets.norm(dim=0).clamp_min(1e-300)
        return sequence.outside_span(sequence.residual[:, int(sizes.argmax())])


@dataclass(frozen=True)
class Lanczos(SequentialPolicy):
    """The Lanczos vectors of H started at the targets: the span of `ConjugateGradients`, without looking at residuals.

    Parameters
    ----------
    ritz : bool, default False
        Return the Ritz vectors, approximate eigenvectors, instead: other actions of the same span.
    tolerance, absolute_tolerance : float
        As for `ConjugateGradients`.
    """

    ritz: bool = False
    tolerance: ShareBelowOne = 1e-4
    absolute_tolerance: NotNegative = 0.0

    def next_action(self, sequence: Sequence) -> Tensor | None:
        """Return H times the last vector, orthogonalised; the targets in turn at first."""
        n_targets = sequence.targets.shape[1]
        if sequence.count < n_targets:
            return sequence.outside_span(sequence.targets[:, sequence.count])
        return sequence.outside_span(sequence.products[:, sequence.count - n_targets])

    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
        """Run the iterative algorithm; combine the vectors into Ritz vectors if asked to."""
        choice = super().choose(matrix, targets, count, generator)
        if not self.ritz or choice.product is None:
            return choice
        basis = choice.actions.dense()
        projected = basis.T @ choice.product
        rotation = torch.linalg.eigh(0.5 * (projected + projected.T)).eigenvectors.flip(1)
        return Choice(DenseActions.trusted(basis @ rotation), choice.product @ rotation, choice.note)
