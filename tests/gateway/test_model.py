"""Tokens, prompts and end-of-sequence ids are those that Hugging Face's libraries would make of the same folder."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from augury.errors import InvalidRequestError
from gateway.model import ServedModel, token_bytes
from gateway.template import ChatTemplate
from tests.gateway.tiny import CHATML, write_model

CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": " the fox? "},
    {"role": "assistant", "content": "jumps over "},
]


def test_every_single_token_has_the_text_of_the_tokenizer(model: ServedModel) -> None:
    for token in range(model.tokenizer.get_vocab_size()):
        assert model.decode([token]) == model.tokenizer.decode([token], skip_special_tokens=True)


@pytest.mark.parametrize("ending", [{}, {"add_generation_prompt": True}, {"continue_final_message": True}])
def test_chats_render_as_transformers_renders_them(folder: Path, model: ServedModel, ending: dict[str, bool]) -> None:
    expected = PreTrainedTokenizerFast.from_pretrained(folder).apply_chat_template(CHAT, tokenize=False, **ending)
    text = model.chat_template().render(
        CHAT,
        open_reply=ending.get("add_generation_prompt", False),
        continue_last=ending.get("continue_final_message", False),
        extra={},
    )
    assert text == expected


def test_a_trimmed_last_message_is_continued_where_it_was_trimmed() -> None:
    template = ChatTemplate("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", {})
    assert template.render(CHAT, open_reply=False, continue_last=True, extra={}) == "<be brief><the fox?><jumps over"


def test_templates_see_extra_variables_special_tokens_and_helpers() -> None:
    source = "{{ bos_token }}{% generation %}{{ mood | tojson }}{% endgeneration %}{{ strftime_now('%%') }}"
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.render(CHAT, open_reply=True, continue_last=False, extra={"mood": "é"}) == '<s>"é"%'


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages + 1 }}",
        "{{ messages[9].content.x }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}{{ messages.append(1) }}",
    ],
)
def test_a_template_that_fails_is_the_clients_error(source: str) -> None:
    with pytest.raises(InvalidRequestError):
        ChatTemplate(source, {}).render(CHAT, open_reply=True, continue_last=False, extra={})


def test_a_template_that_cannot_be_parsed_stops_the_load(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chat template"):
        ServedModel.load(write_model(tmp_path, "{% for %}"), "tiny")


def test_a_template_file_wins_over_the_configured_one(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("from the file")
    template = ServedModel.load(tmp_path, "tiny").chat_template()
    assert template.render(CHAT, open_reply=True, continue_last=False, extra={}) == "from the file"


def test_the_default_one_of_several_templates_is_used(tmp_path: Path) -> None:
    write_model(tmp_path)
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": CHATML}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    template = ServedModel.load(tmp_path, "tiny").chat_template()
    assert template.render(CHAT[:1], open_reply=False, continue_last=False, extra={}) == (
        "<|im_start|>system\nbe brief<|im_end|>\n"
    )


def test_end_ids_come_from_the_most_specific_file(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    assert ServedModel.load(tmp_path, "tiny").eos_token_ids == {2}
    (tmp_path / "generation_config.json").unlink()
    assert ServedModel.load(tmp_path, "tiny").eos_token_ids == {0}
    (tmp_path / "config.json").unlink()
    assert ServedModel.load(tmp_path, "tiny").eos_token_ids == {2}


def test_byte_fallback_tokens_are_bytes() -> None:
    tokenizer = Tokenizer(models.BPE({"▁a": 0, "<0xC3>": 1, "<0xA9>": 2}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    assert token_bytes(tokenizer) == {0: b" a", 1: b"\xc3", 2: b"\xa9"}
    assert tokenizer.decode([0, 1, 2]) == " aé"


def test_a_folder_that_cannot_be_served_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        ServedModel.load(tmp_path, "tiny")
    write_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="WordPiece"):
        ServedModel.load(tmp_path, "tiny")
