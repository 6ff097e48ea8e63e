"""Tune numbers and choices by ask and tell; run it again after a crash, and it goes on from its file."""

import math

from gigagp.search import Search


def loss(x: dict) -> float:
    """Stand for the training of a model."""
    return math.log10(x["rate"] / 1e-3) ** 2 + (x["layers"] - 3) ** 2 + (x["kind"] == "a") + 0.5 * x["dropout"]


bounds = {"layers": (1, 8), "rate": (1e-5, 1e-1, "log"), "kind": ["a", "b"], "dropout": [False, True]}
search = Search(bounds, feasible=lambda x: x["layers"] < 8 or x["dropout"], file="search.json")
while len(search.y) < 50 and not search.is_done():
    (x,) = search.ask()
    search.tell(x, loss(x))
print(f"{len(search.y)} evaluations, best value {search.best.y:.2e} at {search.best.x}")
