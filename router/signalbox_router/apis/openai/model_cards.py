"""Cards of models in /v1/models, with the fields of OpenAI, vLLM and Anthropic in each."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from signalbox_contract.model_state import ModelState
from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.schedulers.launcher.launched_models import LaunchedModel

OWNER = "signalbox"
_MAX_LIMIT = 1000

Card = dict[str, Any]


def model_card(
    name: str, model: ServedModel | LaunchedModel, *, created: int, state: str = ""
) -> Card:
    """Returns the card of a model, or of its adapter of that name.

    Args:
        state: what the launcher does with the model; empty without a launcher.
        created: seconds since 1970; when the model was released is not known.
    """
    adapter = model.adapter(name)
    card = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": OWNER,
        "root": model.name if adapter is None else adapter.path,
        "parent": None if adapter is None else model.name,
        "max_model_len": model.window,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": model.window,
        "max_tokens": model.window,
    }
    return card | {"status": _status(state)} if state else card


def _status(state: str) -> dict[str, Any]:
    """Returns a state in the words of llama-server's router mode, and in the launcher's."""
    match state:
        case ModelState.LOADED | ModelState.DRAINING:
            value = "loaded"
        case ModelState.LOADING | ModelState.WAITING:
            value = "loading"
        case _:
            value = "unloaded"
    failed = {"failed": True} if state == ModelState.FAILED else {}
    return {"value": value, "state": state, **failed}


def page_of(cards: Sequence[Card], query: Mapping[str, str]) -> dict[str, Any]:
    """Returns the list; all of it unless Anthropic's `limit`, `after_id` or `before_id` ask for a
    part. Raises BadRequest."""
    names = [card["id"] for card in cards]
    first, end = 0, len(cards)
    if (after := query.get("after_id")) is not None:
        first = _index_of(after, names, "after_id") + 1
    if (before := query.get("before_id")) is not None:
        end = _index_of(before, names, "before_id")
    shown = cards[first:end]
    limit = _limit(query.get("limit"))
    has_more = limit is not None and len(shown) > limit
    if has_more:
        shown = shown[:limit] if before is None else shown[-(limit or 0) :]
    ends = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    page = {"object": "list", "data": shown, "has_more": has_more}
    return page | dict(zip(("first_id", "last_id"), ends, strict=True))


def _index_of(name: str, names: Sequence[str], param: str) -> int:
    if name not in names:
        raise BadRequest(f"{param}: no model of the list has this id", param)
    return names.index(name)


def _limit(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MAX_LIMIT:
        raise BadRequest(f"limit: allowed: [1, {_MAX_LIMIT}]", "limit")
    return int(text)
