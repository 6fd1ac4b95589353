"""docs/how_to/agents.md configures each command line that `make test-agents` runs."""

import pytest

from tests.agents.run import COMMAND_LINES, MODEL, CommandLine
from tests.router.apis.messages.test_routes import KEY


@pytest.mark.parametrize("agent", COMMAND_LINES, ids=lambda agent: agent.package)
def test_the_page_says_where_the_server_is_and_names_model_key_and_window(
    agent: CommandLine,
) -> None:
    variables, text = agent.configuration("http://served:1")
    given = "\n".join([*variables.values(), text])
    assert all(part in given for part in ("http://served:1", MODEL, KEY, "262144"))
