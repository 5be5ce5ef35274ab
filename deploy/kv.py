"""`augury kv inspect`: pools, hit rates, misses and the hottest prefixes of a running KV service, as tables."""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence

import grpc

from augury import process, rpc
from augury.convert.common import group_from_wire, miss_from_wire
from augury.errors import AuguryError
from augury.v1 import kvcache_pb2
from augury.v1.kvcache_pb2_grpc import KVCacheStub

ANSWER_SECONDS = 5.0
_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def main(argv: Sequence[str]) -> int:
    """Print the tables; the exit status is 1 where the service does not answer. Raises ValueError for bad settings."""
    parser = argparse.ArgumentParser(prog="augury kv inspect", description="What a running KV service holds.")
    parser.add_argument("--address", help="of the KV service (default: the setting kvcache.address)")
    parser.add_argument("--prefixes", type=int, default=10, help="hottest prefixes of each pool (default: %(default)s)")
    process.add_settings_options(parser)
    options = parser.parse_args(argv)
    address = options.address or process.settings_from(options).kvcache.address
    try:
        inspection = asyncio.run(_ask(address, options.prefixes))
    except AuguryError as error:
        print(f"augury kv inspect: {address}: {error}", file=sys.stderr)
        return 1
    print(render(inspection))
    return 0


async def _ask(address: str, num_prefixes: int) -> kvcache_pb2.Inspection:
    """Raises ValueError for a negative number, the service's AuguryError, NoWorkerError where there is none."""
    channel = rpc.connect(address)
    request = kvcache_pb2.InspectRequest(num_prefixes=num_prefixes)
    try:
        return await KVCacheStub(channel).Inspect(request, timeout=ANSWER_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise rpc.to_domain(error) from None
    finally:
        await channel.close()


def render(inspection: kvcache_pb2.Inspection) -> str:
    """The tables as text. A hit rate is in tokens; prefixes are named by their last block's key in hexadecimal."""
    pools = inspection.pools
    parts = [f"registry: {inspection.registry}"]
    if not pools:
        return "\n\n".join([*parts, "no pools are open"])
    parts.append(table(_POOL_HEADINGS, map(_pool_row, pools)))
    parts.append(table(_GROUP_HEADINGS, (row for pool in pools for row in _group_rows(pool))))
    parts.append("\n".join(line for pool in pools for line in _lines(pool)))
    prefixes = [row for pool in pools for row in _prefix_rows(pool)]
    parts.append(table(_PREFIX_HEADINGS, prefixes) if prefixes else "no prefix was hit")
    return "\n\n".join(parts)


def table(headings: Sequence[str], rows: Iterator[Sequence[object]] | Sequence[Sequence[object]]) -> str:
    """Columns as wide as their cells; numbers to the right."""
    cells = [list(map(str, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    left = [any(not _is_number(row[index]) for row in cells) for index in range(len(headings))]
    lines = [
        "  ".join(
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(row, widths, left, strict=True)
        )
        for row in (headings, *cells)
    ]
    return "\n".join(line.rstrip() for line in lines)


def _is_number(cell: str) -> bool:
    return cell.replace(".", "", 1).removesuffix(" %").isdigit() or cell == "-"


_POOL_HEADINGS = (
    "pool",
    "blocks",
    "free",
    "open",
    "sealed",
    "cached",
    "leases",
    "lookups",
    "hit rate",
    "restored",
    "adopted",
)


def _pool_row(pool: kvcache_pb2.PoolState) -> tuple[object, ...]:
    return (
        pool.pool,
        pool.num_blocks - 1,
        pool.num_free,
        pool.num_open,
        pool.num_sealed,
        pool.num_cached,
        pool.num_leases,
        pool.num_lookups,
        _percent(pool.hit_tokens, pool.query_tokens),
        pool.num_restored,
        pool.num_adopted,
    )


_GROUP_HEADINGS = ("pool", "group", "layers", "tokens/block", "open", "sealed", "shared")


def _group_rows(pool: kvcache_pb2.PoolState) -> Iterator[tuple[object, ...]]:
    """``shared``: references to sealed blocks beyond one each."""
    for index, state in enumerate(pool.groups):
        group = group_from_wire(state.group)
        kind = "full" if group.window is None else f"window {group.window}"
        layers = f"{kind}, drafts" if group.has_drafts else kind
        shared = state.num_held - state.num_open - state.num_sealed
        yield pool.pool, index, layers, group.block_size, state.num_open, state.num_sealed, shared


def _lines(pool: kvcache_pb2.PoolState) -> Iterator[str]:
    """Why lookups ended short, and the ages of what was evicted."""
    misses = {miss_from_wire(number): count for number, count in pool.misses.items()}
    reasons = [f"{miss.value} {count}" for miss, count in misses.items() if miss is not None]
    yield f"{pool.pool}: misses: {', '.join(sorted(reasons)) or 'none'}"
    yield f"{pool.pool}: evicted content lived {_ages(pool.lifetime)}"
    yield f"{pool.pool}: and was last unused for {_ages(pool.idle)}"


def _ages(histogram: kvcache_pb2.Histogram) -> str:
    """Counts by age, and the mean."""
    total = sum(histogram.counts)
    if not total:
        return "-"
    names = [f"≤ {_duration(bound)}" for bound in histogram.bounds]
    names.append(f"> {_duration(histogram.bounds[-1])}")
    parts = [f"{name}: {count}" for name, count in zip(names, histogram.counts, strict=True) if count]
    return f"{', '.join(parts)} (mean {_duration(histogram.total / total)})"


_PREFIX_HEADINGS = ("pool", "hottest prefix", "tokens", "hits")


def _prefix_rows(pool: kvcache_pb2.PoolState) -> list[tuple[object, ...]]:
    return [(pool.pool, prefix.key.hex(), prefix.num_tokens, prefix.num_hits) for prefix in pool.hottest]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _duration(seconds: float) -> str:
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1000:.3g} ms"
