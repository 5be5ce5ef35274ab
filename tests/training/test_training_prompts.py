"""The prompts: training and evaluation share nothing, and they look as the chat template writes them."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from jinja2 import Environment

from worker_svc.training.prompts import _NUMBERS, Part, chat, chatml, read
from worker_svc.training.smollm2 import TRAINING_PARTS


def entries(part: Part) -> set[str]:
    return {entry for words in read(part).entries.values() for entry in words}


def test_training_and_evaluation_share_no_template_and_no_list_entry() -> None:
    evaluation = read(Part.EVALUATION)
    for part in TRAINING_PARTS:
        assert not set(read(part).templates) & set(evaluation.templates)
        assert not entries(part) & entries(Part.EVALUATION)
    assert {*TRAINING_PARTS, Part.EVALUATION} == set(Part)


def test_no_template_is_another_with_its_slots_renamed() -> None:
    bare = [re.sub(r"\{\w+\}", "{}", t).lower() for part in Part for t in read(part).templates]
    assert len(set(bare)) == len(bare) > 400


@pytest.mark.parametrize("part", Part)
def test_every_slot_has_a_list_and_every_list_a_slot(part: Part) -> None:
    slots = set(re.findall(r"\{(\w+)\}", " ".join(read(part).templates)))
    assert slots - set(_NUMBERS) == set(read(part).entries)


def _is_made_from(template: str, prompt: str) -> bool:
    """Whether what stands between the template's slots comes in this order, behind the user's role."""
    at = prompt.index("user\n")
    for piece in re.split(r"\{\w+\}|\n---\n", template):
        at = prompt.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


@pytest.mark.parametrize("part", Part)
def test_a_round_of_prompts_uses_every_template_once_and_no_prompt_comes_twice(part: Part) -> None:
    num = len(read(part).templates)
    prompts = [chat(part, index) for index in range(num, 2 * num)]
    assert not any(re.search(r"\{\w+\}", prompt) for prompt in prompts)
    for template in read(part).templates:
        assert any(_is_made_from(template, prompt) for prompt in prompts)
    assert len(set(prompts)) == num


def test_a_prompt_is_what_the_models_chat_template_writes(gguf_fields: Mapping[str, Any]) -> None:
    template = gguf_fields["tokenizer.chat_template"]
    contents = ["Be kind.", "Hello!", "Hi. What is it?", "A joke, please."]
    messages = [
        {"role": r, "content": c} for r, c in zip(["system", "user", "assistant", "user"], contents, strict=True)
    ]
    for num_messages in (2, 4):
        expected = (
            Environment().from_string(template).render(messages=messages[:num_messages], add_generation_prompt=True)
        )
        assert chatml(contents[0], contents[1:num_messages]) == expected
