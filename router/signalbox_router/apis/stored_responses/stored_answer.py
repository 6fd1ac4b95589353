"""Writers of answers that are kept, which also make what the store gets."""

from dataclasses import replace
from typing import Any, ClassVar

from signalbox_contract.errors import RpcError
from signalbox_router.apis.openai.requests.types import Body
from signalbox_router.apis.openai.response_fields import to_json
from signalbox_router.apis.responses.input_codec import ReadInput
from signalbox_router.apis.responses.output_items import Item
from signalbox_router.apis.responses.response import ResponsesAnswer, begun
from signalbox_router.apis.stored_responses.event_pieces import PiecedItem
from signalbox_router.apis.stored_responses.response_store import (
    ResponseStore,
    StoreFailed,
    StoreFull,
)
from signalbox_router.apis.stored_responses.stored_response import Json, StoredResponse
from signalbox_router.apis.stored_responses.types import StoredResponsesBody
from signalbox_router.prompt.served_model import ServedModel


class StoredAnswer(ResponsesAnswer):
    """An answer that is stored before its last event is sent."""

    def __init__(
        self,
        body: StoredResponsesBody,
        read: ReadInput,
        *,
        draft: StoredResponse,
        store: ResponseStore,
        model: ServedModel,
    ) -> None:
        """`draft` has everything except the response itself; its tokens are the previous turn's."""
        said: dict[str, Any] = {
            "created_at": int(draft.created_at),
            "previous_response_id": body.previous_response_id,
            "background": bool(body.background),
        }
        super().__init__(body, read, response_id=draft.id, model=model, said=said)
        self.is_stored = True
        self._draft, self._store = draft, store

    async def _close(self) -> None:
        """Stores the response; if that fails, the answer says that it is not stored."""
        try:
            await self._store.keep(self.ended(self._state()))
        except (StoreFailed, StoreFull) as error:
            self.is_stored = False
            self._store.failed(error)

    def failure(self, error: RpcError, body: Body | None) -> bytes:
        self.is_stored = False
        return super().failure(error, body)

    def ended(self, state: Json) -> StoredResponse:
        """Returns what the store gets when the response is complete."""
        draft = replace(self._draft, request=b"").with_body(self._whole(state))
        if self._last is None:
            return draft
        request = self._last.request
        kept = draft.kept.continued(request.prompt_token_ids, request.answer_token_ids)
        return replace(draft, kept=kept)


class BackgroundAnswer(StoredAnswer):
    """An answer in the background; its events depend on its text only."""

    item_type: ClassVar[type[Item]] = PiecedItem

    async def _close(self) -> None:
        """Does nothing: the run of the response stores it."""

    def failure(self, error: RpcError, body: Body | None) -> bytes:
        return ResponsesAnswer.failure(self, error, body)

    def queued(self) -> StoredResponse:
        """Returns the response before it runs."""
        return self._draft.with_body(self._whole(begun("queued")))

    def in_progress(self, seed: int) -> StoredResponse:
        """Returns the running response, with the seed from which it may be run again."""
        request = to_json(self._draft.request_fields | {"seed": seed})
        self._draft = replace(self._draft, request=request)
        return self._draft.with_body(self._whole(begun("in_progress")))

    def finished(self) -> StoredResponse:
        return self.ended(self._state())

    def failed(self, error: RpcError, body: Body | None) -> tuple[StoredResponse, bytes]:
        """Returns the failed response and its last events."""
        opening = "" if self._has_begun else self._event("in_progress", begun("in_progress"))
        events = opening.encode() + self.failure(error, body)
        return self.ended(self._failed(error, body)), events
