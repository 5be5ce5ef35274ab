"""The draft vocabulary: the tokens that the modules' head reads, because texts are mostly made of them."""

from collections import Counter
from collections.abc import Iterable

import torch
from tokenizers import Tokenizer
from torch import Tensor

from worker_svc.training.corpus import Text

DRAFT_SIZE = 8192


def draft_ids(texts: Iterable[Text], tokenizer: Tokenizer, size: int) -> Tensor:
    """[size] token ids, ascending: special tokens and single bytes, then the most frequent of the answers.

    Where the answers have too few different tokens, the lowest other ids follow: byte-pair encoding numbers its tokens
    by the frequency that it saw. Raises ValueError for a ``size`` beyond the vocabulary.
    """
    if size > tokenizer.get_vocab_size():
        raise ValueError(f"{size} draft tokens were asked for, the vocabulary has {tokenizer.get_vocab_size()}")
    counts = Counter(token for text in texts for token in text.answer)
    frequent = sorted(counts, key=lambda token: (-counts[token], token))
    chosen = dict.fromkeys([*_always(tokenizer), *frequent, *range(tokenizer.get_vocab_size())])
    return torch.tensor(sorted(list(chosen)[:size]))


def _always(tokenizer: Tokenizer) -> list[int]:
    special = [token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    return special + [token_id for token, token_id in tokenizer.get_vocab().items() if len(token) == 1]
