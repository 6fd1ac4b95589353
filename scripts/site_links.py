"""Makes links of docs/ that lead to other files of the repository lead to its source on the web.

MkDocs calls `on_page_markdown` for each page. In the repository the links stay relative, so that
they work in a clone; `tests/docs` checks that their targets are there.
"""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<=\]\()(\.\./[^)\s]+)(?=\))")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Returns the page with absolute links in place of those that leave docs/."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def absolute(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[1]))
        is_page = path.startswith("docs/") or path == "docs"
        return found[1] if is_page else f"{config.repo_url}{path}"

    return _LINK.sub(absolute, markdown)
