"""Each router is told of its own requests' tokens, once and in order."""

from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.updates import RequestUpdates
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.results.step_outcome import StepOutcome, router_updates
from tests.scheduler_svc.make import make_request

LOGPROBS = [TokenLogprobs(-0.5, 1, [3], [-0.5]), TokenLogprobs(-0.25, 1, [4], [-0.25])]


class Router:
    def send(self, updates: RequestUpdates) -> None: ...


def make_groups(*routers: Router) -> list[SequenceGroup]:
    groups = [make_request([1, 2], max_tokens=5) for _ in routers]
    for group, router in zip(groups, routers, strict=True):
        group.reply_to = router
    return groups


def test_tokens_of_routers_in_turn_come_to_each_with_their_log_probabilities() -> None:
    one, other = Router(), Router()
    outcome = StepOutcome()
    logprobs = [None, LOGPROBS[0], LOGPROBS[1], None]
    groups = make_groups(one, other, one, other)
    for token_id, (group, of_token) in enumerate(zip(groups, logprobs, strict=True)):
        outcome.add_token(group.sequences[0], token_id, of_token)
    updates = router_updates(outcome, now=0.0)
    assert list(updates) == [one, other]
    handles = [group.request.handle for group in groups]
    assert updates[one] == RequestUpdates(
        handles=handles[::2], indices=[0, 0], token_ids=[0, 2], logprobs=[(1, LOGPROBS[1])]
    )
    assert updates[other] == RequestUpdates(
        handles=handles[1::2], indices=[0, 0], token_ids=[1, 3], logprobs=[(0, LOGPROBS[0])]
    )


def test_a_step_that_gave_no_token_tells_nobody() -> None:
    assert router_updates(StepOutcome(), now=0.0) == {}
