"""Takes requests whose masks are dear in fewer steps, so that the others lose little by them.

All sequences of a step wait for all its masks. Where others run, requests with dear masks compute
in turns: what a turn's masks take becomes a debt, each step repays a share of its own time, and a
turn is given when nothing is owed, or if one step repays it and what is owed. Turns go to the payer
that has been charged least, and to that one of its requests (stride scheduling, Waldspurger and
Weihl, 1995).

A mask may become dear in a step that took its request as a cheap one. That is a debt, too, and one
of its payer: beyond a bound, all structured outputs of the payer have turns until it is repaid. So
neither a cost that comes late nor requests that end before they are known get around the turns.
"""

from collections.abc import Iterable, Iterator, Mapping

from signalbox_contract.step_result import StepResult
from signalbox_rpc.metrics.sample import Sample, counter
from signalbox_scheduler.planning.decode_batch import DecodeBatch
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.queue.worker_queues import GroupQueues
from signalbox_scheduler.requests.mask_use import MaskUse
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.timeline import EventKind

USUAL_S = 0.00025
"""CPU time of a mask that is never dear; those of usual schemas take a tenth of it."""
SHARE = 0.08
"""Share of a step's own time that dear masks may take beside it; a mask that takes this share of
what a token takes is not dear."""
TIMES_CHEAPEST = 4
"""A mask is not dear if it takes up to so many times what those of the cheapest request do."""
MAX_UNFORESEEN_S = 0.05
"""Time of unforeseen dear masks beyond which all of a payer's structured outputs have turns."""
MAX_CHARGE_NS = 10**9
"""Most nanoseconds that one mask is charged, whatever the worker reports."""
_USUAL_NS = 1e9 * USUAL_S
_NEW = 0.125
"""Weight of a request's newest masks in their mean, and of the newest step."""


