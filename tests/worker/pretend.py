"""A device that is not there: its tensors may meet no other device's, and what the host reads of it is counted.

It stands for CUDA where there is none. Its name is "meta", but its tensors have content, computed by the processor.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

FAR = torch.device("meta")

_COMPOSED = {torch.ops.aten.to, torch.ops.aten.item}
"""What these are made of says more; inference mode would not take them apart."""
_READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.is_nonzero.default}
"""For these the host waits: it needs what was computed, if only to know a shape."""


class MeetingError(Exception):
    """Tensors of two devices met in an operation."""


class Far(Tensor):
    """A tensor on the device; ``near`` is its content."""

    near: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, near: Tensor) -> "Far":
        make: Any = Tensor._make_wrapper_subclass
        far: Far = make(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=FAR,
        )
        far.near = near
        return far

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("the device is only there inside Pretended")


class Pretended(TorchDispatchMode):
    """While entered, the device is there. ``num_reads`` counts how often the host waited for what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.num_reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.overloadpacket in _COMPOSED:
            with self:
                return func.decompose(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        fars = [leaf for leaf in leaves if isinstance(leaf, Far)]
        target = kwargs.get("device")
        if not fars and target != FAR:
            return func(*args, **kwargs)
        copies = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        if fars and not copies:
            strangers = [
                leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, Far) and leaf.dim()
            ]
            if strangers:
                raise MeetingError(f"{func} with {len(strangers)} tensors of the host")
        leaves_device = func is torch.ops.aten._to_copy.default and fars and target not in (None, FAR)
        self.num_reads += bool(leaves_device or func in _READS or _masks(func, args))
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        out = func(*tree_map_only(Far, _near, args), **tree_map_only(Far, _near, kwargs))
        return out if leaves_device else tree_map_only(Tensor, _wrapper({id(far.near): far for far in fars}), out)


def _masks(func: Any, args: Any) -> bool:
    """Whether a shape follows from a tensor's content, as with ``x[x > 0]``."""
    return func is torch.ops.aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])


def _near(far: Far) -> Tensor:
    return far.near


def _wrapper(known: dict[int, Far]) -> Callable[[Tensor], Far]:
    """What an operation in place returns is the tensor that it was given."""
    return lambda near: known[id(near)] if id(near) in known else Far(near)
