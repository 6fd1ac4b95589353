"""System messages behind the start of a conversation, by templates that take them or do not."""

from typing import Any

import pytest

from signalbox_contract.errors import InvalidArgument
from signalbox_router.prompt.chat.chat_template import ChatTemplate
from signalbox_router.prompt.chat.conversation import Conversation, Message
from signalbox_router.prompt.chat.message_order import orders_of
from tests.router.fakes import CHATML
from tests.router.prompt.chat.test_tool_prompt import ADD, PLAIN, STRICT

SHOWN = "[{{ m.role }}]{{ m.content }}"
IN_PLACE = f"{{% for m in messages %}}{SHOWN}{{% endfor %}}"
REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    f"{{{{ raise_exception('it is late') }}}}{{% endif %}}{SHOWN}{{% endfor %}}"
)
TO_THE_FRONT = (
    f"{{% for m in messages %}}{{% if m.role == 'system' %}}{SHOWN}{{% endif %}}{{% endfor %}}"
    f"{{% for m in messages %}}{{% if m.role != 'system' %}}{SHOWN}{{% endif %}}{{% endfor %}}"
)
DROPPING = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    f"{SHOWN}{{% endif %}}{{% endfor %}}"
)
WITH_TOOLS = "{{ tools | length if tools }}" + REFUSING
START = [Message("system", "S"), Message("system", ("T", "U"))]
MIDDLE = [Message("user", "a"), Message("assistant", "b"), Message("system", "L")]
LATE = [*START, *MIDDLE, Message("user", "c")]


def render(source: str, messages: list[Message], **fields: object) -> str:
    template = ChatTemplate(source, special_tokens={})
    conversation = Conversation(messages=messages, **fields)  # type: ignore[arg-type]
    try:
        return str(template.render(conversation, max_bytes=1 << 16))
    finally:
        template.close()


@pytest.mark.parametrize("source", [IN_PLACE, REFUSING, TO_THE_FRONT, DROPPING, STRICT])
def test_a_later_system_message_leaves_the_text_before_it_as_it_was(source: str) -> None:
    start = [] if source == STRICT else START
    late = [*start, *MIDDLE, Message("user", "c")]
    text = render(source, late)
    first = "" if source == STRICT else "[system]S\nT\nU"
    role = "system" if source == IN_PLACE else "user"
    rest = "L\nc" if source == STRICT else "L[user]c"  # its roles must alternate
    assert text == f"{first}[user]a[assistant]b[{role}]{rest}"
    assert text.startswith(render(source, late[:-2]))


def test_tools_are_offered_beside_a_later_system_message() -> None:
    offered = render(WITH_TOOLS, LATE, tools=[ADD])
    assert offered == "1[system]S\nT\nU[user]a[assistant]b[user]L[user]c"
    told = render(CHATML, LATE, tools=[ADD])
    assert told.index("</tools>") < told.index("<|im_start|>system\nL<|im_end|>")


def test_users_in_a_row_are_one_where_roles_must_alternate() -> None:
    users = [Message("user", "a"), Message("user", ("b", "c"))]
    assert render(STRICT, users) == "[user]a\nb\nc"
    assert render(PLAIN, users) == "[user]a[user]b\nc"


def copies_of_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which the number of parts is added each time that a message gets them."""
    copies: list[int] = []

    def noted(message: Message, **fields: Any) -> Message:
        copies.append(len(fields.get("content", ())))
        return Message(**message._asdict() | fields)

    monkeypatch.setattr(Message, "_replace", noted)
    return copies


def test_the_parts_of_a_run_of_messages_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy for each message would take a time that is quadratic in the messages."""
    copies = copies_of_parts(monkeypatch)
    messages = [Message("system", "a")] * 50 + [Message("user", "a")] * 50
    *_, merged = orders_of(Conversation(messages=messages), lambda: True)
    assert [(one.role, len(one.parts)) for one in merged.messages] == [("system", 50), ("user", 50)]
    assert copies == [50, 50]


def test_a_refused_conversation_is_refused_with_the_first_reason() -> None:
    with pytest.raises(InvalidArgument, match=r"\(it is late\)"):
        render("{{ raise_exception('it is late' if messages | length == 5 else 'x') }}", LATE)


def test_no_further_form_is_rendered_once_one_takes_too_much() -> None:
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    source = (
        "{% if messages | length == 4 %}{% if messages[2].role == 'user' %}"
        f"{loops}{{% endif %}}{{{{ raise_exception('no') }}}}{{% endif %}}{IN_PLACE}"
    )
    with pytest.raises(InvalidArgument, match="more than"):
        render(source, [*MIDDLE, Message("user", "c")])
