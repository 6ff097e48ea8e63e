"""Which rows should a point be predicted from? Compare sets of neighbours at random points and inside blocks.

    python benchmarks/vecchia_conditioning.py elevation --data FOLDER --rows 100000
    python benchmarks/vecchia_conditioning.py temperature --data FOLDER --kernel rough

One fit of `inference.Vecchia` for each split and kernel, then predictions from several sets of rows:

- nearest m;
- scales: the nearest half, and for the other half the nearest of the first n/8, n/64, ... rows of the order from coarse
  to fine, as many of each;
- sectors: for the other half, as many rows from each orthant around the point;
- joint: points come after the rows in an order from coarse to fine, and are conditioned on earlier points too
  (variances from 64 samples). Only this one depends on which points are predicted together.

- exact: from all rows, where there are at most 15,000.

`latent std` is the root of the mean variance of the latent function at the points. Where points are predicted from
given rows, it is the error that the model itself expects, so the smaller, the closer to the exact answer. One thread;
CPU seconds.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from maps import FILES, KERNELS, Split, line, scores, split, write

from gigagp import GPRegressor, inference
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.order import coarse_to_fine
from gigagp.neighbours.search import NeighbourTree

_SAMPLES, _BLOCK = 64, 8192


class Predictor:
    """The rows of a fit and what its points are conditioned on, all in standardized units."""

    def __init__(self, gp: GPRegressor) -> None:
        posterior: Any = gp.posterior_
        self.kernel, self.X = posterior.model.kernel, posterior.table.X.double()
        self.noise = posterior._noise
        self.residuals = posterior._residuals
        self.trend = posterior.trend
        self.neighbourhood = posterior._graph.neighbourhood
        self.order = self.neighbourhood.order
        self.points = self.neighbourhood.metric(self.X)[self.order]
        self.tree = NeighbourTree(self.points)

    def nearest(self, X: Tensor, m: int) -> Tensor:
        """Return the ranks of the nearest rows."""
        return self.tree.query(self.neighbourhood.metric(X), m).long()

    def scales(self, X: Tensor, m: int, near: int, factor: int, smallest: int = 50) -> Tensor:
        """Return ranks: ``near`` nearest rows, the others from the first n/factor, n/factor^2, ... rows."""
        points, n = self.neighbourhood.metric(X), len(self.X)
        limits, limit = [], n // factor
        while limit >= smallest:
            limits.append(limit)
            limit //= factor
        found = self.tree.query(points, near).long()
        wanted = np.diff(np.linspace(near, m, len(limits) + 1).round().astype(int))
        for limit, more in zip(limits, wanted, strict=True):
            # What has been found of these rows is their nearest part, so the new ones follow it in their order.
            there = ((found >= 0) & (found < limit)).sum(1)
            below = torch.full((len(X),), limit)
            some = self.tree.query(points, int(more + there.max()), below).long()
            found = torch.cat([found, some.gather(1, there[:, None] + torch.arange(more))], 1)
        return found

    def sectors(self, X: Tensor, m: int, near: int) -> Tensor:
        """Return ranks: ``near`` nearest rows, the others in equal numbers from each orthant around the point.

        Candidates are the nearest rows at all scales, five times as many as are taken.
        """
        points = self.neighbourhood.metric(X)
        found = packed(self.scales(X, near + 5 * (m - near), near, 4))
        nearest, others = found[:, :near], found[:, near:]
        offset = self.points[others.clamp_min(0)] - points[:, None, :]
        distance = offset.square().sum(2).masked_fill_(others < 0, torch.inf)
        orthant = ((offset > 0).long() * 2 ** torch.arange(offset.shape[2])).sum(2)
        by_distance = distance.argsort(1)
        others, orthant = others.gather(1, by_distance), orthant.gather(1, by_distance)
        place = torch.zeros_like(others)  # how many nearer candidates are in the same orthant
        for number in range(2 ** offset.shape[2]):
            inside = orthant == number
            place = torch.where(inside, inside.cumsum(1) - 1, place)
        place.masked_fill_(others < 0, others.shape[1])
        taken = place.argsort(stable=True, dim=1)[:, : m - near]  # in turns from each orthant, the nearest first
        return torch.cat([nearest, others.gather(1, taken)], 1)

    def exact(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the latent variance given all rows."""
        factor = torch.linalg.cholesky(self.kernel.block(self.X, self.X) + torch.diag(self.noise))
        root = torch.linalg.solve_triangular(factor, self.kernel.block(self.X, X), upper=False)
        whitened = torch.linalg.solve_triangular(factor, self.residuals, upper=False)
        return self.trend(X)[:, 0] + (root.T @ whitened)[:, 0], self.kernel.diagonal(X) - root.square().sum(0)

    def predict(self, X: Tensor, ranks: Any) -> tuple[Tensor, Tensor]:
        """Return the mean and the latent variance of points, each from its rows."""
        means, variances = [], []
        for block in X.split(_BLOCK):
            of_block = ranks(block)
            rows = torch.where(of_block >= 0, self.order[of_block.clamp_min(0)], -1)
            used, places = torch.unique(rows[rows >= 0], return_inverse=True)
            local = torch.full_like(rows, -1)
            local[rows >= 0] = places
            local = packed(local)
            pool = Pool(
                self.kernel,
                torch.cat([self.X[used], block]),
                torch.cat([self.noise[used], self.noise.new_zeros(len(block))]),
            )
            found = pool.conditionals(len(used) + torch.arange(len(block)), local.to(torch.int32))
            values = self.residuals[used][local.clamp_min(0), 0]
            means.append(self.trend(block)[:, 0] + (found.weights * values).sum(1))
            variances.append(found.variance)
        return torch.cat(means), torch.cat(variances)

    def joint(self, X: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """Return mean and latent variance where points are conditioned on earlier points too."""
        generator, n, q = torch.Generator().manual_seed(0), len(self.X), len(X)
        order, _ = coarse_to_fine(self.neighbourhood.metric(X), generator)
        points = torch.cat([self.points, self.neighbourhood.metric(X)[order]])
        later = n + torch.arange(q)
        neighbours = NeighbourTree(points).query(points[n:], m, later)
        noise = torch.cat([self.noise[self.order], self.noise.new_zeros(q)])
        pool = Pool(self.kernel, torch.cat([self.X[self.order], X[order]]), noise)
        found = pool.conditionals(later, neighbours)
        weights, places = found.weights.numpy(), neighbours.long().clamp_min(0).numpy()
        own = found.variance.sqrt().numpy()[:, None] * np.random.default_rng(0).standard_normal((q, _SAMPLES))
        values = np.zeros((n + q, 1 + _SAMPLES))
        values[:n] = self.residuals[self.order].numpy()
        passed_on = np.zeros((q, _SAMPLES))  # the part of a sample that comes from earlier points
        for i in range(q):
            value = weights[i] @ values[places[i]]
            passed_on[i] = value[1:] - value[0]
            value[1:] += own[i]
            values[n + i] = value
        variance = found.variance.numpy() + (passed_on**2).mean(1)
        back = torch.empty_like(order)
        back[order] = torch.arange(q)
        mean = torch.from_numpy(values[n:, 0])[back]
        return self.trend(X)[:, 0] + mean, torch.from_numpy(variance)[back]


def packed(ranks: Tensor) -> Tensor:
    """Return the neighbours of each point with missing ones (-1) last."""
    return ranks.gather(1, (ranks < 0).long().argsort(stable=True, dim=1))


WAYS = {
    "nearest 30": lambda p, X: p.predict(X, lambda b: p.nearest(b, 30)),
    "nearest 60": lambda p, X: p.predict(X, lambda b: p.nearest(b, 60)),
    "nearest 120": lambda p, X: p.predict(X, lambda b: p.nearest(b, 120)),
    "nearest 240": lambda p, X: p.predict(X, lambda b: p.nearest(b, 240)),
    "30 + 30 by 8": lambda p, X: p.predict(X, lambda b: p.scales(b, 60, 30, 8)),
    "30 + 30 by 4": lambda p, X: p.predict(X, lambda b: p.scales(b, 60, 30, 4)),
    "20 + 40 by 4": lambda p, X: p.predict(X, lambda b: p.scales(b, 60, 20, 4)),
    "30 + 30 by 16": lambda p, X: p.predict(X, lambda b: p.scales(b, 60, 30, 16)),
    "40 + 20 by 8": lambda p, X: p.predict(X, lambda b: p.scales(b, 60, 40, 8)),
    "60 + 30 by 8": lambda p, X: p.predict(X, lambda b: p.scales(b, 90, 60, 8)),
    "60 + 30 by 16": lambda p, X: p.predict(X, lambda b: p.scales(b, 90, 60, 16)),
    "60 + 60 by 8": lambda p, X: p.predict(X, lambda b: p.scales(b, 120, 60, 8)),
    "40 + 80 by 4": lambda p, X: p.predict(X, lambda b: p.scales(b, 120, 40, 4)),
    "30 + 30 sectors": lambda p, X: p.predict(X, lambda b: p.sectors(b, 60, 30)),
    "40 + 80 sectors": lambda p, X: p.predict(X, lambda b: p.sectors(b, 120, 40)),
    "joint 60": lambda p, X: p.joint(X, 60),
    "joint 120": lambda p, X: p.joint(X, 120),
    "exact": lambda p, X: p.exact(X),
}
#: Largest number of rows for exact predictions.
_DENSE = 15_000


def compare(data: Split, kernel: str, ways: list[str], settings: dict[str, object]) -> list[dict[str, object]]:
    """Fit once and return the scores of all ways."""
    centre, spread, middle, scale = data.X.mean(0), data.X.std(0), data.y.mean(), data.y.std()
    start = time.process_time()
    gp = GPRegressor(kernel=KERNELS[kernel](), inference=inference.Vecchia(), standardize=False)
    gp.fit((data.X - centre) / spread, (data.y - middle) / scale)
    seconds = time.process_time() - start
    print(f"  fit {seconds:.1f} CPU s; {gp.kernel_!r}, noise {gp.noise_variance_:.3g}", flush=True)
    predictor, rows = Predictor(gp), []
    X_test = torch.from_numpy((data.X_test - centre) / spread)
    for way in ways:
        if way == "exact" and len(data.y) > _DENSE:
            continue
        start = time.process_time()
        mean, variance = WAYS[way](predictor, X_test)
        spent = time.process_time() - start
        std = (variance + gp.noise_variance_).clamp_min(1e-300).sqrt().numpy() * scale
        own: dict[str, object] = {"latent_std": float(variance.mean().sqrt()) * scale}
        own |= scores(data.y_test, mean.numpy() * scale + middle, std, data.size)
        rows.append({**settings, "kernel": kernel, "way": way, "predict_cpu_s": spent, "fit_cpu_s": seconds, **own})
        rows[-1]["fitted"] = f"{gp.kernel_!r}, noise {gp.noise_variance_:.4g}"
        print(f"  {way:16s} {spent:6.1f} s  {line(own)}  latent std {own['latent_std']:.4g}", flush=True)
    return rows


def main() -> None:
    """Compare the ways on the requested maps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maps", nargs="+", choices=FILES)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=None, help="random rows of the map; default: all")
    parser.add_argument("--splits", nargs="+", default=["blocks", "random"], choices=("blocks", "random"))
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS), choices=KERNELS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for name in arguments.maps:
        for how in arguments.splits:
            data = split(arguments.data, name, how, arguments.rows)
            for kernel in arguments.kernels:
                print(f"{name}, {how}: {len(data.y):,} rows, {len(data.y_test):,} predicted, {kernel}", flush=True)
                rows += compare(data, kernel, arguments.ways, {"map": name, "split": how, "rows": len(data.y)})
                write(arguments.json, vars(arguments), rows)


if __name__ == "__main__":
    main()
