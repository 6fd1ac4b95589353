"""Helpers that vLLM's examples import."""

import uuid

from signalbox.utils.argparse_utils import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser", "random_uuid"]


def random_uuid() -> str:
    """Returns 32 hexadecimal digits, for a request id."""
    return uuid.uuid4().hex
