"""Random numbers by index: those of item 7,000,000 are computed without those of the items before it.

A counter is mixed into bits by the output function of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable
pseudorandom number generators", https://doi.org/10.1145/2714064.2660195). A block of a table of random numbers that is
too large to store therefore costs only the block. The bits are the same on every device; normal numbers agree up to the
last digits of each device's logarithms and sines.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> int:
    """Return the signed 64-bit integer with the same bits, as torch requires."""
    value &= _MASK
    return value - 2**64 if value >= 2**63 else value


def _mixed(value: int) -> int:
    """Return the output of SplitMix64 for one state."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def _xor_shift_(bits: Tensor, places: int) -> Tensor:
    # torch shifts signed integers, so the copies of the sign bit are masked.
    return bits.bitwise_xor_((bits >> places) & (2 ** (64 - places) - 1))


def random_bits(key: int, counters: Tensor) -> Tensor:
    """Return 64 random bits for each counter from 0, as int64: outputs ``counters + 1`` of SplitMix64 from a seed."""
    bits = counters.mul(_signed(_GOLDEN)).add_(_signed(key + _GOLDEN))
    _xor_shift_(bits, 30).mul_(_signed(_MIX_1))
    _xor_shift_(bits, 27).mul_(_signed(_MIX_2))
    return _xor_shift_(bits, 31)


class IndexedDraws:
    """Random numbers that belong to items, for a selection (b,) of items, counted from 0, in any order.

    Streams distinguish uses that must be independent under the same seed.
    """

    def __init__(self, seed: int, stream: tuple[int, ...], index: Tensor) -> None:
        key = _mixed(seed + _GOLDEN)
        for number in stream:
            key = _mixed(key + _GOLDEN * (number + 1))
        self._key, self.index = key, index

    def _bits(self, purpose: int, width: int) -> Tensor:
        counters = self.index[:, None] * width + torch.arange(width, device=self.index.device)
        return random_bits(_mixed(self._key + purpose), counters)

    def uniform(self, width: int) -> Tensor:
        """Return numbers strictly between 0 and 1, shape (b, width), float64."""
        return ((self._bits(1, width) >> 11) & (2**53 - 1)).double().add_(0.5).mul_(2.0**-53)

    def normal(self, width: int) -> Tensor:
        """Return standard normal numbers, shape (b, width), float64, by the method of Box and Muller (1958)."""
        bits = self._bits(2, (width + 1) // 2)
        # 32 bits for the radius reach 6.7 standard deviations.
        radius = ((bits >> 32) & (2**32 - 1)).double().add_(0.5).mul_(2.0**-32).log_().mul_(-2).sqrt_()
        angle = (bits & (2**32 - 1)).double().mul_(2 * math.pi * 2.0**-32)
        return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)[:, :width]
