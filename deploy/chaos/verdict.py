"""What a run under faults amounts to, beside an undisturbed one of the same requests. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from deploy.chaos.driver import Struck
from deploy.chaos.load import Answer
from deploy.chaos.plan import Fault, Role
from deploy.kv import table

LIMITS_S = {Role.WORKER: 5.0, Role.SCHEDULER: 10.0}
"""The longest that a stream may stall where only processes of one of these roles fail."""

_NUM_SHOWN = 40
"""Characters of a text from where it differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A time in which a choice of the answer number ``answer`` got nothing, and the faults that lasted meanwhile."""

    answer: int
    began: float
    seconds: float
    faults: tuple[Struck, ...]

    @property
    def roles(self) -> frozenset[Role]:
        return frozenset(struck.event.role for struck in self.faults)

    @property
    def limit_s(self) -> float | None:
        """None where one of the roles has none."""
        limits = [LIMITS_S.get(role) for role in self.roles]
        known = [limit for limit in limits if limit is not None]
        return sum(known) if known and len(known) == len(limits) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``different`` says in words what differs where, ``leaks`` what is still held after everything has ended."""

    answers: Sequence[Answer]
    struck: Sequence[Struck]
    failed: Sequence[Answer]
    different: Sequence[str]
    stalls: Mapping[frozenset[Role], Stall]
    leaks: Sequence[str]

    @property
    def too_long(self) -> list[Stall]:
        return [stall for stall in self.stalls.values() if stall.limit_s is not None and stall.seconds > stall.limit_s]

    @property
    def flaws(self) -> list[str]:
        """What processes did wrong when they ended or started."""
        return [struck.flaw for struck in self.struck if struck.flaw is not None]

    @property
    def is_good(self) -> bool:
        return not (self.failed or self.different or self.leaks or self.too_long or self.flaws)


def judge(
    quiet: Mapping[int, Answer], answers: Sequence[Answer], struck: Sequence[Struck], leaks: Sequence[str]
) -> Verdict:
    """``quiet``: the undisturbed answers by wish."""
    return Verdict(
        answers=answers,
        struck=struck,
        failed=[answer for answer in answers if answer.error is not None],
        different=[_difference(quiet[each.wish], each) for each in answers if _differs(quiet[each.wish], each)],
        stalls=_longest(answers, struck),
        leaks=leaks,
    )


def _differs(quiet: Answer, answer: Answer) -> bool:
    return answer.error is None and answer.told != quiet.told


def _difference(quiet: Answer, answer: Answer) -> str:
    for choice, (wanted, got) in enumerate(zip(quiet.texts, answer.texts, strict=True)):
        if wanted != got:
            same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(wanted, got, strict=False))))
            shown = slice(same, same + _NUM_SHOWN)
            return f"wish {answer.wish}: choice {choice} at {same}: {wanted[shown]!r} became {got[shown]!r}"
    return f"wish {answer.wish}: {quiet.reasons, quiet.num_tokens} became {answer.reasons, answer.num_tokens}"


def _longest(answers: Sequence[Answer], struck: Sequence[Struck]) -> dict[frozenset[Role], Stall]:
    """The longest stall of each set of roles at fault; that of the empty set is nobody's."""
    longest: dict[frozenset[Role], Stall] = {}
    for stall in _stalls(answers, struck):
        if stall.roles not in longest or stall.seconds > longest[stall.roles].seconds:
            longest[stall.roles] = stall
    return longest


def _stalls(answers: Sequence[Answer], struck: Sequence[Struck]) -> Iterator[Stall]:
    for number, answer in enumerate(answers):
        for times in answer.times:
            for began, ended in pairwise(times):
                faults = tuple(each for each in struck if each.began < ended and (each.ended or ended) >= began)
                yield Stall(answer=number, began=began, seconds=ended - began, faults=faults)


def report(verdict: Verdict) -> str:
    """Tables of faults, stalls and results."""
    counts = Counter((struck.event.role, struck.event.fault) for struck in verdict.struck)
    faults = [[role.value, *(counts[role, fault] or "-" for fault in Fault)] for role in Role]
    stalls = [
        [
            " + ".join(sorted(role.value for role in roles)) or "no fault",
            f"{stall.seconds:.2f}",
            f"{stall.began:.1f}",
            "-" if stall.limit_s is None else f"{stall.limit_s:.0f}",
            str(verdict.answers[stall.answer].wish),
            ", ".join(f"{struck.event.fault.value} {struck.name}" for struck in stall.faults) or "-",
        ]
        for roles, stall in sorted(verdict.stalls.items(), key=lambda item: (len(item[0]), -item[1].seconds))
    ]
    num_kills = sum(count for (_, fault), count in counts.items() if fault is Fault.KILL)
    results = [
        f"{len(verdict.answers)} streams, {num_kills} kills, {len(verdict.struck) - num_kills} other faults",
        f"{len(verdict.failed)} failed, {len(verdict.different)} different, {len(verdict.leaks)} leaks, "
        f"{len(verdict.too_long)} stalls beyond their limit",
        *(f"failed: wish {answer.wish}: {answer.error}" for answer in verdict.failed),
        *(f"different: {difference}" for difference in verdict.different),
        *(f"leak: {leak}" for leak in verdict.leaks),
        *(f"flaw: {flaw}" for flaw in verdict.flaws),
    ]
    return "\n\n".join(
        [
            table(["role", *(fault.value for fault in Fault)], faults),
            table(["longest stall while", "s", "at", "limit", "wish", "faults meanwhile"], stalls),
            "\n".join(results),
        ]
    )
