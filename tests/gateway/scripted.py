"""A Backend in memory: it says what a script says, and remembers who asked and who left."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from augury.errors import AuguryError, NoWorkerError
from augury.types import Delta, Description, Ended, EndReason, Generation, WorkerStatus

WINDOW = 200
VOCAB = 401


@dataclass(kw_only=True)
class Script:
    """What is said to one request: ``tokens``, ``group`` of them every ``pause_s``; then ``ended`` or an error.

    Each group but its last token are accepted drafts, of ``num_drafts`` that were verified.
    """

    tokens: Sequence[int]
    group: int = 1
    pause_s: float = 0.0
    num_cached: int = 0
    num_drafts: int = 0
    waited_ms: int = 0
    error: AuguryError | None = None


def worker_status(worker_id: str, **changes: Any) -> WorkerStatus:
    """A ready worker that has done nothing yet, but for ``changes``."""
    values: dict[str, Any] = dict.fromkeys(WorkerStatus.__slots__, 0)
    values |= {"worker_id": worker_id, "ready": True, "num_blocks": 9, "num_available": 8, "block_size": 16}
    values |= {"accepted_at": (), "accepted_lengths": (), "misses": {}, "draining": False, "iteration_tokens": ()}
    return WorkerStatus(**values | changes)


@dataclass
class ScriptedBackend:
    script: Callable[[Generation], Script]
    num_workers: int = 1
    num_silent: int = 0
    reachable: bool = True
    seen: list[Generation] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    async def generate(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        self.seen.append(generation)
        self.open.append(generation.request_id)
        ended = None
        try:
            for delta in self._deltas(generation):
                await asyncio.sleep(self.script(generation).pause_s)
                ended = delta.ended
                yield delta
        finally:
            self.open.remove(generation.request_id)
            if ended is None:
                self.cancelled.append(generation.request_id)

    async def describe(self) -> Description:
        if not self.reachable:
            raise NoWorkerError("the scheduler does not answer")
        ready = self.num_workers > 0
        return Description(
            model="tiny" if ready else None,
            max_model_len=WINDOW if ready else None,
            vocab_size=VOCAB if ready else None,
            num_parked=4,
            workers=tuple(
                worker_status(f"w{index}", ready=index >= self.num_silent, num_running=len(self.open), num_waiting=3)
                for index in range(self.num_workers)
            ),
        )

    def _deltas(self, generation: Generation) -> list[Delta]:
        """As a worker would: up to a stop token or max_tokens; a script that runs out starts anew, or fails."""
        script, stopping = self.script(generation), generation.stopping
        tokens: list[int] = []
        reason = EndReason.FAILED if script.error else EndReason.LENGTH
        source = script.tokens if script.error else [*script.tokens] * stopping.max_tokens
        for token in source[: stopping.max_tokens]:
            tokens.append(token)
            if token in stopping.stop_token_ids:
                reason = EndReason.STOP
                break
        error = script.error if reason is EndReason.FAILED else None
        ended = Ended(
            reason=reason,
            error_code=error.code if error else None,
            error_message=str(error) if error else None,
        )
        groups = [tuple(tokens[start : start + script.group]) for start in range(0, len(tokens), script.group)]
        cached = script.num_cached
        deltas = [
            Delta(
                ticket=1,
                tokens=group,
                num_cached=cached,
                waited_ms=script.waited_ms,
                num_drafts=script.num_drafts,
                num_accepted=min(script.num_drafts, len(group) - 1),
            )
            for group in groups
        ]
        # A failure comes by itself, any other end with the last tokens.
        if error or not groups:
            return [*deltas, Delta(ticket=1, num_cached=cached, ended=ended)]
        return [*deltas[:-1], replace(deltas[-1], ended=ended)]
