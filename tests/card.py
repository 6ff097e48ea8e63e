"""A card that does not exist, so that tests without a GPU find what a GPU would refuse.

Tensors on ``card:0`` hold their values on the processor and say that they are elsewhere. An operation on tensors of two
devices fails as it does with CUDA, and the values are real, so that answers can be compared. It uses torch's backends
written in Python (PrivateUse1): ``cuda`` itself cannot be pretended by a build of torch without CUDA.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gigagp.estimators import arguments
from gigagp.estimators.answers import prior
from gigagp.estimators.saving import restored_state

try:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as register
except ImportError:  # older versions of torch
    HAS_CARD = False
else:
    register("card")  # on import, because autograd counts the devices when it is first used
    HAS_CARD = True

NAME = "card:0"
#: Operations that may meet tensors of both devices.
MOVES = ("_to_copy", "copy_", "item", "_local_scalar_dense", "is_same_size")
INDEXES = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
#: Operations whose result the host waits for.
WAITS = ("_local_scalar_dense", "item", "nonzero", "equal", "is_nonzero", "unique_dim", "_unique2", "masked_select")
#: Operations that only describe the same memory in another way.
VIEWS = (
    *("view", "t", "transpose", "slice", "select", "expand", "unsqueeze", "squeeze", "detach", "alias", "permute"),
    *("as_strided", "_unsafe_view", "diagonal", "unbind", "split", "split_with_sizes", "lift_fresh", "is_same_size"),
)


class OnCard(Tensor):
    """A tensor of the card, whose values are on the processor."""

    here: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> OnCard:
        made = Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=torch.device(NAME),
            requires_grad=values.requires_grad,
        )
        made.here = values.detach()
        return made

    def __repr__(self) -> str:
        return f"OnCard({self.here})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {NAME} device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Card(TorchDispatchMode):
    """Catches what no tensor of the card takes part in: creation on the card, and moves to it."""

    def __init__(self, count: Callable[[str], None]) -> None:
        super().__init__()
        self.count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(one, OnCard) for one in _tensors(args)):
            name = _name(func)
            leaves = name == "_to_copy" and not _is_card((kwargs or {}).get("device", NAME))
            self.count("item" if leaves else name)
        return _run(func, args, kwargs or {})


class _Creation(TorchFunctionMode):
    """Makes on the processor, and moves, what torch fills below the level of its operations."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        new = func is Tensor.new_tensor
        if new and isinstance(args[0], OnCard):
            kwargs = {"device": NAME, "dtype": args[0].dtype, **kwargs}
        if func is Tensor.__getitem__ and isinstance(args[0], OnCard):
            args = args[0], _as_indexes(args[1])
        if func in (Tensor.matmul, Tensor.__matmul__) and args[0].dim() == 1 and args[1].dim() == 2:
            return args[1].T @ args[0]  # torch squeezes a matrix in place, whose new shape a wrapper cannot have
        if func in (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor) and _is_card(kwargs.get("device")):
            kwargs.pop("device")
            made = torch.as_tensor(*args[1:], **kwargs) if new else func(*args, **kwargs)
            return made if isinstance(made, OnCard) else made.to(NAME)
        return func(*args, **kwargs)


def _as_indexes(index: Any) -> Any:
    """Return an index with tensors for its lists, which torch makes on the device of what is indexed."""
    if isinstance(index, tuple):
        return tuple(_as_indexes(one) for one in index)
    return torch.tensor(index) if isinstance(index, list) else index


def _is_card(device: Any) -> bool:
    return device is not None and torch.device(device).type == "card"


def _name(func: Any) -> str:
    return func._schema.name.split("::")[1]


def _tensors(parts: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for one in parts:
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            found += _tensors(one)
    return found


def _mapped(change: Callable[[Tensor], Tensor], parts: Any) -> Any:
    """Return lists, tuples and tensors with other tensors; torch's own trees take most of the time of a fit."""
    if isinstance(parts, Tensor):
        return change(parts)
    return type(parts)(_mapped(change, one) for one in parts) if type(parts) in (list, tuple) else parts


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do an operation with the values on the processor, and say on which device its result is."""
    name = _name(func)
    if func is torch.ops.prim.device.default:
        return torch.device(NAME)
    found = _tensors((args, list(kwargs.values())))
    on_card = [one for one in found if isinstance(one, OnCard)]
    elsewhere = [one for one in found if not isinstance(one, OnCard) and one.dim() > 0]
    if on_card and elsewhere and name not in MOVES + INDEXES:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {NAME} and cpu ({func})")
    if name in INDEXES and on_card and not isinstance(found[0], OnCard):
        raise RuntimeError(f"indices should be on the same device as the indexed tensor, cpu ({func})")
    goes = _is_card(kwargs["device"]) if kwargs.get("device") is not None else bool(on_card)
    if name == "copy_":
        goes = isinstance(args[0], OnCard)
    kwargs = {key: torch.device("cpu") if key == "device" else value for key, value in kwargs.items()}
    kwargs.pop("pin_memory", None)

    def inner(one: Tensor) -> Tensor:
        return one.here if isinstance(one, OnCard) else one

    result = func(*_mapped(inner, args), **{key: _mapped(inner, value) for key, value in kwargs.items()})
    if name.endswith("_") and not name.startswith("_"):
        return args[0]
    if isinstance(kwargs.get("out"), Tensor):
        return kwargs["out"]
    return _mapped(lambda one: one if isinstance(one, OnCard) else OnCard(one), result) if goes else result


@contextmanager
def pretended(*, automatic: bool = False) -> Iterator[Counter[str]]:
    """Within the block, ``device="card:0"`` of an estimator is there; what it is asked to do is counted.

    With ``automatic``, ``device="auto"`` finds it as well.

    Yields
    ------
    counts : Counter
        ``"launches"``, operations that a card computes, and ``"waits"``, results that the host waits for.
    """
    if not HAS_CARD:
        pytest.skip("this version of torch has no backends written in Python")
    counts: Counter[str] = Counter()

    def count(name: str) -> None:
        if name not in VIEWS:
            counts["waits" if name in WAITS else "launches"] += 1

    def resolve(device: str, takes_gpu: bool = False) -> torch.device:
        found = device == NAME or (automatic and takes_gpu and device == "auto")
        return torch.device(NAME) if found else original(device)

    original = arguments.resolve_device
    with pytest.MonkeyPatch.context() as patch, _Card(count), _Creation():
        for module in (arguments, prior, restored_state):
            patch.setattr(module, "resolve_device", resolve)
        yield counts
