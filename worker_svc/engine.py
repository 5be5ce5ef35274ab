"""The worker's engine: carries out steps, one after another, and remembers the last outcome."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from augury.errors import FencedError
from augury.geometry import NULL_BLOCK, KvGroup
from augury.types import Outcome, Row, Step
from worker_svc.attention import AUTO, choose_attention, make_attention
from worker_svc.attention.port import Attention
from worker_svc.batch import Span, make_batch
from worker_svc.depth import DepthPolicy
from worker_svc.device import CPU, kv_bytes
from worker_svc.drafter import Drafter
from worker_svc.kv import Kv, bytes_per_block, torch_dtype
from worker_svc.model.description import Architecture, read_architecture
from worker_svc.model.groups import make_layout
from worker_svc.model.llama import Llama
from worker_svc.model.mtp import Modules, drop_modules
from worker_svc.model.weights import Checkpoint, fingerprint
from worker_svc.rejection import verify
from worker_svc.requests import Bounds, Held, check_step
from worker_svc.sampling import Reading, read
from worker_svc.speculator import Advance, Speculator, num_lagging

_TRIED = (1, 128)
"""Tokens of a decoding request and of a prompt: FlashInfer chooses kernels by whether there are more than 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How to run a model.

    ``num_blocks`` includes the null block; None means as many as ``memory_mb`` MiB hold, or device.kv_bytes where that
    is None. ``max_len`` None is the model's own context. ``depth`` is the number of drafts of a step; None means up to
    one by each MTP module, as many as pay. ``hybrid``: layers behind a window keep no KV that it has passed.
    """

    dtype: str = "bfloat16"
    block_size: int = 16
    num_blocks: int | None = None
    memory_mb: int | None = None
    max_len: int | None = None
    device: torch.device = CPU
    attention: str = AUTO
    depth: int | None = None
    hybrid: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What an engine runs. Equal fingerprints mean that equal tokens have equal KV.

    ``num_prefill_lookahead`` is mtp_semantics rule A; at most ``max_drafts`` are proposed.
    """

    fingerprint: str
    vocab_size: int
    max_model_len: int
    bytes_per_block: int
    groups: tuple[KvGroup, ...]
    num_prefill_lookahead: int
    max_drafts: int


