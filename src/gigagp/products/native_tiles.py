"""The native CPU engine: distances, profile and product fused, tile by tile in the cache (``native/``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.kernels.fused import Profile
from gigagp.products.arguments import check_points, check_vectors, check_weights
from gigagp.products.blocks import gradient_by_blocks, ranges
from gigagp.products.engine import LowRankWeights, Weights
from gigagp.products.extension import native as _native
from gigagp.products.program import Program, TermSums, compile_kernel, supports
from gigagp.products.torch_tiles import gradient_apart
from gigagp.runtime.memory import require

#: Up to this many inputs, sums of squared differences cost next to nothing.
FEW_INPUTS = 3
#: Entries for each thread: with fewer a second thread costs more than it saves.
ENTRIES_A_THREAD = 2**18
#: Rows and columns of the dense weights that a gradient reads at a time.
WEIGHTS_SIDE = 2048


@dataclass(frozen=True)
class NativeTiles:
    """Products in code compiled for this processor, on as many threads as torch uses.

    `select` takes it wherever it can run. The result does not depend on the number of threads. ``instruction_set`` is
    one of `NativeTiles.instruction_sets`; empty stands for the best one.
    """

    instruction_set: str = ""

    def __post_init__(self) -> None:
        if not self.available():
            msg = "NativeTiles needs gigagp's compiled extension, which was not built; install gigagp with a compiler."
            raise InvalidInputError(msg)
        if self.instruction_set and self.instruction_set not in self.instruction_sets():
            allowed = ", ".join(self.instruction_sets())
            msg = f"instruction_set of NativeTiles must be one of {allowed}; got {self.instruction_set!r}."
            raise InvalidInputError(msg)

    @property
    def name(self) -> str:
        """The engine and its instruction set."""
        return f"native tiles ({self.instruction_set or self.instruction_sets()[0]})"

    @staticmethod
    def available() -> bool:
        """Whether the extension was built."""
        return _native is not None

    @staticmethod
    def instruction_sets() -> list[str]:
        """Return the instruction sets that both this processor and this build have, the best one first."""
        return list(_native.instruction_sets()) if _native is not None else []

    @classmethod
    def supports(cls, kernel: Kernel) -> bool:
        """Whether the engine was built, and the kernel has a program."""
        return cls.available() and supports(kernel)

    def product(self, kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, *, budget: int) -> Tensor:
        """Return ``K(X, Z) @ V``; see `Engine.product`."""
        return self._product(kernel, X, Z, V, budget)

    def product_part(self, kernel: Kernel, X: Tensor, V: Tensor, part: int, parts: int, *, budget: int) -> Tensor:
        """Return one of several terms whose sum is ``K(X, X) @ V``, each from an equal share of the entries."""
        return self._product(kernel, X, X, V, budget, part, parts)

    @torch.no_grad()
    def _product(
        self, kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, budget: int, part: int = 0, parts: int = 1
    ) -> Tensor:
        check_points(self.name, kernel, X, Z)
        check_vectors(self.name, V, Z)
        symmetric = Z is X
        right = V.detach().contiguous()
        out = X.new_empty(X.shape[0], V.shape[1])
        # Memory that grows with the rows: embedded points, the same again packed, and float64 sums.
        row_bytes = 16 * (2 * _width(kernel, X) + V.shape[1] + 1)
        for rows in [slice(None)] if symmetric else ranges(X.shape[0], max(budget // row_bytes, 1024)):
            left = X[rows]
            program = compile_kernel(kernel, left, left if symmetric else Z)
            dtype = _working_dtype(program, X.dtype)
            found = out[rows].to(dtype)
            _native.product(
                self.instruction_set,
                *_arguments(program, dtype),
                program.factor,
                right.to(dtype).numpy(),
                found.numpy(),
                symmetric,
                _threads(left.shape[0] * Z.shape[0]),
                part,
                parts,
            )
            if dtype != X.dtype:
                out[rows] = found.to(X.dtype)
        return out

    @torch.no_grad()
    def dense(self, kernel: Kernel, X: Tensor, Z: Tensor | None = None, *, budget: int) -> Tensor:
        """Return the whole matrix; see `Engine.dense`."""
        symmetric = Z is None
        Z = X if Z is None else Z
        check_points(self.name, kernel, X, Z)
        needed = X.shape[0] * Z.shape[0] * X.element_size()
        require(needed, budget, f"A dense covariance of {X.shape[0]:,} by {Z.shape[0]:,}", "Multiply tile by tile.")
        program = compile_kernel(kernel, X, Z)
        dtype = _working_dtype(program, X.dtype)
        out = X.new_empty(X.shape[0], Z.shape[0])
        fill = _native.dense if dtype == X.dtype else _native.rounded_dense
        fill(
            self.instruction_set,
            *_arguments(program, dtype),
            program.factor,
            out.numpy(),
            symmetric,
            _threads(out.numel()),
        )
        return out

    @torch.no_grad()
    def gradient(
        self, kernel: Kernel, X: Tensor, Z: Tensor, weights: Weights, *, symmetric: bool, budget: int
    ) -> dict[str, Tensor]:
        """Return the gradient in all hyperparameters; see `Engine.gradient`."""
        check_points(self.name, kernel, X, Z)
        check_weights(self.name, weights, X, Z)
        if isinstance(weights, LowRankWeights):
            right = X if symmetric else Z
            return self._gradient(kernel, X, right, weights.left, weights.right, symmetric=symmetric)
        side = max(min(WEIGHTS_SIDE, int((budget / X.element_size()) ** 0.5)), 64)
        return gradient_by_blocks(self.name, self._gradient, kernel, X, Z, weights, side, symmetric=symmetric)

    def _gradient(
        self,
        kernel: Kernel,
        X: Tensor,
        Z: Tensor,
        left: Tensor,
        right: Tensor | None = None,
        *,
        symmetric: bool = False,
    ) -> dict[str, Tensor]:
        program = compile_kernel(kernel, X, X if symmetric else Z, derivatives=True)
        if any(term.is_apart for term in program.terms):
            return gradient_apart(kernel, X, Z, left, right, symmetric=symmetric)
        dtype = X.dtype
        if any(term.is_wide(dtype) for term in program.terms):
            dtype = torch.float64  # sums of squared differences cancel as strongly as distances
        sums, rows, columns = _native.gradient(
            self.instruction_set,
            *_arguments(program, dtype),
            left.to(dtype).contiguous().numpy(),
            None if right is None else right.to(dtype).contiguous().numpy(),
            X.shape[0],
            Z.shape[0],
            symmetric,
            _threads(X.shape[0] * Z.shape[0]),
        )
        n_steps, n_terms = len(program.steps), len(program.terms)
        values, alphas, cross = torch.from_numpy(sums).split([n_steps, n_terms, len(sums) - n_steps - n_terms])
        crosses = cross.split([term.left.shape[1] for term in program.terms])
        by_term = [
            TermSums.from_products(
                term, float(alphas[t]), crosses[t], torch.from_numpy(rows[t]), torch.from_numpy(columns[t])
            )
            for t, term in enumerate(program.terms)
        ]
        return program.gradient(values.tolist(), by_term)


def _arguments(program: Program, dtype: torch.dtype) -> tuple[list[Any], list[Any]]:
    """Return terms and steps as ``native/module.cpp`` reads them."""
    terms = []
    for term in program.terms:
        left = term.left.to(dtype).contiguous()
        right = left if term.right is term.left else term.right.to(dtype).contiguous()
        direct = term.profile != Profile.DOT and (term.inputs <= FEW_INPUTS or term.is_wide(dtype))
        terms.append((int(term.profile), term.inputs, direct, term.alpha, left.numpy(), right.numpy()))
    return terms, program.codes()


def _working_dtype(program: Program, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that leaves entries correct to the rounding of the given one."""
    is_exact = dtype == torch.float64 or not any(term.is_far(dtype) for term in program.terms)
    return dtype if is_exact else torch.float64


def _width(kernel: Kernel, X: Tensor) -> int:
    return X.shape[1] * sum(2 for _ in kernel.leaves())


def _threads(entries: int) -> int:
    return max(1, min(torch.get_num_threads(), entries // ENTRIES_A_THREAD))
