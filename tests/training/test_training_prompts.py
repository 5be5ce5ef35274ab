"""The prompts: training and evaluation share nothing, and they look as the chat template writes them."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from jinja2 import Environment

from worker_svc.training.prompts import _NUMBERS, Part, chat, chatml, read


def entries(part: Part) -> set[str]:
    return {entry for words in read(part).entries.values() for entry in words}


def test_training_and_evaluation_share_no_template_and_no_list_entry() -> None:
    train, evaluation = read(Part.TRAIN), read(Part.EVALUATION)
    assert not set(train.templates) & set(evaluation.templates)
    assert not entries(Part.TRAIN) & entries(Part.EVALUATION)


def test_no_template_is_another_with_its_slots_renamed() -> None:
    bare = [re.sub(r"\{\w+\}", "{}", t).lower() for part in Part for t in read(part).templates]
    assert len(set(bare)) == len(bare) > 100


@pytest.mark.parametrize("part", Part)
def test_every_slot_has_a_list_and_every_list_a_slot(part: Part) -> None:
    slots = set(re.findall(r"\{(\w+)\}", " ".join(read(part).templates)))
    assert slots - set(_NUMBERS) == set(read(part).entries)


@pytest.mark.parametrize("part", Part)
def test_a_round_of_prompts_uses_every_template_once_and_no_prompt_comes_twice(part: Part) -> None:
    num = len(read(part).templates)
    prompts = [chat(part, index) for index in range(num, 2 * num)]
    assert all("{" not in prompt for prompt in prompts)
    for template in read(part).templates:
        form = re.sub(r"\\\{\w+\\\}", ".+", re.escape(template))
        assert any(re.search(rf"user\n{form}<\|im_end", prompt) for prompt in prompts)
    assert len(set(prompts)) == num


def test_a_prompt_is_what_the_models_chat_template_writes(gguf_fields: Mapping[str, Any]) -> None:
    template = gguf_fields["tokenizer.chat_template"]
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello!"}]
    expected = Environment().from_string(template).render(messages=messages, add_generation_prompt=True)
    assert chatml("Be kind.", "Hello!") == expected
