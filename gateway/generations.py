"""A checked request and its prompts, as the generations to ask the backend for."""

import secrets
from collections.abc import Collection, Sequence

from augury import limits
from augury.errors import ContextLengthError, InvalidRequestError
from augury.types import Generation, SamplingParams, StopParams
from gateway.prompts import Tokens
from gateway.schema import Sampled
from gateway.window import Window

_GREEDY_BELOW = 1e-4
"""A temperature under which logits divided by it leave float32's range for large logits."""

_SEED_STRIDE = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: keeps the seeds of choices apart from those of neighbouring request seeds."""


def choice_seed(seed: int, index: int) -> int:
    """The 64-bit seed of choice ``index``: ``seed + index * 0x9E3779B97F4A7C15`` modulo 2^64.

    The first choice has the request's own seed; choices of different prompts of one request have the same seeds.
    """
    return (seed + index * _SEED_STRIDE) % (1 << 64)


def generations(
    request: Sampled,
    prompts: Sequence[Tokens],
    eos_token_ids: frozenset[int],
    window: Window,
    request_id: str,
    cache_salt: bytes,
) -> list[Generation]:
    """``request.n`` generations for each prompt, in the order of the API's choices.

    Without a seed a random one is drawn. Raises InvalidRequestError for a token id outside the vocabulary,
    ContextLengthError where prompt and wanted tokens cannot fit.
    """
    if request.n * len(prompts) > limits.MAX_CHOICES:
        raise InvalidRequestError(f"more than {limits.MAX_CHOICES} choices in one request", "n")
    stoppings = [_stopping(request, eos_token_ids, len(prompt), window.max_model_len) for prompt in prompts]
    for prompt in prompts:
        _check_tokens(prompt, window.vocab_size, request.prompt_field)
    _check_tokens(request.stop_token_ids, window.vocab_size, "stop_token_ids")
    seed = secrets.randbits(63) if request.seed is None else request.seed
    samplings = [_sampling(request, window.vocab_size, choice_seed(seed, index)) for index in range(request.n)]
    return [
        Generation(
            request_id=f"{request_id}-{number * request.n + index}",
            prompt=prompt,
            sampling=sampling,
            stopping=stopping,
            priority=request.priority,
            cache_salt=cache_salt,
            max_drafts=request.max_drafts,
        )
        for number, (prompt, stopping) in enumerate(zip(prompts, stoppings, strict=True))
        for index, sampling in enumerate(samplings)
    ]


def _sampling(request: Sampled, vocab_size: int, seed: int) -> SamplingParams:
    bias = {int(token): value for token, value in request.logit_bias.items()}
    _check_tokens(bias, vocab_size, "logit_bias")
    return SamplingParams(
        temperature=request.temperature if request.temperature >= _GREEDY_BELOW else 0.0,
        top_k=request.top_k if request.top_k > 0 else None,
        top_p=request.top_p,
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=bias,
        seed=seed,
    )


def _stopping(request: Sampled, eos_token_ids: frozenset[int], num_prompt: int, window: int) -> StopParams:
    if not num_prompt:
        raise InvalidRequestError("the prompt is empty", request.prompt_field)
    wanted = request.wanted_tokens
    if num_prompt + (wanted or max(request.min_tokens, 1)) > window:
        asked = f" and {wanted} of the answer" if wanted else ""
        raise ContextLengthError(
            f"the request exceeds the context window of {window} tokens: {num_prompt} of the prompt{asked}",
            "max_tokens" if wanted and num_prompt < window else request.prompt_field,
        )
    return StopParams(
        max_tokens=wanted or window - num_prompt,
        min_tokens=request.min_tokens,
        stop_token_ids=frozenset(request.stop_token_ids) | (frozenset() if request.ignore_eos else eos_token_ids),
    )


def _check_tokens(tokens: Collection[int], vocab_size: int, param: str) -> None:
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise InvalidRequestError(f"{param}: a token id is outside the vocabulary of {vocab_size}", param)
