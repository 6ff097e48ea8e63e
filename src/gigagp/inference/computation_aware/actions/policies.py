"""Policies, which choose the actions (Wenger et al. 2024, sections 3 and S3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from gigagp.inference.computation_aware.actions.base import Actions
from gigagp.inference.computation_aware.actions.block import BlockActions, balanced_bounds
from gigagp.inference.computation_aware.actions.dense import DenseActions, RowActions
from gigagp.inference.computation_aware.actions.sequence import Sequence, Stop
from gigagp.operators import KernelMatrix
from gigagp.products.dense import eigh
from gigagp.runtime.memory import require
from gigagp.settings.fields import NotNegative, Settings, ShareBelowOne
from gigagp.settings.random import standard_normal
from gigagp.solvers.preconditioners import pivoting
from gigagp.solvers.preconditioners.clusters import clustered_into

#: Singular values below this share of the largest are dropped when actions are orthonormalised.
_RANK = 1e-12


class Choice(NamedTuple):
    """Actions, and quantities computed while choosing them.

    Attributes
    ----------
    actions : Actions
    product : Tensor of shape (n, i) or None
        ``H @ S``, if it is known.
    note : str
        Reason for fewer actions than requested; empty if there are as many.
    """

    actions: Actions
    product: Tensor | None = None
    note: str = ""


class Policy(Settings, ABC):
    """A method of choosing actions; immutable, and independent of the data."""

    #: whether the entries are learned with the hyperparameters
    is_learned: ClassVar[bool] = False
    #: whether choosing takes many products with the matrix, so that it should be stored if it fits
    multiplies_often: ClassVar[bool] = False

    def order(self, matrix: KernelMatrix, count: int, generator: torch.Generator) -> Tensor:
        """Return the order in which `choose` receives the rows, shape (n,); random unless a policy overrides it."""
        return torch.randperm(matrix.n, generator=generator).to(matrix.device)

    @abstractmethod
    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
        """Choose up to ``count`` actions.

        Parameters
        ----------
        matrix : KernelMatrix
            H at the current hyperparameters, with its rows in the order that `order` returned.
        targets : Tensor of shape (n, t)
            Targets minus the mean.
        count : int
            Largest number of actions; at most the number of rows.
        generator : torch.Generator
            In the same state at every call of a fit, so that a policy's random choices stay the same.
        """


@dataclass(frozen=True)
class Learned(Policy):
    """Block-sparse actions whose entries are learned with the hyperparameters (CaGP-Opt).

    When to use: by default. Among the policies that large tables allow, it is the only one that adapts to the data.

    Parameters
    ----------
    blocks : {"clusters", "shuffled"}, default "clusters"
        Which rows share an action. ``"shuffled"`` is the paper's choice: random rows, so that every block covers the
        whole table. ``"clusters"`` groups neighbouring rows, so that blocks do not repeat each other. After the same
        number of steps on parkinsons, protein, kin40k and elevation, its test likelihood was 0.04 to 0.26 nats per row
        better (and 0.04 worse on one input with 20 actions). Both partition all rows into blocks whose sizes differ by
        at most one.
    initial : {"eigenvectors", "targets", "random"}, default "eigenvectors"
        Initial entries of a block: the dominant eigenvector of its kernel matrix at the first hyperparameters; its
        targets; or standard normal numbers divided by the root of its size (the authors' code).
    """

    is_learned: ClassVar[bool] = True
    blocks: Literal["clusters", "shuffled"] = "clusters"
    initial: Literal["eigenvectors", "targets", "random"] = "eigenvectors"

    def order(self, matrix: KernelMatrix, count: int, generator: torch.Generator) -> Tensor:
        """Return a random order, or one in which clusters at the current lengthscales are contiguous."""
        if self.blocks == "shuffled":
            return super().order(matrix, count, generator)
        return torch.cat(clustered_into(matrix.coordinates(), count).blocks)

    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
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
                values[start:end] = eigh(block)[1][:, -1]
        return Choice(BlockActions(values, bounds))


@dataclass(frozen=True)
class Random(Policy):
    """Random actions that are not learned, the baseline for learned ones.

    Parameters
    ----------
    law : {"gaussian", "rademacher"}, default "gaussian"
        Distribution of the entries.
    structure : {"dense", "blocks"}, default "dense"
        Whether an action combines all rows or only those of its own block.
    """

    law: Literal["gaussian", "rademacher"] = "gaussian"
    structure: Literal["dense", "blocks"] = "dense"

    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
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
        How rows are chosen: at random, or greedily by the largest remaining variance (the pivots of a partial Cholesky
        factor).
    """

    choice: Literal["random", "pivoted"] = "random"

    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
        if self.choice == "random":
            rows = torch.randperm(matrix.n, generator=generator)[:count].to(targets.device)
        else:
            rows = pivoting.greedy(matrix, count).pivots
        note = "" if len(rows) == count else "the kernel matrix has no higher rank in this precision"
        return Choice(RowActions(rows, matrix.n), None, note)


@dataclass(frozen=True)
class TopEigenvectors(Policy):
    """The eigenvectors of H with the largest eigenvalues, which carry the most information about the function.

    When to use: as a reference on small tables; the cost is that of exact inference (n^3).

    References
    ----------
    Wenger et al. 2024, eq. 12 and lemma S5.
    """

    multiplies_often: ClassVar[bool] = True

    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
        remedy = "Use actions.Learned()."
        require(4 * matrix.n**2 * 8, matrix.memory_budget, f"The eigenvectors of {matrix.n:,} rows", remedy)
        values, vectors = eigh(matrix.to_dense().double())
        chosen = vectors[:, -count:].flip(1)
        return Choice(DenseActions.trusted(chosen), chosen * values[-count:].flip(0))


@dataclass(frozen=True)
class PseudoInputs(Policy):
    """Actions ``k(X, z_j)``, the counterpart of inducing points z_j, which are chosen as random rows.

    Linearly dependent directions are dropped.
    """

    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
        """Choose rows and compute their kernel columns."""
        rows = torch.randperm(matrix.n, generator=generator)[:count].sort().values.to(targets.device)
        columns = RowActions(rows, matrix.n).kernel_product(matrix).double()
        left, singular, _ = torch.linalg.svd(columns, full_matrices=False)
        basis = left[:, singular > _RANK * singular[0]]
        note = "" if basis.shape[1] == count else "pseudo-inputs were dependent in this precision"
        return Choice(DenseActions.trusted(basis), None, note)


#: Relative residuals below this many units of rounding are rounding.
_ROUNDING = 10


class SequentialPolicy(Policy):
    """A policy that chooses each action from the residual that the previous ones left.

    To define one, subclass it and implement `next_action`.
    """

    multiplies_often: ClassVar[bool] = True
    #: stopping rules, see `Sequence.run`
    tolerance: float
    absolute_tolerance: float = 0.0

    @abstractmethod
    def next_action(self, sequence: Sequence) -> Tensor | None:
        """Return the next action, shape (n,), or None if there is none."""

    def run(self, matrix: KernelMatrix, targets: Tensor, count: int) -> tuple[Sequence, Stop]:
        """Run the iterative algorithm; return its sequence of actions and the reason why it stopped."""
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
        if sequence.count == 0:  # if all targets are zero, any action will do
            sequence.append(torch.ones(matrix.n, dtype=torch.float64, device=targets.device))
        note = "" if sequence.count == count else stop.value
        return Choice(DenseActions.trusted(sequence.actions), sequence.products, note)


@dataclass(frozen=True)
class ConjugateGradients(SequentialPolicy):
    """The residuals of conjugate gradients (CaGP-CG); the posterior mean is that of CG after the same number of steps.

    When to use: for a few hundred actions, at a cost of ``n^2`` operations each. They depend on the targets and give
    the best mean for their number. With several targets, the next action is the residual that is largest relative to
    its target.

    Parameters
    ----------
    tolerance : float, default 0
        Relative residual at which the algorithm stops with fewer actions. The mean is then as accurate as that, but the
        variance is not: other directions, which the targets say little about, would reduce it. Learning takes this
        uncertainty for noise. The paper's experiments have a tolerance of 1e-4 (Table S1).
    absolute_tolerance : float, default 0
        Norm of the residual at which the algorithm stops.

    Notes
    -----
    Residuals are mutually orthogonal in exact arithmetic but not in floating point. Each is therefore orthogonalised
    against all previous ones, which does not change their span. Where only rounding is left of the residual, the
    next action is that of `Lanczos`, which continues the same space. The algorithm stops with fewer actions if nothing
    remains to be added.
    """

    tolerance: ShareBelowOne = 0.0
    absolute_tolerance: NotNegative = 0.0

    def next_action(self, sequence: Sequence) -> Tensor | None:
        """Return the residual (Wenger et al. 2024, section 3; S3.1), or H times the last action if it is rounding."""
        sizes = sequence.residual.norm(dim=0) / sequence.targets.norm(dim=0).clamp_min(1e-300)
        largest = int(sizes.argmax())
        if float(sizes[largest]) > _ROUNDING * torch.finfo(sequence.matrix.dtype).eps:
            return sequence.outside_span(sequence.residual[:, largest])
        return sequence.outside_span(sequence.products[:, -1]) if sequence.count else None


@dataclass(frozen=True)
class Lanczos(SequentialPolicy):
    """The Lanczos vectors of H started at the targets, which have the same span as those of `ConjugateGradients`.

    Parameters
    ----------
    ritz : bool, default False
        Whether to return the Ritz vectors (approximate eigenvectors) instead, which are other actions with that span.
    tolerance, absolute_tolerance : float, default 0
        As for `ConjugateGradients`.
    """

    ritz: bool = False
    tolerance: ShareBelowOne = 0.0
    absolute_tolerance: NotNegative = 0.0

    def next_action(self, sequence: Sequence) -> Tensor | None:
        """Return H times an earlier vector, orthogonalised; the first vectors are the targets in turn."""
        n_targets = sequence.targets.shape[1]
        if sequence.count < n_targets:
            return sequence.outside_span(sequence.targets[:, sequence.count])
        return sequence.outside_span(sequence.products[:, sequence.count - n_targets])

    def choose(self, matrix: KernelMatrix, targets: Tensor, count: int, generator: torch.Generator) -> Choice:
        """Run the iterative algorithm, and combine its vectors into Ritz vectors if requested."""
        choice = super().choose(matrix, targets, count, generator)
        if not self.ritz or choice.product is None:
            return choice
        basis = choice.actions.dense()
        projected = basis.T @ choice.product
        rotation = eigh(0.5 * (projected + projected.T))[1].flip(1)
        return Choice(DenseActions.trusted(basis @ rotation), choice.product @ rotation, choice.note)
