"""Each field that the SDK's types have is served, or in a table that says what becomes of it."""

from typing import Any

import pytest
from openai.types import responses as sdk
from openai.types.responses import (
    input_token_count_params,
    response_create_params,
    response_input_item_param,
    response_text_config_param,
)
from openai.types.shared_params import reasoning
from openai.types.shared_params.custom_tool_input_format import Grammar
from typing_extensions import get_type_hints

from signalbox_router.apis.openai.requests.types import Body
from signalbox_router.apis.responses import item_types, tool_types, types


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        (types.ResponsesBody, response_create_params.ResponseCreateParamsStreaming),
        (types.InputTokensBody, input_token_count_params.InputTokenCountParams),
        (types.TextOptions, response_text_config_param.ResponseTextConfigParam),
        (types.TextFormat, sdk.ResponseFormatTextJSONSchemaConfigParam),
        (types.ReasoningOptions, reasoning.Reasoning),
        (types.ResponsesStreamOptions, response_create_params.StreamOptions),
        (item_types.InputMessage, sdk.EasyInputMessageParam),
        (item_types.InputMessage, response_input_item_param.Message),
        (item_types.InputMessage, sdk.ResponseOutputMessageParam),
        (item_types.ContentPart, sdk.ResponseInputTextParam),
        (item_types.ContentPart, sdk.ResponseOutputTextParam),
        (item_types.ContentPart, sdk.ResponseOutputRefusalParam),
        (item_types.ReasoningInput, sdk.ResponseReasoningItemParam),
        (item_types.FunctionCall, sdk.ResponseFunctionToolCallParam),
        (item_types.CustomCall, sdk.ResponseCustomToolCallParam),
        (item_types.ToolOutput, response_input_item_param.FunctionCallOutput),
        (item_types.ToolOutput, sdk.ResponseCustomToolCallOutputParam),
        (tool_types.Function, sdk.FunctionToolParam),
        (tool_types.Custom, sdk.CustomToolParam),
        (tool_types.ToolFormat, Grammar),
        (tool_types.Namespace, sdk.NamespaceToolParam),
        (tool_types.ToolChoiceObject, sdk.ToolChoiceAllowedParam),
        (tool_types.ToolChoiceObject, sdk.ToolChoiceMcpParam),
    ],
)
def test_each_field_of_the_api_is_known(kind: type[Body], theirs: Any) -> None:
    served = {field.alias or name for name, field in kind.model_fields.items()}
    assert not served & kind.FOREIGN.keys()
    assert get_type_hints(theirs).keys() <= served | kind.FOREIGN.keys()
