"""One request as the scheduler knows it."""

from dataclasses import dataclass, field

from augury.types import Generation


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """``num_computed`` chases the known tokens; there are no phases.

    ``tokens`` are known: prompt, then emitted. ``blocks`` is the block table leased from the KV service: its first
    ``num_sealed`` blocks are sealed, its first ``num_delivered`` known to the worker. ``keys`` are those of the full
    blocks, as far as computed. Of ``num_final`` tokens no later step rewrites the KV; ``num_drafts`` wait at the worker
    to be verified. ``denied_at`` is what the pool had available when it last denied the request.
    """

    handle: int
    generation: Generation
    arrival: int
    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_final: int = 0
    num_drafts: int = 0
    blocks: list[int] = field(default_factory=list)
    num_sealed: int = 0
    num_delivered: int = 0
    keys: list[bytes] = field(default_factory=list)
    num_cached: int | None = None
    denied_at: int | None = None

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = [*self.generation.prompt, *self.generation.emitted]

    @property
    def num_emitted(self) -> int:
        return len(self.tokens) - len(self.generation.prompt)

    @property
    def remaining(self) -> int:
        """Known tokens to compute."""
        return len(self.tokens) - self.num_computed

    def restart(self) -> None:
        """Back to nothing computed and nothing leased: what a preemption, a fence or a move to another worker means."""
        self.num_computed = self.num_final = self.num_drafts = self.num_sealed = self.num_delivered = 0
        self.blocks = []
        self.denied_at = None
