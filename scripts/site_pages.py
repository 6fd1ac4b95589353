"""Turns pages of docs/ into what the site's generator reads.

MkDocs calls `on_page_markdown` for each page. In the repository links to other files stay relative,
so that they work in a clone, and fences say what the tests need to run their commands: a web page
has links to the source, and the generator takes a fence with such a mark for inline code.
"""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<=\]\()(\.\./[^)\s]+)(?=\))")
_MARK = re.compile(r"^(```\w+) .*$", re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Returns the page with absolute links in place of those that leave docs/, and plain fences."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def absolute(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[1]))
        is_page = path.startswith("docs/") or path == "docs"
        return found[1] if is_page else f"{config.repo_url}{path}"

    return _MARK.sub(r"\1", _LINK.sub(absolute, markdown))
