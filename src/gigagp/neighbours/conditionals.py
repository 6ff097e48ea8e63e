"""The conditional distributions of rows given a few other rows, of which a Vecchia approximation is made.

Each is a separate problem: the covariance of a row and its neighbours, its Cholesky factor, and two triangular
solves. Compiled code solves as many at once as a vector register has numbers (``products/native/conditionals.h``).
`gigagp.neighbours.batched` does the same with batches of torch, for any kernel and device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.neighbours import batched
from gigagp.neighbours.local import Conditionals, Derivatives, total
from gigagp.products.extension import native as _native
from gigagp.products.program import Program, compile_kernel, supports
from gigagp.runtime.group import Processes
from gigagp.runtime.memory import require
from gigagp.runtime.run import current_run

#: Bytes of a local problem for each entry of its covariance: eight in the lanes of a vector, or batches of torch.
_LOCAL_BYTES = 64
#: Rows from which the processes of a distributed fit share them, and the terms of their sums, a power of two.
_SHARED_ROWS, _TERMS = 512, 16


def is_compiled(kernel: Kernel) -> bool:
    """Whether compiled code computes the conditionals of a bound kernel; batches of torch take many times as long."""
    return not why_not_compiled(kernel)


def why_not_compiled(kernel: Kernel) -> str:
    """Return why `is_compiled` is false, as a sentence with what to do; "" where it is true."""
    if _native is None:
        return "gigagp's compiled extension was not built. Install gigagp with a C++ compiler."
    return "" if supports(kernel) else f"{kernel!r} has no compiled code. Take a kernel that has."


@dataclass(frozen=True)
class Pool:
    """Rows that are conditioned on each other: their covariance is ``K - low low' + diag(noise)``.

    Parameters
    ----------
    kernel : Kernel
        Bound to the columns of ``X``.
    X : Tensor of shape (n, d)
        The rows. All computations are float64.
    noise : Tensor of shape (n,)
        Noise variance of each row, including the kernel's white part; 0 for values of the latent function.
    low : Tensor of shape (n, k), optional
        Columns whose covariance is subtracted, for the residual of a low-rank approximation.
    budget : int
        Bytes for batches of torch.
    engine : {"auto", "native", "torch"}, default "auto"
        ``"native"`` needs a kernel with a compiled program, and computes on the CPU wherever the rows are, so that a
        GPU has the same answers. ``"auto"`` takes it where it can.
    instruction_set : str, default ""
        Instruction set of compiled code; "" is the processor's best one.
    latent : bool, default False
        Whether the rows are values of the latent function: derivatives by the kernel's white part are then zero.
    """

    kernel: Kernel
    X: Tensor
    noise: Tensor
    low: Tensor | None = None
    budget: int = 2**28
    engine: str = "auto"
    instruction_set: str = ""
    latent: bool = False

    @property
    def is_native(self) -> bool:
        """Whether compiled code computes the conditionals."""
        return is_compiled(self.kernel) if self.engine == "auto" else self.engine == "native"

    def conditionals(
        self, targets: Tensor, neighbours: Tensor, values: Tensor | None = None, *, weights: bool = True
    ) -> Conditionals:
        """Return the conditional distributions of some rows.

        ``targets``, shape (q,), has the numbers of the rows, and ``neighbours``, shape (q, m), those that each is
        conditioned on, the nearest first; -1 where there are fewer. Only the likelihood and residuals need ``values``
        of all rows, shape (n, t). Without ``weights``, their q times m numbers are left out.
        """
        self._require(neighbours)
        processes = _sharing(targets)
        if processes is not None:
            return self._shared_conditionals(processes, targets, neighbours, values, weights)
        return self._conditionals(targets, neighbours, values, weights)

    def _conditionals(self, targets: Tensor, neighbours: Tensor, values: Tensor | None, weights: bool) -> Conditionals:
        if not self.is_native:
            return batched.conditionals(self, targets, neighbours, values, weights=weights)
        found = self._run(self._program, targets, neighbours, values, weights=weights, derivatives=False)
        variance, made, residual, log_variance, _, _, raised = found
        there, made = self.X.device, made if weights else variance[:, None][:, :0]
        return Conditionals(
            torch.from_numpy(variance).to(there),
            torch.from_numpy(made).to(there),
            None if residual is None else torch.from_numpy(residual).to(there),
            log_variance,
            raised,
        )

    def derivatives(self, targets: Tensor, neighbours: Tensor, values: Tensor) -> Derivatives:
        """Return the log density of some rows given their neighbours, its gradient and its expected information.

        The density is the product over the columns of ``values``; see `conditionals` for the rest.
        """
        self._require(neighbours)
        processes = _sharing(targets)
        if processes is not None:
            return self._shared_derivatives(processes, targets, neighbours, values)
        return self._derivatives(targets, neighbours, values)

    def _derivatives(self, targets: Tensor, neighbours: Tensor, values: Tensor) -> Derivatives:
        if not self.is_native:
            return batched.derivatives(self, targets, neighbours, values)
        program, diagonals, jacobian = self._slopes
        found = self._run(program, targets, neighbours, values, diagonals, weights=False, derivatives=True)
        variance, _, residual, log_variance, gradient, information, _ = found
        quadratic = total(torch.from_numpy(residual).square() / torch.from_numpy(variance)[:, None])
        q, t = len(variance), residual.shape[1]
        value = -0.5 * (quadratic + t * (log_variance + q * math.log(2 * math.pi)))
        information = t * (jacobian @ torch.from_numpy(information) @ jacobian.T)
        return Derivatives.of(self.kernel, value, jacobian @ torch.from_numpy(gradient), information)

    def _shared_conditionals(
        self, processes: Processes, targets: Tensor, neighbours: Tensor, values: Tensor | None, weights: bool
    ) -> Conditionals:
        """Return what `conditionals` does, each process computing some of the rows."""
        q, t = len(targets), 0 if values is None else values.shape[1]
        widths = [1, neighbours.shape[1] if weights else 0, t, 2]

        def rows_of(rows: slice) -> Tensor:
            found = self._conditionals(targets[rows], neighbours[rows], values, weights)
            sums = found.variance.new_zeros(len(found.variance), 2)  # in the first row of each part
            sums[0] = sums.new_tensor([found.log_variance, found.raised])
            residual = sums[:, :0] if found.residual is None else found.residual
            return torch.cat([found.variance[:, None], found.weights, residual, sums], 1)

        out = self.noise.new_empty(q, sum(widths), dtype=torch.float64)
        whole = processes.rows(out, rows_of, "conditionals", values)
        variance, made, residual, sums = (part.contiguous() for part in whole.split(widths, 1))
        log_variance, raised = sums.sum(0).tolist()
        return Conditionals(variance[:, 0], made, None if values is None else residual, log_variance, int(raised))

    def _shared_derivatives(
        self, processes: Processes, targets: Tensor, neighbours: Tensor, values: Tensor
    ) -> Derivatives:
        """Return what `derivatives` does, each process computing some of the rows."""
        p, q = sum(value.numel() for value in self.kernel.parameters().values()) + 1, len(targets)

        def term(part: int) -> Tensor:
            rows = slice(q * part // _TERMS, q * (part + 1) // _TERMS)
            found = self._derivatives(targets[rows], neighbours[rows], values)
            numbers = [found.information.new_tensor([found.value]), *found.gradient.values(), found.information]
            return torch.cat([number.reshape(-1) for number in numbers])

        like = torch.zeros(1 + p + p * p, dtype=torch.float64)
        total = processes.total(like, _TERMS, term, "derivatives", values)
        value, gradient, information = total.split([1, p, p * p])
        return Derivatives.of(self.kernel, float(value), gradient, information.reshape(p, p))

    @cached_property
    def _here(self) -> Tensor:
        """The rows on the CPU."""
        return self.X.cpu()

    @cached_property
    def _program(self) -> Program:
        """The kernel at all rows, which every block of rows shares."""
        return compile_kernel(self.kernel, self._here, self._here)

    @cached_property
    def _slopes(self) -> tuple[Program, Tensor, Tensor]:
        """The kernel with its derivatives at all rows, the directions of their variances, and the Jacobian of both.

        The Jacobian has a row for each hyperparameter, the noise last.
        """
        program = compile_kernel(self.kernel, self._here, self._here, derivatives=True)
        diagonals, by_parameter = batched.diagonal_directions(self.kernel, self._here, white=not self.latent)
        jacobian = program.jacobian()
        jacobian = torch.cat([jacobian, jacobian.new_zeros(1, jacobian.shape[1])])
        return program, diagonals, torch.cat([jacobian, by_parameter], 1)

    def _require(self, neighbours: Tensor) -> None:
        """Refuse more neighbours than the memory budget has room for."""
        m = neighbours.shape[1]
        what = f"The local covariance of a row and its {m:,} neighbours"
        require(_LOCAL_BYTES * (m + 1) ** 2, self.budget, what, "Take fewer neighbours.")

    def _run(
        self,
        program: Program,
        targets: Tensor,
        neighbours: Tensor,
        values: Tensor | None,
        diagonals: Tensor | None = None,
        *,
        weights: bool,
        derivatives: bool,
    ) -> Any:
        terms = []
        for term in program.terms:
            left = term.left.contiguous()
            right = left if term.right is term.left else term.right.contiguous()
            terms.append((int(term.profile), term.inputs, term.alpha, left.numpy(), right.numpy()))
        return _native.conditionals(
            self.instruction_set,
            terms,
            program.codes(),
            program.factor,
            _numbers(self.noise),
            targets.to("cpu", torch.int64).contiguous().numpy(),
            neighbours.to("cpu", torch.int32).contiguous().numpy(),
            None if values is None else _numbers(values),
            None if self.low is None else _numbers(self.low),
            None if diagonals is None else _numbers(diagonals),
            weights,
            values is not None,
            derivatives,
            torch.get_num_threads(),
        )


def _sharing(targets: Tensor) -> Processes | None:
    """Return the processes that share some rows; None where these are too few, or there are none."""
    return current_run().processes if len(targets) >= _SHARED_ROWS else None


def _numbers(values: Tensor) -> Any:
    return values.detach().to("cpu", torch.float64).contiguous().numpy()
