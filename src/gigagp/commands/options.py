"""Options that several commands share, and the words for kernels, inference methods and optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gigagp.errors import InvalidInputError
from gigagp.tables.files import FORMATS

if TYPE_CHECKING:
    from gigagp.kernels import Kernel
    from gigagp.runtime.progress import Meter

TablePath = Annotated[Path, typer.Argument(metavar="TABLE", help=f"The table: {FORMATS}.", show_default=False)]
ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A model saved by `gigagp fit`.", show_default=False)]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of a CSV file has the names; detected by default. Columns without names are "
        "called column1, column2, ...",
        show_default=False,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse cells that are not numbers. By default text, dates and missing cells of the inputs become "
        "numbers, and the model does the same to later tables.",
    ),
]
Decimal = Annotated[str, typer.Option(help="Decimal mark of the numbers in a CSV file: . or ,")]
Comment = Annotated[
    str | None, typer.Option(help="Mark with which comments in a CSV file begin, such as #.", show_default=False)
]
Columns = Annotated[
    str | None,
    typer.Option(
        help="Inputs, by name, separated by commas; all columns but the target by default.", show_default=False
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, max=2**64 - 1, help="Seed of all random numbers; the same seed gives the same result.")
]
Target = Annotated[
    str, typer.Option(help="Column to predict: its name, or its number from 1 (-1 is the last).", show_default=False)
]
TimeBudget = Annotated[
    str | None, typer.Option("--time", help='Time that the fit may take, such as "10min".', show_default=False)
]
PredictAt = Annotated[
    Path | None,
    typer.Option(
        help="Table of the points to predict, if they are known: rows are then left out in patches as wide as the gaps "
        "that these points lie in, to choose the kernel and to forecast the error.",
        show_default=False,
    ),
]
Panel = Annotated[
    str | None,
    typer.Option(
        metavar="ENTITY,TIME",
        help="Columns that say of which entity and time each row is, such as sensor,hour. Without --kernel, entities "
        "have curves of their own, and those whose other columns are alike have similar ones.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show a line for every step.")]

#: Words for `--kernel` in help texts, which do not load the kernels; `choose_kernel` accepts all words of the classes.
KERNELS = ("rbf", "matern12", "matern32", "matern52", "rq", "periodic", "linear", "constant", "white")
#: Rules that choose or average kernels (`gigagp.estimators.choices.kernel_rules`).
KERNEL_RULES = ("auto", "average", "choose")
#: Registered inference methods of the package, for help texts: reading the registry would import torch.
INFERENCES = (
    "exact",
    "markov",
    "curves",
    "iterative",
    "vecchia",
    "grid",
    "sparse-variational",
    "computation-aware",
    "quadruply-stochastic",
    "relevance-vectors",
    "random-features",
)
#: Likelihoods by the inference that takes them: quadruply-stochastic by default, and vecchia alone.
OF_BOTH = ("laplace", "poisson", "logistic", "probit")
OF_VECCHIA = (
    "quantile",
    "censored",
    "ordinal",
    "binomial",
    "beta",
    "negative-binomial",
    "zero-inflated-poisson",
    "zero-inflated-negative-binomial",
    "hurdle-poisson",
    "gamma",
    "weibull",
)
LIKELIHOODS = ("gaussian", "student-t", "auto", *OF_BOTH, *OF_VECCHIA)
#: Likelihoods of targets within limits.
WITH_LIMITS = ("censored", "weibull")
#: Transforms of the target.
TRANSFORMS = ("none", "log", "yeo-johnson", "spline", "auto")
NOISES = ("constant", "varying", "scaled", "auto")
#: Likelihoods of class labels.
OF_CLASSES = ("logistic", "probit")


Exposure = Annotated[
    str | None,
    typer.Option(
        help="Column with what each target is counted over, such as hours or areas; for --likelihood binomial the "
        "number of trials.",
        show_default=False,
    ),
]


def verbosity(quiet: bool, verbose: bool, job: str) -> int | Literal["auto"] | Meter:
    """Return what an estimator's ``verbose`` is for a command: none if quiet, a line for every step if verbose.

    By default it is a bar on a terminal, and elsewhere lines about the ``job``, for what takes more than ten seconds.
    """
    from gigagp.runtime.progress import meter_for_command

    return 0 if quiet else 2 if verbose else meter_for_command(job)


def split_names(columns: str | None, option: str = "--columns") -> list[str] | None:
    """Return the names in a text such as ``"a, b"``."""
    if columns is None:
        return None
    names = [name.strip() for name in columns.split(",") if name.strip()]
    if not names:
        raise InvalidInputError(f"{option} must name at least one column; got {columns!r}.")
    return names


def choose_kernel(text: str) -> Kernel:
    """Return the kernel that a text such as ``"matern32"`` or ``"rbf*periodic+linear"`` describes."""
    from gigagp.kernels.catalogue import by_word

    makers = by_word()
    total: Kernel | None = None
    for term in text.lower().split("+"):
        product: Kernel | None = None
        for word in (part.strip() for part in term.split("*")):
            if word not in makers:
                words = ", ".join(dict.fromkeys([*KERNELS, *makers]))
                raise InvalidInputError(f"--kernel must be made of {words}, joined by + and *; got {text!r}.")
            product = makers[word]() if product is None else product * makers[word]()
        assert product is not None  # split gives at least one word
        total = product if total is None else total + product
    assert total is not None
    return total


def choose_inference(word: str, truncation: str | None = None, given: Mapping[str, Any] | None = None) -> Any:
    """Return the inference method that ``word`` names in the registry, or ``"auto"``.

    ``truncation`` is the mean, or mean and standard deviation, of the random length, ``"40"`` or ``"40,10"``, in
    iterations of conjugate gradients or in frequencies of random features; ``"auto"`` then means iterative inference.
    ``given`` has values of options that only some inference methods have (`Abilities.options`); None means not given.
    """
    from gigagp.inference import registered

    known = registered()
    if word != "auto" and word not in known:
        raise InvalidInputError(f"--inference must be one of auto, {', '.join(known)}; got {word!r}.")
    fields = {} if word == "auto" else known[word].abilities.options
    asked = {option: value for option, value in (given or {}).items() if value is not None}
    for option in asked:
        if option not in fields:
            having = " or ".join(name for name, kind in known.items() if option in kind.abilities.options)
            msg = f"{option} does not apply to --inference {word}; it goes with --inference {having}."
            raise InvalidInputError(msg)
    if truncation is not None:
        truncated = _truncated_inference(word, *_moments(truncation))
        for option in asked:
            raise InvalidInputError(f"{option} cannot be combined with --truncation, which draws that number.")
        return truncated
    return "auto" if word == "auto" else known[word](**{fields[option]: value for option, value in asked.items()})


def grid_nodes(text: str | None) -> int | tuple[int, ...] | None:
    """Return the numbers of nodes in a text such as ``"40"`` or ``"80,80,20"``."""
    if text is None:
        return None
    counts = text.split(",")
    if not all(count.strip().isdecimal() for count in counts):
        raise InvalidInputError(f'--grid-size must be whole numbers, such as "40" or "80,80,20"; got {text!r}.')
    size = tuple(int(count) for count in counts)
    return size[0] if len(size) == 1 else size


def _moments(text: str) -> tuple[float, float]:
    """Return the mean and the standard deviation in a text such as ``"40"`` or ``"40,10"``."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(0 < number < float("inf") for number in numbers):
        msg = f'--truncation must be a mean, or a mean and a standard deviation, such as "40" or "40,10"; got {text!r}.'
        raise InvalidInputError(msg)
    mean = numbers[0]
    # Potapczynski et al. 2021: 20 iterations for means of 40 to 100
    return mean, numbers[1] if len(numbers) == 2 else min(20.0, mean / 2)


