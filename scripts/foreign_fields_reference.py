"""Writes docs/reference/foreign_fields.md: the fields of other servers, and what becomes of them.

`make docs` runs it; a test compares.
"""

import json
from itertools import groupby
from pathlib import Path

from signalbox_router.apis.messages import foreign as messages
from signalbox_router.apis.openai.requests import foreign_fields
from signalbox_router.apis.openai.requests.foreign_fields import IGNORED, REFUSED, Foreign, Table
from signalbox_router.apis.responses import item_types as items
from signalbox_router.apis.responses import tool_types as tools
from signalbox_router.apis.responses import types as responses
from signalbox_router.apis.stored_responses import types as stored

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "foreign_fields.md"
HEAD = """\
# Fields of other servers

What becomes of a field in a body of the [HTTP API](http_api.md#fields) that is another server's, or
that this endpoint does not serve. A field with the same meaning here is **served** under our name,
with its checks. One that changes the answer elsewhere is **refused** by name with the status 400.
One that does not, or that has no effect without a field that is refused, is **ignored** and named
in the header `x-signalbox-ignored-fields`. Null is always accepted. So are the values in the column
"asks for nothing"; the first of them is the other server's default.
"""
TABLES = {
    "Completions": foreign_fields.COMPLETION,
    "Chats": foreign_fields.CHAT,
    "`messages[]` of chats": foreign_fields.MESSAGE,
    "`reasoning` of chats": foreign_fields.REASONING,
    "`tools[]` of chats": foreign_fields.TOOL,
    "`tools[].function` of chats": foreign_fields.FUNCTION,
    "`prompt_cache_options`": foreign_fields.PROMPT_CACHE_OPTIONS,
    "`structured_outputs`": foreign_fields.STRUCTURED_OUTPUTS,
    "`/tokenize`": foreign_fields.TOKENIZE,
    "Responses": stored.StoredResponsesBody.FOREIGN,
    "`prompt_cache_options` of Responses": responses.ComparingCacheOptions.FOREIGN,
    "`/v1/responses/input_tokens`": stored.StoredInputTokensBody.FOREIGN,
    "Items and content parts of Responses": items.OF_ANSWERS,
    "`tools[]` of Responses": tools.OF_TOOLS,
    "`text` of Responses": responses.TEXT,
    "`reasoning` of Responses": responses.REASONING,
    "Messages": messages.MESSAGES,
    "`messages[]` of Messages": messages.MESSAGE,
    "`text` blocks of Messages": messages.TEXT,
    "`tool_use` and `tool_result` blocks of Messages": messages.CALL,
    "`tools[]` of Messages": messages.TOOL,
    "`thinking` of Messages": messages.THINKING,
    "`output_config` of Messages": messages.OUTPUT,
    "Embeddings": foreign_fields.EMBEDDING,
    "`/pooling`": foreign_fields.ENCODED,
    "`/classify`": foreign_fields.INPUT,
    "Scores": foreign_fields.SCORE,
    "Rerankers": foreign_fields.RERANK,
    "`/v1/embed`, `/v2/embed`": foreign_fields.COHERE_EMBED,
    "`/v1/load_lora_adapter`": foreign_fields.ADAPTER,
}
_ALIKE = {"Chats": "Completions", "Responses": "Chats"}
"""Tables of which only the rows are shown that another one does not have."""


def text() -> str:
    """Returns the page."""
    parts = [HEAD]
    for title, table in TABLES.items():
        shown, note = table, ""
        if (alike := _ALIKE.get(title)) is not None:
            known = TABLES[alike]
            shown = {name: row for name, row in table.items() if known.get(name) != row}
            absent = ", ".join(f"`{name}`" for name in known if name not in table)
            note = f"\nAs for {alike.lower()} but for these rows, and without {absent}.\n"
        parts.append(f"## {title}\n{note}\n{_table(shown)}")
    return "\n".join(parts)


def _table(table: Table) -> str:
    rows = ["| server and source | field | asks for nothing | here |\n|---|---|---|---|\n"]
    for server, fields in groupby(
        sorted(table.items(), key=lambda one: one[1].server), key=lambda one: one[1].server
    ):
        rows += [
            f"| {server} | `{name}` | {_nothing(row)} | {_does(row)} |\n" for name, row in fields
        ]
    return "".join(rows)


def _nothing(row: Foreign) -> str:
    values = [row.default, *row.nothing]
    return ", ".join(f"`{json.dumps(one)}`" for one in values if one is not None) or "null"


def _does(row: Foreign) -> str:
    if row.does in (REFUSED, IGNORED):
        return row.does
    pairs = [f"; `{json.dumps(one)}` becomes `{json.dumps(ours)}`" for one, ours in row.ours]
    return f"`{row.does}`{''.join(pairs)}"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
