"""The console's files, as browsers and programs ask for them."""

import posixpath
import re
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser

import pytest
from pydantic import ValidationError

from signalbox.settings.serve_settings import ServeSettings
from signalbox_router.config import ConsoleSettings, RouterSettings
from signalbox_router.console.console_files import PATHS
from tests.router.apis.openai.clients import Http, make_http

BROWSER = {"accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
FOREIGN = {"origin": "https://a.example", "sec-fetch-site": "cross-site"}


class Page(HTMLParser):
    """Elements of a page, and where they lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.base = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert "style" not in given
        assert tag != "style"
        assert not any(name.startswith("on") for name in given)
        if tag == "script":
            assert given.get("src"), "the policy forbids inline scripts"
        if tag == "base":
            self.base = given["href"] or ""
        elif link := given.get("src") or given.get("href"):
            self.links.append(link)


async def test_a_browser_gets_the_page_and_a_program_json(http: Http) -> None:
    page = await http.raw.get("/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<!doctype html>" in page.text
    about = await http.raw.get("/")
    assert about.json()["name"] == "Signalbox"
    for answer in (page, about):
        assert "accept" in answer.headers["vary"].split(", ")


async def test_each_link_and_import_is_relative_and_leads_to_a_file(http: Http) -> None:
    page = Page((await http.raw.get("/", headers=BROWSER)).text)
    assert {"main.js", "styles.css"} <= set(page.links)
    assert {f"/{link}" for link in page.links} <= PATHS
    for path in PATHS - {"/"}:
        answer = await http.raw.get(path)
        assert answer.status_code == 200, path
        if path.endswith(".js"):
            assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
            for name in re.findall(r'\b(?:from|import) ?"([./][^"]*)"', answer.text):
                found = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
                assert found in PATHS, (path, name)


async def test_each_imported_name_is_exported(http: Http) -> None:
    """A name that is not there leaves the whole page empty."""
    for path in PATHS:
        for names, source in re.findall(
            r'^import \{([^}]*)\} from "(\.[^"]*)"', (await http.raw.get(path)).text, re.MULTILINE
        ):
            found = posixpath.normpath(posixpath.join(posixpath.dirname(path), source))
            if found.startswith("/vendor/"):
                continue
            exported = re.findall(
                r"^export (?:async )?(?:const|class|function)\*? (\w+)|^export \{([^}]*)\}",
                (await http.raw.get(found)).text,
                re.MULTILINE,
            )
            known = {name.strip() for pair in exported for name in ",".join(pair).split(",")}
            wanted = {name.split(" as ")[0].strip() for name in names.split(",")} - {""}
            assert wanted <= known, (path, source, wanted - known)


async def test_every_answer_carries_the_policy(http: Http) -> None:
    known = await http.raw.get("/", headers=BROWSER)
    cached = BROWSER | {"if-none-match": known.headers["etag"]}
    answers = [known, await http.raw.get("/", headers=cached)]
    answers += [await http.raw.get(path) for path in PATHS - {"/"}]
    for answer in answers:
        policy = answer.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
                "img-src 'self' data:", "frame-ancestors 'none'",
                "require-trusted-types-for 'script'"} <= set(policy)  # fmt: skip
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cross-origin-embedder-policy"] == "require-corp"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("path", ["/", "/main.js", "/vendor/htm.module.js"])
@pytest.mark.parametrize("coding", ["gzip", "identity"])
async def test_a_browser_that_has_a_file_is_told_so(http: Http, path: str, coding: str) -> None:
    asked = BROWSER | {"accept-encoding": coding}
    first = await http.raw.get(path, headers=asked)
    etag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    assert first.headers.get("content-encoding", "identity") == coding
    assert "accept-encoding" in first.headers["vary"]
    for known in (etag, f"W/{etag}", f'"other", {etag}'):
        again = await http.raw.get(path, headers=asked | {"if-none-match": known})
        assert (again.status_code, again.content) == (304, b""), known
        assert again.headers["etag"] == etag
    changed = await http.raw.get(path, headers=asked | {"if-none-match": '"other"'})
    assert (changed.status_code, changed.text) == (200, first.text)
    other = "gzip" if coding == "identity" else "identity"
    in_other = await http.raw.get(path, headers=BROWSER | {"accept-encoding": other})
    assert in_other.headers["etag"] != etag  # strong: of these very bytes
    assert in_other.text == first.text


async def test_head_says_what_get_would(http: Http) -> None:
    for path in ("/", "/main.js"):
        got = await http.raw.get(path, headers=BROWSER)
        head = await http.raw.head(path, headers=BROWSER)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("etag", "content-type", "content-length", "content-security-policy"):
            assert head.headers[name] == got.headers[name], name


async def test_only_a_get_is_answered(http: Http) -> None:
    for path in ("/", "/main.js"):
        answer = await http.raw.post(path, headers=BROWSER)
        assert answer.status_code in (404, 405)
        assert "content-security-policy" not in answer.headers
    assert (await http.raw.get("/no.js")).status_code == 404
    for path in ("/../config.py", "/%2e%2e/console_files.py", "/lib/../../console_files.py"):
        assert (await http.raw.get(path)).status_code == 404


async def test_a_proxy_that_names_its_prefix_has_links_below_it(http: Http) -> None:
    for prefix in ("/llm", "/llm/", "/a/b-c.d"):
        told = BROWSER | {"x-forwarded-prefix": prefix}
        answer = await http.raw.get("/", headers=told)
        assert Page(answer.text).base == prefix.removesuffix("/") + "/"
        assert "x-forwarded-prefix" in answer.headers["vary"]
    for prefix in ("//evil.example", "https://evil.example/", '/"><script>', "/a,/b", "llm", "/"):
        answer = await http.raw.get("/", headers=BROWSER | {"x-forwarded-prefix": prefix})
        assert Page(answer.text).base == ""


async def test_a_link_on_another_page_opens_the_console_and_nothing_else(http: Http) -> None:
    assert (await http.raw.get("/", headers=BROWSER | LINK)).status_code == 200
    assert (await http.raw.get("/", headers=BROWSER | LINK | FOREIGN)).status_code == 403
    framed = LINK | {"sec-fetch-dest": "iframe"}
    assert (await http.raw.get("/", headers=BROWSER | framed)).status_code == 403
    assert (await http.raw.get("/v1/models", headers=BROWSER | LINK)).status_code == 403
    rebound = LINK | {"host": "evil.example"}
    assert (await http.raw.get("/", headers=BROWSER | rebound)).status_code == 403


async def test_pages_of_allowed_origins_do_not_read_the_console() -> None:
    async with make_http(allowed_origins="https://a.example") as http:
        answer = await http.raw.get("/main.js", headers=FOREIGN)
        assert "access-control-allow-origin" not in answer.headers
        answer = await http.raw.get("/version", headers=FOREIGN)
        assert answer.headers["access-control-allow-origin"] == "https://a.example"


async def test_the_files_need_no_key_and_nothing_else_is_open() -> None:
    async with make_http(api_key=["sb-1"]) as http:
        for path in PATHS:
            assert (await http.raw.get(path, headers=BROWSER)).status_code == 200, path
        assert (await http.raw.get("/")).status_code == 401
        assert (await http.raw.post("/main.js")).status_code == 401


async def test_without_the_console_a_browser_gets_json_and_links_are_refused() -> None:
    async with make_http(console=False) as http:
        assert (await http.raw.get("/", headers=BROWSER)).json()["name"] == "Signalbox"
        assert (await http.raw.get("/main.js")).status_code == 404
        assert (await http.raw.get("/", headers=BROWSER | LINK)).status_code == 403


KNOWN = {"api_keys": "keys.yaml", "allowed_hosts": "llm.example"}


@pytest.mark.parametrize("make", [RouterSettings, partial(ServeSettings, simulate=True)])
def test_the_console_is_off_where_others_reach_it_unless_they_are_known(
    make: Callable[..., ConsoleSettings],
) -> None:
    assert make().serves_console
    assert not make(console=False).serves_console
    assert not make(host="0.0.0.0").serves_console
    assert make(host="0.0.0.0", console=True, **KNOWN).serves_console
    by_key = KNOWN | {"api_keys": None, "api_key": ("sb-1",)}
    assert make(host="0.0.0.0", console=True, **by_key).serves_console
    for name, message in (("api_keys", "--api-keys"), ("allowed_hosts", "--allowed-hosts")):
        with pytest.raises(ValidationError, match=message):
            make(host="0.0.0.0", console=True, **KNOWN | {name: None})
    with pytest.raises(ValidationError, match="--no-http"):
        make(console=True, http=False)
