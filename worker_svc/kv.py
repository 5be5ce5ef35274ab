"""The worker's KV: blocks of keys and values for all layers, and the tags that say what a block holds."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from augury.geometry import NULL_BLOCK
from worker_svc.device import CPU, upload
from worker_svc.model.description import Architecture
from worker_svc.model.groups import Layout


class Kv:
    """Paged keys and values. A *slot* is a token's place: ``block * block_size + offset``.

    A block holds the KV of one group's layers; which group's, its owner decides. The null block, with which tables are
    padded, is never written and always zero.
    """

    def __init__(
        self,
        architecture: Architecture,
        layout: Layout,
        dtype: torch.dtype,
        num_blocks: int,
        device: torch.device = CPU,
    ) -> None:
        """Holds ``num_blocks`` blocks, the null block among them. Raises ValueError for fewer than two blocks."""
        if num_blocks < 2:
            raise ValueError(f"KV needs two blocks at least, not {num_blocks}")
        self.layout = layout
        self.device = device
        self.block_size = layout.block_size
        self.num_blocks = num_blocks
        shape = (layout.num_shelves, 2, num_blocks, architecture.num_kv_heads, self.block_size, architecture.head_dim)
        # Not zeroed as a whole: memory is taken as blocks are claimed.
        self._data = torch.empty(shape, dtype=dtype, device=device)
        self._data[:, :, NULL_BLOCK] = 0
        shelves: list[tuple[Tensor, Tensor]] = [(shelf[0], shelf[1]) for shelf in self._data]
        self.layers = [shelves[shelf] for shelf in layout.shelves]
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
        self._data.index_fill_(2, upload(blocks, self.device), 0)

    def seal(self, block: int, key: bytes) -> None:
        """``block`` holds what ``key`` names and is written no more until it is claimed again."""
        self._tags[block] = key

    def check_open(self, tables: Sequence[Sequence[int]], groups: Iterable[int], positions: range) -> None:
        """Asserts that these ``positions`` of a request may be written in ``groups``."""
        entries = slice(positions.start // self.block_size, (positions.stop - 1) // self.block_size + 1)
        written = [block for group in groups for block in tables[group][entries]]
        assert NULL_BLOCK not in written, "a write into the null block"
        assert self._tags.keys().isdisjoint(written), "a write into a sealed block"

    def holds(self, tags: Iterable[tuple[int, bytes]]) -> bool:
        """Whether each block carries the key that it is expected to."""
        return all(self._tags.get(block) == key for block, key in tags)

    def tags(self) -> list[tuple[int, bytes]]:
        """Every sealed block and its key."""
        return [*self._tags.items()]

    def rows(self, slots: Tensor) -> Tensor:
        """[T * kv_heads] where the ``slots`` [T] lie in a layer's keys, seen as [..., head_dim], head by head."""
        num_heads = self._data.shape[3]
        blocks, offsets = slots // self.block_size, slots % self.block_size
        heads = blocks.unsqueeze(-1) * num_heads + torch.arange(num_heads, device=self.device)
        return (heads * self.block_size + offsets.unsqueeze(-1)).flatten()

    def write(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put a layer's ``keys`` and ``values`` [T, kv_heads, head_dim] of T tokens into their ``rows``."""
        for cache, new in zip(self.layers[layer], (keys, values), strict=True):
            cache.view(-1, new.shape[-1]).index_copy_(0, rows, new.reshape(-1, new.shape[-1]))


def bytes_per_block(architecture: Architecture, layout: Layout, dtype: torch.dtype) -> int:
    """Bytes of one KV block, which has room for the layers of the largest group."""
    values = 2 * layout.num_shelves * architecture.num_kv_heads * architecture.head_dim * layout.block_size
    return values * dtype.itemsize


def torch_dtype(name: str) -> torch.dtype:
    """The type called ``name``. Raises ValueError for one the worker does not run in."""
    dtypes = {"bfloat16": torch.bfloat16, "float32": torch.float32}
    if name not in dtypes:
        raise ValueError(f"dtype {name!r} is not supported, only {', '.join(dtypes)} are")
    return dtypes[name]
