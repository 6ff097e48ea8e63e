"""The contract of kernels: immutable trees of covariance functions with named hyperparameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gigagp.kernels.bounds import Bounds
    from gigagp.kernels.draws import FeatureDraw
    from gigagp.kernels.leaf import Leaf
    from gigagp.kernels.state_space import Component
    from gigagp.kernels.units import Units


class Kernel(ABC):
    """A covariance function k(x, z), or a sum or product of them.

    Kernels never change: `bind` and `replace` return new ones. Hyperparameters are in natural units (a lengthscale is
    a length, a variance is a variance). They are float64 tensors on the CPU, whatever the dtype of the data. `block`
    follows the dtype and the device of its inputs.

    A kernel that was constructed without lengthscales is *unbound*: only the data say how many there are. `bind`
    settles this. Every method that takes data binds first, so ``RBF().block(X, X)`` works.

    Every kernel has a continuous part, a function of two points, and may have a white part, which exists only between a
    row and itself. `block` and `diagonal` give the continuous part. `white` gives what has to be added to the diagonal
    of K(X, X). The covariance between two data sets therefore never depends on whether rows coincide.

    For your own kernel of scaled distances, derive from `gigagp.kernels.StationaryKernel` and define `profile`. For any
    other, derive from `gigagp.kernels.Leaf` and define `block` and `diagonal` with differentiable torch operations.
    Products, gradients and composition then work.
    """

    @property
    @abstractmethod
    def n_inputs(self) -> int | None:
        """Number of inputs that the kernel is bound to, None while it is unbound."""

    @abstractmethod
    def bind(self, n_inputs: int) -> Kernel:
        """Return this kernel for data with ``n_inputs`` columns.

        Missing values become defaults: for lengthscales the square root of the number of active inputs, so that
        standardized points correlate in any dimension, and 1 for everything else. Single numbers are repeated for each
        active input. Binding again to the same number changes nothing.

        Raises
        ------
        InvalidInputError
            If lengths or columns do not agree with ``n_inputs``, or the kernel is bound to another number already.
        """

    @abstractmethod
    def parameters(self) -> dict[str, Tensor]:
        """Return all hyperparameters by name, each of shape () or (number of values,).

        Parts of sums and products put their position in front: ``"0.lengthscale"``, ``"1.0.variance"``.
        """

    @abstractmethod
    def fixed_parameters(self) -> frozenset[str]:
        """Return the names of the hyperparameters that are not learned."""

    @abstractmethod
    def given_parameters(self) -> frozenset[str]:
        """Return the names of the hyperparameters that have a value, all of them once bound."""

    @abstractmethod
    def bounds(self) -> dict[str, Bounds]:
        """Return the bounds of the hyperparameters that have some, by name, in the units of the values."""

    @abstractmethod
    def unit_factors(self, units: Units) -> dict[str, Tensor]:
        """Return the factors that take standardized hyperparameters to the data's own units, by name.

        Only hyperparameters with a unit have an entry.
        """

    @abstractmethod
    def standardized(self, units: Units) -> Kernel:
        """Return this kernel, whose numbers are in the data's own units, for the standardized problem, bound.

        Values that were not given take their defaults there. A kernel whose hyperparameters have no units is not
        changed: it sees standardized inputs, and its values are fractions of the target's variance.
        """

    @abstractmethod
    def in_own_units(self, units: Units) -> Kernel:
        """Return this bound kernel of the standardized problem with its numbers in the data's own units."""

    @abstractmethod
    def multiplied(self, factors: Mapping[str, Tensor]) -> Kernel:
        """Return this kernel with some hyperparameters and their bounds times positive factors, for other units."""

    @abstractmethod
    def replace(self, values: Mapping[str, Tensor]) -> Kernel:
        """Return this kernel with some hyperparameters exchanged.

        The result holds the tensors themselves, so its `block` is differentiable in them. Only names and shapes are
        checked.
        """

    @abstractmethod
    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        """Return the dense covariance of the continuous part.

        Parameters
        ----------
        X : Tensor of shape (n, d)
        Z : Tensor of shape (m, d)

        Returns
        -------
        Tensor of shape (n, m)
            With the dtype and device of ``X``; differentiable in the inputs and the hyperparameters, also at
            coincident points. Use `gigagp.operators.KernelMatrix` for matrices that do not fit into memory.
        """

    @abstractmethod
    def diagonal(self, X: Tensor) -> Tensor:
        """Return k(x, x) of the continuous part for every row, shape (n,)."""

    @abstractmethod
    def white(self, X: Tensor) -> Tensor:
        """Return what the white parts add to the diagonal of K(X, X), shape (n,)."""

    @abstractmethod
    def terms(self) -> tuple[tuple[Leaf, ...], ...]:
        """Return the kernel multiplied out: a sum of products of leaves."""

    def admitted(self, X: Tensor) -> Tensor:
        """Return rows (n, d) with columns that name an output moved to the nearest one, for points that are made up."""
        for leaf in self.leaves():
            X = leaf.admitted(X)
        return X

    def correlated_terms(self) -> list[tuple[Leaf, ...]]:
        """Return the terms without a white factor: the others are zero between different points."""
        return [term for term in self.terms() if not any(leaf.is_white for leaf in term)]

    @property
    def has_white(self) -> bool:
        """Whether a part is white, so that `white` may be above zero."""
        return any(leaf.is_white for leaf in self.leaves())

    @abstractmethod
    def state_space(self) -> tuple[Component, ...]:
        """Return the independent states whose functions have this kernel's continuous part, for one input.

        Raises
        ------
        InvalidInputError
            If a part has no state-space form.
        """

    @abstractmethod
    def leaves(self) -> Iterator[Leaf]:
        """Iterate over the elementary kernels from left to right."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return a description of plain numbers, texts and lists; `gigagp.kernels.from_dict` reads it back."""

    def draw_features(
        self, n_features: int, n_inputs: int, generator: torch.Generator, *, law: str = "balanced"
    ) -> FeatureDraw:
        """Draw the randomness of random Fourier features, which does not depend on hyperparameters.

        Where a fit keeps the result, the prior functions made from it move smoothly with the hyperparameters.

        Parameters
        ----------
        n_features : int
            Sine and cosine columns for every term of the multiplied-out kernel; even.
        n_inputs : int
            Columns of the data.
        generator : torch.Generator
        law : {"balanced", "joint", "independent"}
            ``"joint"`` draws frequencies from the spectral density. ``"balanced"`` draws half of them evenly over the
            decades of its tail and weights them (`gigagp.kernels.spectral`): the same kernel in expectation, and prior
            functions that are rough enough between close rows. ``"independent"`` is the law that was published with
            Lin et al. 2024 by mistake: a Matern kernel's frequencies with one chi-square draw for each coordinate. It
            is kept to reproduce their numbers.

        Raises
        ------
        InvalidInputError
            If a part of the kernel has no known spectrum, or a number is out of range.
        """
        from gigagp.kernels.features import draw_features

        return draw_features(self.bind(n_inputs), n_features, generator, law=law)

    def features(self, X: Tensor, draw: FeatureDraw) -> Tensor:
        """Return features of the rows whose inner products approximate the continuous part.

        Parameters
        ----------
        X : Tensor of shape (n, d)
        draw : FeatureDraw
            From `draw_features` of a kernel of the same structure.

        Returns
        -------
        Tensor of shape (n, n_columns)
            ``features @ features.T`` approximates ``block(X, X)`` with an error of order one over the square root of
            the number of frequencies. Constant and linear terms are exact. All rows are computed at once, so pass large
            data in chunks.
        """
        from gigagp.kernels.features import features

        return features(self.bind(X.shape[1]), X, draw)

    def has_features(self) -> bool:
        """Whether `draw_features` and `features` are available."""
        return all(leaf.has_spectrum for term in self.terms() for leaf in term)

    def __add__(self, other: Kernel | float) -> Kernel:
        """Return the sum; a number stands for a fixed `Constant`."""
        from gigagp.kernels.composite import Sum

        return Sum(self, other) if isinstance(other, Kernel | Real) else NotImplemented

    def __radd__(self, other: float) -> Kernel:
        from gigagp.kernels.composite import Sum

        return Sum(other, self) if isinstance(other, Real) else NotImplemented

    def __mul__(self, other: Kernel | float) -> Kernel:
        """Return the product; a number stands for a fixed `Constant`."""
        from gigagp.kernels.composite import Product

        return Product(self, other) if isinstance(other, Kernel | Real) else NotImplemented

    def __rmul__(self, other: float) -> Kernel:
        from gigagp.kernels.composite import Product

        return Product(other, self) if isinstance(other, Real) else NotImplemented

    def __eq__(self, other: object) -> bool:
        """Whether structure, values and fixed names are the same."""
        if not isinstance(other, Kernel):
            return NotImplemented
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # equal by values, and values are tensors
