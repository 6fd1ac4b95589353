"""What the models that pool answer, as sentence-transformers computes it, and where they are."""

import json
import os
from pathlib import Path

ENCODER_HTTP = os.environ["SIGNALBOX_ENCODER_HTTP"]
"""URL of the HTTP API of the model that embeds, `/v1` included."""
RERANKER_HTTP = os.environ["SIGNALBOX_RERANKER_HTTP"]
MODEL = "pooled"
"""Name of both models."""

_EXPECTED = json.loads(Path(os.environ["SIGNALBOX_POOLED"]).read_text(encoding="utf-8"))
TEXTS: list[str] = _EXPECTED["texts"]
VECTORS: list[list[float]] = _EXPECTED["vectors"]
"""A vector for each text."""
QUERY: str = _EXPECTED["query"]
SCORES: list[float] = _EXPECTED["scores"]
"""A score of each text as a document for QUERY."""
RANKING = sorted(range(len(TEXTS)), key=lambda i: -SCORES[i])
"""Positions of the texts, the best first."""
TOO_LONG = "w7 " * 1000


def assert_close(found: list[float], expected: list[float]) -> None:
    assert len(found) == len(expected)
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 1e-5
