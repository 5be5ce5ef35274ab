"""How many tokens each request computes in one iteration.

A *prompt* is any request with more than one known token to compute: a new one, or one that resumes.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise


def chunk(remaining: int, budget: int, lookahead: int) -> int:
    """The largest chunk of ``remaining`` prompt tokens within ``budget`` that ends at the prompt's end or at least
    ``lookahead`` tokens before it (mtp_semantics §2.5). Positive if ``budget >= min(max(lookahead, 1), remaining)``.
    """
    size = min(remaining, budget)
    left = remaining - size
    return max(size - (lookahead - left), 0) if 0 < left < lookahead else size


def min_budget(lookahead: int, max_drafts: int) -> int:
    """The least token budget under which the oldest prompt advances and the oldest decode verifies all its drafts."""
    return max(lookahead, 1) + 1 + max_drafts


def share_budget(
    prompts: Sequence[int], decodes: Sequence[int], budget: int, lookahead: int
) -> tuple[list[int], list[int]]:
    """Tokens for each prompt and each decode, both given by their remaining tokens in policy order.

    Decodes come first, so that a long prompt never stalls running streams; yet what the oldest prompt needs to advance
    at all is set aside before, so that decodes never starve it (mtp_semantics §2.5 shows the starvation).
    """
    set_aside = min(prompts[0], max(lookahead, 1)) if prompts else 0
    left = max(budget - set_aside, 0)
    decode_sizes = list(decodes)
    if sum(decodes) > left:
        ends = [min(end, left) for end in accumulate(decodes, initial=0)]
        decode_sizes = [end - start for start, end in pairwise(ends)]
    left += min(set_aside, budget) - sum(decode_sizes)
    prompt_sizes = []
    for remaining in prompts:
        prompt_sizes.append(chunk(remaining, left, lookahead))
        left -= prompt_sizes[-1]
    return prompt_sizes, decode_sizes
