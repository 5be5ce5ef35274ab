"""What a request knows of itself."""

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
    request.num_computed, request.blocks, request.num_sealed, request.num_delivered = 3, [7], 1, 1
    request.num_final, request.num_drafts, request.denied_at = 3, 2, 5
    request.restart()
    assert request.tokens == [1, 2, 3, 4]
    assert request.remaining == 4
    assert request.blocks == []
    assert (request.num_sealed, request.num_delivered) == (0, 0)
    assert (request.num_final, request.num_drafts) == (0, 0)
    assert request.denied_at is None
