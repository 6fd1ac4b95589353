"""The console's files, as a browser and as a program asks for them."""

import posixpath
import re

from signalbox_router.console.console_files import PATHS
from tests.router.apis.openai.clients import Http

BROWSER = {"accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}


async def test_a_browser_gets_the_page_and_a_program_json(http: Http) -> None:
    page = await http.raw.get("/", headers=BROWSER)
    assert page.headers["content-type"].startswith("text/html")
    assert "<!doctype html>" in page.text
    assert (await http.raw.get("/")).json()["name"] == "Signalbox"


async def test_every_import_leads_to_a_file(http: Http) -> None:
    assert "/lib/rpc.js" in PATHS
    for path in PATHS - {"/"}:
        answer = await http.raw.get(path)
        assert answer.status_code == 200, path
        if path.endswith(".js"):
            assert answer.headers["content-type"].startswith("text/javascript")
            for name in re.findall(r'(?:from|import) ?"([^"]+)"', answer.text):
                found = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
                assert found in PATHS, (path, name)
