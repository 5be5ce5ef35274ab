"""A probabilistic grammar of short stories, and the check of a text against it.

A story is one sentence of each stage in turn. A slot that several sentences share stands for the same words throughout:
whoever is named at the beginning keeps name, kind and belongings until the end.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache

_NAMES = [
    *("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jonas"),
    *("Kira", "Leo", "Mia", "Noah", "Olga", "Paul", "Rosa", "Simon", "Tara", "Victor"),
]
_ANIMALS = ["fox", "bear", "rabbit", "mouse", "cat", "dog", "owl", "duck", "frog", "goat", "horse", "hedgehog"]
_THINGS = ["key", "lamp", "drum", "kite", "boat", "bell", "hat", "book", "map", "coin", "clock", "flute"]
_PLACES = ["forest", "village", "valley", "garden", "harbour", "castle", "meadow", "mill"]
_MOODS = ["happy", "sad", "tired", "hungry", "proud", "curious"]
_LOOKS = ["small", "big", "old", "young", "clever", "brave", "shy", "gentle"]
_COLOURS = ["red", "blue", "green", "golden", "silver", "white"]

SLOTS: Mapping[str, Sequence[str]] = {
    "hero": _NAMES,
    "friend": _NAMES,
    "kind": _ANIMALS,
    "friend_kind": _ANIMALS,
    "thing": _THINGS,
    "colour": _COLOURS,
    "home": _PLACES,
    "place": _PLACES,
    "look": _LOOKS,
    "friend_look": _LOOKS,
    "mood": _MOODS,
    "mood_after": _MOODS,
}

REQUEST = "Tell me a story about {hero} the {kind}."

STAGES: Sequence[Sequence[str]] = (
    (
        "Once upon a time there was a {look} {kind} named {hero}.",
        "Long ago a {look} {kind} named {hero} lived all alone.",
        "This is the story of {hero}, a {look} {kind}.",
    ),
    (
        "{hero} lived in a little house near the {home}.",
        "The home of {hero} was a hole under a tree in the {home}.",
        "Everybody in the {home} knew {hero} the {kind}.",
    ),
    (
        "{hero} had a friend, a {friend_look} {friend_kind} named {friend}.",
        "Next door lived {friend}, a {friend_look} {friend_kind}.",
        "The best friend of {hero} was a {friend_look} {friend_kind} named {friend}.",
    ),
    (
        "One morning {hero} found a {colour} {thing} on the way to the {place}.",
        "On a cold evening {hero} saw a {colour} {thing} in the grass near the {place}.",
        "One day the wind carried a {colour} {thing} from the {place} to the house of {hero}.",
    ),
    (
        '"What a beautiful {thing}!" said {hero}.',
        '"Who has lost this {thing}?" asked {hero}.',
        "{hero} had never seen such a {colour} {thing} before.",
    ),
    (
        "{hero} was very {mood} and showed the {thing} to {friend}.",
        "So {hero} took the {colour} {thing} and ran to {friend} the {friend_kind}.",
        "{friend} the {friend_kind} came by and looked at the {thing} for a long time.",
    ),
    (
        '"I know this {thing}," said {friend}. "It belongs to the king of the {place}."',
        '"Let us go to the {place} together," said {friend}, "and ask for the owner."',
        '"Be careful, {hero}," said {friend}. "A {colour} {thing} can be magic."',
    ),
    (
        "They walked the whole day until they came to the {place}.",
        "{hero} and {friend} packed some bread and went to the {place}.",
        "The {friend_kind} led the way, and the {kind} carried the {thing}.",
    ),
    (
        "In the {place} an old woman was looking for her {colour} {thing}.",
        "There a child was crying, because the {thing} was gone.",
        "At the gate of the {place} a guard asked them about the {thing}.",
    ),
    (
        "{hero} gave the {thing} back without a word.",
        '"Here is your {thing}," said {hero} and smiled.',
        "{friend} told the whole story, and {hero} held up the {colour} {thing}.",
    ),
    (
        '"Thank you, {hero} and {friend}!" said everyone. "You are true friends."',
        "As a reward {hero} got a cake, and {friend} got a warm blanket.",
        "From then on the {thing} stood in the middle of the {place} for all to see.",
    ),
    (
        "In the evening {hero} the {kind} went home to the {home}, {mood_after} and full of cake.",
        "And {hero} and {friend} stayed friends for ever.",
        "That night {hero} was {mood_after} and dreamed of the {colour} {thing}.",
    ),
)

_SLOT = re.compile(r"\{(\w+)\}")


class Verdict(Enum):
    """``MIXED_UP`` follows the grammar sentence by sentence, but a name or thing changes on the way."""

    SOUND = "sound"
    MIXED_UP = "mixed up"
    BROKEN = "broken"


def story(rng: random.Random) -> tuple[str, str]:
    """A request and the story that answers it, drawn from the grammar."""
    filling = {slot: rng.choice(words) for slot, words in SLOTS.items()}
    filling["friend"] = rng.choice([name for name in _NAMES if name != filling["hero"]])
    text = " ".join(rng.choice(stage) for stage in STAGES).format_map(filling)
    return REQUEST.format_map(filling), text


def check(request: str, text: str) -> Verdict:
    """What the grammar says of a whole story that answers ``request``, which may be empty."""
    asked = re.fullmatch(_pattern(REQUEST), request)
    sentences = list(_sentences(text))
    if len(sentences) != len(STAGES) or (request and asked is None):
        return Verdict.BROKEN
    known = dict(asked.groupdict()) if asked else {}
    for found in sentences:
        if any(known.get(slot, word) != word for slot, word in found.items()):
            return Verdict.MIXED_UP
        known |= found
    return Verdict.SOUND


def _sentences(text: str) -> Iterator[dict[str, str]]:
    """What fills the slots of each stage's sentence, as far as the text follows the grammar and to its very end."""
    start = 0
    for number, stage in enumerate(STAGES):
        ending = r"\Z" if number == len(STAGES) - 1 else " "
        matches = (re.compile(_pattern(template) + ending).match(text, start) for template in stage)
        found = next((match for match in matches if match), None)
        if found is None:
            return
        yield found.groupdict()
        start = found.end()


@cache
def _pattern(template: str) -> str:
    """A regular expression with a group for each slot of the template, which has none twice."""
    parts = _SLOT.split(template)
    return "".join(
        f"(?P<{part}>{'|'.join(SLOTS[part])})" if index % 2 else re.escape(part) for index, part in enumerate(parts)
    )
