"""Which blocks of a request are final, and so owed to the KV service as seals and to the worker as tags (rule D)."""

from augury.types import Seal
from scheduler_svc.core.lane import Debts, LaneConfig
from scheduler_svc.core.names import Names
from scheduler_svc.core.request import Request


def owe_seals(config: LaneConfig, names: Names, request: Request, debts: Debts) -> None:
    """Owe every block that is final and has a name: with draft layers up to the frontier, without once computed."""
    ends = []
    for index, (group, table) in enumerate(zip(config.groups, request.tables, strict=True)):
        num_final = request.num_final if group.has_drafts else request.num_computed
        start = max(table.num_sealed, table.num_dead)
        end = min(num_final // group.block_size, names.num_known(request, index))
        if start < end:
            for block, key in zip(range(start, end), names.of(request, index, range(start, end)), strict=True):
                debts.seals.append(Seal(lease=request.handle, group=index, index=block, key=key))
                debts.tags.append((table.blocks[block], key))
            table.num_sealed = start = end
        ends.append((start + 1) * group.block_size)
    request.seal_at = min(ends)
