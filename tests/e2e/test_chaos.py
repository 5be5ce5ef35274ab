"""Every service killed, hung, drained and scaled under load; and the plan and the verdict of such a run."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.chaos.app import Run, try_out
from deploy.chaos.driver import Struck
from deploy.chaos.load import Answer
from deploy.chaos.plan import Event, Fault, Role, make_plan
from deploy.chaos.stack import Stack
from deploy.chaos.verdict import judge, report
from deploy.chaos.wishes import make_wishes
from worker_svc.model.named import DEMO, STORY

SMALL = Run(seed=7, num_wishes=12, num_streams=12, num_open=10, num_kills=4, num_others=5)
"""A kill of each role that may be killed; a gateway drained; a worker more, and less; a worker and a scheduler hung."""


@pytest.mark.slow
def test_nobody_notices_what_befalls_the_services() -> None:
    with Stack(DEMO / STORY) as stack:
        verdict = asyncio.run(try_out(stack, SMALL, STORY))
    assert len(verdict.answers) >= SMALL.num_streams and len(verdict.struck) == 9
    assert not any([verdict.failed, verdict.different, verdict.leaks, verdict.flaws]), report(verdict)


@given(seed=st.integers(0, 1000), num_kills=st.integers(0, 40), num_others=st.integers(0, 40))
def test_a_plan_has_what_it_should_and_never_takes_the_last_process(seed: int, num_kills: int, num_others: int) -> None:
    plan = make_plan(seed, num_kills, num_others)
    kills = [event.role for event in plan if event.fault is Fault.KILL]
    assert plan == make_plan(seed, num_kills, num_others)
    assert len(kills) == num_kills and Role.GATEWAY not in kills
    assert num_kills < 4 or set(kills) == {Role.WORKER, Role.SCHEDULER, Role.KVCACHE, Role.REDIS}
    changes = [(event.fault is Fault.GROW) - (event.fault is Fault.SHRINK) for event in plan]
    assert all(sum(changes[:end]) >= 0 for end in range(len(changes) + 1))
    assert num_others < 10 or {event.fault for event in plan} >= set(Fault) - {Fault.KILL}


def test_requests_follow_from_their_seed_and_differ_in_every_way() -> None:
    wishes = make_wishes(1, 100, "m")
    assert wishes == make_wishes(1, 100, "m") != make_wishes(2, 100, "m")
    fields = {name for wish in wishes for name in wish.body}
    assert fields >= {"prompt", "messages", "stop", "logit_bias", "presence_penalty", "repetition_penalty", "top_p"}
    assert {wish.num_choices for wish in wishes} >= {1, 2, 3}
    assert all("seed" in wish.body for wish in wishes)


GOOD = Answer(wish=0, texts=["so"], reasons=["stop"], times=[[10.0, 11.0, 11.5]], num_tokens=2)


def struck(role: Role, began: float, ended: float) -> Struck:
    event = Event(role=role, fault=Fault.KILL, pick=0, hold_s=0, pause_s=0, overlaps=False)
    return Struck(event=event, name=f"{role.value}-0", began=began, ended=ended)


def test_a_run_that_nobody_noticed_is_good() -> None:
    assert judge({0: GOOD}, [GOOD], [struck(Role.WORKER, 10.1, 10.9)], []).is_good


@pytest.mark.parametrize(
    "answer",
    [
        replace(GOOD, error="HTTP 500"),
        replace(GOOD, texts=["sO"]),
        replace(GOOD, reasons=["length"]),
        replace(GOOD, num_tokens=3),
    ],
    ids=["failed", "text", "reason", "tokens"],
)
def test_whatever_a_client_notices_is_told(answer: Answer) -> None:
    assert not judge({0: GOOD}, [GOOD, answer], [], []).is_good


def test_blocks_that_are_held_and_processes_that_end_badly_are_told() -> None:
    assert not judge({0: GOOD}, [GOOD], [], ["pool worker-0: 1 leases"]).is_good
    died = replace(struck(Role.WORKER, 0, 1), flaw="worker-0 ended with status 1")
    assert not judge({0: GOOD}, [GOOD], [died], []).is_good


@pytest.mark.parametrize(("role", "longest"), [(Role.WORKER, 5.0), (Role.SCHEDULER, 10.0)])
def test_a_stall_counts_for_the_role_that_was_away_meanwhile(role: Role, longest: float) -> None:
    faults = [struck(role, 12.0, 13.0), struck(Role.REDIS, 50.0, 60.0)]
    just, longer = (replace(GOOD, times=[[10.0, 11.0, 11.0 + wait]]) for wait in (longest - 0.1, longest + 0.1))
    assert judge({0: GOOD}, [just], faults, []).is_good
    verdict = judge({0: GOOD}, [longer], faults, [])
    assert not verdict.is_good and verdict.too_long[0].roles == {role}
    assert f"{longest + 0.1:.2f}" in report(verdict)
