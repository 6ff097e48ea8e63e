"""The kernels that the rules for ``kernel`` try, and where learning begins with each, in standardized units."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from operator import add

import torch

from gigagp.errors import InvalidInputError
from gigagp.inference import Inference
from gigagp.inference.contract.table import TrainingTable
from gigagp.kernels import RBF, Kernel, Linear, Matern, Outputs, Periodic, Product, RationalQuadratic
from gigagp.kernels.composite import summands
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.rebuilding import in_form_of
from gigagp.kernels.stationary import StationaryKernel
from gigagp.model.model import Model

#: Kernels that are not worth learning, and why.
Dropped = tuple[tuple[str, str], ...]
#: Name of the kernel that is kept unless another is clearly better.
DEFAULT = "matern32"
#: Largest number of candidates.
MOST_CANDIDATES = 7
#: How the name of a kernel with a period ends, and that of the default one.
CYCLE = "rbf*periodic"
PERIODIC = f"{DEFAULT}+{CYCLE}"
#: What the name of a kernel with a direction begins with.
TURNED = "rotated "
#: Sums of which an average has one.
RIVALS = "matern32+matern12", "rbf+matern32", "matern32+rbf"
#: Lengthscales of the long and of the short part of a sum, in square roots of the number of inputs.
_SCALES = (2.0, 0.5)
#: Variances of the two parts.
_SHARES = (0.7, 0.3)
#: Rows up to which a long rough part beside a short smooth one is not tried.
_FEW_ROWS = 500
#: Least number of rows, least number of cycles in them, and frequencies tried for each cycle of the span.
_ROWS, _CYCLES, _OVERSAMPLING = 30, 3, 5
#: Near the learned default: the rational quadratic's lengthscale, the least variance of a further part as a share of
#: the first one's, and the least noise as a share of the targets' variance. A smooth kernel with the noise of a rough
#: one can be tens of thousands of nats away.
_RQ_LENGTH, _LEAST_SHARE, _START_NOISE = 0.5, 0.05, 0.003
#: Share of the variance below which what a cubic leaves is rounding errors.
_ROUNDING = 1e-20
#: Largest probability that white noise has as high a peak in its spectrum.
_FALSE_ALARM = 0.01


def supported(
    model: Model, inference: Inference, table: TrainingTable, most: int, *, many_rows: bool = False
) -> tuple[dict[str, Model], Dropped]:
    """Return the start of every candidate that the inference supports, the default first, and what is left out.

    All but the default have at most this many hyperparameters.
    """
    found: dict[str, Model] = {}
    left: list[tuple[str, str]] = []
    for name, kernel in candidate_kernels(model.kernel, table.X, table.Y[:, 0], many_rows=many_rows).items():
        with suppress(InvalidInputError):
            candidate = replace(model, kernel=kernel)
            inference.check_model(candidate)
            count = n_learned(candidate)
            if found and count > most:
                left.append((name, f"{count} hyperparameters are too many for so few rows"))
            else:
                found[name] = candidate
    return found, tuple(left)


def n_learned(model: Model) -> int:
    """Return the number of hyperparameters that are learned."""
    return sum(one.numel() for name, one in model.parameters().items() if name in model.learned_names())


def candidate_kernels(
    default: Kernel, X: torch.Tensor, y: torch.Tensor, *, many_rows: bool = False
) -> dict[str, Kernel]:
    """Return the kernels that are averaged or chosen from, by their words on the command line; the default comes first.

    In one input there are a slope and a period too. With more inputs, slopes have won on no table, and lost 0.14 nats a
    row on one of 200 rows and 18 inputs. On seven tables of 1,500 rows and five of 500, a Matern kernel of order 1/2 or
    5/2 or an RBF alone was worse than the default more often than better, by up to 1.2 nats a row.

    Of a sum, either part may be the smooth one: a bend along one input beside waves that are fast along six is found by
    ``matern32+rbf`` alone. Few rows hardly tell: on 331 real tables of at most 450 rows it lost more than it won.

    Every kernel sees the inputs (n, d) as the default one, which is bound to them: the same columns with the same
    metric, and those that share a lengthscale share it. What follows the first part of a sum, groups and the noise of
    some rows, is part of every kernel. A period is looked for in the spectrum of the targets y (n,).
    """
    part, *noise = summands(default)
    base, outputs = _factors(part)
    if base is None:  # groups alone, where all columns hold levels
        return {DEFAULT: default}
    d, groups = X.shape[1], base.groups
    root = math.sqrt(base.n_active if groups is None else 1 + max(groups))
    (long, short), (most, least) = [root * scale for scale in _SCALES], _SHARES

    def alike(kernel: Leaf) -> Kernel:
        found = in_form_of(kernel, base)
        if outputs is None:
            return found
        of_outputs = outputs.replace({"variance": found.value("variance") * outputs.value("variance")})
        return in_form_of(kernel, base, variance=1.0, fixed=["variance"]) * of_outputs

    plain: Leaf = RBF() if isinstance(base, RBF) else Matern(nu=1.5)
    name = "rbf" if isinstance(base, RBF) else DEFAULT
    found = {
        name: alike(plain),
        "rq": alike(RationalQuadratic()),
        "matern32+matern12": alike(Matern(1.5, long, most)) + alike(Matern(0.5, short, least)),
        "rbf+matern32": alike(RBF(long, most)) + alike(Matern(1.5, short, least)),
    }
    if many_rows or len(X) > _FEW_ROWS:
        found["matern32+rbf"] = alike(Matern(1.5, long, most)) + alike(RBF(short, least))
    if many_rows:  # which show the short scales
        found["matern12"], found["matern52"] = alike(Matern(nu=0.5)), alike(Matern(nu=2.5))
    if d > 1:
        return {name: reduce(add, noise, kernel) for name, kernel in found.items()}
    found[f"{name}+linear"] = (plain + Linear(_SHARES[1])).bind(1)
    period = strongest_period(X[:, 0], y)
    if period is not None:
        # The shape of the cycle changes slowly. One variance of the product is enough.
        cycle = RBF(1.0, 1.0, fixed=("variance",)) * Periodic(1.0, _SHARES[1], period)
        found[f"{name}+{CYCLE}"] = (plain + cycle).bind(1)
    return found


def start_from(known: Model, candidate: Model, target_variance: float) -> Model:
    """Return the start of a candidate that is near the learned default kernel.

    The first part has the learned lengthscales and variance. The others keep the lengthscales of their start: an input
    that the default kernel finds irrelevant may matter on a short scale, which it has taken for noise. So they have at
    least the variance of the noise.
    """
    part, *noise = summands(known.kernel)
    own = summands(candidate.kernel)
    (base, outputs), (first, *others) = _factors(part), own[: len(own) - len(noise)]
    inputs, _ = _factors(first)
    assert base is not None, "kernels begin with a stationary part"
    assert inputs is not None, "kernels begin with a stationary part"
    scale = _RQ_LENGTH if isinstance(inputs, RationalQuadratic) else 1.0
    inputs = inputs.replace({"lengthscale": scale * base.value("lengthscale"), "variance": base.value("variance")})
    variance = (base if outputs is None else outputs).value("variance")
    least = (_LEAST_SHARE * variance).clamp_min(known.noise_level)
    first = inputs if outputs is None else inputs * outputs
    others = [_with_variance(one, least) for one in others]
    found = replace(candidate, kernel=reduce(add, [first, *others, *noise]))
    if found.noise_is_known or not found.noise_is_learned:
        return found
    start = max(float(known.noise_variance), _START_NOISE * target_variance)
    return replace(found, noise_variance=torch.full_like(known.noise_variance, start))


def _factors(part: Kernel) -> tuple[StationaryKernel | None, Outputs | None]:
    """Return the stationary kernel of a part, alone or in a product with one of outputs; (None, None) of any other."""
    kernels = part.parts if isinstance(part, Product) else [part]
    match kernels:
        case [StationaryKernel() as inputs]:
            return inputs, None
        case [StationaryKernel() as inputs, Outputs() as outputs]:
            return inputs, outputs
    return None, None


def _with_variance(part: Kernel, variance: torch.Tensor) -> Kernel:
    """Return a part with this variance, one of outputs with one of each, and any other as it is."""
    inputs, outputs = _factors(part)
    if inputs is None:
        return part
    values = {"variance": variance}
    return inputs.replace(values) if outputs is None else inputs * outputs.replace(values)


def turned(model: Model) -> Model | None:
    """Return the start of a learned kernel with a direction; None unless two inputs share all its lengthscales.

    That is a map, whose axes are as good as any others. Parts along the direction are longer than those across it.
    """
    base, *others = summands(model.kernel)
    parts = [base, *(one for one in others if isinstance(one, StationaryKernel))]
    if not all(_is_round(one) for one in parts):
        return None
    return replace(model, kernel=reduce(add, [_turned(one) if _is_round(one) else one for one in [base, *others]]))


def _is_round(part: Kernel) -> bool:
    is_plane = isinstance(part, StationaryKernel) and part.metric == "euclidean"
    return is_plane and isinstance(part, StationaryKernel) and not part.ard and part.n_active == 2


def _turned(part: Kernel) -> Kernel:
    assert isinstance(part, StationaryKernel), "it is round"
    values = part.parameters()
    found = in_form_of(part, part, ard=True, metric="rotated", lengthscale=None)
    own = found.parameters()["lengthscale"]
    return found.replace({"lengthscale": values["lengthscale"] * own / own.log().mean().exp()})


def strongest_period(x: torch.Tensor, y: torch.Tensor) -> float | None:
    """Return the period at the highest peak of the spectrum of uneven rows; None if noise alone has such peaks.

    A cubic trend is taken out first. A peak is as good a start as the likelihood needs: its basin is one cycle in the
    span of the rows wide, and the frequencies tried lie five times closer.
    """
    x, y = x.double().cpu(), y.double().cpu()
    n, span = len(x), float(x.max() - x.min())
    if n < _ROWS or not span:
        return None
    place = (x - x.min()) / span
    trend = (2 * place[:, None] - 1) ** torch.arange(4)
    whole = float(y.var())
    y = y - trend @ torch.linalg.lstsq(trend, y[:, None]).solution[:, 0]
    variance = float(y.square().mean())
    if variance <= _ROUNDING * whole:
        return None
    cycles = torch.arange(_CYCLES * _OVERSAMPLING, n * _OVERSAMPLING // 2, dtype=torch.float64) / _OVERSAMPLING
    angles = 2 * math.pi * cycles[:, None] * place
    power = ((angles.cos() @ y).square() + (angles.sin() @ y).square()) / (n * variance)
    best = int(power.argmax())
    # the power of white noise is exponential (Scargle 1982)
    return None if float(power[best]) < math.log(len(cycles) / _FALSE_ALARM) else span / float(cycles[best])
