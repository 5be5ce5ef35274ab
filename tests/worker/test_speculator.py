"""The rows that the modules run on, by rule: with a drafter that notes what every slot was written from."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from augury.types import SamplingParams, StopParams
from worker_svc.depth import Acceptance, DepthPolicy
from worker_svc.drafter import Pass
from worker_svc.kv import Kv
from worker_svc.model.description import parse_architecture
from worker_svc.model.groups import make_layout
from worker_svc.requests import Held
from worker_svc.speculator import Advance, Speculator

BLOCK_SIZE = 4
MAX_LEN = 120
ARCHITECTURE = parse_architecture(
    {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 9,
        "hidden_size": 2,
        "intermediate_size": 2,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_nextn_predict_layers": 8,
    }
)


class Scripted:
    """Drafts the given tokens over and over, and notes for each (module, row) the tokens that its KV is made from."""

    def __init__(self, num_modules: int, reuses: bool, drafts: Sequence[int]) -> None:
        self.num_modules = num_modules
        self.reuses = reuses
        self.passes: list[Pass] = []
        self.written: dict[tuple[int, int], tuple[int, ...]] = {}
        self._drafts = drafts

    def target_hidden(self, h_te: Tensor, normed_te: Tensor) -> Tensor:
        return normed_te

    def run(self, passes: Sequence[Pass]) -> list[list[int]]:
        self.passes.extend(passes)
        return [self._run(one) for one in passes]

    def _run(self, one: Pass) -> list[int]:
        request = one.request
        first = len(request.tokens)
        drafts = [self._drafts[(first + m) % len(self._drafts)] for m in range(one.num_runs)]
        num_slots = len(request.blocks[0]) * BLOCK_SIZE
        assert 0 <= one.start < one.end <= min(request.num_computed, num_slots)
        assert one.hidden[:, 0].tolist() == list(range(one.start, one.end)), "hidden states of other rows"
        if one.num_drafts:
            assert one.end == first - 1 and one.num_drafts <= one.num_runs
            assert not self.reuses or one.end + one.num_runs - 1 <= num_slots, "slots behind the last block"
        else:
            assert one.end + one.num_runs <= first, "a token that is not known"
        for m in range(1 if self.reuses else one.num_runs):
            for row in range(one.start, one.end):
                self.written[m, row] = tuple([*request.tokens, *drafts][row + 1 : row + m + 2])
        return drafts if one.num_drafts else []


class AsTold(DepthPolicy):
    """Chooses the depths that it was told, one after another, then the deepest."""

    def __init__(self, num_drafts: int, depths: Sequence[int]) -> None:
        super().__init__(num_drafts, fixed=False)
        self._depths = list(depths)

    def choose(self, requests: Sequence[Acceptance], limits: Sequence[int]) -> list[int]:
        told = self._depths.pop(0) if self._depths else self.num_drafts
        return [min(told, limit) for limit in limits]


class Bench:
    """One request and no model: the hidden state of row q is [q]."""

    def __init__(self, drafter: Scripted, policy: DepthPolicy, prompt: Sequence[int], num_hit: int = 0) -> None:
        self.request = Held(
            tokens=list(prompt),
            num_prompt=len(prompt),
            num_computed=num_hit,
            num_final=num_hit,
            blocks=[list(range(1, 1 + MAX_LEN // BLOCK_SIZE))],
            sampling=SamplingParams(),
            stopping=StopParams(max_tokens=MAX_LEN),
        )
        layout = make_layout(ARCHITECTURE, drafter.num_modules, BLOCK_SIZE)
        kv = Kv(ARCHITECTURE, layout, torch.float32, 2 + MAX_LEN // BLOCK_SIZE)
        self.drafter = drafter
        self.speculator = Speculator(drafter, policy, kv, MAX_LEN)

    def step(self, num_new: int, emitted: Sequence[int] = ()) -> Pass | None:
        """Compute ``num_new`` known tokens, and those of ``emitted`` but the last. The pass that followed."""
        first, num_rows, num_passes = self.request.num_computed, num_new + max(len(emitted) - 1, 0), len(self.passes)
        self.request.tokens.extend(emitted)
        self.request.num_computed += num_rows
        hidden = torch.arange(first, first + num_rows, dtype=torch.float32).unsqueeze(-1)
        self.speculator.follow(
            [Advance(handle=1, request=self.request, hidden=hidden, num_emitted=len(emitted), fates=())]
        )
        return self.passes[-1] if len(self.passes) > num_passes else None

    def accept(self, num_accepted: int, num_verified: int | None = None) -> Pass | None:
        """A decode step that accepts so many of the first ``num_verified`` drafts (None: all) and then emits a token
        that was not drafted, unless the draft there was not verified and ``num_accepted`` is ``num_verified``."""
        drafts = self.request.drafts[:num_verified]
        assert num_accepted <= len(drafts)
        return self.step(1, [*drafts[:num_accepted], 8])

    @property
    def passes(self) -> list[Pass]:
        return self.drafter.passes

    def check(self, num_hit: int) -> None:
        """Every final slot was written from the text, and a block that can be final is, but for some while decoding."""
        request = self.request
        for m in range(self.drafter.num_modules):
            for row in range(num_hit, request.num_final):
                assert self.drafter.written[m, row] == tuple(request.tokens[row + 1 : row + m + 2])
        could_be = max(num_hit, min(request.num_computed, len(request.tokens) - self.drafter.num_modules))
        assert request.num_final <= could_be
        lag = could_be // BLOCK_SIZE - request.num_final // BLOCK_SIZE
        assert lag < (4 if request.num_final >= request.num_prompt and not request.ended else 1)


# mtp_semantics §4.5, the worked example and the table: N = 4, a prompt of 20 tokens.
@pytest.mark.parametrize(
    ("accepted", "rows", "last_row", "num_computed"),
    [(4, 5, 24, 25), (3, 4, 23, 24), (2, 4, 22, 23), (1, 4, 21, 22), (0, 4, 20, 21)],
)
def test_repair_rows_after_a_rejection(accepted: int, rows: int, last_row: int, num_computed: int) -> None:
    bench = Bench(Scripted(4, False, [1, 2, 3]), AsTold(4, ()), range(20))
    bench.step(20, [5])
    assert (bench.passes[-1].start, bench.passes[-1].end, bench.request.num_final) == (0, 20, 17)
    done = bench.accept(accepted)
    assert done is not None
    assert (done.num_rows, done.end - 1, bench.request.num_computed) == (rows, last_row, num_computed)
    assert bench.request.num_final == num_computed - 3


def test_a_bonus_token_that_a_module_had_drafted_counts_as_true() -> None:
    """Two of four drafts are verified and accepted, and the bonus token is the third: nothing of it is repaired."""
    bench = Bench(Scripted(4, False, [1, 2, 3]), AsTold(4, ()), range(20))
    bench.step(20, [5])
    done = bench.step(1, bench.request.drafts[:3])
    assert done is not None
    assert (done.start, done.end) == (20, 23)


def test_fewer_verified_drafts_than_chained_leave_nothing_stale() -> None:
    """mtp_semantics §4.6: K = 2 of N = 8 in every step, all accepted."""
    bench = Bench(Scripted(8, False, [1, 2, 3, 4]), AsTold(8, ()), range(20))
    bench.step(20, [5])
    for _ in range(10):
        bench.accept(2, 2)
        bench.check(0)
        assert bench.request.num_final == bench.request.num_computed - 7


def test_one_module_for_all_drafts_repairs_nothing() -> None:
    bench = Bench(Scripted(1, True, [1, 2, 3]), AsTold(4, ()), range(20))
    bench.step(20, [5])
    for accepted, rows in [(4, 5), (0, 1), (2, 3)]:
        done = bench.accept(accepted)
        assert done is not None and done.num_rows == rows
        assert bench.request.num_final == bench.request.num_computed


def test_a_chunk_writes_kv_alone_up_to_where_tokens_are_known() -> None:
    bench = Bench(Scripted(3, False, [1]), AsTold(3, ()), range(40))
    for num_new, end in [(16, 16), (21, 37), (1, 37)]:
        bench.step(num_new)
        assert bench.request.num_final == end
    assert [(done.start, done.end, done.num_drafts) for done in bench.passes] == [(0, 16, 0), (16, 37, 0)]


def test_what_is_not_drafted_waits_until_blocks_are_full() -> None:
    """One, as long as tokens of the prompt wait; then four; what is left when the request ends."""
    bench = Bench(Scripted(3, False, [1]), AsTold(3, [0] * 100), range(9))
    bench.step(9, [5])
    bench.request.stopping = StopParams(max_tokens=43)
    ends = [(done.end, bench.request.num_computed) for _ in range(42) if (done := bench.step(1, [5])) is not None]
    assert ends == [(8, 10), (12, 14), (28, 30), (44, 46), (49, 51)]


def test_a_shallow_chain_runs_the_deeper_modules_only_when_blocks_are_full() -> None:
    bench = Bench(Scripted(3, False, [1]), AsTold(3, [1] * 100), range(9))
    bench.step(9, [5])
    runs = [done.num_runs for _ in range(22) if (done := bench.step(1, [5])) is not None]
    assert runs == [3, 1, 1, 1, 3, *[1] * 15, 3, 1]
    assert all(len(done.request.drafts) == 1 for done in bench.passes)


def test_drafts_end_where_the_request_does() -> None:
    bench = Bench(Scripted(3, False, [1]), AsTold(3, ()), range(9))
    bench.request.max_drafts = 2
    bench.request.stopping = StopParams(max_tokens=5, stop_token_ids=frozenset([6]))
    held = []
    for num_new in (9, 1, 1, 1, 1):
        bench.step(num_new, [5])
        held.append(len(bench.request.drafts))
    assert held == [2, 2, 1, 0, 0]


def test_nothing_is_drafted_after_a_stop_token() -> None:
    bench = Bench(Scripted(3, False, [1]), AsTold(3, ()), range(9))
    bench.request.stopping = StopParams(max_tokens=5, stop_token_ids=frozenset([6]))
    bench.step(9, [5])
    assert bench.request.drafts
    bench.step(1, [6])
    assert not bench.request.drafts


@dataclass(frozen=True, kw_only=True)
class Life:
    """A prompt's chunks, then decode steps: how many drafts are verified, how many of them accepted, and whether the
    token after them is what a module had drafted."""

    num_modules: int
    reuses: bool
    drafts: list[int]
    num_prompt: int
    num_hit_blocks: int
    chunks: list[int]
    steps: list[tuple[int, int, bool]]
    depths: list[int]


lives = st.builds(
    Life,
    num_modules=st.integers(1, 6),
    reuses=st.booleans(),
    drafts=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    num_prompt=st.integers(1, 24),
    num_hit_blocks=st.integers(0, 5),
    chunks=st.lists(st.integers(1, 9), max_size=8),
    steps=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=12),
    depths=st.lists(st.integers(0, 6), max_size=20),
)


@settings(max_examples=400, deadline=None)
@given(life=lives)
def test_final_slots_are_made_from_the_text(life: Life) -> None:
    """Whatever is chained, verified, accepted and when (mtp_semantics §8.1, its oracle by tokens)."""
    scripted = Scripted(1 if life.reuses else life.num_modules, life.reuses, life.drafts)
    num_hit = min(life.num_hit_blocks, max(0, life.num_prompt - life.num_modules) // BLOCK_SIZE) * BLOCK_SIZE
    prompt = [row % 5 for row in range(life.num_prompt)]
    bench = Bench(scripted, AsTold(life.num_modules, life.depths), prompt, num_hit)
    request, final = bench.request, num_hit
    for size in life.chunks:
        if request.num_computed + size < life.num_prompt:
            bench.step(size)
            bench.check(num_hit)
    bench.step(life.num_prompt - request.num_computed, [7])
    for num_verified, num_accepted, drafted in life.steps:
        bench.check(num_hit)
        verified = request.drafts[:num_verified]
        accepted = verified[:num_accepted]
        unverified = request.drafts[len(verified) :]
        true = drafted and len(accepted) == len(verified) and bool(unverified)
        bench.step(1, [*accepted, unverified[0] if true else 8])
        assert request.num_final >= final
        final = request.num_final
    bench.check(num_hit)
