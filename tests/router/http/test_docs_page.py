"""What /docs shows: endpoints by purpose, which of them need a key, examples that run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from signalbox_router.http.docs_page import ASSETS, DESCRIPTION, PAGE
from tests.router.apis.openai.clients import MODEL, Http, make_http
from tests.router.generation.pooling.pooling_stack import (
    CLASSIFIES,
    EMBEDS,
    counts,
    make_pooling_files,
    pooling,
)
from tests.router.limits.test_api_keys import entry, write_keys


class Operation(NamedTuple):
    """An endpoint as /openapi.json describes it."""

    method: str
    path: str
    described: dict[str, Any]


def operations(schema: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in schema["paths"].items():
        for method, described in methods.items():
            yield Operation(method, path, described)


async def description(http: Http) -> dict[str, Any]:
    schema: dict[str, Any] = (await http.raw.get(DESCRIPTION)).json()
    return schema


async def kept(http: Http) -> str:
    """Returns the id of a new response; "x" where none is made."""
    body = {"input": "Hi", "background": True}
    id_: str = (await http.raw.post("/v1/responses", json=body)).json().get("id", "x")
    return id_


async def answered(http: Http) -> set[str]:
    """Returns the paths that answer their example, or a GET, with success."""
    found = set()
    for method, path, described in operations(await description(http)):
        body = None
        if "requestBody" in described:
            body = described["requestBody"]["content"]["application/json"]["example"]
        path_of_one = path.replace("{name}", MODEL).replace("{response_id}", await kept(http))
        answer = await http.raw.request(method, path_of_one, json=body)
        if answer.is_success:
            found.add(path)
    return found


async def test_endpoints_are_grouped_by_purpose(http: Http) -> None:
    schema = await description(http)
    groups = {group["name"]: group["description"] for group in schema["tags"]}
    used = [described["tags"] for _, _, described in operations(schema)]
    assert all(len(tags) == 1 for tags in used)
    assert {tag for tags in used for tag in tags} == groups.keys()
    assert all(groups.values())


async def test_each_example_runs() -> None:
    async with make_http(allow_adapter_loading=True) as http:
        everything = {path for _, path, _ in operations(await description(http))}
        found = await answered(http)
        assert {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"} <= found
    for model in (EMBEDS, CLASSIFIES):
        vectors = counts if model is EMBEDS else lambda _: [1.0, 2.0, 3.0]
        files = make_pooling_files()
        async with make_http(pooling(vectors), files=files, pooling=model) as http:
            found |= await answered(http)
    assert found == everything


async def test_endpoints_that_need_a_key_say_so(tmp_path: Path) -> None:
    async with make_http(api_keys=write_keys(tmp_path / "keys", entry())) as http:
        schema = await description(http)
        for method, path, described in operations(schema):
            answer = await http.raw.request(method, path.replace("{name}", MODEL))
            needs_key = described.get("security", schema["security"]) != []
            assert (answer.status_code == 401) is needs_key, path
            assert ("Needs an API key" in described["description"]) is needs_key


async def test_the_page_runs_no_script_but_its_files(http: Http) -> None:
    page = await http.raw.get(PAGE)
    assert page.text.count("<script src=") == page.text.count("<script") == 2
    assert "style=" not in page.text and "<style" not in page.text
    for answer in (page, await http.raw.get(f"{ASSETS}/start.js")):
        policy = dict(
            rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; ")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