class Engine:
    """A model, its KV and the requests it holds. To be used from one thread.

    A held request's first ``num_computed`` tokens have their KV in its blocks; only its own rows write there.
    """

    def __init__(
        self, model: Llama, kv: Kv, attention: Attention, description: Description, speculator: Speculator | None
    ) -> None:
        self.description = description
        self._model = model
        self._kv = kv
        self._attention = attention
        self._speculator = speculator
        self._bounds = Bounds(
            vocab_size=description.vocab_size,
            max_len=description.max_model_len,
            num_blocks=kv.num_blocks,
            groups=description.groups,
        )
        self._held: dict[int, Held] = {}
        self._last: Outcome | None = None

    @property
    def num_blocks(self) -> int:
        """Blocks of KV, the null block included."""
        return self._bounds.num_blocks

    @property
    def held(self) -> Mapping[int, Held]:
        """The requests by handle, to look at."""
        return self._held

    @property
    def kv(self) -> Kv:
        """To look at."""
        return self._kv

    def tags(self) -> list[tuple[int, bytes]]:
        """Every sealed block and the key of what it holds."""
        return self._kv.tags()

    @classmethod
    @torch.inference_mode()
    def load(cls, path: Path, options: EngineOptions) -> "Engine":
        """An engine for the Hugging Face folder ``path``. Raises ValueError where model and options do not fit."""
        architecture, dtype = read_architecture(path), torch_dtype(options.dtype)
        device = options.device
        attention = make_attention(choose_attention(options.attention, device, dtype, architecture.head_dim), device)
        max_len = options.max_len or architecture.max_positions
        if max_len > architecture.max_positions:
            raise ValueError(f"max_len {max_len} is beyond the model's {architecture.max_positions} positions")
        max_drafts, num_modules = _drafts_and_modules(architecture, options.depth)
        size, hybrid = options.block_size, options.hybrid
        layout = make_layout(architecture, num_modules, size, num_lagging=num_lagging(size), hybrid=hybrid)
        num_bytes = bytes_per_block(architecture, layout, dtype)
        description = Description(
            fingerprint=fingerprint(path, options.dtype, num_modules),
            vocab_size=architecture.vocab_size,
            max_model_len=max_len,
            bytes_per_block=num_bytes,
            groups=layout.groups,
            num_prefill_lookahead=num_modules,
            max_drafts=max_drafts,
        )
        checkpoint = Checkpoint(path, dtype, device)
        model = Llama(architecture, checkpoint, max_len)
        modules = Modules(architecture, checkpoint, model, num_modules) if num_modules else None
        drop_modules(architecture, checkpoint, num_modules)
        checkpoint.finish("rotary_emb.inv_freq")
        num_blocks = options.num_blocks or kv_bytes(device, options.memory_mb) // num_bytes
        kv = Kv(architecture, layout, dtype, num_blocks, device)
        speculator = None
        if modules is not None:
            policy = DepthPolicy(max_drafts, fixed=options.depth is not None)
            speculator = Speculator(Drafter(model, modules, kv, attention), policy, kv, max_len)
        if device.type == "cuda":
            try_kernels(architecture, kv, attention)
        return cls(model, kv, attention, description, speculator)

    @torch.inference_mode()
    def execute(self, step: Step) -> Outcome:
        """Carry out ``step``, once: the last one's repetition returns the stored outcome. All or nothing.

        Raises FencedError for an old epoch or a gap in the sequence, InvalidRequestError for a step that cannot be
        carried out.
        """
        if self._last is not None and (step.epoch, step.seq) == (self._last.epoch, self._last.seq):
            return self._last
        held = self._held_in(step)
        check_step(step, held, self._bounds)
        self._keep(held, step.released)
        for block, key in step.sealed:
            self._kv.seal(block, key)
        refused = self._take(step)
        emitted = self._compute([row for row in step.rows if row.handle not in refused])
        self._last = Outcome(
            epoch=step.epoch,
            seq=step.seq,
            emitted=tuple(tuple(emitted.get(row.handle) or ()) for row in step.rows),
            num_drafts=tuple(len(self._held[row.handle].drafts) if emitted.get(row.handle) else 0 for row in step.rows),
            num_final=tuple(self._num_final(row.handle) for row in step.rows),
            refused=tuple(refused),
            failed=tuple(handle for handle, tokens in emitted.items() if tokens == []),
        )
        return self._last

    def _num_final(self, handle: int) -> int:
        request = self._held.get(handle)
        return request.num_final if request else 0

    def _held_in(self, step: Step) -> dict[int, Held]:
        """The requests that live on in the step's epoch: all, or none in a new one."""
        last = self._last
        if last is None or step.epoch > last.epoch:
            return {}
        if step.epoch < last.epoch:
            raise FencedError(f"epoch {step.epoch} is over, this is {last.epoch}")
        if step.seq != last.seq + 1:
            raise FencedError(f"step {step.seq} does not follow {last.seq} in epoch {step.epoch}")
        return self._held

    def _keep(self, held: dict[int, Held], released: Sequence[int]) -> None:
        """Hold those of ``held`` that were not released."""
        for handle in released if held is self._held else [*self._held]:
            self._held.pop(handle, None)
            if self._speculator is not None:
                self._speculator.forget(handle)

    def _take(self, step: Step) -> list[int]:
        """Hold the fresh requests; return those whose hit blocks hold something else."""
        refused = []
        for new in step.fresh:
            if self._kv.holds(new.hits):
                hit = {NULL_BLOCK, *(block for block, _ in new.hits)}
                self._kv.claim([block for table in new.blocks for block in table if block not in hit])
                self._held[new.handle] = Held.of(new)
            else:
                refused.append(new.handle)
        return refused

    def _compute(self, rows: Sequence[Row]) -> dict[int, list[int] | None]:
        """Run the rows; what each request emitted, by handle: None where its prompt goes on, empty where it failed."""
        if not rows:
            return {}
        spans = self._lay_out(rows)
        started = time.perf_counter()
        hidden_te, logits_nv = self._forward(rows, spans)
        readings = read(logits_nv)
        if self._speculator is not None:
            self._speculator.time_target(len(hidden_te), started)
        emitted = self._verify(rows, spans, logits_nv, readings)
        going_on = [(row, span) for row, span in zip(rows, spans, strict=True) if emitted[row.handle] != []]
        if self._speculator is None:
            for row, _ in going_on:
                self._held[row.handle].num_final = self._held[row.handle].num_computed
        else:
            advances = [self._advance(row, span, emitted[row.handle] or [], hidden_te) for row, span in going_on]
            self._speculator.follow(advances)
        return emitted

    def _lay_out(self, rows: Sequence[Row]) -> list[Span]:
        """Give the rows' blocks to their requests; the rows' places in a batch."""
        spans: list[Span] = []
        start, groups = 0, range(len(self._bounds.groups))
        for row in rows:
            request = self._held[row.handle]
            self._kv.claim([block for table in row.new_blocks for block in table if block != NULL_BLOCK])
            request.extend(row.new_blocks)
            num_new, known_end = row.num_new + row.num_drafts, request.num_computed + row.num_new
            end = known_end + row.num_drafts
            self._kv.check_open(request.blocks, groups, range(request.num_computed, end))
            spans.append(
                Span(
                    start=start,
                    num_new=num_new,
                    num_context=end,
                    blocks=request.blocks,
                    num_logits=1 + row.num_drafts if known_end == len(request.tokens) else 0,
                )
            )
            start += num_new
        return spans

    def _forward(self, rows: Sequence[Row], spans: Sequence[Span]) -> tuple[Tensor, Tensor]:
        """Write the rows' KV; the hidden states that modules read [T, E] (without any: of no use), and the logits."""
        tokens = []
        for row, span in zip(rows, spans, strict=True):
            request = self._held[row.handle]
            known = request.tokens[span.num_computed : span.num_computed + row.num_new]
            tokens.append(known + request.drafts[: row.num_drafts])
        batch = make_batch(tokens, spans, self._kv.block_size, self._kv.device)
        h_te = self._model.forward(batch, self._kv, self._attention.prepare(spans, self._kv.block_size))
        normed_te = self._model.norm(h_te)
        logits_nv = self._model.logits(normed_te.index_select(0, batch.logits_rows))
        if self._speculator is None:
            return normed_te, logits_nv
        return self._speculator.target_hidden(h_te, normed_te), logits_nv

    def _verify(
        self, rows: Sequence[Row], spans: Sequence[Span], logits_nv: Tensor, readings: Sequence[Reading]
    ) -> dict[int, list[int] | None]:
        """Draw at every row of logits as far as drafts are accepted; count the rows that are part of the text."""
        emitted: dict[int, list[int] | None] = {}
        end = 0
        for row, span in zip(rows, spans, strict=True):
            request, tokens = self._held[row.handle], None
            if span.num_logits:
                start, end = end, end + span.num_logits
                tokens = verify(request, request.drafts[: row.num_drafts], logits_nv[start:end], readings[start:end])
            request.num_computed += row.num_new + (len(tokens) - 1 if tokens else 0)
            emitted[row.handle] = tokens
        return emitted

    def _advance(self, row: Row, span: Span, tokens: Sequence[int], hidden_te: Tensor) -> Advance:
        request = self._held[row.handle]
        num_rows = request.num_computed - span.num_computed
        return Advance(
            handle=row.handle,
            request=request,
            hidden=hidden_te[span.start : span.start + num_rows],
            num_emitted=len(tokens),
            fates=[token == draft for token, draft in zip(tokens, request.drafts[: row.num_drafts], strict=False)],
        )


def _drafts_and_modules(architecture: Architecture, depth: int | None) -> tuple[int, int]:
    """How deep to draft, and with how many modules. Raises ValueError for a depth that the model does not have."""
    if architecture.mtp is None:
        if depth:
            raise ValueError(f"{depth} drafts are asked for, but the model has no MTP modules")
        return 0, 0
    max_drafts = architecture.mtp.num_drafts(depth)
    return max_drafts, architecture.mtp.num_used(max_drafts)


def try_kernels(architecture: Architecture, kv: Kv, attention: Attention) -> None:
    """Attention of one token and of many in all views, over the null block: kernels are built at their first use.

    Takes minutes where they do not come ready made. Raises RuntimeError where they cannot be built.
    """
    for num_new in _TRIED:
        blocks = [[NULL_BLOCK] * -(-num_new // kv.block_size)] * len(kv.layout.groups)
        attend = attention.prepare([Span(start=0, num_new=num_new, num_context=num_new, blocks=blocks)], kv.block_size)
        for view, (keys, values) in {view: kv.layers[i] for i, view in enumerate(kv.layout.views)}.items():
            attend(keys.new_zeros(num_new, architecture.num_heads, architecture.head_dim), keys, values, view).cpu()
