"""A worker whose KV is hashes: the twin of worker_svc's engine, with the same requests and the same contract."""

from collections.abc import Callable, Sequence
from random import Random

from augury.errors import FencedError
from augury.types import NewRequest, Outcome, Row, Step
from tests.sim.model import VOCAB_SIZE, draw, key_value
from tests.sim.plan import Memory, Shape
from worker_svc.requests import Bounds, Held, check_step

NULL_BLOCK = 0


class Worker:
    """One life of one worker's memory. A *slot* is ``block * block_size + offset``; fresh memory holds garbage.

    Beside a slot's value lies its draft: the ``lookahead`` tokens after it, as MTP modules would see them. ``salts``
    tells the cache salt of a handle, which no real worker needs to know: here it shows whether salts are kept apart.
    """

    def __init__(self, shape: Shape, memory: Memory, rng: Random, salts: Callable[[int], bytes]) -> None:
        self.block_size = memory.block_size
        self.lookahead = shape.lookahead
        self.tags: dict[int, bytes] = {}
        self.held: dict[int, Held] = {}
        self._bounds = Bounds(
            vocab_size=VOCAB_SIZE,
            max_len=shape.max_model_len,
            block_size=memory.block_size,
            num_blocks=memory.num_blocks,
        )
        self._salts = salts
        self._values = [rng.getrandbits(32) for _ in range(memory.num_blocks * memory.block_size)]
        self._drafts: list[tuple[int, ...] | None] = [None] * len(self._values)
        self._writers: list[bytes | None] = [None] * memory.num_blocks
        self._final: dict[int, int] = {}
        self._last: Outcome | None = None

    def execute(self, step: Step) -> Outcome:
        """Carry out ``step`` once. Raises FencedError for a step of the past, AssertionError for a wrong one."""
        last = self._last
        if last is not None and (step.epoch, step.seq) == (last.epoch, last.seq):
            return last
        if last is not None and step.epoch < last.epoch:
            raise FencedError(f"epoch {step.epoch} is over")
        if last is not None and step.epoch == last.epoch and step.seq != last.seq + 1:
            raise FencedError(f"step {step.seq} after {last.seq}")
        if last is None or step.epoch > last.epoch:
            self.held = {}
        check_step(step, self.held, self._bounds)
        self._last = self._carry_out(step)
        return self._last

    def _carry_out(self, step: Step) -> Outcome:
        for handle in step.released:
            self.held.pop(handle, None)
        self.tags.update(step.sealed)
        refused = [new.handle for new in step.fresh if not self._take(new)]
        failed: list[int] = []
        emitted = [() if row.handle in refused else self._run(row, failed) for row in step.rows]
        return Outcome(
            epoch=step.epoch, seq=step.seq, emitted=tuple(emitted), refused=tuple(refused), failed=tuple(failed)
        )

    def _take(self, new: NewRequest) -> bool:
        """Hold a fresh request, unless its hit blocks hold something else."""
        left = len(new.tokens) - new.num_computed
        assert not new.hit_keys or left >= max(1, self.lookahead), f"a hit leaves {left} tokens of request {new.handle}"
        num_hits = len(new.hit_keys)
        if not self._recognises(new.blocks[:num_hits], new.hit_keys):
            return False
        self._check_hit(new)
        self.held[new.handle] = Held.of(new)
        self._final[new.handle] = new.num_computed
        self._claim(new.handle, new.blocks[num_hits:])
        return True

    def _recognises(self, blocks: tuple[int, ...], keys: tuple[bytes, ...]) -> bool:
        return all(self.tags.get(block) == key for block, key in zip(blocks, keys, strict=True))

    def _check_hit(self, new: NewRequest) -> None:
        salt = self._salts(new.handle)
        for block in new.blocks[: len(new.hit_keys)]:
            assert self._writers[block] == salt, f"request {new.handle} reads block {block} of another salt"
        for position in range(new.num_computed):
            wanted = new.tokens[position + 1 : position + 1 + self.lookahead]
            draft = self._drafts[self._slot(new.blocks, position)]
            assert draft == wanted, f"the draft KV that request {new.handle} hits at {position} is not final"

    def _claim(self, handle: int, blocks: tuple[int, ...]) -> None:
        """``blocks``, in the request's table already, are its own to write."""
        holders = [block for held in self.held.values() for block in held.blocks] if blocks else []
        for block in blocks:
            assert holders.count(block) == 1, f"block {block} of request {handle} is in another's table"
            self.tags.pop(block, None)
            self._writers[block] = self._salts(handle)

    def _run(self, row: Row, failed: list[int]) -> tuple[int, ...]:
        held = self.held[row.handle]
        held.blocks.extend(row.new_blocks)
        self._claim(row.handle, row.new_blocks)
        num_slots = len(held.blocks) * self.block_size
        assert num_slots >= len(held.tokens) + self.lookahead, f"request {row.handle} lacks slots for its drafts"
        self._compute(held, held.num_computed + row.num_new)
        left = len(held.tokens) - held.num_computed
        assert left == 0 or left >= self.lookahead, f"a chunk of request {row.handle} leaves {left} tokens"
        token = None if left else self._draw(held)
        if token is not None:
            held.tokens.append(token)
        elif not left:
            failed.append(row.handle)
        self._write_drafts(row.handle, held)
        return () if token is None else (token,)

    def _compute(self, held: Held, end: int) -> None:
        for position in range(held.num_computed, end):
            values = self._read(held, position)
            self._values[self._writable(held, position)] = key_value(values, held.tokens[position])
        held.num_computed = end

    def _draw(self, held: Held) -> int | None:
        num_emitted = len(held.tokens) - held.num_prompt
        banned = held.stopping.stop_token_ids if num_emitted < held.stopping.min_tokens else ()
        return draw(self._read(held, held.num_computed), held.sampling.seed, banned)

    def _write_drafts(self, handle: int, held: Held) -> None:
        """Drafts of every position whose tokens to the right were not all known before; they may be known now."""
        final, known = self._final[handle], len(held.tokens)
        for position in range(final, held.num_computed):
            draft = tuple(held.tokens[position + 1 : position + 1 + self.lookahead])
            self._drafts[self._writable(held, position)] = draft
        self._final[handle] = max(final, min(held.num_computed, known - self.lookahead))

    def _read(self, held: Held, end: int) -> list[int]:
        """The values of positions 0 … end - 1, through the block table."""
        whole, rest = divmod(end, self.block_size)
        values: list[int] = []
        for block in held.blocks[:whole]:
            values += self._values[block * self.block_size : (block + 1) * self.block_size]
        start = held.blocks[whole] * self.block_size if rest else 0
        return values + self._values[start : start + rest]

    def _writable(self, held: Held, position: int) -> int:
        """The slot of ``position``, which must not be immutable."""
        block = held.blocks[position // self.block_size]
        assert block != NULL_BLOCK, "a write into the null block"
        assert block not in self.tags, f"a write at position {position} into the sealed block {block}"
        return self._slot(held.blocks, position)

    def _slot(self, blocks: Sequence[int], position: int) -> int:
        return blocks[position // self.block_size] * self.block_size + position % self.block_size
