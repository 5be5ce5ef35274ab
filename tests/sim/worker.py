"""A worker whose KV is hashes: the twin of worker_svc's engine, with the same requests and the same contract."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from augury.errors import FencedError
from augury.geometry import NULL_BLOCK
from augury.types import NewRequest, Outcome, Row, Step
from tests.sim.authors import Authors
from tests.sim.drafter import Drafter, State
from tests.sim.exact import Exact
from tests.sim.images import Encoder
from tests.sim.model import VOCAB_SIZE, draw, embed
from tests.sim.shape import Memory, Shape
from tests.sim.slots import Layer, Storage
from worker_svc.requests import Bounds, Held, check_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who wrote a block: it is the one at ``index`` of a table of ``group``, for a request with these ``tokens``."""

    group: int
    index: int
    tokens: list[int]
    salt: bytes
    exact: Exact


class Worker:
    """One life of one worker's memory.

    ``authors`` knows of each request what no real worker does: here it shows whether KV is right, and salts are kept
    apart. ``writers`` tells of each block who wrote it, ``verified`` the drafts that the last step verified, by handle.
    """

    def __init__(self, shape: Shape, memory: Memory, rng: Random, authors: Authors) -> None:
        self.groups = memory.groups
        self.lookahead = shape.speculation.num_modules
        self.tags: dict[int, bytes] = {}
        self.held: dict[int, Held] = {}
        self.verified: dict[int, list[int]] = {}
        self._model = shape.model
        self._stops = shape.speculation.stops
        self._bounds = Bounds(
            vocab_size=VOCAB_SIZE,
            max_len=shape.max_model_len,
            groups=memory.groups,
            num_blocks=memory.num_blocks,
        )
        self._authors = authors
        places = [shape.model.layers[:layer].count(group) for layer, group in enumerate(shape.model.layers)]
        largest = max(group.block_size for group in memory.groups)
        self._storage = Storage(1 + max(places), memory.num_blocks, largest, rng)
        self._layers = [
            Layer(number, memory.groups[group], self._storage.places[place])
            for number, (group, place) in enumerate(zip(shape.model.layers, places, strict=True))
        ]
        self._target = self._layers[: len(shape.model.target)]
        self._drafter = Drafter(shape.speculation, shape.model, self._layers[len(self._target) :], rng)
        self._states: dict[int, State] = {}
        self._salts: dict[int, bytes] = {}
        self._in_use: set[int] = set()
        self.writers: list[Writer | None] = [None] * memory.num_blocks
        self._encoder = Encoder(shape)
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
            self.held, self._states = {}, {}
            self._encoder.clear()
        check_step(step, self.held, self._bounds)
        self._last = self._carry_out(step)
        return self._last

    def needed(self, handle: int) -> Iterator[tuple[int, int, int]]:
        """(group, index, block) of each table entry that the request's next step reads or writes."""
        held = self.held[handle]
        for number, (group, table) in enumerate(zip(self.groups, held.blocks, strict=True)):
            row = held.num_final if group.has_drafts else held.num_computed
            first = 0 if group.window is None else max(0, row - group.window + 1) // group.block_size
            for index in range(first, len(table)):
                yield number, index, table[index]

    def _carry_out(self, step: Step) -> Outcome:
        for handle in step.released:
            self.held.pop(handle, None)
            self._states.pop(handle, None)
        for block, key in step.sealed:
            self._check_final(block)
            self.tags[block] = key
        self._in_use = {block for handle in self.held for _, _, block in self.needed(handle)}
        refused = [new.handle for new in step.fresh if not self._take(new)]
        self._encoder.take(step)
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
        assert not new.hits or left >= max(1, self.lookahead), f"a hit leaves {left} tokens of request {new.handle}"
        if not self._recognises(new.hits):
            return False
        text = self._authors.right(new)
        self._salts[new.handle] = self._authors.salt(new)
        self._states[new.handle] = State(
            start=new.num_computed,
            hidden=[],
            inexact=self._inexact(new),
            exact=text.exact,
            text=text.tokens,
        )
        self._check_hit(new, text.exact)
        self.held[new.handle] = held = Held.of(new)
        for group, table in enumerate(held.blocks):
            self._claim(new.handle, group, table[new.num_computed // self.groups[group].block_size :])
        return True

    def _recognises(self, hits: Sequence[tuple[int, bytes]]) -> bool:
        return all(self.tags.get(block) == key for block, key in hits)

    def _inexact(self, new: NewRequest) -> dict[int, int]:
        """Rows that need not be exact, of each group whose hit is to be rebuilt: it has no KV where its window is."""
        return {
            number: new.num_computed + group.num_rebuilt
            for number, group in enumerate(self.groups)
            if group.num_rebuilt is not None and NULL_BLOCK in self._seen(new, number)
        }

    def _seen(self, new: NewRequest, group: int) -> tuple[int, ...]:
        """The hit blocks that the first row behind a hit reads."""
        window, size = self.groups[group].window, self.groups[group].block_size
        first = 0 if window is None else max(0, new.num_computed - window + 1) // size
        return new.blocks[group][first : new.num_computed // size]

    def _check_hit(self, new: NewRequest, exact: Exact) -> None:
        """What is hit is what the request would have computed itself, draft KV included, and nothing is missing."""
        salt, vouched = self._salts[new.handle], {block for block, _ in new.hits}
        exact.extend(new.tokens)
        for number, group in enumerate(self.groups):
            assert number in self._states[new.handle].inexact or NULL_BLOCK not in self._seen(new, number), (
                f"request {new.handle} lacks KV in the window of group {number}"
            )
            for index, block in enumerate(new.blocks[number][: new.num_computed // group.block_size]):
                if block == NULL_BLOCK:
                    continue
                self._in_use.add(block)
                writer = self.writers[block]
                assert block in vouched, f"request {new.handle} does not say what block {block} holds"
                assert writer and writer.salt == salt, f"request {new.handle} reads block {block} of another salt"
                self._check_block(block, number, index, exact)

    def _check_final(self, block: int) -> None:
        """A block that is sealed is never written again, and holds what its writer's tokens make of it."""
        writer = self.writers[block]
        assert writer is not None, f"block {block} is sealed, but nobody wrote it"
        writer.exact.extend(writer.tokens)
        self._check_block(block, writer.group, writer.index, writer.exact)

    def _check_block(self, block: int, group: int, index: int, exact: Exact) -> None:
        size = self.groups[group].block_size
        for layer, of_group in zip(self._layers, self._model.layers, strict=True):
            wanted = exact.kv[layer.number][index * size : (index + 1) * size]
            assert of_group != group or layer.slots(block) == wanted, f"block {block}, layer {layer.number}: wrong KV"

    def _claim(self, handle: int, group: int, claimed: Sequence[int]) -> None:
        """The last blocks of the request's table are its own to write."""
        held, state, salt = self.held[handle], self._states[handle], self._salts[handle]
        for index, block in enumerate(claimed, len(held.blocks[group]) - len(claimed)):
            assert block not in self._in_use, f"block {block} of request {handle} is in another's table"
            self._in_use.add(block)
            self.tags.pop(block, None)
            self._storage.clear(block)
            self.writers[block] = Writer(group=group, index=index, tokens=held.tokens, salt=salt, exact=state.exact)

    # --- rows ---

    def _run(self, row: Row, failed: list[int]) -> tuple[int, ...]:
        held, state = self.held[row.handle], self._states[row.handle]
        for group, blocks in enumerate(row.new_blocks):
            held.blocks[group].extend(blocks)
            self._claim(row.handle, group, blocks)
        self._encoder.check(row, held)
        drafts, known, start = held.drafts[: row.num_drafts], len(held.tokens), held.num_computed
        self._check_writable(held, start + row.num_new + row.num_drafts)
        hidden = self._compute(held, row.num_new, drafts)
        left = known - held.num_computed
        assert left == 0 or left >= self.lookahead, f"a chunk of request {row.handle} leaves {left} tokens"
        if not left:
            self._verify(held, drafts, hidden[row.num_new - 1 :])
            self.verified[row.handle] = drafts
        state.hidden.extend(hidden[: held.num_computed - start])
        emitted = tuple(held.tokens[known:])
        if left or emitted:
            self._drafter.run(held, state, guessing=not left)
        else:
            failed.append(row.handle)
        return emitted

    def _compute(self, held: Held, num_new: int, drafts: list[int]) -> list[int]:
        """Write the target's KV up to the last draft and return its outputs; only known tokens count as computed."""
        start, end = held.num_computed, held.num_computed + num_new
        below = [embed(token) for token in [*held.tokens[start:end], *drafts]]
        for layer, group in zip(self._target, self._model.target, strict=True):
            below = layer.run(held.blocks[group], start, below)
        held.num_computed = end
        return below

    def _verify(self, held: Held, drafts: list[int], hidden: Sequence[int]) -> None:
        """Append the drafts that are right and one token more; or fewer, before logits that are not finite."""
        end = held.num_computed
        for index, state in enumerate(hidden):
            token = self._draw(held, state)
            if token is None:
                break
            held.tokens.append(token)
            held.num_computed = end + index
            if drafts[index : index + 1] != [token] or (self._stops and token in held.stopping.stop_token_ids):
                break

    def _draw(self, held: Held, hidden: int) -> int | None:
        banned = held.stopping.stop_token_ids if held.num_emitted < held.stopping.min_tokens else ()
        return draw(hidden, held.sampling.seed, banned)

    def _check_writable(self, held: Held, end: int) -> None:
        """What is written lies between the frontier and ``end``, and must not be immutable."""
        for group, table in zip(self.groups, held.blocks, strict=True):
            start = held.num_final if group.has_drafts else held.num_computed
            for block in table[start // group.block_size : -(-end // group.block_size)]:
                assert block != NULL_BLOCK, "a write into the null block"
                assert block not in self.tags, f"a write into the sealed block {block}"