def _truncated_inference(word: str, mean: float, deviation: float) -> Any:
    from gigagp import inference, solvers
    from gigagp.solvers import truncation

    if word not in ("auto", "iterative", "random-features"):
        msg = f"--truncation needs --inference iterative or random-features: {word} inference has nothing to cut."
        raise InvalidInputError(msg)
    if word == "random-features":
        step = max(1, round(deviation / 4))  # fewer, larger increments have less variance
        law = truncation.OneOverJ.from_moments(mean, deviation, step)
        return inference.RandomFeatures(truncation=truncation.SingleSample(law))
    decay = truncation.ExponentialDecay.from_moments(mean, deviation)
    return inference.Iterative(solver=solvers.ConjugateGradients(truncation=decay))


def choose_optimizer(word: str, steps: int | None, inference: Any = "auto") -> Any:
    """Return the optimizer for a word and a number of steps; raise `InvalidInputError` for an unknown word.

    ``steps`` alone means Adam with that many steps, since the automatic optimizer chooses its own number. The inference
    method decides on the class of Adam (`Inference.adam`).
    """
    from gigagp import optimization

    if steps is not None and steps < 1:
        msg = f"--steps must be at least 1; got {steps}. --optimizer none keeps the starting hyperparameters."
        raise InvalidInputError(msg)
    given: dict[str, Any] = {} if steps is None else {"steps": steps}
    if word == "none":
        return None
    if word == "adam" or (word == "auto" and steps is not None):
        return optimization.Adam(**given) if inference == "auto" else inference.adam(**given)
    if word == "lbfgs":
        return optimization.LBFGS(**given)
    if word != "auto":
        raise InvalidInputError(f"--optimizer must be one of auto, adam, lbfgs, none; got {word!r}.")
    return "auto"
