"""Nothing that a model writes becomes an element of its own choosing, a request or a program."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.console.chat import ask
from tests.console.person import Person
from tests.console.stack import Services

ELEMENTS = (
    "script, iframe, object, embed, link, style, img, svg, video, audio, form, input, base, meta"
)
"""What an answer must never make; the page around it has some of them."""
MARKUP = """\
<script>document.title = "taken"</script>
<img src=x onerror="document.title = 'taken'">
<img src="http://elsewhere.example/pixel.png">
<svg onload="document.title = 'taken'"><a xlink:href="javascript:document.title='taken'">x</a></svg>
<iframe src="http://elsewhere.example/"></iframe><iframe srcdoc="<script>1</script>"></iframe>
<link rel="stylesheet" href="http://elsewhere.example/style.css"><style>* { display: none }</style>
<form action="http://elsewhere.example/"><input name="key" autofocus onfocus="alert(1)"></form>
<base href="http://elsewhere.example/">
<meta http-equiv="refresh" content="0;url=http://elsewhere.example/">
<math><mtext><table><mglyph><style><img src=x onerror=alert(1)></style></mglyph></table></mtext>
"""
LINKS = """\
[one](javascript:document.title='taken')
[two](JaVaScRiPt:document.title='taken')
[three](java\tscript:document.title='taken')
[four](&#106;avascript:document.title='taken')
[five](data:text/html,<script>document.title='taken'</script>)
[six](vbscript:msgbox)
[seven](file:///etc/passwd)
[eight](blob:http://elsewhere.example/1)
[nine]( javascript:document.title='taken')
[ten](\x01javascript:document.title='taken')
[eleven]: javascript:document.title='taken'
[eleven]
<javascript:document.title='taken'>
[twelve](//elsewhere.example/)
[thirteen](/v1/models)
[fourteen](#/live)
"""
IMAGES = """\
![pixel](http://elsewhere.example/pixel.png)
![pixel][ref]
![data](data:image/svg+xml,<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>)
[![pixel](http://elsewhere.example/a.png)](http://elsewhere.example/b)

[ref]: http://elsewhere.example/ref.png
"""
FENCES = """\
```html"><script>document.title = 'taken'</script>
<script>document.title = "taken"</script>
```
`<img src=x onerror=alert(1)>` and **<b onclick="alert(1)">bold</b>**

| <img src=x onerror=alert(1)> | b |
|---|---|
| <script>1</script> | [x](javascript:1) |

$\\href{javascript:alert(1)}{x}$ $$\\includegraphics{http://elsewhere.example/x.png}$$
"""


@pytest.mark.parametrize("answer", [MARKUP, LINKS, IMAGES, FENCES], ids=range(4))
def test_an_answer_makes_no_element_and_no_request(
    answer: str, person: Person, services: Services
) -> None:
    question = f"Be hostile {hash(answer)}"
    services.model.answers[question] = f"{answer}\n\nThe end."
    page = person.open()
    message = ask(page, question)
    expect(message).to_contain_text("The end.")
    assert message.locator(ELEMENTS).count() == 0
    for link in message.locator("a:not([href^='#/why/'])").all():  # the console's own
        assert re.match(r"https?://", link.get_attribute("href") or ""), link.inner_html()
        assert "noopener" in (link.get_attribute("rel") or "")
        assert "noreferrer" in (link.get_attribute("rel") or "")
    handlers = "e => [e, ...e.querySelectorAll('*')].flatMap(x => x.getAttributeNames())"
    names = message.evaluate(handlers)
    assert not [name for name in names if name.startswith("on")]
    expect(page).to_have_title(re.compile("Chat"))


def test_characters_that_turn_the_direction_stay_in_their_block(
    person: Person, services: Services
) -> None:
    """What follows reads from left to right again, whatever an answer leaves open."""
    services.model.answers["Turn around"] = (
        "Before \u202e\u2067 turned\n\n"
        "```python\nif access != 'none\u202e\u2066# check\u2069': pass\n```\n\n"
        "- item \u202e\n\nzero\u200bwidth\u2060 and tags \U000e0041.\n\nThe end."
    )
    page = person.open()
    message = ask(page, "Turn around")
    for text in ("Before", "item", "zero", "The end."):
        block = message.get_by_text(text)
        assert block.evaluate("e => getComputedStyle(e).unicodeBidi") in {"isolate", "plaintext"}
        assert block.evaluate("e => getComputedStyle(e).direction") == "ltr"
    assert message.locator("code").evaluate("e => getComputedStyle(e).direction") == "ltr"


def test_code_shows_what_would_change_how_it_reads(person: Person, services: Services) -> None:
    """Characters that turn the direction are seen by their numbers, and copied as they are."""
    code = "if access != 'none\u202e\u2066': # check\u2069\u2066"
    services.model.answers["Show the check"] = f"```python\n{code}\n```\nand `a\u202eb`"
    person.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = person.open()
    message = ask(page, "Show the check")
    shown = "if access != 'noneU+202EU+2066': # checkU+2069U+2066"
    expect(message.locator("code")).to_have_text([shown, "aU+202Eb"])
    message.get_by_role("button", name="Copy the code").click()
    expect(message.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == code


def test_names_and_titles_are_text_as_well(person: Person, services: Services) -> None:
    """What a person pastes becomes the title of a conversation, and in an export a file's name."""
    page = person.open()
    hostile = "<img src=x onerror=alert(1)>../../../etc/passwd"
    ask(page, hostile)
    page.reload()
    expect(page.get_by_role("navigation", name="Conversations")).to_contain_text("<img src=x")
    assert page.locator("img").count() == 0


def test_a_hostile_file_leaves_the_chat_usable(person: Person, tmp_path: Path) -> None:
    """The newest conversation is opened with the page: one that breaks it would do so for ever."""
    question = {"id": "a", "parent": None, "role": "user", "text": "Asked", "createdAt": 1}
    answer = {
        **question,
        "id": "b",
        "parent": "a",
        "role": "assistant",
        "text": "Answered",
        "finish": {"reason": "__defineGetter__"},
        "usage": {"promptTokens": {}},
        "error": "<img src=x>",
        "timing": {"firstTokenMs": "x"},
    }
    conversation = {"title": "<img src=x>", "messages": [question, answer], "updatedAt": 1e300}
    file = {"format": "signalbox.conversations", "version": 1, "conversations": [conversation]}
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps(file))
    page = person.open()
    page.get_by_label("Import").set_input_files(path)
    expect(page.get_by_text("Answered")).to_be_visible()
    page.reload()
    expect(page.get_by_text("Answered")).to_be_visible()
    assert page.locator("img").count() == 0
