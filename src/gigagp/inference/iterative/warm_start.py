"""Initial guesses for the solves of successive optimization steps."""

from __future__ import annotations

from typing import Literal

import torch

from gigagp.operators import KernelMatrix
from gigagp.solvers import Start

WarmStartKind = Literal["none", "previous", "subspace"]

#: Number of solution blocks that span the subspace. More than two gave no gain (measured on pol and elevators).
_BLOCKS = 2


class WarmStart:
    """Store the solutions of recent optimization steps and turn them into the next initial guess.

    ``"previous"`` takes the last solution (Lin et al. 2024, section 4). ``"subspace"`` takes the best approximation in
    the H-norm from the span of the last two solution blocks, the Galerkin projection ``v0 = W (W'HW)^-1 W'B``. Its cost
    is the single pass that every warm start needs for its residual, it is never worse than a start at zero, and solves
    need 1.3 to 2 times fewer epochs.

    Parameters
    ----------
    kind : {"none", "previous", "subspace"}
        Type of the initial guess; "none" starts at zero.
    """

    def __init__(self, kind: WarmStartKind) -> None:
        self.kind = kind
        #: recent solutions, newest last
        self.blocks: list[torch.Tensor] = []

    def remember(self, solutions: torch.Tensor) -> None:
        """Store a block of solutions, shape (n, s)."""
        if self.kind == "none":
            return
        self.blocks.append(solutions)
        del self.blocks[: -(_BLOCKS if self.kind == "subspace" else 1)]

    def start(self, matrix: KernelMatrix, right_hand_sides: torch.Tensor) -> Start | None:
        """Return the initial guess for these right-hand sides; None means zero."""
        if not self.blocks:
            return None
        last = self.blocks[-1]
        if self.kind == "previous":
            return Start(last) if last.shape == right_hand_sides.shape else None
        # In an orthonormal basis the projected matrix is no worse conditioned than H. Where the two blocks agree, the
        # second direction is mere rounding noise, but still a valid direction.
        basis = torch.linalg.qr(torch.cat(self.blocks, 1).double()).Q
        image = (matrix.fast @ basis.to(matrix.dtype)).double()
        projected = basis.T @ image
        projected = 0.5 * (projected + projected.T)
        factor, info = torch.linalg.cholesky_ex(projected)
        if int(info) != 0:
            return Start(last) if last.shape == right_hand_sides.shape else None
        wide = right_hand_sides.double()
        coefficients = torch.cholesky_solve(basis.T @ wide, factor)
        value = (basis @ coefficients).to(matrix.dtype)
        residual = (wide - image @ coefficients).to(matrix.dtype)
        rounding = 0.0 if matrix.fast is matrix else matrix.fast.rounding
        return Start(value, residual, epochs=1.0, rounding=rounding)
