"""Random damage to files."""

from __future__ import annotations

from pathlib import Path

from stress.draw import Draw


def damage(draw: Draw, path: Path) -> str:
    """Damage a file, and return a description of the damage."""
    data = bytearray(path.read_bytes()) or bytearray(1)
    how = draw.one_of(["flip", "bit", "cut", "double", "empty", "zeros", "insert", "remove", "swap", "head", "tail"])
    at = draw.whole(0, max(0, len(data) - 1))
    count = draw.one_of([1, 2, 8, 64])
    if how == "flip":
        for _ in range(count):
            data[draw.whole(0, len(data) - 1)] = draw.whole(0, 255)
    elif how == "bit":
        data[at] ^= 1 << draw.whole(0, 7)
    elif how == "cut":
        del data[at:]
    elif how == "double":
        data *= 2
    elif how == "empty":
        data.clear()
    elif how == "zeros":
        data[at : at + count] = bytes(len(data[at : at + count]))
    elif how == "insert":
        data[at:at] = draw.some_bytes(count)
    elif how == "remove":
        del data[at : at + count]
    elif how == "swap":
        half = len(data) // 2
        data = data[half:] + data[:half]
    elif how == "head":  # where file formats store lengths
        data[draw.whole(0, max(0, min(15, len(data) - 1)))] = draw.whole(0, 255)
    elif how == "tail":  # where file formats store numbers
        data[draw.whole(len(data) // 2, len(data) - 1)] ^= 1 << draw.whole(0, 7)
    path.write_bytes(bytes(data))
    return f"damaged: {how} at {at}, {count}"