class MaskTurns:
    """One worker's turns."""

    def __init__(self, queues: GroupQueues, decode_batch: DecodeBatch, *, num_stages: int) -> None:
        self.num_sat_out = 0
        """Sum over the steps of the requests that sat them out."""
        self.mask_ns = 0
        """CPU time of all masks."""
        self._queues = queues
        self._decode_batch = decode_batch
        self._num_stages = num_stages
        self._known: dict[SequenceGroup, None] = {}
        """Groups that run and whose masks have been dear of late."""
        self._level_ns = _USUAL_NS  # what is more is dear
        self._others_run = False  # whose masks are not dear
        self._token_ns = 0.0  # of a step's own time, and that of a step
        self._step_ns = 0.0
        self._debt_ns = 0.0
        self._charged_ns: dict[str, float] = {}  # by payer, of those with dear masks
        self._unforeseen_ns: dict[str, float] = {}  # by payer, not repaid

    def samples(self) -> Iterator[Sample]:
        yield counter(
            "mask_turns_missed",
            "Steps that requests sat out because the masks of their structured outputs are dear.",
            self.num_sat_out,
        )
        yield counter(
            "mask_seconds",
            "CPU time that steps waited for masks of structured outputs.",
            self.mask_ns / 1e9,
        )

    # Planning

    def begin(self, plan: StepPlan) -> None:
        """Finds the groups whose masks are dear, and gives some of them a turn in the step.

        Without other running groups, none is taken as dear.
        """
        plan.dear = {}
        self._level_ns = max(_USUAL_NS, SHARE * self._token_ns)
        self._others_run = bool(self._queues.running)
        if not self._known and not self._unforeseen_ns:
            return
        self._known = {group: None for group in self._known if self._queues.runs(group)}
        running = [group for group in self._queues.running if plan.takes(group)]
        known = [group for group in running if not _is_unknown(group)]
        cheapest_ns = min(map(_mean_ns, known), default=0.0)
        self._level_ns = max(self._level_ns, TIMES_CHEAPEST * cheapest_ns)
        dear = [group for group in running if self._is_dear(group)]
        self._others_run = not set(known).issubset(dear)
        if dear and self._others_run:
            self._decode_batch.release(*dear)
            plan.dear = self._turns(dear)

    def admits(self, plan: StepPlan, group: SequenceGroup) -> bool:
        """Returns whether a group that comes to run may compute at once, without a turn."""
        if group.masks is not None:
            self._known[group] = None
        if plan.is_alone or not self._others_run or not self._is_dear(group):
            return True
        plan.dear[group] = None
        return False

    def finish(self, plan: StepPlan) -> None:
        """Books the turns that a filled plan makes use of."""
        if not plan.dear:
            return
        taken = {seq.group for seq in plan.seqs[len(plan.decode_ids) :]}
        plan.dear = {group: ns if group in taken else None for group, ns in plan.dear.items()}
        for group, booked_ns in plan.dear.items():
            if booked_ns is None:
                self._sit_out(plan, group)
            else:
                self._charge(group, booked_ns)

    def _sit_out(self, plan: StepPlan, group: SequenceGroup) -> None:
        use = _use(group)
        if not use.num_sat_out:
            numbers = {"step_id": plan.step_id, "seconds": use.mean_ns / 1e9}
            group.timeline.add(EventKind.DEAR_MASKS, plan.planned_at, **numbers)
        use.num_sat_out += 1
        self.num_sat_out += 1

    def _is_dear(self, group: SequenceGroup) -> bool:
        if _mean_ns(group) > self._level_ns:
            return True
        is_constrained = group.params.structured_output is not None
        return is_constrained and self._unforeseen_ns.get(group.payer, 0) > 1e9 * MAX_UNFORESEEN_S

    def _turns(self, dear: list[SequenceGroup]) -> dict[SequenceGroup, float | None]:
        """Returns the groups with what their turn is expected to take; None if they have none."""
        charged = self._charged_ns
        payers = dict.fromkeys(group.payer for group in dear)
        least = min((charged[payer] for payer in payers if payer in charged), default=0.0)
        self._charged_ns = charged = {payer: charged.get(payer, least) for payer in payers}
        turns: dict[SequenceGroup, float | None] = dict.fromkeys(dear)
        debt_ns, most_ns = self._debt_ns, SHARE * self._step_ns
        for group in sorted(dear, key=lambda one: (charged[one.payer], _use(one).charged_ns)):
            of_mask_ns = _mean_ns(group)
            if of_mask_ns <= self._level_ns:  # not known to be dear, so it has a turn alone
                of_mask_ns = max(_USUAL_NS, most_ns)
            booked_ns = of_mask_ns * len(group.unfinished)
            if debt_ns > 0 and debt_ns + booked_ns > most_ns:
                break
            if not (group.awaits_answers and group.is_inflight):
                turns[group] = booked_ns
                debt_ns += booked_ns
        return turns

    # Answers

    def observe(self, plan: StepPlan, result: StepResult, *, seconds: float) -> None:
        """Takes what the masks of a step took, and the time of the step itself."""
        masks, timings = result.masks, result.timings
        costs = [] if masks is None else masks.cpu_ns.tolist()
        self.mask_ns += (total_ns := sum(costs))
        own_ns: float = (timings.forward_ns + timings.sample_ns) / self._num_stages
        own_ns = own_ns or max(0.0, 1e9 * seconds - total_ns)
        if self._debt_ns or self._unforeseen_ns:
            self._repay(SHARE * own_ns)
        if num_tokens := plan.total_tokens:
            self._token_ns += _NEW * (own_ns / num_tokens - self._token_ns)
            self._step_ns += _NEW * (own_ns - self._step_ns)
        of_group: dict[SequenceGroup, list[int]] = {}
        if masks is not None and (self._known or plan.dear or max(costs, default=0) > _USUAL_NS):
            seqs = dict(zip(plan.seq_ids, plan.seqs, strict=True))
            num_masks = _num_masks(result)
            for seq_id, cost in zip(masks.seq_ids.tolist(), costs, strict=True):
                number = num_masks.get(seq_id, 1)
                of_mask = min(cost // number, MAX_CHARGE_NS)
                of_group.setdefault(seqs[seq_id].group, []).extend([of_mask] * number)
        for group, booked_ns in plan.dear.items():
            if booked_ns is not None:
                self._charge(group, sum(of_group.get(group, ())) - booked_ns)
        if of_group:
            self._charge_unforeseen(plan, of_group)
        for group, of_seqs in of_group.items():
            self._follow(group, sum(of_seqs) / len(of_seqs))

    def _charge_unforeseen(
        self, plan: StepPlan, of_group: Mapping[SequenceGroup, Iterable[int]]
    ) -> None:
        """Charges dear masks of groups that had no turn, if cheaper ones waited for them."""
        excess_ns = {
            group: sum(max(0.0, cost - self._level_ns) for cost in costs)
            for group, costs in of_group.items()
        }
        if all(excess_ns.get(group) or _is_unknown(group) for group in _groups(plan)):
            return
        for group, group_ns in excess_ns.items():
            if group_ns and plan.dear.get(group) is None:
                self._charge(group, group_ns)
                left_ns = self._unforeseen_ns.get(group.payer, 0.0)
                self._unforeseen_ns[group.payer] = left_ns + group_ns

    def _follow(self, group: SequenceGroup, mean_ns: float) -> None:
        """Moves the mean of a group that has had a dear mask, or has one now."""
        if group not in self._known and mean_ns <= _USUAL_NS:
            return
        use = _use(group)
        if use.mean_ns or _NEW * mean_ns < _USUAL_NS:
            use.mean_ns += _NEW * (mean_ns - use.mean_ns)
        else:  # by this one alone it is dear
            use.mean_ns = mean_ns
        if use.mean_ns > _NEW * _USUAL_NS and self._queues.runs(group):
            self._known[group] = None
        else:
            self._known.pop(group, None)

    def _charge(self, group: SequenceGroup, cost_ns: float) -> None:
        self._debt_ns += cost_ns
        _use(group).charged_ns += cost_ns
        if group.payer in self._charged_ns:
            self._charged_ns[group.payer] += cost_ns

    def _repay(self, repaid_ns: float) -> None:
        self._debt_ns = max(0.0, self._debt_ns - repaid_ns)
        if self._unforeseen_ns:
            each_ns = repaid_ns / len(self._unforeseen_ns)
            self._unforeseen_ns = {
                payer: left_ns - each_ns
                for payer, left_ns in self._unforeseen_ns.items()
                if left_ns > each_ns
            }


def _use(group: SequenceGroup) -> MaskUse:
    if group.masks is None:
        group.masks = MaskUse()
    return group.masks


def _num_masks(result: StepResult) -> dict[int, int]:
    """Returns the masks of each sequence that computed drafts, one for each and one more."""
    if (drafts := result.drafts) is None:
        return {}
    counts = zip(drafts.seq_ids.tolist(), drafts.num_drafts.tolist(), strict=True)
    return {seq_id: 1 + num_drafts for seq_id, num_drafts in counts}


def _groups(plan: StepPlan) -> set[SequenceGroup]:
    return {seq.group for seq in plan.seqs}


def _is_unknown(group: SequenceGroup) -> bool:
    """Returns whether a group has masks to come and has had none, so that they may be dear."""
    return group.params.structured_output is not None and group.times.first_token is None


def _mean_ns(group: SequenceGroup) -> float:
    return 0.0 if group.masks is None else group.masks.mean_ns
