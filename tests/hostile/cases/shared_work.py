"""Templates of clients that take all the time they get, beside an honest one of another client."""

import asyncio

import httpx2

from tests.hostile.case import HTTP_S, Answer, Case, Target

NUM_BOMBS = 40
OTHER_ADDRESS = "127.0.0.2"
"""Address of this machine that the bombs come from."""
MOST_BEFORE = 10
"""Bombs that may end before both honest clients have their answers; each takes its CPU time."""
BOMB = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
HI = [{"role": "user", "content": "Hi"}]


def asked(template: str, number: int) -> dict[str, object]:
    template = f"{{# {number} #}}{template}"
    return {"messages": HI, "max_tokens": 1, "chat_template": template}


async def template_bombs(target: Target) -> list[Answer]:
    """Returns what the honest clients are told; fails if they wait for the bombs."""
    source = httpx2.AsyncHTTPTransport(local_address=OTHER_ADDRESS)
    url = f"http://{target.host}:{target.http_port}"
    path = "/v1/chat/completions"
    async with httpx2.AsyncClient(base_url=url, timeout=HTTP_S, transport=source) as bomber:
        bombs = [
            asyncio.create_task(bomber.post(path, json=asked(BOMB, i))) for i in range(NUM_BOMBS)
        ]
        try:
            await asyncio.sleep(1)  # until the bombs have all they can get
            answers = [
                await target.post(path, asked("{{ messages[0].content }}", number))
                for number in range(2)
            ]
            num_ended = sum(bomb.done() for bomb in bombs)
            assert num_ended <= MOST_BEFORE, f"honest templates waited for {num_ended} bombs"
            return answers
        finally:
            for bomb in bombs:
                bomb.cancel()
            await asyncio.gather(*bombs, return_exceptions=True)


CASES = (
    Case(
        name="40-template-bombs-of-another-client",
        attack=template_bombs,
        codes=frozenset({"200"}),
    ),
)
