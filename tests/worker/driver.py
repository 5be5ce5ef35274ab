"""A scheduler and KV service in small: hands out blocks, seals them, finds prefixes, preempts, verifies drafts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from augury import keys
from augury.types import NewRequest, Outcome, Row, SamplingParams, Step, StopParams
from worker_svc.batch import slots
from worker_svc.engine import Engine

WHOLE = 1 << 20


@dataclass(kw_only=True)
class Tracked:
    """A request as its scheduler sees it. ``blocks`` is empty while the worker does not hold it.

    ``drafted`` are the drafts that were held for the position after so many tokens. ``final_kv`` are the draft layers'
    keys and values [rows, layers, 2, heads, head_dim] as they were when they became final, or were hit.
    """

    prompt: tuple[int, ...]
    num_wanted: int
    sampling: SamplingParams
    stopping: StopParams
    max_drafts: int | None = None
    emitted: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_drafts: int = 0
    num_final: int = 0
    blocks: list[int] = field(default_factory=list)
    num_sealed: int = 0
    keys: list[bytes] = field(default_factory=list)
    drafted: dict[int, list[int]] = field(default_factory=dict)
    fates: list[tuple[int, int]] = field(default_factory=list)
    final_kv: list[Tensor] = field(default_factory=list)

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.prompt, *self.emitted)

    @property
    def done(self) -> bool:
        return len(self.emitted) >= self.num_wanted or bool({*self.emitted} & self.stopping.stop_token_ids)


class Driver:
    """Runs requests on an engine in an epoch of its own. Sealed blocks stay cached for good, others are used again.

    Chunks end at the prompt's end or ``margin`` tokens before it (mtp_semantics rule B); None: as the engine wants it.
    """

    def __init__(self, engine: Engine, epoch: int, margin: int | None = None) -> None:
        self.engine = engine
        self.requests: list[Tracked] = []
        self.num_hit_blocks = 0
        self._epoch = epoch
        self._seq = 0
        self._block_size = engine.kv.block_size
        self._lookahead = engine.description.num_prefill_lookahead
        self._margin = self._lookahead if margin is None else margin
        self._free = list(range(engine.num_blocks - 1, 0, -1))
        self._cached: dict[bytes, int] = {}
        self._next_handle = 1
        self._handles: dict[int, int] = {}
        self._released: list[int] = []
        self._sealed: list[tuple[int, bytes]] = []

    def add(
        self,
        prompt: tuple[int, ...],
        num_wanted: int,
        sampling: SamplingParams,
        stopping: StopParams | None = None,
        max_drafts: int | None = None,
    ) -> Tracked:
        request = Tracked(
            prompt=prompt,
            num_wanted=num_wanted,
            sampling=sampling,
            stopping=stopping or StopParams(max_tokens=num_wanted),
            max_drafts=max_drafts,
        )
        self.requests.append(request)
        return request

    def preempt(self, index: int) -> None:
        """Give up the request's blocks; it will start anew with all its tokens."""
        request = self.requests[index]
        if index in self._handles:
            self._released.append(self._handles.pop(index))
            self._free.extend(request.blocks[request.num_sealed :])
            request.blocks, request.num_drafts, request.num_computed, request.num_sealed = [], 0, 0, 0

    def step(self, wanted: Mapping[int, int], max_drafts: Mapping[int, int] | None = None) -> Outcome:
        """One iteration: for each request index, compute up to so many tokens and verify up to so many drafts."""
        fresh = [self._start(index) for index in wanted if index not in self._handles]
        rows = [
            self._row(index, self._chunk(self.requests[index], num), (max_drafts or {}).get(index, WHOLE))
            for index, num in wanted.items()
        ]
        self._seq += 1
        step = Step(
            epoch=self._epoch,
            seq=self._seq,
            released=tuple(self._released),
            sealed=tuple(self._sealed),
            fresh=tuple(fresh),
            rows=tuple(rows),
        )
        self._released, self._sealed = [], []
        outcome = self.engine.execute(step)
        assert not outcome.refused and not outcome.failed
        columns = zip(rows, outcome.emitted, outcome.num_drafts, outcome.num_final, strict=True)
        for index, column in zip(wanted, columns, strict=True):
            self._apply(index, *column)
        return outcome

    def finish(self) -> list[list[int]]:
        """Run all requests to their ends, whole prompts at once; their texts."""
        while left := [index for index, request in enumerate(self.requests) if not request.done]:
            self.step(dict.fromkeys(left, WHOLE))
        return [request.emitted[: request.num_wanted] for request in self.requests]

    def _chunk(self, request: Tracked, num: int) -> int:
        remaining = len(request.tokens) - request.num_computed
        size = min(num, remaining)
        if 0 < remaining - size < self._margin:
            size -= self._margin - (remaining - size)
        return size if size > 0 else min(self._margin, remaining)

    def _row(self, index: int, num_new: int, max_drafts: int) -> Row:
        request = self.requests[index]
        num_slots = len(request.tokens) + self.engine.description.max_drafts
        missing = -(-num_slots // self._block_size) - len(request.blocks)
        new_blocks = tuple(self._free.pop() for _ in range(missing))
        request.blocks.extend(new_blocks)
        at_end = request.num_computed + num_new == len(request.tokens)
        wanted = request.num_wanted - len(request.emitted) - 1
        num_drafts = min(request.num_drafts, max_drafts, wanted) if at_end else 0
        return Row(handle=self._handles[index], num_new=num_new, num_drafts=num_drafts, new_blocks=new_blocks)

    def _start(self, index: int) -> NewRequest:
        request = self.requests[index]
        self._extend_keys(request)
        hits = []
        for key in request.keys[: (len(request.tokens) - max(1, self._lookahead)) // self._block_size]:
            if key not in self._cached:
                break
            hits.append(key)
        self.num_hit_blocks += len(hits)
        request.blocks = [self._cached[key] for key in hits]
        request.num_sealed, request.num_computed = len(hits), len(hits) * self._block_size
        request.num_final = request.num_computed
        request.final_kv = [draft_kv(self.engine, request.blocks, range(request.num_final))]
        self._handles[index], self._next_handle = self._next_handle, self._next_handle + 1
        return NewRequest(
            handle=self._handles[index],
            tokens=request.tokens,
            num_prompt=len(request.prompt),
            num_computed=request.num_computed,
            blocks=tuple(request.blocks),
            hit_keys=tuple(hits),
            sampling=request.sampling,
            stopping=request.stopping,
            max_drafts=request.max_drafts,
        )

    def _apply(self, index: int, row: Row, tokens: tuple[int, ...], num_drafts: int, num_final: int) -> None:
        request = self.requests[index]
        assert len(tokens) <= 1 + row.num_drafts
        assert bool(tokens) == (request.num_computed + row.num_new == len(request.tokens))
        request.num_computed += row.num_new + max(len(tokens) - 1, 0)
        request.emitted.extend(tokens)
        if row.num_drafts:
            request.fates.append((row.num_drafts, len(tokens) - 1))
        request.num_drafts = num_drafts
        if num_drafts:
            request.drafted[len(request.tokens)] = list(self.engine.held[row.handle].drafts)
        assert request.num_final <= num_final <= request.num_computed
        request.final_kv.append(draft_kv(self.engine, request.blocks, range(request.num_final, num_final)))
        request.num_final = num_final
        self._seal(request)
        if request.done:
            self.preempt(index)

    def _seal(self, request: Tracked) -> None:
        self._extend_keys(request)
        num_final = min(request.num_final // self._block_size, len(request.keys))
        for place in range(request.num_sealed, num_final):
            key, block = request.keys[place], request.blocks[place]
            self._sealed.append((block, key))
            self._cached[key] = block
        request.num_sealed = max(request.num_sealed, num_final)

    def _extend_keys(self, request: Tracked) -> None:
        root = keys.root_key("tiny", b"")
        keys.extend_keys(request.keys, root, request.tokens, self._block_size, self._lookahead)


def draft_kv(engine: Engine, blocks: list[int], positions: range) -> Tensor:
    """[positions, layers, 2, heads, head_dim] what the draft layers hold there, copied."""
    layers = engine.kv.layers[len(engine.kv.layers) - engine.description.num_prefill_lookahead :]
    if not layers:
        return torch.empty(len(positions), 0)
    places = torch.tensor(slots(blocks, positions, engine.kv.block_size), dtype=torch.int64)
    size = engine.kv.block_size
    return torch.stack(
        [torch.stack([cache[places // size, :, places % size] for cache in layer], 1) for layer in layers], 1
    )


def text_alone(engine: Engine, epoch: int, request: Tracked) -> list[int]:
    """What the request says when it runs by itself, its prompt at once."""
    driver = Driver(engine, epoch)
    driver.add(request.prompt, request.num_wanted, request.sampling, request.stopping)
    return driver.finish()[0]
