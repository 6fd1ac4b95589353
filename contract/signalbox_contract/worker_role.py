"""Roles of the workers of a pool: computing prompts, tokens after the first, or both."""

from enum import StrEnum


class WorkerRole(StrEnum):
    """Part of a request's work that a worker takes."""

    BOTH = "both"
    PREFILL = "prefill"
    """Computes prompts, and hands each group over to a worker that decodes, if one has room."""
    DECODE = "decode"
    """Takes groups over whose prompts other workers have computed."""
