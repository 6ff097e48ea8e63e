"""The algorithms of Yadav et al. (2021) as the paper writes them, misprints mended, on dense arrays of one vector.

Only what tests compare with: the package has one conjugate gradients and one Lanczos for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Run:
    """What a run of conjugate gradients left behind."""

    alpha: list[float] = field(default_factory=list)
    beta: list[float] = field(default_factory=list)
    squared_residuals: list[float] = field(default_factory=list)
    start_weights: list[float] = field(default_factory=list)
    solution: Tensor | None = None  # in n dimensions (CG), or W'x
    grid_products: int = 0
    gram_products: int = 0

    @property
    def iterations(self) -> int:
        return len(self.alpha)


@dataclass
class Problem:
    """``K_G``, ``W'W`` and the noise, with counters."""

    K: Tensor
    S: Tensor
    noise: float
    grid_products: int = 0
    gram_products: int = 0

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``B(x)``: (K_G S + noise) x and S x, at the price of one product with each."""
        u = self.S @ x
        self.grid_products += 1
        self.gram_products += 1
        return self.K @ u + self.noise * x, u


def cg(H: Tensor, b: Tensor, x0: Tensor, eps: float, most: int = 100) -> Run:
    """Algorithm 1."""
    run, x, r = Run(), x0.clone(), b - H @ x0
    p, rr = r.clone(), float(r @ r)
    run.squared_residuals.append(rr)
    for _ in range(most):
        product = H @ p
        alpha = rr / float(p @ product)
        x, r = x + alpha * p, r - alpha * product
        new = float(r @ r)
        run.alpha.append(alpha)
        run.squared_residuals.append(new)
        if new <= eps:
            break
        run.beta.append(new / rr)
        p, rr = r + new / rr * p, new
    run.solution = x
    return run


def factorised_cg(K: Tensor, W: Tensor, b: Tensor, noise: float, x0: Tensor, eps: float, most: int = 100) -> Run:
    """Algorithm 2: pairs (vector on the grid, multiple of the first residual)."""
    S, r0 = W.T @ W, b - (W @ (K @ (W.T @ x0)) + noise * x0)
    h, rho = W.T @ r0, float(r0 @ r0)
    g = K @ h

    def times(z: Tensor, c: float) -> tuple[Tensor, float]:  # Claim 3
        return K @ (S @ z) + noise * z + c * g, noise * c

    def dot(z: Tensor, c: float, v: Tensor, d: float) -> float:  # Claim 4
        return float(z @ (S @ v) + d * (z @ h) + c * (v @ h)) + c * d * rho

    run = Run(squared_residuals=[rho], start_weights=[1.0])
    r, p, x = torch.zeros_like(h), torch.zeros_like(h), torch.zeros_like(h)
    cr, cp, cx, rr = 1.0, 1.0, 0.0, rho
    for _ in range(most):
        q, cq = times(p, cp)
        alpha = rr / dot(p, cp, q, cq)
        x, cx, r, cr = x + alpha * p, cx + alpha * cp, r - alpha * q, cr - alpha * cq
        new = dot(r, cr, r, cr)
        run.alpha.append(alpha)
        run.squared_residuals.append(new)
        run.start_weights.append(cr)
        if new <= eps:
            break
        run.beta.append(new / rr)
        p, cp, rr = r + new / rr * p, cr + new / rr * cp, new
    run.solution = W @ x + cx * r0 + x0
    return run


def efficient_cg(problem: Problem, h: Tensor, rho: float, eps: float, most: int = 100) -> Run:
    """Algorithm 3: one product with ``K_G`` and one with ``W'W`` an iteration; returns ``W'(x - x0)``."""
    noise, g = problem.noise, problem.K @ h
    zero = torch.zeros_like(h)
    r, p, xd, s, z = (zero.clone() for _ in range(5))
    cr, cp, number = 1.0, 1.0, rho
    run = Run(squared_residuals=[rho], start_weights=[1.0])
    for _ in range(most):
        q, cq = z + cp * g, noise * cp
        alpha = number / (float(s @ q) + cp * cq * rho + cp * float(q @ h) + cq * float(p @ h))
        xd = xd + alpha * (s + cp * h)
        r, cr = r - alpha * q, cr - alpha * cq
        v, u = problem.both(r)
        new = float(u @ r) + cr**2 * rho + 2 * cr * float(r @ h)
        run.alpha.append(alpha)
        run.squared_residuals.append(new)
        run.start_weights.append(cr)
        if new <= eps:
            break
        beta, number = new / number, new
        run.beta.append(beta)
        p, cp, s, z = r + beta * p, cr + beta * cp, u + beta * s, v + beta * z
    run.solution = xd
    run.grid_products, run.gram_products = problem.grid_products, problem.gram_products
    return run


def simplified_cg(problem: Problem, start: Tensor, eps: float, most: int = 100) -> Run:
    """Algorithm 4, from a residual ``W start``; returns ``W'(x - x0)``."""
    r = start
    v, u = problem.both(r)
    s, z, xd, rr = u, v, torch.zeros_like(start), float(u @ r)
    run = Run(squared_residuals=[rr])
    for _ in range(most):
        alpha = rr / float(s @ z)
        xd, r = xd + alpha * s, r - alpha * z
        v, u = problem.both(r)
        new = float(u @ r)
        run.alpha.append(alpha)
        run.squared_residuals.append(new)
        if new <= eps:
            break
        run.beta.append(new / rr)
        s, z, rr = u + new / rr * s, v + new / rr * z, new
    run.solution = xd
    run.grid_products, run.gram_products = problem.grid_products, problem.gram_products
    return run


