"""Every block of the README and of docs/ runs here, parses, or is marked as output.

`make test-docs` runs them; the other tests of this module are part of `make test`.
"""

import contextlib
import io
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from signalbox import cli
from tests.docs.blocks import LANGUAGES, NEEDS, ROOT, Block, blocks, pages
from tests.docs.session import Session

ALL = [block for page in pages() for block in blocks(page)]
MARKS = {
    "sh": ("", "service", *(f"needs={what}" for what in NEEDS)),
    "python": ("", "part"),
}
RUN = sorted({block.page for block in ALL if block.is_run})
SERVES = {block.page for block in ALL if block.mark == "service"}
"""Pages that start services of their own; the others share a stack."""
SERVING = "signalbox serve models/SmolLM2-135M-Instruct.Q4_1.gguf --metrics-port 9464\n"


@pytest.mark.parametrize("block", ALL, ids=str)
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES
    assert block.mark in MARKS.get(block.language, ("",))
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "yaml":
        yaml.safe_load(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "python":
        compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", [one for one in ALL if one.mark.startswith("needs=")], ids=str)
def test_commands_that_need_more_than_this_machine_have_known_flags(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["signalbox"]:
            continue
        with contextlib.redirect_stderr(io.StringIO()) as told:
            try:
                cli.parse(words[1:])
            except SystemExit:
                pytest.fail(f"{block}: {line}\n{told.getvalue()}")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_sentences_have_known_names_and_flags(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in re.findall(r"`signalbox ([^`\n]+)`", page.read_text(encoding="utf-8")):
        if "COMMAND" not in command:
            with contextlib.suppress(SystemExit):  # what it takes may be left out
                cli.parse(command.replace("...", "").split())
    assert "there is no" not in capsys.readouterr().err


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A stack with the demo model, for pages that say that one runs."""
    with Session(tmp_path_factory.mktemp("serving")) as session:
        session.run(Block(ROOT / "README.md", 0, "sh", "service", SERVING))
        yield session


@pytest.mark.pages
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.xdist_group(page.name if page in SERVES else "shared"))
        for page in RUN
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_blocks_of_a_page_run_in_order(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ports = None if page in SERVES else request.getfixturevalue("serving").ports
    with Session(tmp_path, ports) as session:
        for block in blocks(page):
            if block.is_run:
                session.run(block)
