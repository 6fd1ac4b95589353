"""`signalbox models`, `ps`, `load` and `unload` of a router that loads models."""

import asyncio
import json
import re
from subprocess import CompletedProcess

import pytest

from signalbox_contract.errors import Unavailable
from tests.router.fake_launcher import State
from tests.router.stack import make_config, routed
from tests.router.test_launched_models import Launched, launching
from tests.router.test_several_models import chat_scheduler, pooling_scheduler
from tests.signalbox.stacks import run_here


async def run(address: str, *arguments: str) -> "CompletedProcess[str]":
    return await asyncio.to_thread(run_here, *arguments, "--router", address)


async def states(both: Launched) -> dict[str, str]:
    done = await run(both.stack.address, "ps", "--all", "--json")
    return {
        one["model"]["name"]: one["model"]["state"].removeprefix("STATE_").lower()
        for one in json.loads(done.stdout)["models"]
    }


async def test_models_are_loaded_and_unloaded_by_hand() -> None:
    async with launching(chat_scheduler(), pooling_scheduler()) as both:
        at = both.stack.address
        assert await states(both) == {"chat": "unloaded", "vectors": "unloaded"}
        done = await run(at, "load", "vectors")
        assert done.returncode == 0 and done.stdout.startswith("vectors is loaded, after ")
        await both.launcher.set(
            "vectors",
            memory_bytes=3 << 29,
            num_starts=2,
            last_start_ns=1_500_000_000,
            is_kept=True,
            reason="a long remark " * 9,
        )
        await both.until_told()
        words = " ".join((await run(at, "ps")).stdout.partition("\n")[2].split())
        assert "chat" not in words and "kept" in words
        assert re.match(r"vectors loaded 0 0 1.5 GiB 1.500 s 127.0.0.1:\d+ a long", words)
        shown = (await run(at, "models")).stdout
        assert "unloaded" in shown and "loaded" in shown and "LlamaForCausalLM" in shown
        listed = json.loads((await run(at, "models", "--json")).stdout)["models"]
        assert [(one["name"], one["state"]) for one in listed] == [
            ("chat", "unloaded"),
            ("vectors", "loaded"),
        ]
        done = await run(at, "unload", "vectors")
        assert (done.returncode, done.stdout) == (0, "vectors is not loaded any more\n")
        assert await states(both) == {"chat": "unloaded", "vectors": "unloaded"}


async def test_the_reasons_of_a_launcher_are_told() -> None:
    async with launching(chat_scheduler()) as one:
        at = one.stack.address
        one.launcher.refusal = Unavailable("chat.gguf: no such file", 30.0)
        done = await run(at, "load", "chat")
        assert done.returncode == 1 and "chat.gguf: no such file" in done.stderr
        await one.launcher.set(
            "chat", state=State.STATE_FAILED, reason="no such file", retry_after_ns=600 * 10**9
        )
        await one.until_told()
        words = " ".join((await run(at, "ps")).stdout.split())
        assert "chat failed 0 0" in words and "no such file; may start again in" in words
        done = await run(at, "load", "other")
        assert done.returncode == 1 and "model 'other' is not served here" in done.stderr


@pytest.mark.parametrize("command", ["load", "unload"])
async def test_a_router_without_a_launcher_says_so(command: str) -> None:
    chat = chat_scheduler()
    async with routed(chat, make_config(await chat.start())) as stack:
        await stack.wait_serving()
        done = await run(stack.address, command, "chat")
        assert done.returncode == 1 and "`signalbox serve A B C` starts one" in done.stderr
        assert "loaded" in (await run(stack.address, "ps")).stdout
