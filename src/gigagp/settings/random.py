"""Random number generators: every draw takes a ``torch.Generator`` made here, and none uses the global state."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch

from gigagp.settings.fields import CountOrZero, Words, checked

#: Values that scikit-learn users pass as ``random_state``; seeds are not negative, as in NumPy.
RandomState = Annotated[
    CountOrZero | np.random.RandomState | np.random.Generator | torch.Generator | None,
    Words("None, an int of at least 0, a NumPy generator or a torch.Generator"),
]


def generator_from(random_state: RandomState) -> torch.Generator:
    """Return a CPU generator for any ``random_state``.

    Numbers are drawn on the CPU and then moved, so that a seed gives the same numbers on every device.
    """
    random_state = checked(random_state, RandomState, "random_state", "generator_from")
    if isinstance(random_state, torch.Generator):
        return random_state
    generator = torch.Generator()
    if random_state is None:
        generator.seed()
    elif isinstance(random_state, int):
        generator.manual_seed(random_state)
    elif isinstance(random_state, np.random.RandomState):
        generator.manual_seed(int(random_state.randint(2**31)))
    else:
        generator.manual_seed(int(random_state.integers(2**31)))
    return generator


def spawn(generator: torch.Generator) -> torch.Generator:
    """Return a new generator seeded from ``generator``, so that two uses do not depend on each other's order."""
    child = torch.Generator()
    child.manual_seed(int(torch.randint(2**62, (), generator=generator)))
    return child


def standard_normal(
    *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Return standard normal numbers, drawn in float64 on the CPU for any target dtype and device."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype=dtype, device=device)
