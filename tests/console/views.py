"""The console's views with something in them, for all that looks at each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from playwright.sync_api import Page, expect

from signalbox_router.main import Router
from tests.console.chat import ask, open_settings
from tests.console.person import Person
from tests.console.stack import Services

RICH = """\
<think>
The reader wants a short answer, with code.
</think>

## Sorting in place

`list.sort()` sorts *in place*; **`sorted()`** returns a new list:

```python
def newest(paths):
    return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
```

| method | returns | time |
|:--|:--:|--:|
| `sort` | nothing | n log n |
| `sorted` | a list | n log n |

1. Choose `sort` where nobody else has the list.
2. Choose `sorted` otherwise; see [the manual](https://docs.python.org/3/howto/sorting.html).

> Both are stable.
"""


def _empty_chat(person: Person, services: Services) -> None:
    expect(person.open("chat").get_by_role("textbox", name="Message")).to_be_visible()


def _chat(person: Person, services: Services) -> None:
    services.model.answers["How do I sort a list in Python?"] = RICH
    page = person.open("chat")
    ask(page, "Which languages do you know?")
    message = ask(page, "How do I sort a list in Python?")
    expect(message).to_contain_text("Both are stable.")


def _settings(person: Person, services: Services) -> None:
    page = person.open("chat")
    open_settings(page)
    expect(page.get_by_label("temperature")).to_be_visible()


def _live(person: Person, services: Services) -> None:
    page = person.open("live")
    expect(page.get_by_role("region", name="Requests")).to_contain_text("running")


def _empty_why(person: Person, services: Services) -> None:
    expect(person.open("why").get_by_role("main")).to_be_visible()


def _why(person: Person, services: Services) -> None:
    page = person.open("chat")
    message = ask(page, "Why did this take so long?")
    message.get_by_role("link", name="Why").click()
    expect(page.get_by_role("main")).to_contain_text("first token")


class View(NamedTuple):
    """One view in one state, and how a person comes there."""

    name: str
    show: Callable[[Person, Services], None]
    num_requests: int = 0
    """Requests of others that are being answered."""


VIEWS = (
    View("chat-empty", _empty_chat),
    View("chat", _chat),
    View("settings", _settings),
    View("live", _live, num_requests=3),
    View("why-empty", _empty_why),
    View("why", _why),
)


@contextmanager
def shown(view: View, person: Person, services: Services, router: Router) -> Iterator[Page]:
    """Shows a view while others are answered; yields its page."""
    with services.load(router, num_requests=view.num_requests):
        view.show(person, services)
        yield person.page
