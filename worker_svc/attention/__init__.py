"""The attention port and its implementations, chosen by name."""

from worker_svc.attention.cpu import CpuAttention
from worker_svc.attention.port import Attention
from worker_svc.attention.reference import ReferenceAttention

_BY_NAME: dict[str, type[Attention]] = {"reference": ReferenceAttention, "cpu": CpuAttention}


def make_attention(name: str) -> Attention:
    """The backend called ``name``. Raises ValueError for an unknown one."""
    if name not in _BY_NAME:
        raise ValueError(f"attention {name!r} is unknown, there are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]()
