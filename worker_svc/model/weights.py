"""A checkpoint's tensors: read from safetensors, checked, cast, fused, and packed for the processor."""

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from worker_svc.device import CPU

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_MODULES = "mtp.safetensors"
"""Weights of MTP modules may lie beside those of the model, in a file that no index names."""
_SAMPLE_BYTES = 1 << 16
_MIN_ROWS = 4


class Linear:
    """y = x Wᵀ + b, with W packed once for oneDNN where that library runs the type well (x86, Arm)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """``weight`` is [outputs, inputs], ``bias`` [outputs]."""
        self._bias = bias
        self._packs = _can_pack(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _MIN_ROWS) if self._packs else weight

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, inputs] to [rows, outputs]. If packed, a row's result does not depend on the rows beside it."""
        if not self._packs:
            return F.linear(x, self._weight, self._bias)
        num_rows = x.shape[0]
        if num_rows < _MIN_ROWS:
            # oneDNN rounds a single row otherwise than several (vector kernel), and is slower below four rows.
            x = F.pad(x, (0, 0, 0, _MIN_ROWS - num_rows))
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y[:num_rows]

    def restricted(self, outputs: Tensor) -> "Linear":
        """The same without bias, for the ``outputs`` [n] alone."""
        assert self._bias is None
        weight = self._weight.to_dense() if self._packs else self._weight
        return Linear(weight.index_select(0, outputs))


class Checkpoint:
    """The tensors of a model folder, each of which is taken once, to ``device``."""

    def __init__(self, path: Path, dtype: torch.dtype, device: torch.device = CPU) -> None:
        """Raises ValueError where ``path`` holds no safetensors, or its index names a file that is not there."""
        self._path = path
        self._dtype = dtype
        self._device = device
        self._tensors: dict[str, Tensor] = {}
        for file in weight_files(path):
            self._tensors.update(load_file(file))

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor called ``name``, in the checkpoint's dtype. Raises ValueError if absent or of another shape."""
        if name not in self._tensors:
            raise ValueError(f"{self._path} lacks the tensor {name}")
        tensor = self._tensors.pop(name)
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} in {self._path} has shape {tuple(tensor.shape)}, config.json means {shape}")
        return tensor.to(self._device, self._dtype)

    def linear(self, names: Sequence[str], num_inputs: int, outputs: Sequence[int], bias: bool = False) -> Linear:
        """The projections ``names``, of ``outputs`` rows each, fused into one. Raises ValueError as ``take`` does."""
        pairs = list(zip(names, outputs, strict=True))
        weight = torch.cat([self.take(f"{name}.weight", num, num_inputs) for name, num in pairs])
        return Linear(weight, torch.cat([self.take(f"{name}.bias", num) for name, num in pairs]) if bias else None)

    def holds(self, name: str) -> bool:
        """Whether the tensor is there and was not taken."""
        return name in self._tensors

    def take_ids(self, name: str) -> Tensor:
        """The token ids [n] called ``name``, as int64. Raises ValueError if absent."""
        if name not in self._tensors:
            raise ValueError(f"{self._path} lacks the tensor {name}")
        return self._tensors.pop(name).to(self._device, torch.int64)

    def drop(self, prefix: str) -> None:
        """Do without the tensors whose names begin with ``prefix``."""
        for name in [name for name in self._tensors if name.startswith(prefix)]:
            del self._tensors[name]

    def finish(self, *ignored: str) -> None:
        """Raises ValueError if a tensor was not taken whose name ends in none of ``ignored``."""
        if left := sorted(name for name in self._tensors if not name.endswith(ignored)):
            raise ValueError(f"{self._path} holds tensors that config.json does not explain: {', '.join(left[:3])}")
        self._tensors.clear()


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of the model in ``path``. Raises ValueError if there are none or one is missing."""
    if (path / _INDEX).is_file():
        names = sorted(set(json.loads((path / _INDEX).read_text())["weight_map"].values()))
    else:
        names = [_SINGLE]
    if (path / _MODULES).is_file() and _MODULES not in names:
        names.append(_MODULES)
    files = [path / name for name in names]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    return files


def fingerprint(path: Path, dtype: str, num_modules: int = 0) -> str:
    """A name for the model in ``path`` run in ``dtype`` with so many MTP modules: equal over processes, different for
    different KV.

    Covers config.json, the weight files' names, sizes and a sample of their content, the dtype and the modules.
    """
    digest = blake2b(f"{dtype} {num_modules}".encode(), digest_size=16)
    digest.update((path / "config.json").read_bytes())
    for file in weight_files(path):
        size = file.stat().st_size
        digest.update(f"\0{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            for start in (0, max(0, size // 2), max(0, size - _SAMPLE_BYTES)):
                stream.seek(start)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return weight.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
