"""How many blocks of the pool a request asks for: to go on, to be admitted, to reach the end of its known tokens."""

from collections.abc import Iterable

from augury.errors import ContextLengthError, InvalidRequestError
from augury.geometry import peak_blocks
from augury.types import Reserve
from scheduler_svc.core.encoder import check_inputs
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.core.names import Names
from scheduler_svc.core.request import Request


def num_slots(config: LaneConfig, request: Request) -> int:
    """Slots of the known tokens and of the drafts behind them."""
    return len(request.tokens) + config.max_drafts


def num_ahead(config: LaneConfig, request: Request) -> int:
    """Slots past the computed tokens that the next step may write."""
    return min(request.remaining, config.max_batched_tokens) + config.max_drafts


def short(config: LaneConfig, requests: Iterable[Request]) -> list[Request]:
    """Those of ``requests`` whose next step may write past their tables: once an iteration over all that run."""
    slots = config.max_drafts
    return [r for r in requests if len(r.tokens) + slots > r.capacity and _is_short(config, r)]


def _is_short(config: LaneConfig, request: Request) -> bool:
    return request.num_computed + num_ahead(config, request) > request.capacity


def growth(config: LaneConfig, request: Request) -> int:
    """Blocks that the request's next growth takes from the pool, less those that it gives back.

    The latter may be shared. After a denial they are in what the pool has available, and count here no more.
    """
    slots, computed = num_slots(config, request), request.num_computed
    reached = computed + num_ahead(config, request)
    balance = 0
    for group, table in zip(config.groups, request.tables, strict=True):
        balance += max(group.table_length(slots, reached) - len(table.blocks), 0)
        balance -= max(group.num_skipped(computed) - table.num_dead, 0)
    return balance


def claim(config: LaneConfig, request: Request) -> int:
    """Blocks that a request with a lease may still need until its known tokens are computed.

    Hits in a window do not count as had: when the window leaves them behind, others may keep them.
    """
    slots, ahead = num_slots(config, request), num_ahead(config, request)
    return sum(
        max(group.peak(slots, ahead) - (table.num_held if group.window is None else table.num_own), 0)
        for group, table in zip(config.groups, request.tables, strict=True)
    )


def entry(config: LaneConfig, request: Request, num_hit: int) -> int:
    """Blocks that a waiting request needs in all if ``num_hit`` tokens are hit.

    Hits spare blocks where they stay; a window leaves them behind and needs others.
    """
    slots = num_slots(config, request)
    ahead = min(len(request.tokens) - num_hit, config.max_batched_tokens) + config.max_drafts
    spared = sum(num_hit // group.block_size for group in config.groups if group.window is None)
    return peak_blocks(config.groups, slots, ahead) - spared


def reserve(config: LaneConfig, names: Names, request: Request) -> Reserve:
    """What the request asks of the pool."""
    return Reserve(
        lease=request.handle,
        num_slots=num_slots(config, request),
        num_ahead=num_ahead(config, request),
        num_computed=request.num_computed,
        keys=() if request.tables else names.lookup(request),
        trace=None if request.tables else request.generation.trace,
    )


def fits(config: LaneConfig, request: Request) -> bool:
    """Whether the lane can run the request to its end."""
    try:
        check_fits(config, request)
    except InvalidRequestError:
        return False
    return True


def check_fits(config: LaneConfig, request: Request) -> None:
    """Raise ContextLengthError, with the numbers, or InvalidRequestError where the lane can never run the request."""
    num_prompt, max_tokens = len(request.generation.prompt), request.generation.stopping.max_tokens
    if request.generation.inputs and not config.encoder_budget:
        raise InvalidRequestError("the model has no encoder for the request's inputs", "inputs")
    check_inputs(request.generation.inputs, num_prompt, min(config.encoder_budget, config.encoder_cache))
    if num_prompt + max_tokens > config.max_model_len:
        raise ContextLengthError(
            f"{num_prompt} prompt tokens and {max_tokens} to generate exceed the context window of "
            f"{config.max_model_len} tokens"
        )
    if (needed := config.peak(num_prompt + max_tokens)) > config.num_usable:
        raise ContextLengthError(
            f"{num_prompt} prompt tokens and {max_tokens} to generate need {needed} KV blocks of the "
            f"{config.num_usable} in the pool"
        )
