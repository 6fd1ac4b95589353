"""The step that a worker which has failed before has to compute before it is given requests.

So a worker that crashes on any input costs no request but those of its first loss.
"""

from collections.abc import Sequence as Groups

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.pooling import PoolingParams
from signalbox_contract.request import Request
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.updates import RequestUpdates
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.sequence_group import Sequence, new_group


class _NoRouter:
    def send(self, updates: RequestUpdates) -> None: ...


def make_check_plan(
    *,
    pools: bool = False,
    is_per_token: bool = False,
    groups: Groups[CacheGroup] = (FULL_GROUP,),
) -> StepPlan:
    """Returns the first step of a lease: one sequence of one token, which draws another.

    On a worker that pools it has a vector; `is_per_token` says of which kind.
    """
    head = len(groups) - 1
    num_blocks = groups[-1].state_blocks
    request = Request(
        request_id="worker-check",
        prompt_token_ids=[0],
        params=SamplingParams(),
        max_tokens=1,
        pooling=PoolingParams(is_per_token=is_per_token) if pools else None,
    )
    group = new_group(request, reply_to=_NoRouter(), now=0.0)
    seq = Sequence(seq_id=1, branch=0, group=group, block_table=[*range(len(groups))])
    return StepPlan(
        step_id=1,
        token_budget=0,
        seqs=[seq],
        seq_ids=[seq.seq_id],
        num_new_tokens=[1],
        num_samples=[1],
        new=[0],
        states=[range(head, head + num_blocks)] if num_blocks else [],
    )
