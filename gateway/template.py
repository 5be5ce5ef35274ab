"""Chat templates: Jinja in a sandbox, with the variables and settings that Hugging Face's templates are written for."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from augury.errors import InvalidRequestError

_REFUSALS = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a template raises over messages that it was not written for."""


class ChatTemplate:
    """Renders messages to the text of a prompt. Raises ValueError where the template itself is broken."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"the chat template cannot be parsed: {error}") from error
        self._special_tokens = special_tokens

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, open_reply: bool, continue_last: bool, extra: Mapping[str, Any]
    ) -> str:
        """The prompt; ``open_reply`` starts the answer, ``continue_last`` ends inside the last message.

        Raises InvalidRequestError where the template refuses the messages or the ``extra`` variables.
        """
        known = {**self._special_tokens, "messages": messages, "add_generation_prompt": open_reply}
        try:
            text = self._template.render({"tools": None, "documents": None, **extra, **known})
        except (
            TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise InvalidRequestError(f"the chat template refuses the messages: {error}", "messages") from error
        return _cut_after(text, messages[-1]["content"]) if continue_last else text


def _cut_after(text: str, content: str) -> str:
    """``text`` up to the end of the last ``content`` in it, which the template may have stripped of white space."""
    start = text.rfind(content.strip())
    if start < 0 or not content.strip():
        raise InvalidRequestError("the last message cannot be continued", "continue_final_message")
    whole = content.lstrip()
    return text[: start + len(whole if text.startswith(whole, start) else content.strip())]


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it is its body."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
