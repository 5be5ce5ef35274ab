"""Why a lookup in the prefix cache ended short: what the KV service says, and what only the scheduler can know."""

from augury.geometry import scheduler_block
from augury.types import Granted, Miss
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.core.names import Names
from scheduler_svc.core.request import Request

MAX_STARTS = 4096
"""Starts of prompts whose salt is remembered, the latest."""


class Misses:
    """Reasons of misses, with the salt under which each start of a prompt was last seen."""

    def __init__(self, config: LaneConfig, names: Names) -> None:
        self._enabled = config.prefix_caching
        self._unit = scheduler_block(config.groups)
        self._names = names
        self._salts: dict[bytes, bytes] = {}

    def reason(self, request: Request, granted: Granted) -> Miss | None:
        """Why the lookup that ``granted`` answers ended where it did; None where no whole block more is known."""
        if not self._enabled:
            return Miss.DISABLED
        salted_otherwise = self._seen_under_another_salt(request)
        if granted.miss is Miss.COLD and granted.num_computed == 0 and salted_otherwise:
            return Miss.SALT
        if granted.miss is None and granted.num_computed + self._unit < len(request.tokens):
            return Miss.LOOKAHEAD
        return granted.miss

    def _seen_under_another_salt(self, request: Request) -> bool:
        start, salt = self._names.start(request), request.generation.cache_salt
        if start is None:
            return False
        before = self._salts.pop(start, salt)
        self._salts[start] = salt
        if len(self._salts) > MAX_STARTS:
            del self._salts[next(iter(self._salts))]
        return before != salt
