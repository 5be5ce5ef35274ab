"""How large a pool must be for the streams of a benchmark, by the arithmetic that admits them."""

from pathlib import Path

from augury.geometry import peak_blocks
from worker_svc.model.description import read_architecture
from worker_svc.model.groups import make_layout
from worker_svc.speculator import num_lagging


def blocks_per_stream(folder: Path, block_size: int, num_slots: int, num_ahead: int) -> int:
    """Blocks with which a stream of ``num_slots`` slots never waits for others, at any depth of drafts.

    A step writes up to ``num_ahead`` slots past the computed tokens; drafts count in both. Raises ValueError where
    ``folder`` holds no model that runs here.
    """
    architecture = read_architecture(folder)
    num_modules = architecture.mtp.num_modules if architecture.mtp else 0
    groups = make_layout(architecture, num_modules, block_size, num_lagging=num_lagging(block_size)).groups
    watermark = 1  # what the scheduler leaves free for each stream that runs already
    return peak_blocks(groups, num_slots, num_ahead) + watermark
