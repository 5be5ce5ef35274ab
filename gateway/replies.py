"""What clients are sent: the bodies and chunks of the OpenAI API."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A choice's next text, which may be empty; ``finish_reason`` is set on the last piece."""

    index: int
    text: str
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts that were verified: those that became text, and the others. Only the former are completion tokens."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


def usage_of(*, num_prompt: int, num_cached: int, num_completion: int, num_drafts: int, num_accepted: int) -> Usage:
    """``num_accepted`` of ``num_drafts`` verified drafts are among the completion tokens."""
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        prompt_tokens_details=PromptDetails(cached_tokens=num_cached),
        completion_tokens_details=CompletionDetails(
            accepted_prediction_tokens=num_accepted, rejected_prediction_tokens=num_drafts - num_accepted
        ),
    )


ChunkUsage = Usage | None | UnsetType
"""Usage in a chunk: left out where the client did not ask for it, else null until it is known."""


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str
    created: int
    model: str
    choices: list[msgspec.Struct]
    usage: ChunkUsage = UNSET


class _Delta(msgspec.Struct, frozen=True, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class _ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: _Delta
    logprobs: None = None
    finish_reason: str | None


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str
    refusal: None = None


class _ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: _Message
    logprobs: None = None
    finish_reason: str | None


class _CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None


class Reply(ABC):
    """One endpoint's form of an answer."""

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, reply_id: str, model: str) -> None:
        self._id = reply_id
        self._model = model
        self._created = int(time.time())

    def chunk(self, piece: Piece, *, is_first: bool, usage: ChunkUsage) -> msgspec.Struct:
        """One streamed piece; ``is_first`` of its choice."""
        return self._envelope(self.chunk_kind, [self._chunk_choice(piece, is_first)], usage)

    def usage_chunk(self, usage: Usage) -> msgspec.Struct:
        """The chunk without choices that tells the usage."""
        return self._envelope(self.chunk_kind, [], usage)

    def whole(self, choices: Sequence[Piece], usage: Usage) -> msgspec.Struct:
        """The answer in one body."""
        return self._envelope(self.kind, [self._choice(choice) for choice in choices], usage)

    @abstractmethod
    def _chunk_choice(self, piece: Piece, is_first: bool) -> msgspec.Struct: ...

    @abstractmethod
    def _choice(self, piece: Piece) -> msgspec.Struct: ...

    def _envelope(self, kind: str, choices: list[msgspec.Struct], usage: ChunkUsage) -> _Envelope:
        return _Envelope(
            id=self._id, object=kind, created=self._created, model=self._model, choices=choices, usage=usage
        )


class ChatReply(Reply):
    """Answers of /v1/chat/completions."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def _chunk_choice(self, piece: Piece, is_first: bool) -> msgspec.Struct:
        content = piece.text if piece.text or is_first else UNSET
        delta = _Delta(role="assistant" if is_first else UNSET, content=content)
        return _ChatChunkChoice(index=piece.index, delta=delta, finish_reason=piece.finish_reason)

    def _choice(self, piece: Piece) -> msgspec.Struct:
        return _ChatChoice(index=piece.index, message=_Message(content=piece.text), finish_reason=piece.finish_reason)


class CompletionReply(Reply):
    """Answers of /v1/completions."""

    kind = chunk_kind = "text_completion"

    def _chunk_choice(self, piece: Piece, is_first: bool) -> msgspec.Struct:
        return self._choice(piece)

    def _choice(self, piece: Piece) -> msgspec.Struct:
        return _CompletionChoice(index=piece.index, text=piece.text, finish_reason=piece.finish_reason)
