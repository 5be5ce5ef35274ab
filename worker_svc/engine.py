"""The worker's engine: carries out steps, one after another, and remembers the last outcome."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from augury.errors import FencedError
from augury.types import Outcome, Row, Step
from worker_svc.attention import make_attention
from worker_svc.attention.port import Attention
from worker_svc.batch import Span, make_batch
from worker_svc.kv import Kv, bytes_per_block, torch_dtype
from worker_svc.model.description import read_architecture
from worker_svc.model.llama import Llama
from worker_svc.model.weights import Checkpoint, fingerprint
from worker_svc.requests import Bounds, Held, check_step
from worker_svc.sampling import Draw, sample


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How to run a model.

    ``num_blocks`` includes the null block; None means as many as ``memory_mb`` MiB hold. ``max_len`` None is the
    model's own context.
    """

    dtype: str = "bfloat16"
    block_size: int = 16
    num_blocks: int | None = None
    memory_mb: int = 2048
    max_len: int | None = None
    attention: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What an engine runs. Equal fingerprints mean that equal tokens have equal KV."""

    fingerprint: str
    vocab_size: int
    max_model_len: int
    bytes_per_block: int


class Engine:
    """A model, its KV and the requests it holds. To be used from one thread.

    A held request's first ``num_computed`` tokens have their KV in its blocks; only its own rows write there.
    """

    def __init__(self, model: Llama, kv: Kv, attention: Attention, description: Description) -> None:
        self.description = description
        self._model = model
        self._kv = kv
        self._attention = attention
        self._bounds = Bounds(
            vocab_size=description.vocab_size,
            max_len=description.max_model_len,
            block_size=kv.block_size,
            num_blocks=kv.num_blocks,
        )
        self._held: dict[int, Held] = {}
        self._last: Outcome | None = None

    @property
    def num_blocks(self) -> int:
        """Blocks of KV, the null block included."""
        return self._bounds.num_blocks

    @classmethod
    @torch.inference_mode()
    def load(cls, path: Path, options: EngineOptions) -> "Engine":
        """An engine for the Hugging Face folder ``path``. Raises ValueError where model and options do not fit."""
        architecture, dtype = read_architecture(path), torch_dtype(options.dtype)
        attention = make_attention(options.attention)
        max_len = options.max_len or architecture.max_positions
        if max_len > architecture.max_positions:
            raise ValueError(f"max_len {max_len} is beyond the model's {architecture.max_positions} positions")
        num_bytes = bytes_per_block(architecture, options.block_size, options.dtype)
        num_blocks = options.num_blocks or (options.memory_mb << 20) // num_bytes
        description = Description(
            fingerprint=fingerprint(path, options.dtype),
            vocab_size=architecture.vocab_size,
            max_model_len=max_len,
            bytes_per_block=num_bytes,
        )
        kv = Kv(architecture, dtype, options.block_size, num_blocks)
        return cls(Llama(architecture, Checkpoint(path, dtype), max_len), kv, attention, description)

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
        self._held = held
        for handle in step.released:
            self._held.pop(handle, None)
        for block, key in step.sealed:
            self._kv.seal(block, key)
        refused = self._take(step)
        rows = [row for row in step.rows if row.handle not in refused]
        tokens, failed = self._compute(rows)
        self._last = Outcome(
            epoch=step.epoch,
            seq=step.seq,
            emitted=tuple((tokens[row.handle],) if row.handle in tokens else () for row in step.rows),
            num_drafts=(0,) * len(step.rows),
            num_final=tuple(self._num_final(row.handle) for row in step.rows),
            refused=tuple(refused),
            failed=tuple(failed),
        )
        return self._last

    def _num_final(self, handle: int) -> int:
        request = self._held.get(handle)
        return request.num_computed if request else 0

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

    def _take(self, step: Step) -> list[int]:
        """Hold the fresh requests; return those whose hit blocks hold something else."""
        refused = []
        for new in step.fresh:
            num_hits = len(new.hit_keys)
            if self._kv.holds(new.blocks[:num_hits], new.hit_keys):
                self._kv.claim(new.blocks[num_hits:])
                self._held[new.handle] = Held.of(new)
            else:
                refused.append(new.handle)
        return refused

    def _compute(self, rows: Sequence[Row]) -> tuple[dict[int, int], list[int]]:
        """Run the rows; return the token drawn for each request that reached its end, and the requests that failed."""
        if not rows:
            return {}, []
        spans = self._advance(rows)
        requests = [self._held[row.handle] for row in rows]
        new_tokens = [
            request.tokens[span.num_computed : span.num_context] for request, span in zip(requests, spans, strict=True)
        ]
        batch = make_batch(new_tokens, spans, self._bounds.block_size)
        logits = self._model.forward(batch, self._kv, self._attention.prepare(batch))
        return self._emit([row.handle for row, span in zip(rows, spans, strict=True) if span.samples], logits)

    def _advance(self, rows: Sequence[Row]) -> list[Span]:
        """Append the rows' blocks, count their tokens as computed, and lay them out in a batch."""
        spans: list[Span] = []
        start = 0
        for row in rows:
            request = self._held[row.handle]
            self._kv.claim(row.new_blocks)
            request.blocks.extend(row.new_blocks)
            end = request.num_computed + row.num_new
            first = request.num_computed // self._bounds.block_size
            last = (end - 1) // self._bounds.block_size
            assert not any(map(self._kv.is_sealed, request.blocks[first : last + 1])), "a write into a sealed block"
            request.num_computed = end
            spans.append(
                Span(
                    start=start,
                    num_new=row.num_new,
                    num_context=end,
                    blocks=request.blocks,
                    samples=end == len(request.tokens),
                )
            )
            start += row.num_new
        return spans

    def _emit(self, handles: Sequence[int], logits: Tensor) -> tuple[dict[int, int], list[int]]:
        finite = logits.sum(-1).isfinite()
        failed = [handle for handle, fine in zip(handles, finite.tolist(), strict=True) if not fine]
        drawing = [handle for handle in handles if handle not in failed]
        tokens = sample(logits[finite], [self._draw(handle) for handle in drawing])
        for handle, token in zip(drawing, tokens, strict=True):
            self._held[handle].tokens.append(token)
        return dict(zip(drawing, tokens, strict=True)), failed

    def _draw(self, handle: int) -> Draw:
        request = self._held[handle]
        return Draw(
            position=len(request.tokens),
            tokens=request.tokens,
            num_prompt=request.num_prompt,
            sampling=request.sampling,
            stopping=request.stopping,
        )
