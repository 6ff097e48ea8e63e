"""What only the GPU engine has: precision of distances, layouts, its compiler; values are tested in test_engines.py."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import helpers
from engines import BUDGET, HAS_TRITON, NO_TRITON, Interpreted
from gigagp.errors import InvalidInputError
from gigagp.kernels import RBF, Linear, Matern
from gigagp.products import LowRankWeights, triton_packing, triton_tiles
from gigagp.products.program import Profile, Term, compile_kernel
from gigagp.products.triton_packing import Method
from gigagp.products.triton_tiles import TritonTiles
from helpers import all_kernels, close, points, reference_block, relative_error

ALL = all_kernels()
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason=NO_TRITON)
interprets = pytest.mark.skipif(
    not HAS_TRITON or torch.cuda.is_available(), reason=f"{NO_TRITON}, or there is a GPU to run on"
)
SOURCE = str(Path(triton_tiles.__file__).parents[2])


def test_what_it_supports(monkeypatch):
    class Mine(RBF):
        """A class derived from a kernel may compute something else."""

    monkeypatch.setattr(TritonTiles, "available", staticmethod(lambda: True))
    assert all(TritonTiles.supports(kernel, "cuda") for kernel in ALL.values())
    assert not TritonTiles.supports(Mine().bind(4), "cuda")
    assert not TritonTiles.supports(ALL["rbf"], "cpu")
    assert [TritonTiles(name).name for name in ("ieee", "tf32")] == [
        "triton tiles",
        "triton tiles (tf32 distances)",
    ]
    with pytest.raises(
        InvalidInputError, match=r'distances of TritonTiles must be .*; got "bf16"'.replace('"bf16"', "'bf16'")
    ):
        TritonTiles("bf16")
    monkeypatch.setattr(TritonTiles, "available", staticmethod(lambda: False))
    assert not TritonTiles.supports(ALL["rbf"], "cuda")
    with pytest.raises(InvalidInputError, match=r"TritonTiles needs triton >= 3.5"):
        TritonTiles()


def test_available_asks_for_a_recent_triton(monkeypatch):
    monkeypatch.setattr(triton_tiles, "find_spec", lambda name: None)
    assert not TritonTiles.available()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "triton", type(sys)("triton"))
    monkeypatch.setattr(triton_tiles, "find_spec", lambda name: True)
    for version, recent in (
        ("3.4.1", False),
        ("3.5.0", True),
        ("3.10.0+git1", True),
        ("2.3.0", False),
        ("4.0.0", True),
    ):
        sys.modules["triton"].__version__ = version
        assert TritonTiles.available() is recent


def test_cpu_tensors_are_refused_without_the_interpreter(monkeypatch):
    monkeypatch.setattr(TritonTiles, "available", staticmethod(lambda: True))
    monkeypatch.setattr(triton_tiles, "_kernels", lambda: SimpleNamespace(INTERPRETED=False))
    engine, X = TritonTiles(), points(5, 4)
    words = r"X of TritonTiles must be on a CUDA device; got cpu\. .* TRITON_INTERPRET=1"
    with pytest.raises(InvalidInputError, match=words):
        engine.product(ALL["rbf"], X, X, X, budget=BUDGET)
    with pytest.raises(InvalidInputError, match=words):
        engine.dense(ALL["rbf"], X, budget=BUDGET)
    with pytest.raises(InvalidInputError, match=words):
        engine.gradient(ALL["rbf"], X, X, LowRankWeights(X, X), symmetric=True, budget=BUDGET)


# Precision ---------------------------------------------------------------------------------------------------------

#: The table in the docstring of `TritonTiles`: largest errors for RBF and Matern 3/2.
ERRORS = {
    (4, "ieee"): (3e-7, 9e-7),
    (4, "bf16x3"): (1.1e-5, 3.1e-5),
    (4, "tf32"): (3.6e-4, 4.2e-4),
    (18, "ieee"): (3.6e-7, 9e-7),
    (18, "bf16x3"): (5.1e-6, 4.4e-6),
    (18, "tf32"): (1.9e-4, 1.6e-4),
    (90, "ieee"): (1.2e-7, 7.2e-7),
    (90, "bf16x3"): (3e-6, 2.1e-6),
    (90, "tf32"): (8.9e-5, 7.5e-5),
}


@pytest.mark.few(2)
@interprets
@pytest.mark.parametrize(("d", "distances"), ERRORS)
def test_errors_of_distances_are_those_of_the_docstring(d, distances):
    X = points(256, d, dtype=torch.float32)
    for kernel, stated in zip((RBF(math.sqrt(d)), Matern(1.5, math.sqrt(d))), ERRORS[d, distances], strict=True):
        expected = reference_block(kernel.bind(d), X, X)
        error, rounding = (
            float((Interpreted(distances=one).dense(kernel.bind(d), X) - expected).abs().max())
            for one in (distances, "ieee")
        )
        if distances == "ieee":  # the rounding of sums of squares, which depends on their order and so on the machine
            assert max(error, stated) < 16 * torch.finfo(torch.float32).eps * float(X.square().sum(1).amax() / d)
        else:
            assert abs(error - stated) < 0.1 * stated + 2 * rounding
            assert error > 1.5 * rounding  # the low precision is really there


@interprets
@pytest.mark.parametrize("distances", ["tf32", "bf16x3"])
def test_low_precision_is_for_distances_alone(distances):
    rough, exact = Interpreted(distances=distances), Interpreted()
    X, V = points(40, 10, dtype=torch.float32), points(40, 17, seed=1, dtype=torch.float32)
    for kernel in (Linear(0.3), Matern(0.5, 2.0), RBF(1e-3)):  # inner products, a kink, points far apart
        kernel = kernel.bind(10)
        assert torch.equal(rough.product(kernel, X, X, V), exact.product(kernel, X, X, V))
    kernel = RBF(3.0).bind(10)
    assert torch.equal(
        rough.product(kernel, X.double(), X.double(), V.double()),
        exact.product(kernel, X.double(), X.double(), V.double()),
    )
    assert not torch.equal(rough.product(kernel, X, X, V), exact.product(kernel, X, X, V))
    # V is not rounded, and equal points are equal
    moved = rough.dense(kernel, X)
    assert relative_error(rough.product(kernel, X, X, V), moved.double() @ V.double()) < 1e-6
    pair = rough.dense(kernel, X[torch.arange(40) % 20])
    # distances are differences of squares, whose rounding is all that is left of them
    squares = float((X / 3.0).square().sum(1).amax())
    close(pair[:20, 20:].diagonal(), torch.ones(20), condition=squares, dtype=torch.float32)


def test_rounded_points_are_what_tensor_cores_take_without_a_loss():
    exact = points(500, 3) * 10.0 ** torch.arange(-2, 1)
    main, rest = triton_packing.rounded(exact, torch.float32, Method.TF32_PRODUCTS)
    assert not (main.float().view(torch.int32) & 0x1FFF).any()
    assert not rest.any()
    assert 2**-14 < float(((main - exact) / exact).abs().max()) <= 2**-11
    main, rest = triton_packing.rounded(exact, torch.float32, Method.SPLIT_PRODUCTS)
    for part in (main, rest):
        assert torch.equal(part, part.to(torch.bfloat16).double())
    assert float(((main + rest - exact) / exact).abs().max()) <= 2**-17
    main, rest = triton_packing.rounded(exact, torch.float32, Method.TWO_PART_DIFFERENCES)
    assert torch.equal(main, exact.float().double())
    assert torch.equal(main + rest, exact)


# Layouts -----------------------------------------------------------------------------------------------------------


def test_methods_follow_the_points():
    def method(scale, inputs=10, profile=Profile.RBF, dtype=torch.float32, distances="ieee", interpreted=False):
        X = torch.ones(2, inputs).double() * scale
        return triton_packing.method_of(Term(profile, X, X, inputs), dtype, distances, interpreted=interpreted)

    assert method(1.0) == Method.PRODUCTS
    assert method(1.0, inputs=3) == Method.DIFFERENCES
    assert method(1.0, profile=Profile.MATERN_12) == Method.DIFFERENCES
    assert method(5.0) == Method.DIFFERENCES
    assert method(500.0) == Method.TWO_PART_DIFFERENCES
    assert method(100.0, dtype=torch.float64) == Method.PRODUCTS
    assert method(500.0, dtype=torch.float64) == Method.DIFFERENCES
    assert method(500.0, profile=Profile.DOT) == Method.PRODUCTS
    assert method(1.0, distances="tf32") == Method.TF32_PRODUCTS
    assert method(5.0, distances="tf32") == Method.DIFFERENCES
    assert method(1.0, distances="tf32", dtype=torch.float64) == Method.PRODUCTS
    assert method(1.0, distances="bf16x3") == Method.SPLIT_PRODUCTS
    assert method(1.0, distances="bf16x3", interpreted=True) == Method.WIDENED_SPLIT_PRODUCTS


def test_vectors_and_coordinates_are_covered_with_little_padding():
    for s in range(1, triton_tiles.MOST_VECTORS + 1):
        wide, single = triton_tiles._layout(s)
        assert wide in {0, 16, 32, 64}
        assert single <= triton_packing.FEW
        assert s <= wide + single <= max(2 * s, 16)
        assert single == 0 or wide + single == s
    assert [triton_tiles._layout(s) for s in (1, 8, 9, 17, 65, 72)] == [
        (0, 1),
        (0, 8),
        (16, 0),
        (16, 1),
        (64, 1),
        (64, 8),
    ]
    for c in range(1, 500):
        together, single, chunk = triton_packing.chunks(c)
        assert together % chunk == 0
        assert c <= together + single < c + chunk - triton_packing.FEW
    assert [triton_packing.chunks(c)[:2] for c in (3, 10, 18, 90)] == [(0, 3), (16, 0), (16, 2), (96, 0)]


def test_derivatives_of_values_of_a_program():
    """Of ((a + b) * c) + d, by hand."""
    X = points(3, 4)
    program = compile_kernel(ALL["nested"], X, X)
    (matern, _), (linear, _), (rbf, _), (one, _) = [
        (k, s) for k, s in enumerate(program.steps) if s.operation in (0, 3)
    ]
    factor = float(ALL["nested"].parameters()["0.1.variance"])
    assert triton_packing.path(program, matern) == (factor, (rbf,))
    assert triton_packing.path(program, linear)[1] == (rbf,)
    assert triton_packing.path(program, rbf) == (factor, (program.steps[rbf + 1].a,))
    assert triton_packing.path(program, one) == (1.0, ())


@interprets
def test_few_rows_are_split_by_columns_and_many_in_parts():
    kernel = Matern(1.5, 2.0).bind(3)
    X, Z = points(5, 3), points(500, 3, seed=1)
    V = points(500, 17, seed=2)
    packed = triton_packing.Packed(64, 512, (), (), ())
    assert triton_tiles._splits(packed, triton_tiles.Tiling(64, 32, 4)) == (16, 32)
    assert triton_tiles._splits(triton_packing.Packed(2**17, 512, (), (), ()), triton_tiles.Tiling(64, 32, 4)) == (
        1,
        512,
    )
    engine = Interpreted()
    assert relative_error(engine.product(kernel, X, Z, V), reference_block(kernel, X, Z) @ V) < 1e-13
    X, Z, V = points(1100, 3).float(), points(20, 3).float(), points(20, 2).float()  # a thousand rows at a time
    found, expected = engine.product(kernel, X, Z, V, budget=1), reference_block(kernel, X, Z) @ V.double()
    close(found, expected, dtype=torch.float32)


@pytest.mark.slow
@interprets
def test_no_tensor_is_large():
    n, kernel, engine = 300, ALL["matern32"], Interpreted()
    X, V = points(n, 4), points(n, 5, seed=2)
    assert engine.largest("product", kernel, X, X, V, budget=BUDGET) < n * n / 3
    assert engine.largest("dense", kernel, X, budget=BUDGET) >= n * n  # the spy sees what it should


# The compiler ------------------------------------------------------------------------------------------------------

COMPILE = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from gigagp.kernels import Matern
from gigagp.products import LowRankWeights, triton_kernels, triton_tiles
from helpers import all_kernels, points

class Driver:
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device=0: 0

class Compiled:
    def __init__(self, name):
        self.kernel = getattr(triton_kernels, name)
    def __getitem__(self, grid):
        def compile(*arguments, **settings):
            made = self.kernel.warmup(*arguments, grid=grid, **settings)
            assert made.metadata.shared <= 99 * 1024  # what every GPU since compute capability 8.0 has
            assert len(made.asm["cubin"]) > 1000
            assembly.extend(line for line in made.asm["ptx"].splitlines() if "mma" in line and "aligned" in line)
        return compile

class Kernels:
    INTERPRETED = False
    product_kernel, dense_kernel, gradient_kernel = map(Compiled, ("product_kernel", "dense_kernel", "gradient_kernel"))

driver.set_active(Driver())
triton_tiles._kernels = lambda: Kernels
triton_tiles._check_runs_here = lambda X: None
assembly = []
tree, one, budget = all_kernels()["nested"], Matern(1.5, 5.0).bind(18), 2**24

def product(kernel, d, s, dtype=torch.float32, distances="ieee"):
    assembly.clear()
    X, V = points(40, d, dtype=dtype), points(40, s, dtype=dtype)
    triton_tiles.TritonTiles(distances).product(kernel, X, X, V, budget=budget)
    return "".join(assembly)

assert product(tree, 4, 2) == ""  # distances in float32 are not for matrix units
assert "tf32.tf32" in product(tree, 4, 17)  # sums with many vectors are, by three products each
assert "tf32.tf32" in product(one, 18, 1, distances="tf32")
assert "bf16.bf16" in product(one, 18, 1, distances="bf16x3")
assert "f64.f64" in product(one, 18, 17, torch.float64)
X, V = points(40, 18), points(40, 2)
engine = triton_tiles.TritonTiles()
engine.dense(one, X, budget=budget)
engine.gradient(one, X, X, LowRankWeights(V, V), symmetric=True, budget=budget)
print("compiled")
"""


@pytest.mark.slow
@needs_triton
def test_no_tile_that_is_chosen_or_tried_spills_registers(tmp_path):
    """Or a product takes thirty times as long, as it did on the first GPU that this ran on."""
    script = Path(__file__).parents[2] / "benchmarks" / "gpu_registers.py"
    command = [sys.executable, str(script), "--chosen", "--json", str(tmp_path / "rows.json")]
    environment = {**os.environ, "PYTHONPATH": SOURCE, "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run(command, env=environment, capture_output=True, check=True)
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert len(rows) >= 2 * 2 * 7 * 3
    assert not [row for row in rows if "failure" in row or row["spilled"] or row["shared"] > 99 * 1024]


@pytest.mark.slow
@needs_triton
def test_the_compiler_takes_every_kernel(tmp_path):
    """No GPU is needed to make machine code for one; what it computes, and how fast, only a GPU can show."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([SOURCE, str(Path(helpers.__file__).parent)]),
        "TRITON_CACHE_DIR": str(tmp_path),
        "TRITON_INTERPRET": "0",
    }
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "compiled\n", done.stderr[-2000:]
