"""Fields that the API does not have, or that a message does not declare."""

from tests.hostile.case import Answer, Case, Target

MEGABYTE = 1 << 20


async def long_key(target: Target) -> Answer:
    """A key of a megabyte with characters that JSON and headers write as several."""
    return await target.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "é" * MEGABYTE: 1})


CASES = (
    Case(
        name="unknown-key-of-a-megabyte",
        attack=long_key,
        codes=frozenset({"200"}),  # unknown fields are ignored, and named in a header
        unbounded={"signalbox_router.apis.openai.bodies.unknown_fields.MAX_FIELD_CHARS": 1 << 22},
    ),
)
