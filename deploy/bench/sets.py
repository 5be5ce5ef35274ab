"""Sets of prompts by what is hard about them for speculation: from chat to text that nobody can predict."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.model import ServedModel
from worker_svc.training.grammar import REQUEST, SLOTS
from worker_svc.training.prompts import Part, fill, read

Tokens = tuple[int, ...]

_RANDOM_LENGTH = 32
_CODE = (
    'def fibonacci(n: int) -> int:\n    """The n-th Fibonacci number."""\n',
    "import csv\nimport sys\n\n\ndef read_rows(path):\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
    "SELECT customers.name, COUNT(orders.id)\nFROM customers\nLEFT JOIN orders ON",
    "function debounce(callback, delay) {\n  let timer = null;\n",
    "def merge_sort(values):\n    if len(values) <= 1:\n        return values\n",
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n  <title>Contact us</title>\n',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """``make`` gives the prompt of an index, the same one each time."""

    temperature: float
    make: Callable[[ServedModel, int], Tokens]


def chat(model: ServedModel, index: int) -> Tokens:
    """A question that no training of the demo modules has seen, through the model's chat template if it has one."""
    prompts = read(Part.EVALUATION)
    question = fill(prompts.templates[index % len(prompts.templates)], prompts, random.Random(index))
    if model.template is None:
        return _encode(model, question)
    messages = [{"role": "user", "content": question}]
    return _encode(model, model.template.render(messages, open_reply=True, continue_last=False, extra={}))


def code(model: ServedModel, index: int) -> Tokens:
    """The beginning of a program."""
    return _encode(model, _CODE[index % len(_CODE)])


def noise(model: ServedModel, index: int) -> Tokens:
    """Random tokens."""
    vocab_size = model.tokenizer.get_vocab_size()
    return tuple(random.Random(index).choices(range(vocab_size), k=_RANDOM_LENGTH))


def story(model: ServedModel, index: int) -> Tokens:
    """A request that the story model knows how to answer."""
    rng = random.Random(index)
    question = REQUEST.format(hero=rng.choice(SLOTS["hero"]), kind=rng.choice(SLOTS["kind"]))
    messages = [{"role": "user", "content": question}]
    return _encode(model, model.chat_template().render(messages, open_reply=True, continue_last=False, extra={}))


SETS: Mapping[str, PromptSet] = {
    "chat": PromptSet(temperature=0.0, make=chat),
    "code": PromptSet(temperature=0.0, make=code),
    "sampled": PromptSet(temperature=1.0, make=chat),
    "random": PromptSet(temperature=2.0, make=noise),
    "story": PromptSet(temperature=0.0, make=story),
}
"""At temperature 2 the text stays random; a greedy one would soon repeat itself, and be easy to predict."""


def _encode(model: ServedModel, text: str) -> Tokens:
    (tokens,) = model.encode([text], add_special_tokens=False)
    return tokens
