"""Models by turns through one `signalbox serve`, whose memory has room for one of them."""

import asyncio
from pathlib import Path

import httpx2

from tests.gpu_worker.tiny_models import make_llama
from tests.signalbox.stacks import run_here, serve
from tests.waiting import EVENT_S

ROOM_FOR_ONE = ("--kv-cache-memory", "1", "--swap-space", "0", "--models-memory", "1.9")
PROMPT = list(range(3, 40))


async def ask(client: httpx2.AsyncClient, model: str) -> str:
    """Returns the continuation that a model gives of the prompt."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    answer = await client.post("/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    text: str = answer.json()["choices"][0]["text"]
    return text


async def test_two_models_answer_by_turns_and_nothing_is_lost(tmp_path: Path) -> None:
    make_llama(tmp_path)
    models = (f"one={tmp_path}", f"two={tmp_path}")
    with serve(tmp_path / "log", *models, *ROOM_FOR_ONE, "--max-model-len", "128") as stack:
        async with httpx2.AsyncClient(base_url=stack.http_url(), timeout=EVENT_S) as client:
            (alone,) = {await ask(client, "one")}
            names = ("two", "one", "two", "two", "one")
            assert await asyncio.gather(*(ask(client, name) for name in names)) == [alone] * 5
            cards = (await client.get("/models")).json()["data"]
            states = sorted(card["status"]["value"] for card in cards)
            assert "loaded" in states and "unloaded" in states
            answer = await client.post("/completions", json={"model": "three", "prompt": "a"})
            assert answer.status_code == 404 and "'one' and 'two' are" in answer.text
        (loaded,) = [card["id"] for card in cards if card["status"]["value"] == "loaded"]
        shown = await asyncio.to_thread(run_here, "ps", "--router", stack.address)
        assert f"{loaded}  " in shown.stdout and "GiB" in shown.stdout
