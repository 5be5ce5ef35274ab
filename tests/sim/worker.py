"""A worker whose KV is hashes: the twin of worker_svc's engine, with the same requests and the same contract."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from augury.errors import FencedError
from augury.types import NewRequest, Outcome, Row, Step
from tests.sim.drafter import Drafter
from tests.sim.exact import Exact
from tests.sim.model import VOCAB_SIZE, draw, key_value
from tests.sim.plan import Memory, Shape
from tests.sim.slots import Slots
from worker_svc.requests import Bounds, Held, check_step

NULL_BLOCK = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who wrote a block: it is the one at ``index`` of a table, for a request with these ``tokens`` and salt."""

    index: int
    tokens: list[int]
    salt: bytes
    exact: Exact


class Worker:
    """One life of one worker's memory.

    ``salts`` tells the cache salt of a handle, which no real worker needs to know: here it shows whether salts are kept
    apart. ``verified`` holds the drafts that the last step verified, by handle.
    """

    def __init__(self, shape: Shape, memory: Memory, rng: Random, salts: Callable[[int], bytes]) -> None:
        self.block_size = memory.block_size
        self.lookahead = shape.speculation.num_modules
        self.tags: dict[int, bytes] = {}
        self.held: dict[int, Held] = {}
        self.verified: dict[int, list[int]] = {}
        self._bounds = Bounds(
            vocab_size=VOCAB_SIZE,
            max_len=shape.max_model_len,
            block_size=memory.block_size,
            num_blocks=memory.num_blocks,
        )
        self._salts = salts
        self._layers = [Slots(memory, rng) for _ in range(1 + self.lookahead)]
        self._drafter = Drafter(shape.speculation, self._layers, rng)
        self._exact: dict[int, Exact] = {}
        self._writers: list[Writer | None] = [None] * memory.num_blocks
        self._last: Outcome | None = None

    def execute(self, step: Step) -> Outcome:
        """Carry out ``step`` once. Numbers of refused rows mean nothing.

        Raises FencedError for a step of the past, AssertionError or InvalidRequestError for a wrong one.
        """
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
        for block, key in step.sealed:
            self._check_final(block)
            self.tags[block] = key
        refused = [new.handle for new in step.fresh if not self._take(new)]
        self.verified = {}
        failed: list[int] = []
        emitted = [() if row.handle in refused else self._run(row, failed) for row in step.rows]
        held = [self.held.get(row.handle) for row in step.rows]
        return Outcome(
            epoch=step.epoch,
            seq=step.seq,
            emitted=tuple(emitted),
            num_drafts=tuple(len(one.drafts) if one else 0 for one in held),
            num_final=tuple(one.num_final if one else self._bounds.max_len for one in held),
            refused=tuple(refused),
            failed=tuple(failed),
        )

    # --- blocks: hits, seals and claims ---

    def _take(self, new: NewRequest) -> bool:
        """Hold a fresh request, unless its hit blocks hold something else."""
        left = len(new.tokens) - new.num_computed
        assert not new.hit_keys or left >= max(1, self.lookahead), f"a hit leaves {left} tokens of request {new.handle}"
        num_hits = len(new.hit_keys)
        if not self._recognises(new.blocks[:num_hits], new.hit_keys):
            return False
        self._exact[new.handle] = self._check_hit(new)
        self.held[new.handle] = Held.of(new)
        self._claim(new.handle, num_hits)
        return True

    def _recognises(self, blocks: tuple[int, ...], keys: tuple[bytes, ...]) -> bool:
        return all(self.tags.get(block) == key for block, key in zip(blocks, keys, strict=True))

    def _check_hit(self, new: NewRequest) -> Exact:
        """What is hit is what the request would have computed itself, draft KV included."""
        exact, salt = Exact(self.lookahead), self._salts(new.handle)
        exact.extend(new.tokens)
        for index, block in enumerate(new.blocks[: len(new.hit_keys)]):
            writer = self._writers[block]
            assert writer and writer.salt == salt, f"request {new.handle} reads block {block} of another salt"
            self._check_block(block, index, exact, f"request {new.handle} hits")
        return exact

    def _check_final(self, block: int) -> None:
        """A block that is sealed is never written again, and holds what its writer's tokens make of it."""
        writer = self._writers[block]
        assert writer is not None, f"block {block} is sealed, but nobody wrote it"
        writer.exact.extend(writer.tokens)
        self._check_block(block, writer.index, writer.exact, "there is sealed")

    def _check_block(self, block: int, index: int, exact: Exact, who: str) -> None:
        start = index * self.block_size
        for number, (slots, right) in enumerate(zip(self._layers, exact.layers, strict=True)):
            wanted = right[start : start + self.block_size]
            assert slots.block(block) == wanted, f"{who} block {block} with wrong KV in layer {number}"

    def _claim(self, handle: int, start: int) -> None:
        """The blocks of the request's table from ``start`` on are its own to write."""
        held, exact, salt = self.held[handle], self._exact[handle], self._salts(handle)
        claimed = held.blocks[start:]
        tables = [block for other in self.held.values() for block in other.blocks] if claimed else []
        for index, block in enumerate(claimed, start):
            assert tables.count(block) == 1, f"block {block} of request {handle} is in another's table"
            self.tags.pop(block, None)
            self._writers[block] = Writer(index=index, tokens=held.tokens, salt=salt, exact=exact)

    # --- rows ---

    def _run(self, row: Row, failed: list[int]) -> tuple[int, ...]:
        held = self.held[row.handle]
        held.blocks.extend(row.new_blocks)
        self._claim(row.handle, len(held.blocks) - len(row.new_blocks))
        self._check_writable(held, held.num_computed + row.num_new + row.num_drafts)
        drafts, known = held.drafts[: row.num_drafts], len(held.tokens)
        values = self._compute(held, row.num_new, drafts)
        left = known - held.num_computed
        assert left == 0 or left >= self.lookahead, f"a chunk of request {row.handle} leaves {left} tokens"
        if not left:
            self._verify(held, drafts, values)
            self.verified[row.handle] = drafts
        emitted = tuple(held.tokens[known:])
        if left or emitted:
            self._drafter.run(held, guessing=not left)
        else:
            failed.append(row.handle)
        return emitted

    def _compute(self, held: Held, num_new: int, drafts: list[int]) -> list[int]:
        """Write and return the target's KV up to the last draft; only known tokens count as computed."""
        start, end = held.num_computed, held.num_computed + num_new
        values = self._layers[0].read(held.blocks, start)
        for position, token in enumerate([*held.tokens[start:end], *drafts], start):
            values.append(key_value(values, token))
            self._layers[0].write(held.blocks, position, values[-1])
        held.num_computed = end
        return values

    def _verify(self, held: Held, drafts: list[int], values: list[int]) -> None:
        """Append the drafts that are right and one token more; or fewer, before logits that are not finite."""
        end = held.num_computed
        for index in range(len(drafts) + 1):
            token = self._draw(held, values[: end + index])
            if token is None:
                break
            held.tokens.append(token)
            held.num_computed = end + index
            if drafts[index : index + 1] != [token]:
                break

    def _draw(self, held: Held, values: list[int]) -> int | None:
        banned = held.stopping.stop_token_ids if held.num_emitted < held.stopping.min_tokens else ()
        return draw(values, held.sampling.seed, banned)

    def _check_writable(self, held: Held, end: int) -> None:
        """What is written lies between the frontier and ``end``, and must not be immutable."""
        for block in held.blocks[held.num_final // self.block_size : -(-end // self.block_size)]:
            assert block != NULL_BLOCK, "a write into the null block"
            assert block not in self.tags, f"a write into the sealed block {block}"
