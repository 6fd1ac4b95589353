"""Fields of the Messages API that are not served, see `foreign_fields`."""

from collections.abc import Mapping
from typing import Any

from signalbox_router.apis.openai.requests.foreign_fields import (
    IGNORED,
    REFUSED,
    Foreign,
    Table,
)

ANTHROPIC = "Anthropic: API reference"
_UNSET: tuple[object, ...] = (False, "", [], {})
_DIRECT = {"type": "direct"}


def _rows(does: str, *unset: str, **defaults: Any) -> dict[str, Foreign]:
    """Returns rows of fields that are unset by default, and of others with their defaults."""
    rows = {name: Foreign(ANTHROPIC, None, does, _UNSET) for name in unset}
    return rows | {name: Foreign(ANTHROPIC, default, does) for name, default in defaults.items()}


MESSAGES: Table = {
    **_rows(
        REFUSED, "container", "mcp_servers", "thread", "compaction", "fallbacks",
        "fallback_credit_token", "billing_policy", "inference_geo",
    ),
    **_rows(IGNORED, "diagnostics", "user_profile_id", "workspace_id", speed="standard"),
}  # fmt: skip
MESSAGE: Table = _rows(REFUSED, "output_config")
TEXT: Table = _rows(IGNORED, "citations")
CALL: Table = {**_rows(REFUSED, caller=_DIRECT), **_rows(IGNORED, "toolset_name")}
TOOL: Table = _rows(IGNORED, "defer_loading", "eager_input_streaming")
THINKING: Table = _rows(IGNORED, "block_binding")
OUTPUT: Table = _rows(REFUSED, "task_budget")

RENAMED: Mapping[str, str] = {
    "stop": "stop_sequences",
    "tool_choice.tool": "tool_choice.name",
    "thinking.budget": "thinking.budget_tokens",
}
"""Fields by their names in the checks of all APIs."""
