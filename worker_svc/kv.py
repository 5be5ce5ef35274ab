"""The worker's KV: blocks of keys and values for all layers, and the tags that say what a block holds."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from worker_svc.model.description import Architecture

NULL_BLOCK = 0
"""Never written and always zero; block tables are padded with it."""


class Kv:
    """Paged keys and values. A *slot* is a token's place: ``block * block_size + offset``."""

    def __init__(
        self, architecture: Architecture, dtype: torch.dtype, block_size: int, num_blocks: int, num_modules: int = 0
    ) -> None:
        """Holds ``num_blocks`` blocks, the null block among them, for the layers of the model and of ``num_modules``
        MTP modules behind them. Raises ValueError for fewer than two blocks.
        """
        if num_blocks < 2 or block_size < 1:
            raise ValueError(f"KV needs two blocks of one token at least, not {num_blocks} of {block_size}")
        self.block_size = block_size
        self.num_blocks = num_blocks
        num_layers = architecture.num_layers + num_modules
        shape = (num_layers, 2, num_blocks, architecture.num_kv_heads, block_size, architecture.head_dim)
        # Not zeroed as a whole: memory is taken as blocks are claimed.
        self._data = torch.empty(shape, dtype=dtype)
        self._data[:, :, NULL_BLOCK] = 0
        self.layers: list[tuple[Tensor, Tensor]] = [(layer[0], layer[1]) for layer in self._data]
        """Each layer's keys and values, [num_blocks, kv_heads, block_size, head_dim]."""
        self._tags: dict[int, bytes] = {}

    def claim(self, blocks: Sequence[int]) -> None:
        """``blocks`` have a new writer: what they held is gone.

        They become zero, because a masked slot still takes part in products, where 0 times NaN is NaN.
        """
        if not blocks:
            return
        for block in blocks:
            self._tags.pop(block, None)
        self._data.index_fill_(2, torch.tensor(blocks), 0)

    def seal(self, block: int, key: bytes) -> None:
        """``block`` holds what ``key`` names and is written no more until it is claimed again."""
        self._tags[block] = key

    def is_sealed(self, block: int) -> bool:
        return block in self._tags

    def holds(self, blocks: Iterable[int], keys: Iterable[bytes]) -> bool:
        """Whether each of ``blocks`` carries the key it is expected to."""
        return all(self._tags.get(block) == key for block, key in zip(blocks, keys, strict=True))

    def rows(self, slots: Tensor) -> Tensor:
        """[T * kv_heads] where the ``slots`` [T] lie in a layer's keys, seen as [..., head_dim], head by head."""
        num_heads = self._data.shape[3]
        blocks, offsets = slots // self.block_size, slots % self.block_size
        heads = blocks.unsqueeze(-1) * num_heads + torch.arange(num_heads)
        return (heads * self.block_size + offsets.unsqueeze(-1)).flatten()

    def write(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put a layer's ``keys`` and ``values`` [T, kv_heads, head_dim] of T tokens into their ``rows``."""
        for cache, new in zip(self.layers[layer], (keys, values), strict=True):
            cache.view(-1, new.shape[-1]).index_copy_(0, rows, new.reshape(-1, new.shape[-1]))


def bytes_per_block(architecture: Architecture, block_size: int, dtype: str, num_modules: int = 0) -> int:
    """Bytes of one KV block over all layers, those of ``num_modules`` MTP modules included."""
    num_layers = architecture.num_layers + num_modules
    values = 2 * num_layers * architecture.num_kv_heads * architecture.head_dim * block_size
    return values * torch_dtype(dtype).itemsize


def torch_dtype(name: str) -> torch.dtype:
    """The type called ``name``. Raises ValueError for one the worker does not run in."""
    dtypes = {"bfloat16": torch.bfloat16, "float32": torch.float32}
    if name not in dtypes:
        raise ValueError(f"dtype {name!r} is not supported, only {', '.join(dtypes)} are")
    return dtypes[name]
