"""Prompts as a scheduler would name them, and proposals about them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from augury.geometry import KvGroup, hash_block
from augury.keys import KeyDomain, group_key, root_key
from augury.types import Grant, Granted, PoolSpec, Proposal, Reserve, Seal
from kvcache_svc.core.coordinator import Coordinator

ROOT = root_key("f", b"")
Keys = tuple[tuple[bytes, ...], ...]


def spec(*groups: KvGroup, num_blocks: int = 9, epoch: int = 1) -> PoolSpec:
    return PoolSpec(
        pool="w",
        incarnation="i",
        fingerprint="f",
        epoch=epoch,
        num_blocks=num_blocks,
        groups=groups or (KvGroup(block_size=4),),
    )


def proposal(seq: int, reserves: Sequence[Reserve] = (), **fields: Any) -> Proposal:
    base = Proposal(pool="w", epoch=1, seq=seq, reserves=tuple(reserves))
    return replace(base, **fields)


def granted(grant: Grant) -> list[Granted]:
    assert all(grant.reserves)
    return [part for part in grant.reserves if part]


def names(tokens: Sequence[int], groups: Sequence[KvGroup], lookahead: int = 0, is_proven: bool = True) -> Keys:
    """The name of every block of every group that has one.

    Where ``is_proven``, keys of groups with drafts cover the lookahead; else such a block goes by a later block's key.
    """
    fine = hash_block(groups)
    chains: dict[int, list[bytes]] = {}
    for reach in {0, lookahead}:
        KeyDomain(block_size=fine, lookahead=reach).extend(chains.setdefault(reach, []), ROOT, tokens)
    named = []
    for index, group in enumerate(groups):
        ahead = lookahead if group.has_drafts else 0
        chain, margin = (chains[ahead], 0) if is_proven else (chains[0], group.num_blocks(ahead))
        ends = range((1 + margin) * group.block_size, len(chain) * fine + 1, group.block_size)
        named.append(tuple(group_key(chain[end // fine - 1], index) for end in ends))
    return tuple(named)


def lookup(tokens: Sequence[int], groups: Sequence[KvGroup], lookahead: int = 0, is_proven: bool = True) -> Keys:
    """The names that a hit may go by: so many tokens as a prompt needs to start with are left."""
    most = max(len(tokens) - max(1, lookahead), 0)
    every = names(tokens, groups, lookahead, is_proven)
    return tuple(keys[: most // group.block_size] for keys, group in zip(every, groups, strict=True))


class Prompter:
    """A pool whose requests compute their prompts at once: each call is one proposal."""

    def __init__(self, *groups: KvGroup, num_blocks: int = 500, lookahead: int = 0, is_proven: bool = True) -> None:
        self.groups = groups
        self.lookahead = lookahead
        self.is_proven = is_proven
        self.kv = Coordinator(spec(*groups, num_blocks=num_blocks))
        self.seq = 0

    def step(self, reserves: Sequence[Reserve] = (), **fields: Any) -> Grant:
        self.seq += 1
        grant = self.kv.step(proposal(self.seq, reserves, **fields))
        self.kv.check()
        return grant

    def names(self, tokens: Sequence[int]) -> Keys:
        return names(tokens, self.groups, self.lookahead, self.is_proven)

    def admit(self, lease: int, tokens: Sequence[int]) -> Granted:
        wanted = Reserve(
            lease=lease,
            num_slots=len(tokens),
            num_ahead=len(tokens),
            keys=lookup(tokens, self.groups, self.lookahead, self.is_proven),
        )
        return granted(self.step([wanted]))[0]

    def seal(self, lease: int, known: Sequence[int], num_final: int, start: Sequence[int] = ()) -> None:
        """Publish what is final of a request whose ``known`` tokens are decided: target KV and draft KV alike.

        ``start[group]`` leading blocks are sealed already.
        """
        self.step(
            seals=tuple(
                Seal(lease=lease, group=group, index=index, key=keys[index])
                for group, keys in enumerate(self.names(known))
                for index in range(start[group] if start else 0, len(keys))
                if (index + 1) * self.groups[group].block_size <= num_final
            )
        )

    def release(self, *leases: int) -> None:
        self.step(releases=leases)

    def probe(self, tokens: Sequence[int]) -> Granted:
        """What a prompt of these tokens hits; it goes at once."""
        hit = self.admit(10**6, tokens)
        self.release(10**6)
        return hit
