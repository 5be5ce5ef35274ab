"""The text side of a model: tokenizer, chat template and end-of-sequence ids, from a Hugging Face style folder."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

from augury.errors import InvalidRequestError
from gateway.template import ChatTemplate

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """``token_bytes`` holds the bytes that each token adds to the text; special tokens add none and are left out."""

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate | None
    eos_token_ids: frozenset[int]
    token_bytes: Mapping[int, bytes]

    @classmethod
    def load(cls, path: Path, name: str) -> Self:
        """Read ``tokenizer.json``, and where they exist ``tokenizer_config.json``, ``chat_template.jinja``,
        ``generation_config.json`` and ``config.json``. Raises ValueError where the folder cannot be served.
        """
        if not (path / "tokenizer.json").is_file():
            raise ValueError(f"{path} has no tokenizer.json")
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = _read_json(path / "tokenizer_config.json")
        source = _template_source(path / "chat_template.jinja", config.get("chat_template"))
        special = {key: token for key in _SPECIAL_TOKENS if (token := _token_text(config.get(key))) is not None}
        return cls(
            name=name,
            tokenizer=tokenizer,
            template=None if source is None else ChatTemplate(source, special),
            eos_token_ids=_eos_ids(path, tokenizer, special.get("eos_token")),
            token_bytes=token_bytes(tokenizer),
        )

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[tuple[int, ...]]:
        """Token ids of each text, without holding the interpreter lock (which Tokenizer.encode does)."""
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [tuple(encoding.ids) for encoding in encodings]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens; special tokens are left out, broken UTF-8 becomes U+FFFD."""
        return b"".join(self.token_bytes.get(token, b"") for token in tokens).decode(errors="replace")

    def chat_template(self) -> ChatTemplate:
        """Raises InvalidRequestError where the model has none."""
        if self.template is None:
            raise InvalidRequestError("this model has no chat template; use /v1/completions", "messages")
        return self.template


def token_bytes(tokenizer: Tokenizer) -> dict[int, bytes]:
    """The bytes of every token that is not special.

    Understands byte-level tokenizers (every vocabulary character stands for a byte) and those with byte fallback
    ("▁" is a space, "<0x0A>" a byte). Raises ValueError for others.
    """
    decoder = json.loads(tokenizer.to_str())["decoder"] or {}
    kinds = {part["type"] for part in decoder.get("decoders", [decoder]) if part}
    if "ByteLevel" in kinds:
        to_bytes = _byte_level
    elif "ByteFallback" in kinds:
        to_bytes = _byte_fallback
    else:
        raise ValueError(f"unsupported kind of tokenizer: its decoder is {sorted(kinds)}")
    added = tokenizer.get_added_tokens_decoder()
    ordinary = {i: to_bytes(text) for text, i in tokenizer.get_vocab(with_added_tokens=False).items() if i not in added}
    visible = {i: token.content.encode() for i, token in added.items() if not token.special}
    return ordinary | visible


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level tokenizers write for the bytes (GPT-2's bytes_to_unicode, inverted)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    # As the library's decoder: a token with any foreign character stands for itself.
    return bytes(_BYTES[char] for char in token) if all(char in _BYTES for char in token) else token.encode()


def _byte_fallback(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace("▁", " ").encode()


def _eos_ids(path: Path, tokenizer: Tokenizer, eos_token: str | None) -> frozenset[int]:
    for file in ("generation_config.json", "config.json"):
        ids = _read_json(path / file).get("eos_token_id")
        if ids is not None:
            return frozenset(ids if isinstance(ids, list) else [ids])
    token_id = None if eos_token is None else tokenizer.token_to_id(eos_token)
    return frozenset() if token_id is None else frozenset([token_id])


def _template_source(file: Path, configured: str | list[dict[str, str]] | None) -> str | None:
    if file.is_file():
        return file.read_text()
    if isinstance(configured, list):
        return {entry["name"]: entry["template"] for entry in configured}.get("default")
    return configured


def _token_text(token: str | dict[str, Any] | None) -> str | None:
    return token["content"] if isinstance(token, dict) else token


def _read_json(file: Path) -> dict[str, Any]:
    """The object in a file; an empty one where there is no file."""
    if not file.is_file():
        return {}
    try:
        content: dict[str, Any] = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    return content
