"""Attention backends: each defines what is inside a cache block, and attends over blocks."""

from signalbox_worker.models.attention.backend import AttentionBackend, AttentionShape
from signalbox_worker.models.attention.backend_check import fault_of
from signalbox_worker.models.attention.registry import (
    attention_backends,
    installed_backends,
    register_attention_backend,
)
from signalbox_worker.models.attention.selection import (
    attention_backend,
    automatic_backend,
    choose_attention_backend,
)

__all__ = [
    "AttentionBackend",
    "AttentionShape",
    "attention_backend",
    "attention_backends",
    "automatic_backend",
    "choose_attention_backend",
    "fault_of",
    "installed_backends",
    "register_attention_backend",
]
