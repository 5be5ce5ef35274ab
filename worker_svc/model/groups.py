"""Which KV group each layer is in and where its KV lies, derived from the architecture."""

from collections.abc import Sequence
from dataclasses import dataclass

from augury.geometry import KvGroup
from worker_svc.model.description import Architecture
from worker_svc.model.policy import ChainKind


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the queries of a layer see: the block table of ``group``, and of it the last ``window`` positions, the
    query's own included; None is all of them.
    """

    group: int
    window: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The ``groups``, all of one block size, and of each layer, those of the modules behind the model's, its ``views``
    entry. Layer i lies in shelf ``shelves[i]`` of the storage, which the groups share: a block fits them all.
    """

    groups: tuple[KvGroup, ...]
    views: tuple[View, ...]
    shelves: tuple[int, ...]

    @property
    def block_size(self) -> int:
        return self.groups[0].block_size

    @property
    def num_shelves(self) -> int:
        """Layers of the largest group."""
        return 1 + max(self.shelves)

    @property
    def draft_groups(self) -> tuple[int, ...]:
        return tuple(index for index, group in enumerate(self.groups) if group.has_drafts)


def make_layout(
    architecture: Architecture, num_modules: int, block_size: int, *, num_lagging: int = 0, hybrid: bool = True
) -> Layout:
    """The layout of the model and its first ``num_modules`` MTP modules.

    Layers of one window are a group, a module's layer among them; if not ``hybrid``, all layers are one that keeps
    everything. The modules may lag ``num_lagging`` rows behind what their lookahead forces them to. Raises ValueError
    for a module of which nothing tells how far it sees, where layers of the model differ from full attention.
    """
    windows = [architecture.windows.get(index) for index in range(architecture.num_layers)]
    drafting = _draft_windows(architecture, num_modules)
    kept = windows + drafting if hybrid else [None] * (len(windows) + num_modules)
    order = sorted(set(kept), key=lambda window: (window is not None, -(window or 0)))
    of_model, of_modules = set(kept[: len(windows)]), set(kept[len(windows) :])
    groups = [
        KvGroup(
            block_size=block_size,
            window=window,
            has_drafts=window in of_modules,
            num_retained=num_modules - 1 + num_lagging if window is not None and window in of_modules else 0,
            num_rebuilt=None if window in of_model else _num_rebuilt(architecture, drafting, window),
        )
        for window in order
    ]
    places = [order.index(window) for window in kept]
    return Layout(
        groups=tuple(groups),
        views=tuple(View(group=place, window=window) for place, window in zip(places, windows + drafting, strict=True)),
        shelves=tuple(places[:layer].count(place) for layer, place in enumerate(places)),
    )


def _draft_windows(architecture: Architecture, num_modules: int) -> list[int | None]:
    mtp = architecture.mtp
    if not num_modules:
        return []
    assert mtp is not None and num_modules <= mtp.num_modules
    if architecture.windows and not mtp.tagged:
        raise ValueError("layers of the model have windows, so mtp.layer_types must tell which the MTP modules have")
    return [mtp.windows.get(index) for index in range(num_modules)]


def _num_rebuilt(architecture: Architecture, drafting: Sequence[int | None], window: int | None) -> int | None:
    """Rows after which modules of ``window`` neither write nor read what KV before the rows would change.

    None where every row depends on it, or where a module of another group keeps what comes of theirs meanwhile.
    """
    if window is None:
        return None
    assert architecture.mtp is not None
    if architecture.mtp.policy.chain is not ChainKind.CHAINED:
        return window - 1
    behind = drafting[drafting.index(window) :]
    return len(behind) * (window - 1) if set(behind) == {window} else None
