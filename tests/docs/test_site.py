"""What the hook of the site's generator makes of a page."""

from types import SimpleNamespace

from scripts.site_pages import on_page_markdown

PAGE = """See [the limits](../reference/limits.md) and [the code](../../rpc/errors.py).

```sh needs=hosts
signalbox serve MODEL
```

```python
import signalbox
```
"""


def test_links_that_leave_the_docs_are_absolute_and_fences_name_a_language_alone() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="how_to/start.md"))
    config = SimpleNamespace(repo_url="https://source.example/")
    expected = PAGE.replace("../../rpc/", "https://source.example/rpc/").replace(" needs=hosts", "")
    assert on_page_markdown(PAGE, page=page, config=config) == expected
