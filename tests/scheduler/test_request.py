"""What a request knows of itself."""

from augury.geometry import KvGroup
from augury.types import Granted
from scheduler_svc.core.request import Request
from tests.scheduler.harness import generation


def test_a_continuation_knows_prompt_and_emitted_tokens() -> None:
    request = Request(handle=1, generation=generation([1, 2, 3], emitted=[4, 5]), arrival=1)
    assert request.tokens == [1, 2, 3, 4, 5]
    assert request.num_emitted == 2
    assert request.remaining == 5


def test_a_restart_keeps_tokens_and_forgets_everything_computed() -> None:
    request = Request(handle=1, generation=generation([1, 2, 3]), arrival=1)
    request.tokens.append(4)
    groups = (KvGroup(block_size=4),)
    request.lease(Granted(blocks=((7,),), num_sealed=(0,)), groups)
    request.num_computed, request.seal_at = 4, 8
    request.grow(Granted(blocks=((8,),)), groups)
    request.num_final, request.num_drafts, request.denied_at = 3, 2, 5
    request.restart()
    assert request.tokens == [1, 2, 3, 4]
    assert request.remaining == 4
    assert (request.tables, request.undelivered) == ([], ())
    assert (request.capacity, request.seal_at) == (0, 0)
    assert (request.num_final, request.num_drafts) == (0, 0)
    assert request.denied_at is None
