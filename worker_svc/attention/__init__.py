"""The attention port and its implementations, chosen by name."""

import logging

import torch

from worker_svc.attention import flashinfer
from worker_svc.attention.cpu import CpuAttention
from worker_svc.attention.port import Attention
from worker_svc.attention.reference import ReferenceAttention
from worker_svc.device import CPU

AUTO = "auto"
_NAMES = ("reference", "cpu", "flashinfer")
_log = logging.getLogger(__name__)


def choose_attention(name: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """``name``, or for auto the fastest backend that runs queries of ``dtype`` and ``head_dim`` on ``device``.

    Raises ValueError for an unknown name, and for flashinfer where it does not run.
    """
    if name not in (AUTO, *_NAMES):
        raise ValueError(f"attention {name!r} is unknown, there are {', '.join((AUTO, *_NAMES))}")
    if name not in (AUTO, "flashinfer"):
        return name
    obstacle = flashinfer.obstacle(device, dtype, head_dim)
    if name == "flashinfer" and obstacle:
        raise ValueError(f"attention 'flashinfer' does not run: {obstacle}")
    if obstacle and device.type == "cuda":
        _log.warning("attention runs in plain torch, without FlashInfer: %s", obstacle)
    return "cpu" if obstacle else "flashinfer"


def make_attention(name: str, device: torch.device = CPU) -> Attention:
    """The backend called ``name``, for tensors on ``device``."""
    assert name in _NAMES
    match name:
        case "reference":
            return ReferenceAttention(device)
        case "cpu":
            return CpuAttention(device)
        case _:
            return flashinfer.on_device(device)
