"""Without a name for the earlier request, a prompt is compared with the session's last one."""

from typing import Any

from tests.router.apis.messages.clients import make_messages
from tests.router.apis.messages.test_diagnostics import TALK, caching, edited
from tests.router.apis.openai.clients import make_http
from tests.router.apis.responses.test_diagnostics import ask as respond
from tests.router.apis.responses.test_diagnostics import edited as edited_input
from tests.router.apis.responses.test_diagnostics import naming

SESSION = {"x-claude-code-session-id": "one"}


async def test_without_an_id_the_last_request_of_the_session_counts() -> None:
    async with make_messages(caching()) as messages:
        await messages.whole(messages=TALK, headers=SESSION)
        asked: dict[str, Any] = {"messages": edited(0), "headers": SESSION}
        null = await messages.whole(diagnostics={"previous_message_id": None}, **asked)
        await messages.whole(messages=TALK, headers=SESSION)
        alone = await messages.whole(diagnostics={}, **asked | {"headers": {}})
        whole = await messages.whole(diagnostics={}, **asked | {"messages": edited(2)})
    assert null["diagnostics"] is alone["diagnostics"] is None
    assert whole["diagnostics"]["cache_miss_reason"]["path"] == "messages.2"


async def test_without_an_id_the_response_that_is_continued_counts_or_the_session() -> None:
    async with make_http(caching()) as http:
        first = await respond(http, prompt_cache_key="one")
        later = {"input": TALK[:1], "previous_response_id": first["id"]}
        continued = await respond(http, **later, **naming(None))
        same = await respond(http, prompt_cache_key="one", **naming(None))
        changed = await respond(http, input=edited_input(2), prompt_cache_key="one", **naming(None))
        none = await respond(http, prompt_cache_key="two", **naming(None))
    assert continued["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    assert same["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    assert changed["prompt_cache_diagnostics"]["path"] == "input[2]"
    assert none["prompt_cache_diagnostics"] == {"type": "unavailable"}
