"""Clients: what they ask for, when they leave, and whether they get what the oracle says."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from augury.errors import ContextLengthError, NoWorkerError, OverloadedError
from augury.shares import MOST_PER_FREE
from augury.types import Delta, Ended, EndReason, Generation, NewRequest, SamplingParams, StopParams
from scheduler_svc.core.cluster import Cluster
from scheduler_svc.core.scheduler import Scheduler
from tests.sim.clock import Clock
from tests.sim.images import Painter
from tests.sim.model import EOS, VOCAB_SIZE
from tests.sim.oracle import Text, right_text
from tests.sim.plan import Load, Plan

RETRY_SECONDS = 0.05


@dataclass(slots=True, kw_only=True)
class Client:
    """One request as its client sees it; ``received`` are all tokens, those of an earlier life included."""

    generation: Generation
    right: Text
    received: list[int] = field(default_factory=list)
    num_cached: int = 0
    left: bool = False
    ended: Ended | None = None

    def take(self, delta: Delta) -> None:
        """Check and note tokens and end."""
        name = self.generation.request_id
        assert self.ended is None, f"{name} gets {delta} after its end"
        self.received += delta.tokens
        right = self.right.tokens[: len(self.received)]
        assert tuple(self.received) == right, f"{name} got {self.received}, right is {self.right}"
        self.num_cached, self.ended = delta.num_cached, delta.ended


class Clients:
    """Everyone who submits, by handle."""

    def __init__(self, clock: Clock, plan: Plan, cluster: Cluster, wake: Callable[[], None]) -> None:
        self.open: dict[int, Client] = {}
        self.num_to_come = 0
        self.ends: Counter[str] = Counter()
        self._asked: dict[int, list[Client]] = {}
        """Who had a handle, in each scheduler's life."""
        self._turned_away = False
        self._written: dict[str, Text] = {}
        self._clock = clock
        self._load = plan.load
        self._model = plan.shape.model
        self._cluster = cluster
        self._wake = wake
        self._rng = plan.random("clients")
        self._writer = Writer(plan.random("prompts"), plan.load, plan.shape.max_model_len)
        self._painter = Painter(plan.random("inputs"), plan.shape)

    def salt(self, new: NewRequest) -> bytes:
        return self._author(new).generation.cache_salt

    def right(self, new: NewRequest) -> Text:
        return self._author(new).right

    def _author(self, new: NewRequest) -> Client:
        """Handles begin anew with a scheduler, and steps of the earlier one may still be under way."""

        def same(generation: Generation) -> bool:
            of_step = new.tokens[: new.num_prompt], new.sampling, new.stopping
            return of_step == (generation.prompt, generation.sampling, generation.stopping)

        return next(client for client in reversed(self._asked[new.handle]) if same(client.generation))

    def text(self, generation: Generation) -> Text:
        """What a request that was written must emit."""
        return self._written[generation.request_id]

    def invite(self) -> None:
        """All clients of the plan will come, at random times."""
        for number in range(self._load.num_clients):
            self.num_to_come += 1
            self._clock.after(self._rng.uniform(0.0, self._load.span), partial(self._come, self.write(number)))

    def write(self, number: int) -> Generation:
        """A fresh request, whose text may be part of later prompts."""
        generation = self._writer.write(f"request {number}")
        generation = replace(generation, inputs=self._painter.inputs(generation))
        text = self._written[generation.request_id] = right_text(generation, self._model)
        self._writer.remember((*generation.prompt, *text.tokens))
        return generation

    def submit(self, generation: Generation) -> Client:
        """Submit a fresh request or, at times, the continuation of an interrupted one.

        Raises OverloadedError or ContextLengthError.
        """
        right = self.text(generation)
        known = right.tokens[: self._rng.choice((0, 0, 0, len(right.tokens) // 2))]
        client = Client(generation=generation, right=right, received=list(known))
        self._submit(client)
        return client

    def lose_scheduler(self, successor: Cluster) -> None:
        """Every request goes on at the successor with the tokens it has (gateway/continuing.py)."""
        self._cluster, self._turned_away = successor, False
        clients, self.open = list(self.open.values()), {}
        for client in clients:
            self._interrupt(client)

    def turned_away(self) -> list[Delta]:
        """The scheduler takes nothing from now on, and gives back what waits for a worker."""
        self._turned_away = True
        ending = NoWorkerError("this scheduler is ending")
        deltas = [delta for handle in list(self._cluster.parked) for delta in self._cluster.fail(handle, ending)]
        assert not self._cluster.parked, f"requests {list(self._cluster.parked)} wait for a scheduler that is ending"
        return deltas

    def _submit(self, client: Client) -> None:
        if self._turned_away:
            raise OverloadedError("the scheduler is ending")
        handle = self._cluster.submit(replace(client.generation, emitted=tuple(client.received)))
        self.open[handle] = client
        self._asked.setdefault(handle, []).append(client)
        self._wake()

    def _interrupt(self, client: Client) -> None:
        self.num_to_come += 1
        self._clock.after(self._rng.uniform(0.0, RETRY_SECONDS), partial(self._go_on, client))

    def _go_on(self, client: Client) -> None:
        if client.left:
            self.ends["left"] += 1
        else:
            try:
                self._submit(client)
            except OverloadedError:
                self._clock.after(RETRY_SECONDS, partial(self._go_on, client))
                return
            except ContextLengthError:
                assert not self._fits_anywhere(client.generation)
                client.ended = Ended(reason=EndReason.FAILED, error_code=ContextLengthError.code)
            self.ends["went on"] += 1
        self.num_to_come -= 1

    def take(self, delta: Delta) -> None:
        client = self.open[delta.ticket]
        if delta.ended is not None and delta.ended.error_code == NoWorkerError.code:
            self._forget(delta.ticket)
            self._interrupt(client)
            return
        client.take(delta)
        if delta.ended is not None:
            self._check_end(client, delta.ended)
            self.ends[delta.ended.error_code or delta.ended.reason.value] += 1
            self._forget(delta.ticket)

    def _come(self, generation: Generation) -> None:
        before = self._cluster.num_requests
        try:
            client = self.submit(generation)
        except OverloadedError:
            assert before == self._cluster.num_requests
            assert self._turned_away or before >= min(self._load.max_requests, MOST_PER_FREE)
            self._clock.after(RETRY_SECONDS, partial(self._come, generation))
            return
        except ContextLengthError:
            assert before == self._cluster.num_requests and not self._fits_anywhere(generation)
            self.num_to_come -= 1
            self.ends["refused at once"] += 1
            return
        name = generation.request_id
        assert not self._open_lanes() or self._fits_anywhere(generation), f"{name} can never fit, but was accepted"
        self.num_to_come -= 1
        if self._rng.random() < self._load.cancel_share:
            self._clock.after(self._rng.uniform(0.0, self._load.span), partial(self._leave, client))

    def _leave(self, client: Client) -> None:
        if client.ended is not None:
            return
        client.left = True
        handle = next((handle for handle, other in self.open.items() if other is client), None)
        if handle is None:
            return
        delta = self._cluster.cancel(handle)
        assert delta is not None, "an open request cannot be cancelled"
        self.take(delta)
        assert self._cluster.cancel(handle) is None, "a request was cancelled twice"
        self._wake()

    def _forget(self, handle: int) -> None:
        del self.open[handle]
        self._cluster.forget(handle)

    def _check_end(self, client: Client, ended: Ended) -> None:
        name, right = client.generation.request_id, client.right
        assert 0 <= client.num_cached <= len(client.generation.prompt)
        if ended.reason is EndReason.CANCELLED:
            assert client.left, f"{name} was cancelled by nobody"
        elif ended.error_code == ContextLengthError.code:
            assert not self._fits_anywhere(client.generation), f"{name} fits, but was refused"
        else:
            whole = tuple(client.received) == right.tokens
            assert ended.reason is right.reason and whole, f"{name} ended {ended}, got {client.received}, not {right}"

    def _fits_anywhere(self, generation: Generation) -> bool:
        length = len(generation.prompt) + generation.stopping.max_tokens
        return any(length <= lane.config.max_len for lane in self._open_lanes())

    def _open_lanes(self) -> list[Scheduler]:
        return [lane for name, lane in self._cluster.lanes.items() if name not in self._cluster.draining]


class Writer:
    """Writes requests whose prompts share beginnings, part anywhere and may meet again."""

    def __init__(self, rng: Random, load: Load, context: int) -> None:
        self._rng = rng
        self._max_prompt = load.max_len - 1
        self._load = load
        self._context = context
        self._earlier = [self._tokens(self._max_prompt) for _ in range(2)]

    def write(self, name: str) -> Generation:
        rng, prompt = self._rng, self._prompt()
        max_tokens = rng.randint(1, self._load.max_len - len(prompt))
        if rng.random() < self._load.greedy_share:
            max_tokens = rng.randint(self._load.max_len, self._context + 1) - len(prompt)
        stop_ids = frozenset({EOS, *rng.sample(range(VOCAB_SIZE), rng.randint(0, 2))})
        return Generation(
            request_id=name,
            prompt=prompt,
            sampling=SamplingParams(seed=rng.randint(0, 1)),
            stopping=StopParams(
                max_tokens=max_tokens,
                min_tokens=rng.choice((0, 0, rng.randint(0, max_tokens))),
                stop_token_ids=rng.choice((stop_ids, frozenset())),
            ),
            priority=rng.randint(0, 2),
            client=self._rng.choice((None, b"a" * 16, b"b" * 16)),
            cache_salt=rng.choice((b"", b"", b"another")),
            max_drafts=rng.choice((None, None, rng.randint(0, 4))),
        )

    def remember(self, tokens: tuple[int, ...]) -> None:
        self._earlier.append(tokens)

    def _prompt(self) -> tuple[int, ...]:
        """What was written earlier, cut, extended or with one token changed."""
        rng = self._rng
        tokens = list(rng.choice(self._earlier))
        if rng.random() < 0.6:
            tokens = tokens[: rng.randint(1, len(tokens))]
        if rng.random() < 0.3:
            tokens[rng.randrange(len(tokens))] = rng.randrange(VOCAB_SIZE)
        if rng.random() < 0.4:
            tokens += self._tokens(rng.randint(0, self._max_prompt))
        return tuple(tokens[: rng.randint(1, self._max_prompt)])

    def _tokens(self, num_tokens: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(VOCAB_SIZE) for _ in range(num_tokens))
