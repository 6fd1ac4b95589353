"""The live requests of one scheduler, and how its updates reach them."""

from typing import TypeVar

from signalbox_contract.updates import FinishedRequest, RequestUpdates
from signalbox_router.requests.active_request import ActiveRequest
from signalbox_router.requests.request_output import finish_of

R = TypeVar("R", bound=ActiveRequest)


class RequestTable(dict[int, R]):
    """Requests by handle. Updates of a request that is not in the table are ignored."""

    def apply(self, updates: RequestUpdates) -> list[tuple[R, FinishedRequest]]:
        """Adds one step's updates to their requests; removes and returns those that ended.

        Raises LookupError or ValueError for updates that do not fit their requests.
        """
        for handle, max_tokens in updates.admitted:
            if (request := self.get(handle)) is not None:
                request.admit(max_tokens=max_tokens)
        for handle, first_position, logprobs in updates.prompt_logprobs:
            if (request := self.get(handle)) is not None:
                request.add_prompt_logprobs(first_position, logprobs)
        for handle, index, token_ids, logprobs in updates.runs():
            if (request := self.get(handle)) is not None:
                request.add_tokens(index, token_ids, logprobs)
        for handle, vector in updates.pooled:
            if (request := self.get(handle)) is not None:
                request.add_vector(vector)
        for sequence in updates.finished_sequences:
            if (request := self.get(sequence.handle)) is not None:
                request.end_sequence(sequence.index, finish_of(sequence))
        return [
            (request, finished)
            for finished in updates.finished_requests
            if (request := self.pop(finished.handle, None)) is not None
        ]
