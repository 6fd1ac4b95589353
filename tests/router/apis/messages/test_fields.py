"""Each field that the SDK's types have is served, or in a table that says what becomes of it."""

from typing import Any

import pytest
from anthropic.types import beta, message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count
from anthropic.types.beta import message_create_params as beta_create
from typing_extensions import get_type_hints

from signalbox_router.apis.messages import types
from signalbox_router.apis.openai.requests.error_params import param_of
from signalbox_router.apis.openai.requests.types import Body

HEADERS = {"betas"}
"""Parameters of the SDK that it sends as headers."""


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        (types.MessagesBody, message_create_params.MessageCreateParamsBase),
        (types.MessagesBody, beta_create.MessageCreateParamsBase),
        (types.CountTokensBody, message_count_tokens_params.MessageCountTokensParams),
        (types.CountTokensBody, beta_count.MessageCountTokensParams),
        (types.MessageParam, beta.BetaUserMessageParam),
        (types.MessageParam, beta.BetaAssistantMessageParam),
        (types.MessageParam, beta.BetaSystemMessageParam),
        (types.TextBlock, beta.BetaTextBlockParam),
        (types.ThinkingBlock, beta.BetaThinkingBlockParam),
        (types.RedactedThinkingBlock, beta.BetaRedactedThinkingBlockParam),
        (types.ToolUseBlock, beta.BetaToolUseBlockParam),
        (types.ToolResultBlock, beta.BetaToolResultBlockParam),
        (types.CustomTool, beta.BetaToolParam),
        (types.ClientTool, beta.BetaToolBash20250124Param),
        (types.ClientTool, beta.BetaToolTextEditor20250728Param),
        (types.ClientTool, beta.BetaMemoryTool20250818Param),
        (types.ToolChoiceParam, beta.BetaToolChoiceToolParam),
        (types.ThinkingParam, beta.BetaThinkingConfigEnabledParam),
        (types.ThinkingParam, beta.BetaThinkingConfigAdaptiveParam),
        (types.OutputConfig, beta.BetaOutputConfigParam),
        (types.CacheControl, beta.BetaCacheControlEphemeralParam),
        (types.Metadata, beta.BetaMetadataParam),
    ],
)
def test_each_field_of_the_api_is_known(kind: type[Body], theirs: Any) -> None:
    served = {field.alias or name for name, field in kind.model_fields.items()}
    assert not served & kind.FOREIGN.keys()
    assert get_type_hints(theirs).keys() - HEADERS <= served | kind.FOREIGN.keys()


def test_a_field_is_named_in_the_words_of_the_api() -> None:
    """Also where no check of this API's own names it."""
    body = types.MessagesBody(max_tokens=1, messages=[], output_format=None)
    assert param_of("thinking.budget", body) == "thinking.budget_tokens"
    assert param_of("sampling_params.structured_output.json_schema", body) == "tools"
