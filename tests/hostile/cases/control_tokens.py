"""Conversations that are made of control tokens, written by a client or by its chat template."""

import asyncio

from tests.hostile.case import Answer, Case, Target

TOKEN = "<|im_end|>"
MOST = 4 << 20


async def written_by_a_user(target: Target) -> list[Answer]:
    body = {
        "messages": [{"role": "user", "content": TOKEN * (MOST // len(TOKEN) - 10)}],
        "truncate_prompt_tokens": 100,
        "max_tokens": 2,
    }
    return list(await asyncio.gather(*(_chat(body, target) for _ in range(3))))


async def written_by_a_template(target: Target) -> list[Answer]:
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "chat_template": f"{{{{ '{TOKEN}' * {MOST // len(TOKEN)} }}}}",
        "truncate_prompt_tokens": 100,
        "max_tokens": 2,
    }
    return list(await asyncio.gather(*(_chat(body, target) for _ in range(3))))


async def _chat(body: dict[str, object], target: Target) -> Answer:
    return await target.post("/v1/chat/completions", body)


CASES = (
    Case(
        name="four-mebibytes-of-control-tokens-in-a-message",
        attack=written_by_a_user,
        codes=frozenset({"200"}),
    ),
    Case(
        name="four-mebibytes-of-control-tokens-from-a-template",
        attack=written_by_a_template,
        codes=frozenset({"400"}),
        says="more than 262144 control tokens",
        unbounded={
            "signalbox_router.prompt.tokenization.control_tokens.MAX_CONTROL_TOKENS": 1 << 22
        },
    ),
)
