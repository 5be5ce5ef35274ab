"""A scheduler and KV service in small: hands out blocks, seals them, finds prefixes, preempts, verifies drafts."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from augury.geometry import NULL_BLOCK, peak_blocks
from augury.keys import KeyDomain, group_key, root_key
from augury.types import NewRequest, Outcome, Row, SamplingParams, Step, StopParams
from worker_svc.batch import slots
from worker_svc.engine import Engine

WHOLE = 1 << 20


@dataclass(kw_only=True)
class Tracked:
    """A request as its scheduler sees it. ``blocks[group]`` are empty while the worker does not hold it.

    ``drafted`` are the drafts that were held for the position after so many tokens. ``final_kv`` are the draft layers'
    keys and values [rows, layers, 2, heads, head_dim] as they were when they became final, or were hit; NaN where they
    are not to be relied on: in the first ``num_missed[group]`` blocks.
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
    blocks: list[list[int]] = field(default_factory=list)
    num_sealed: list[int] = field(default_factory=list)
    num_missed: list[int] = field(default_factory=list)
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
    If it ``poisons``, a block that a window has passed becomes NaN, sealed or not, where no request needs it.
    """

    def __init__(self, engine: Engine, epoch: int, margin: int | None = None, *, poisons: bool = False) -> None:
        self.engine = engine
        self.requests: list[Tracked] = []
        self.num_hit_blocks = 0
        self._epoch = epoch
        self._seq = 0
        self._poisons = poisons
        self._groups = engine.description.groups
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
            tables, request.blocks = request.blocks, []
            for block in [block for table in tables for block in table if block != NULL_BLOCK]:
                self._drop(block, poisons=False)
            request.num_drafts, request.num_computed = 0, 0

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
        num_ahead = num_new + self.engine.description.max_drafts
        num_slots = len(request.tokens) + self.engine.description.max_drafts
        new_blocks = tuple(
            self._reserve(request, number, num_slots, request.num_computed + num_ahead)
            for number in range(len(self._groups))
        )
        num_real = sum(block != NULL_BLOCK for table in request.blocks for block in table)
        assert num_real <= peak_blocks(self._groups, num_slots, num_ahead)
        at_end = request.num_computed + num_new == len(request.tokens)
        wanted = request.num_wanted - len(request.emitted) - 1
        num_drafts = min(request.num_drafts, max_drafts, wanted) if at_end else 0
        return Row(handle=self._handles[index], num_new=num_new, num_drafts=num_drafts, new_blocks=new_blocks)

    def _reserve(self, request: Tracked, number: int, num_slots: int, num_reached: int) -> tuple[int, ...]:
        """What joins the table of the group of that ``number``, after the windows moved on."""
        group, table = self._groups[number], request.blocks[number]
        for entry in range(group.num_skipped(request.num_computed)):
            block, table[entry] = table[entry], NULL_BLOCK
            if block != NULL_BLOCK:
                self._drop(block, poisons=self._poisons)
        new_blocks = tuple(self._free.pop() for _ in range(group.table_length(num_slots, num_reached) - len(table)))
        table.extend(new_blocks)
        return new_blocks

    def _drop(self, block: int, *, poisons: bool) -> None:
        """A request is done with the block."""
        if any(block in table for request in self.requests for table in request.blocks):
            return
        cached = block in self._cached.values()
        if poisons:
            self._cached = {key: other for key, other in self._cached.items() if other != block}
            self._sealed = [pair for pair in self._sealed if pair[0] != block]
            with torch.inference_mode():
                for part in itertools.chain(*self.engine.kv.layers):
                    part[block] = torch.nan
        if poisons or not cached:
            self._free.insert(0, block)

    def _hits(self, request: Tracked) -> tuple[int, list[int]]:
        """How many blocks of each group are hit or passed, and from which on the request seals its own."""
        most = min(len(request.keys), (len(request.tokens) - max(1, self._lookahead)) // self._block_size)
        rebuilds = [number for number, group in enumerate(self._groups) if group.num_rebuilt is not None]

        def longest(numbers: list[int], most: int) -> int:
            fits = (num for num in range(most, 0, -1) if all(self._holds(request, number, num) for number in numbers))
            return next(fits, 0)

        everywhere = [*range(len(self._groups))]
        common, sealed = longest(everywhere, most), [0] * len(everywhere)
        for number in rebuilds:
            others = [other for other in everywhere if other != number]
            num_rebuilt = self._groups[number].num_rebuilt
            assert num_rebuilt is not None
            start = longest(others, longest(others, most) - -(-num_rebuilt // self._block_size))
            if start > common:
                common, sealed[number] = start, start + -(-num_rebuilt // self._block_size)
        return common, [max(common, num) for num in sealed]

    def _holds(self, request: Tracked, number: int, num_blocks: int) -> bool:
        first = self._groups[number].num_skipped(num_blocks * self._block_size)
        return all(group_key(key, number) in self._cached for key in request.keys[first:num_blocks])

    def _hit_table(self, request: Tracked, number: int, num_blocks: int) -> list[int]:
        if not self._holds(request, number, num_blocks):
            return [NULL_BLOCK] * num_blocks
        first = self._groups[number].num_skipped(num_blocks * self._block_size)
        hit = [self._cached[group_key(key, number)] for key in request.keys[first:num_blocks]]
        return [NULL_BLOCK] * (num_blocks - len(hit)) + hit

    def _start(self, index: int) -> NewRequest:
        request = self.requests[index]
        self._extend_keys(request)
        num_blocks, request.num_sealed = self._hits(request)
        self.num_hit_blocks += num_blocks
        request.blocks = [self._hit_table(request, number, num_blocks) for number in range(len(self._groups))]
        names = {block: key for key, block in self._cached.items()}
        request.num_computed = num_blocks * self._block_size
        request.num_final = request.num_computed
        request.num_missed = [
            sealed if NULL_BLOCK in table and self._groups[number].num_rebuilt is not None else table.count(NULL_BLOCK)
            for number, (table, sealed) in enumerate(zip(request.blocks, request.num_sealed, strict=True))
        ]
        request.final_kv = [self._draft_kv(request, 0, request.num_final)]
        self._handles[index], self._next_handle = self._next_handle, self._next_handle + 1
        return NewRequest(
            handle=self._handles[index],
            tokens=request.tokens,
            num_prompt=len(request.prompt),
            num_computed=request.num_computed,
            blocks=tuple(map(tuple, request.blocks)),
            hits=tuple((block, names[block]) for table in request.blocks for block in table if block != NULL_BLOCK),
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
        request.final_kv.append(self._draft_kv(request, request.num_final, num_final))
        request.num_final = num_final
        self._seal(request)
        if request.done:
            self.preempt(index)

    def _seal(self, request: Tracked) -> None:
        self._extend_keys(request)
        num_final = min(request.num_final // self._block_size, len(request.keys))
        for number, table in enumerate(request.blocks):
            for place in range(request.num_sealed[number], num_final):
                key, block = group_key(request.keys[place], number), table[place]
                if block != NULL_BLOCK:
                    self._sealed.append((block, key))
                    self._cached[key] = block
            request.num_sealed[number] = max(request.num_sealed[number], num_final)

    def _draft_kv(self, request: Tracked, start: int, end: int) -> Tensor:
        tables = [
            [NULL_BLOCK] * num + table[num:] for num, table in zip(request.num_missed, request.blocks, strict=True)
        ]
        return draft_kv(self.engine, tables, range(start, end))

    def _extend_keys(self, request: Tracked) -> None:
        domain = KeyDomain(block_size=self._block_size, lookahead=self._lookahead)
        domain.extend(request.keys, root_key("tiny", b""), request.tokens)


def draft_kv(engine: Engine, tables: list[list[int]], positions: range) -> Tensor:
    """[positions, layers, 2, heads, head_dim] what the draft layers hold there, copied; NaN in the null block."""
    num_layers, size = len(engine.kv.layers) - engine.description.num_prefill_lookahead, engine.kv.block_size
    layers = []
    for layer, view in list(zip(engine.kv.layers, engine.kv.layout.views, strict=True))[num_layers:]:
        places = torch.tensor(slots(tables[view.group], positions, size), dtype=torch.int64)
        parts = torch.stack([part.cpu()[places // size, :, places % size] for part in layer], 1)
        there = places >= size
        assert parts[there].isfinite().all(), "draft KV made from what a window has passed"
        layers.append(parts.where(there[:, None, None, None], torch.nan))
    return torch.stack(layers, 1) if layers else torch.empty(len(positions), 0)


def text_alone(engine: Engine, epoch: int, request: Tracked) -> list[int]:
    """What the request says when it runs by itself, its prompt at once."""
    driver = Driver(engine, epoch)
    driver.add(request.prompt, request.num_wanted, request.sampling, request.stopping)
    return driver.finish()[0]
