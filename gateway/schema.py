"""The requests of the OpenAI API and of engines' clients, checked strictly: "5" is no number, NaN is no JSON.

Explicit null means left out. Fields known to be unsupported are refused by name, unknown ones are reported.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from augury import limits
from augury.errors import InvalidRequestError

_INT32 = 1 << 31
_UINT64 = 1 << 64
_MAX_SALT_CHARS = 1024
_MAX_TIMEOUT_S = 1e9


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _text_part(value: object) -> object:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


TokenId = Annotated[int, Field(ge=0, lt=_INT32)]
StopString = Annotated[str, Field(min_length=1, max_length=limits.MAX_STOP_STRING_CHARS)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class StreamOptions(_Model):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Sampled(_Model):
    """What every request for generated tokens may carry.

    ``max_drafts``, an extension, bounds the draft tokens that one step verifies for the request: 0 turns speculation
    off, null leaves it to the worker. It changes the speed, never the text. ``cache_salt`` keeps the cached prefixes of
    the request apart from those of requests with another one. ``timeout``, in seconds, is for the whole answer.
    """

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "response_format": ({"type": "text"},),
        "structured_outputs": (),
        "guided_json": (),
        "guided_regex": (),
        "guided_choice": (),
        "guided_grammar": (),
        "prompt_logprobs": (),
        "return_token_ids": (False,),
        "use_beam_search": (False,),
        "include_stop_str_in_output": (False,),
        "lora_request": (),
    }
    """Known fields that cannot be honoured, and the values that ask for nothing."""

    prompt_field: ClassVar[str] = "prompt"

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: int = Field(1, ge=1, le=limits.MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    stop: Annotated[list[StopString], BeforeValidator(_one_or_many), Field(max_length=limits.MAX_STOP_STRINGS)] = []
    stop_token_ids: list[TokenId] = Field([], max_length=limits.MAX_STOP_TOKEN_IDS)
    ignore_eos: bool = False
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=_INT32)
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    logit_bias: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Bias] = Field({}, max_length=limits.MAX_LOGIT_BIAS)
    seed: int | None = Field(None, ge=-_UINT64 // 2, lt=_UINT64)
    priority: int = Field(0, ge=-_INT32, lt=_INT32)
    max_drafts: int | None = Field(None, ge=0, lt=_INT32)
    cache_salt: str | None = Field(None, min_length=1, max_length=_MAX_SALT_CHARS)
    timeout: float | None = Field(None, gt=0, lt=_MAX_TIMEOUT_S)
    user: str | None = None

    @property
    def wanted_tokens(self) -> int | None:
        """The most tokens the client wants for each choice."""
        return self.max_tokens

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.wanted_tokens is not None and self.min_tokens > self.wanted_tokens:
            raise ValueError("min_tokens is larger than max_tokens")
        return self


class TextPart(_Model):
    type: Literal["text"]
    text: str


class Message(_Model):
    """One message. ``content`` of an assistant's message may be left out."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[TextPart] | None, BeforeValidator(_text_part)] = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = Field(None, max_length=0)

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError("content is missing")
        return self

    def for_template(self) -> dict[str, str]:
        """As chat templates read it: text parts joined by line breaks; to templates a developer is the system."""
        text = "\n".join(part.text for part in self.content or [])
        fields = {"role": "system" if self.role == "developer" else self.role, "content": text}
        optional = {"name": self.name, "reasoning_content": self.reasoning_content}
        return fields | {key: value for key, value in optional.items() if value is not None}


class ChatRequest(Sampled):
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **Sampled.unsupported,
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "reasoning_effort": (),
        "store": (False,),
        "echo": (False,),
        "documents": ([],),
        "chat_template": (),
    }

    prompt_field: ClassVar[str] = "messages"

    messages: list[Message] = Field(min_length=1, max_length=limits.MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def open_reply(self) -> bool:
        """Whether the prompt ends with the start of the assistant's answer."""
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt

    @model_validator(mode="after")
    def _one_ending(self) -> Self:
        if self.continue_final_message and self.open_reply:
            raise ValueError("continue_final_message and add_generation_prompt exclude each other")
        return self


class CompletionRequest(Sampled):
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **Sampled.unsupported,
        "logprobs": (),
        "best_of": (1,),
        "suffix": ("",),
        "echo": (False,),
        "prompt_embeds": (),
    }

    prompt: Any
    """A string, a list of strings, token ids or a list of token id lists; gateway.prompts tells which."""


class TokenizeRequest(_Model):
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {"messages": ()}
    model: str | None = None
    prompt: str
    add_special_tokens: bool = True


class DetokenizeRequest(_Model):
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    model: str | None = None
    tokens: list[TokenId]


AnyRequest = TypeVar("AnyRequest", ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)


def parse(kind: type[AnyRequest], body: bytes) -> tuple[AnyRequest, list[str]]:
    """The request in a JSON body, and the names of its fields that are unknown. Raises InvalidRequestError."""
    fields = {name: value for name, value in _decode(body).items() if value is not None}
    for name, harmless in kind.unsupported.items():
        if name in fields and not any(_same(fields[name], value) for value in harmless):
            raise InvalidRequestError(f"{name} is not supported here", name)
    unknown = [name for name in fields if name not in kind.model_fields and name not in kind.unsupported]
    try:
        return kind.model_validate(fields), unknown
    except ValidationError as error:
        raise _to_domain(error) from None


def _decode(body: bytes) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply") from None
    if not isinstance(content, dict):
        raise InvalidRequestError("the body is not a JSON object")
    return content


def _same(a: object, b: object) -> bool:
    """Equality that tells 0 from False."""
    return type(a) is type(b) and a == b


def _to_domain(error: ValidationError) -> InvalidRequestError:
    """The first complaint, with the place of the fault as ``messages[0].content``."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    place = place[: limits.MAX_ERROR_CHARS // 3]
    message = first["msg"].removeprefix("Value error, ")
    return InvalidRequestError(f"{place}: {message}" if place else message, place or None)
