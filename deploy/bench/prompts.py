"""Prompts made from a seed. No data set: the words carry no meaning, only a length and a shared beginning."""

import random

# With a space before it, each is a single token in the usual English vocabularies.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city name team minute idea body back parent face level office door "
    "health person art war history party result change morning reason research girl guy moment air teacher force"
)
WORDS = _TEXT.split()


def make_prompt(num_tokens: int, *, shared: float, seed: int, index: int) -> str:
    """About ``num_tokens`` tokens: one word each.

    The first ``shared`` (0 to 1) of them are the same for every ``index`` of one ``seed``, the others are its own.
    """
    assert num_tokens >= 1 and 0 <= shared <= 1
    num_shared = round(num_tokens * shared)
    common = random.Random(seed).choices(WORDS, k=num_shared)
    own = random.Random(f"{seed}/{index}").choices(WORDS, k=num_tokens - num_shared)
    return " ".join(common + own)