def lanczos(H: Tensor, b: Tensor, steps: int, tau: float = 1e-8) -> tuple[Tensor, Tensor]:
    """Algorithm 5 with its breakdown guard; returns Q and T."""
    vectors, alpha, beta = [b / b.norm()], [], []
    while True:
        q = H @ vectors[-1] - (beta[-1] * vectors[-2] if beta else 0)
        alpha.append(vectors[-1] @ q)
        if len(vectors) == steps:
            break
        q = q - alpha[-1] * vectors[-1]
        Q = torch.stack(vectors, 1)
        q = q - Q @ (Q.T @ q)
        if q.norm() <= tau * max(alpha):
            break
        beta.append(q.norm())
        vectors.append(q / q.norm())
    return torch.stack(vectors, 1), _tridiagonal(alpha, beta)


def factorised_lanczos(
    K: Tensor, S: Tensor, h: Tensor, noise: float, steps: int, tau: float = 1e-8
) -> tuple[Tensor, Tensor, Tensor]:
    """Algorithm 6 (with ``h = W'b`` of a unit vector b); returns Q on the grid, d and T."""
    g = K @ h

    def dot(z: Tensor, c: Tensor, v: Tensor, d: Tensor) -> Tensor:
        return z @ (S @ v) + d * (z @ h) + c * (v @ h) + c * d

    one = h.new_ones(())
    Q, d, alpha, beta = [torch.zeros_like(h)], [one], [], []
    while True:
        q, c = K @ (S @ Q[-1]) + noise * Q[-1] + d[-1] * g, noise * d[-1]
        if beta:
            q, c = q - beta[-1] * Q[-2], c - beta[-1] * d[-2]
        alpha.append(dot(Q[-1], d[-1], q, c))
        if len(Q) == steps:
            break
        q, c = q - alpha[-1] * Q[-1], c - alpha[-1] * d[-1]
        shares = [dot(z, e, q, c) for z, e in zip(Q, d, strict=True)]
        for share, z, e in zip(shares, Q, d, strict=True):
            q, c = q - share * z, c - share * e
        length = dot(q, c, q, c).clamp_min(0).sqrt()
        if not length > tau * max(alpha):
            break
        beta.append(length)
        Q.append(q / length)
        d.append(c / length)
    return torch.stack(Q, 1), torch.stack(d), _tridiagonal(alpha, beta)


def efficient_lanczos(
    problem: Problem, h: Tensor, steps: int, tau: float = 1e-8
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Algorithm 7; returns Q and P = S Q on the grid, d and T."""
    g, noise = problem.K @ h, problem.noise
    Q, P, d = [torch.zeros_like(h)], [torch.zeros_like(h)], [h.new_ones(())]
    s, alpha, beta = torch.zeros_like(h), [], []
    while True:
        q, c = s + d[-1] * g, noise * d[-1]
        if beta:
            q, c = q - beta[-1] * Q[-2], c - beta[-1] * d[-2]
        alpha.append(P[-1] @ q + d[-1] * c + (d[-1] * q + c * Q[-1]) @ h)
        if len(Q) == steps:
            break
        q, c = q - alpha[-1] * Q[-1], c - alpha[-1] * d[-1]
        Qs, Ps, ds = torch.stack(Q, 1), torch.stack(P, 1), torch.stack(d)
        shares = Ps.T @ q + (c + q @ h) * ds + c * (Qs.T @ h)
        q, c = q - Qs @ shares, c - ds @ shares
        s, p = problem.both(q)
        length = (p @ q + c * c + 2 * c * (q @ h)).clamp_min(0).sqrt()
        if not length > tau * max(alpha):
            break
        beta.append(length)
        Q.append(q / length)
        P.append(p / length)
        d.append(c / length)
        s = s / length
    return torch.stack(Q, 1), torch.stack(P, 1), torch.stack(d), _tridiagonal(alpha, beta)


def symmetrised(K: Tensor, S: Tensor, noise: float) -> Tensor:
    """``K_G S K_G + noise K_G``, the symmetric system of appendix A.5."""
    return K @ S @ K + noise * K


def _tridiagonal(alpha: list[Tensor], beta: list[Tensor]) -> Tensor:
    T = torch.diag(torch.stack(alpha))
    return T + torch.diag(torch.stack(beta), 1) + torch.diag(torch.stack(beta), -1) if beta else T
