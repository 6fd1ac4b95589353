"""Fields of the Messages API that are not served, see `foreign_fields`."""

from collections.abc import Mapping

from signalbox_router.apis.openai.requests.foreign_fields import Table, ignored, refused

ANTHROPIC = "Anthropic: API reference"

MESSAGES: Table = {
    **refused(
        ANTHROPIC, "container", "mcp_servers", "thread", "compaction", "fallbacks",
        "fallback_credit_token", "billing_policy", "inference_geo",
    ),
    **ignored(ANTHROPIC, "user_profile_id", "workspace_id", speed="standard"),
}  # fmt: skip
MESSAGE: Table = refused(ANTHROPIC, "output_config")
TEXT: Table = ignored(ANTHROPIC, "citations")
CALL: Table = {
    **refused(ANTHROPIC, caller={"type": "direct"}),
    **ignored(ANTHROPIC, "toolset_name"),
}
TOOL: Table = ignored(ANTHROPIC, defer_loading=False, eager_input_streaming=False)
THINKING: Table = ignored(ANTHROPIC, "block_binding")
OUTPUT: Table = refused(ANTHROPIC, "task_budget")

RENAMED: Mapping[str, str] = {
    "stop": "stop_sequences",
    "tool_choice.tool": "tool_choice.name",
    "thinking.budget": "thinking.budget_tokens",
}
"""Fields by their names in the checks of all APIs."""
