"""Ask whether rows that share their neighbours would save work: the union of the neighbours of near rows.

    python benchmarks/grouped_conditioning.py --tables elevation temperature kin40k protein

A group of g near rows with u neighbours between them takes ``(u + g)^3 / 3`` operations (Guinness 2018, section 3.3),
and its rows alone ``g m^3 / 3``. Groups are g rows that follow each other along the search tree's leaves, which is near
the best that can be had. "work" is the ratio of the two: below 1 grouping saves.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from maps import FILES, read_map, write
from splits import read_split

from gigagp import GPRegressor, inference, kernels

_GROUPS = 300


def main() -> None:
    """Print and write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=["elevation", "temperature", "kin40k", "protein"])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    results: list[dict[str, object]] = []
    for name in arguments.tables:
        if name in FILES:
            X, y = read_map(arguments.data, name, arguments.rows)
        else:
            X, y = read_split(arguments.data, name, rows=arguments.rows)[:2]
        m = 30 if X.shape[1] <= 3 else 60
        gp = GPRegressor(kernels.Matern(nu=1.5), inference=inference.Vecchia(m)).fit(X, y)
        graph = gp.posterior_._graph
        near = graph.neighbourhood
        late = near.order[len(near.order) // 2 :]  # half of the rows have the finest scale
        drawn = late[torch.randperm(len(late), generator=torch.Generator().manual_seed(0))[:_GROUPS]]
        members = near.nearest(gp.posterior_.table.X[drawn], 16).long()
        for size in (2, 4, 8, 16):
            ratios = []
            for group in members[:, :size]:
                found = graph.earlier(group)
                union = np.union1d(np.unique(found[found >= 0].numpy()), group.numpy())
                ratios.append(len(union) ** 3 / (size * m**3))
            row = {"table": name, "inputs": X.shape[1], "neighbours": m, "group": size, "work": float(np.mean(ratios))}
            print(row, flush=True)
            results.append(row)
            write(arguments.json, vars(arguments), results)


if __name__ == "__main__":
    main()
