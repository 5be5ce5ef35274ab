"""A scheduler and KV service in small: hands out blocks, seals them, finds prefixes, preempts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from augury import keys
from augury.types import NewRequest, Outcome, Row, SamplingParams, Step, StopParams
from worker_svc.engine import Engine


@dataclass(kw_only=True)
class Tracked:
    """A request as its scheduler sees it. ``blocks`` is empty while the worker does not hold it."""

    prompt: tuple[int, ...]
    num_wanted: int
    sampling: SamplingParams
    emitted: list[int] = field(default_factory=list)
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    num_sealed: int = 0
    keys: list[bytes] = field(default_factory=list)

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.prompt, *self.emitted)

    @property
    def done(self) -> bool:
        return len(self.emitted) >= self.num_wanted


class Driver:
    """Runs requests on an engine in an epoch of its own. Sealed blocks stay cached for good, others are used again."""

    def __init__(self, engine: Engine, epoch: int, block_size: int) -> None:
        self._engine = engine
        self._epoch = epoch
        self._seq = 0
        self._block_size = block_size
        self._free = list(range(engine.num_blocks - 1, 0, -1))
        self._cached: dict[bytes, int] = {}
        self._next_handle = 1
        self._handles: dict[int, int] = {}
        self._released: list[int] = []
        self._sealed: list[tuple[int, bytes]] = []
        self.requests: list[Tracked] = []
        self.num_hit_blocks = 0

    def add(self, prompt: tuple[int, ...], num_wanted: int, sampling: SamplingParams) -> None:
        self.requests.append(Tracked(prompt=prompt, num_wanted=num_wanted, sampling=sampling))

    def preempt(self, index: int) -> None:
        """Give up the request's blocks; it will start anew with all its tokens."""
        request = self.requests[index]
        if index in self._handles:
            self._released.append(self._handles.pop(index))
            self._free.extend(request.blocks[request.num_sealed :])
            request.blocks, request.num_computed, request.num_sealed = [], 0, 0

    def step(self, wanted: Mapping[int, int]) -> Outcome:
        """One iteration: for each request index, compute up to so many tokens."""
        fresh = [self._start(index) for index in wanted if index not in self._handles]
        rows = []
        for index, num in wanted.items():
            request = self.requests[index]
            num_new = min(num, len(request.tokens) - request.num_computed)
            missing = -(-(request.num_computed + num_new) // self._block_size) - len(request.blocks)
            new_blocks = tuple(self._free.pop() for _ in range(missing))
            request.blocks.extend(new_blocks)
            request.num_computed += num_new
            rows.append(Row(handle=self._handles[index], num_new=num_new, new_blocks=new_blocks))
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
        outcome = self._engine.execute(step)
        assert not outcome.refused and not outcome.failed
        for index, tokens in zip(wanted, outcome.emitted, strict=True):
            self._apply(index, tokens)
        return outcome

    def finish(self) -> list[list[int]]:
        """Run all requests to their ends, whole prompts at once; their texts."""
        while left := [index for index, request in enumerate(self.requests) if not request.done]:
            self.step(dict.fromkeys(left, 1 << 20))
        return [request.emitted[: request.num_wanted] for request in self.requests]

    def _start(self, index: int) -> NewRequest:
        request = self.requests[index]
        self._extend_keys(request)
        hits = []
        for key in request.keys[: (len(request.tokens) - 1) // self._block_size]:
            if key not in self._cached:
                break
            hits.append(key)
        self.num_hit_blocks += len(hits)
        request.blocks = [self._cached[key] for key in hits]
        request.num_sealed, request.num_computed = len(hits), len(hits) * self._block_size
        self._handles[index], self._next_handle = self._next_handle, self._next_handle + 1
        return NewRequest(
            handle=self._handles[index],
            tokens=request.tokens,
            num_prompt=len(request.prompt),
            num_computed=request.num_computed,
            blocks=tuple(request.blocks),
            hit_keys=tuple(hits),
            sampling=request.sampling,
            stopping=StopParams(max_tokens=request.num_wanted),
        )

    def _apply(self, index: int, tokens: tuple[int, ...]) -> None:
        request = self.requests[index]
        request.emitted.extend(tokens)
        self._extend_keys(request)
        for place in range(request.num_sealed, request.num_computed // self._block_size):
            key, block = request.keys[place], request.blocks[place]
            self._sealed.append((block, key))
            self._cached[key] = block
        request.num_sealed = request.num_computed // self._block_size
        if request.done:
            self.preempt(index)

    def _extend_keys(self, request: Tracked) -> None:
        keys.extend_keys(request.keys, keys.root_key("tiny", b""), request.tokens, self._block_size)


def text_alone(engine: Engine, epoch: int, block_size: int, request: Tracked) -> list[int]:
    """What the request says when it runs by itself, its prompt at once."""
    driver = Driver(engine, epoch, block_size)
    driver.add(request.prompt, request.num_wanted, request.sampling)
    return driver.finish()[0]
