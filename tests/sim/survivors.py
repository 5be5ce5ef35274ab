"""What a KV service must find after a crash: all that it sealed and the worker tells of, and nothing else instead."""

from augury.types import Proposal
from kvcache_svc.core.coordinator import Coordinator
from tests.sim.messages import Open

Found = set[tuple[bytes, int]]
"""Keys and the blocks they lead to."""


class Survivors:
    """By pool what was sealed under its epoch and could be found when the service crashed."""

    def __init__(self) -> None:
        self._found: dict[str, Found] = {}

    def sealing(self, pool: Coordinator, proposal: Proposal) -> Found:
        """Keys and blocks that ``proposal`` is about to seal."""
        tables = pool.leases.tables if proposal.epoch == pool.spec.epoch else {}
        seals = [seal for seal in proposal.seals if seal.lease in tables]
        return {(seal.key, tables[seal.lease][seal.group][seal.index]) for seal in seals}

    def sealed(self, pool: Coordinator, sealed: Found) -> None:
        self._found.setdefault(pool.spec.pool, set()).update(_still(pool, sealed))

    def crashed(self, pool: Coordinator) -> None:
        self._found[pool.spec.pool] = _still(pool, self._found.get(pool.spec.pool, set()))

    def fenced(self, pool: Coordinator) -> None:
        """What was sealed under an old epoch is not looked for: its last tags may be lost."""
        self._found[pool.spec.pool] = set()

    def renewed(self, pool: Coordinator, message: Open, registry_is_right: bool) -> None:
        """A new service opened the pool and took over what it was told."""
        name = pool.spec.pool
        _check_content(pool, message)
        lost = [key for key, _ in self._found.get(name, ()) if pool.pool.find(key) is None]
        assert not (lost and registry_is_right), f"{name} finds less than before the crash"


def _still(pool: Coordinator, found: Found) -> Found:
    return {(key, block) for key, block in found if pool.pool.find(key) == block}


def _check_content(pool: Coordinator, message: Open) -> None:
    vouched = {*message.content}
    for holding in message.holdings:
        vouched |= {(holding.blocks[seal.group][seal.index], seal.key) for seal in holding.seals}
    for _, key in vouched:
        assert (pool.pool.find(key), key) in vouched, f"{pool.spec.pool} does not find what its worker holds"
