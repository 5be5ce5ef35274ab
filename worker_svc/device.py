"""Where a worker's tensors live: chosen by name, filled from the host without waiting, its memory shared out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")

_CPU_BYTES = 2 << 30
"""For KV on processors, where nothing else is said."""
_RESERVED_BYTES = 1 << 30
"""Of a CUDA device, for what a step works with beside weights, KV and the attention's workspace."""


def pick_device(name: str) -> torch.device:
    """The device called ``name``: cpu, cuda:N, or auto, which is CUDA where torch sees one, else cpu.

    Raises ValueError for a device that is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind == "cpu":
        return CPU
    if int(index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there is no device {name}, torch {torch.__version__} sees {torch.cuda.device_count()}")
    return torch.device(kind, int(index or 0))


def upload(values: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """A tensor of ``values`` on ``device``. The host does not wait until they are there; what runs there does."""
    host = torch.tensor(values, dtype=dtype, device=CPU, pin_memory=device.type == "cuda")
    return host if device == CPU else host.to(device, non_blocking=True)


def kv_bytes(device: torch.device, memory_mb: int | None) -> int:
    """Bytes that KV may take: ``memory_mb`` MiB; unset, 2 GiB on processors and on CUDA most of what is free now."""
    if memory_mb is not None:
        return memory_mb << 20
    return free_share(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else _CPU_BYTES


def free_share(num_free: int) -> int:
    """What KV gets of ``num_free`` bytes: nine tenths less a reserve of 1 GiB."""
    return max(0, num_free * 9 // 10 - _RESERVED_BYTES)
