"""Build the native CPU engine; everything else about the project is in pyproject.toml.

The tile kernels are compiled once for each instruction set, and the processor's best one is chosen at run time. Without
a compiler the build goes on without them, and gigagp multiplies with torch.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup
from setuptools.command.build_ext import build_ext

HERE = "src/gigagp/products/native"
COMMON = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=fast",  # a * b + c in one instruction
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-pthread",
    "-Wno-uninitialized",  # GCC 12 about its own header
    "-Wno-maybe-uninitialized",
]
#: The files that are compiled once for each instruction set.
VARIED = ("tiles", "grid", "neighbours", "conditionals", "stored", "filter")
#: For each instruction set: the first part of the names of the functions that return its kernels, and compiler flags.
VARIANTS = {"baseline": []}
MACROS: list[tuple[str, str | None]] = []
if platform.machine().lower() in {"x86_64", "amd64"}:
    faster = {
        "avx2": ["-march=x86-64-v3"],
        "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    }
    # packaging/machines.py builds an engine as an older processor would choose it
    wanted = os.environ.get("GIGAGP_BUILD_INSTRUCTION_SETS", "avx2 avx512").split()
    VARIANTS |= {name: flags for name, flags in faster.items() if name in wanted}
    MACROS += [(f"GIGAGP_HAS_{name.upper()}", None) for name in VARIANTS if name in faster]


# Some files take half a minute and half a gigabyte each, so a few are compiled at a time.
ParallelCompile("GIGAGP_BUILD_JOBS", default=min(4, os.cpu_count() or 1)).install()


class BuildVariants(build_ext):
    """Compile the tile kernels once for each instruction set, and link them into the module."""

    def build_extension(self, ext: Pybind11Extension) -> None:
        """Compile every variant of the files in VARIED, then the rest as usual."""
        for variant, flags in VARIANTS.items():
            ext.extra_objects += self.compiler.compile(
                [f"{HERE}/{name}.cpp" for name in VARIED],
                output_dir=str(Path(self.build_temp) / variant),
                macros=[("GIGAGP_VARIANT", variant), *MACROS],
                include_dirs=[HERE],
                extra_postargs=[*COMMON, *flags],
            )
        super().build_extension(ext)


setup(
    ext_modules=[
        Pybind11Extension(
            "gigagp.products._native",
            [
                f"{HERE}/{name}module.cpp"
                for name in ("", "grid_", "neighbours_", "conditionals_", "stored_", "filter_")
            ],
            depends=[str(path) for path in sorted(Path(HERE).iterdir())],
            define_macros=MACROS,
            extra_compile_args=COMMON,
            extra_link_args=["-pthread"],
            cxx_std=17,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildVariants},
)
