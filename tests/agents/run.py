"""Runs the unmodified command lines of agents against a live stack, where there is no network.

Each finishes a task: two calls at once, one of which fails, then a file to write, then an answer. A
worker is killed in the middle of the second answer, and another goes on. `make test-agents` runs
this in a network namespace of its own, whose only interface is the loopback.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.agents.families import CHATML
from tests.agents.scripted_executor import WINDOW, Script
from tests.agents.stack import ScriptedStack, scripted_stack
from tests.docs.blocks import ROOT
from tests.router.apis.messages.test_routes import KEY, write_keys
from tests.waiting import eventually

PAGE = ROOT / "docs" / "how_to" / "agents.md"
"""Has the configuration of each, which is what runs."""
MODULES = Path(__file__).parent / "node_modules"
LIMIT_S = 300
"""Seconds that a task may take; a command line that waits for ever fails."""
MODEL = "scripted"
TASK = "Read in.txt, run `false`, and write what you read to out.txt."
END = "The task is finished."
_THOUGHT = " ".join(f"step{i}" for i in range(400))
"""So long an answer that the worker dies within it."""
_NUM_DRAWN_BEFORE_KILL = 1_500


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """One agent."""

    package: str
    command: Sequence[str | Path]
    """The program and its arguments before the task."""
    shell: str
    """Name of the tool that runs a command."""
    argument: str
    """The command's name among the tool's arguments."""
    heading: str
    """Of the section of PAGE that configures it."""
    file: str = ""
    """Path in the home folder of the section's file, if it has one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the test needs beside those of the section."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of a call."""

    def configuration(self, url: str) -> tuple[dict[str, str], str]:
        """Returns the variables and the file's text that PAGE gives, for a server at `url`."""
        section = PAGE.read_text(encoding="utf-8").partition(f"\n## {self.heading}\n")[2]
        section = section.partition("\n## ")[0].replace("http://127.0.0.1:8000", url)
        for placeholder, value in (("MODEL", MODEL), ("KEY", KEY), ("65536", str(WINDOW))):
            section = re.sub(rf"\b{placeholder}\b", value, section)
        variables = dict(re.findall(r"^export (\w+)=(.*)$", section, re.MULTILINE))
        files = re.findall(r"^```(?:json|toml)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        assert len(files) == bool(self.file)
        return variables, "".join(files)

    def script(self) -> Script:
        """Returns what the model says: the calls by the number of results that it has."""

        def answer(prompt: str) -> str:
            if f'"name": "{self.shell}"' not in prompt:
                return "A title"  # some ask for one beside the task
            _, _, last = prompt.rpartition(TASK)
            match last.count("<tool_response>"):
                case 0:
                    return f"{self._call('cat in.txt')}\n{self._call('false')}"
                case 2:
                    return f"<think>\n{_THOUGHT}\n</think>\n\n{self._call('cp in.txt out.txt')}"
                case 3:
                    return END
            raise AssertionError(f"a turn that was not planned: {last[-2000:]}")

        return answer

    def _call(self, command: str) -> str:
        call = {"name": self.shell, "arguments": {self.argument: command, **self.more}}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


CODEX = MODULES / "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
COMMAND_LINES = (
    CommandLine(
        package="@openai/codex",
        command=(
            CODEX,
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
        ),
        shell="exec_command",
        argument="cmd",
        heading="Codex",
        file=".codex/config.toml",
    ),
    CommandLine(
        package="@anthropic-ai/claude-code",
        command=(
            MODULES / "@anthropic-ai/claude-code-linux-x64/claude",
            "--dangerously-skip-permissions",
            "-p",
        ),
        shell="Bash",
        argument="command",
        heading="Claude Code",
        environment={"IS_SANDBOX": "1"},
        more={"description": "Runs a command"},
    ),
    CommandLine(
        package="@qwen-code/qwen-code",
        command=("node", MODULES / ".bin/qwen", "--auth-type", "openai", "--yolo", "-p"),
        shell="run_shell_command",
        argument="command",
        heading="Qwen Code",
        file=".qwen/settings.json",
        more={"description": "Runs a command", "is_background": False},
    ),
    CommandLine(
        package="opencode-ai",
        command=(MODULES / "opencode-linux-x64/bin/opencode", "run"),
        shell="bash",
        argument="command",
        heading="opencode",
        file=".config/opencode/opencode.json",
        more={"description": "Runs a command"},
    ),
)


async def finish_task(agent: CommandLine) -> None:
    """Raises AssertionError if the agent does not finish the task."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with scripted_stack(
            CHATML,
            agent.script(),
            num_workers=2,
            api_keys=write_keys(folder),
            name=MODEL,
            step_ns=2_000_000,
        ) as stack:
            killing = asyncio.create_task(_kill_in_the_middle(stack))
            said = await _run(agent, stack.url, folder)
            copied = folder / "work" / "out.txt"
            assert copied.exists(), f"no file was written:\n{said}"
            assert copied.read_text() == "What stands here.\n"
        assert END in said, f"the answer is missing:\n{said}"
        assert killing.done(), "no worker was killed"
        await killing


async def _kill_in_the_middle(stack: ScriptedStack) -> None:
    def has_drawn() -> bool:
        return sum(one.num_drawn for one in stack.executors) > _NUM_DRAWN_BEFORE_KILL

    await eventually(has_drawn)
    await stack.kill_busy_worker()


async def _run(agent: CommandLine, url: str, folder: Path) -> str:
    """Returns what the agent says on both outputs."""
    home, work = folder / "home", folder / "work"
    work.mkdir()
    (work / "in.txt").write_text("What stands here.\n")
    home.mkdir()
    variables, text = agent.configuration(url)
    if agent.file:
        path = home / agent.file
        path.parent.mkdir(parents=True)
        path.write_text(text)
    process = await asyncio.create_subprocess_exec(
        *agent.command,
        TASK,
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": str(home), **variables, **agent.environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)  # its children hold the output open
        output, _ = await process.communicate()
        raise AssertionError(f"not finished in {LIMIT_S} s:\n{output.decode()}") from None
    said = output.decode(errors="replace")
    assert process.returncode == 0, f"ended with {process.returncode}:\n{said}"
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", help="packages of the agents; all if none is named")
    wanted = parser.parse_args().packages
    interfaces = [name for _, name in socket.if_nameindex()]
    assert interfaces == ["lo"], f"this runs where there is no network, not with {interfaces}"
    for agent in COMMAND_LINES:
        if not wanted or agent.package in wanted:
            asyncio.run(finish_task(agent))
            print(f"{agent.package}: the task is finished", flush=True)


if __name__ == "__main__":
    main()
