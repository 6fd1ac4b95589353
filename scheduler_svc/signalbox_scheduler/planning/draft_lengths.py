"""Decides how many drafts a sequence computes: the number that gives the most tokens a second.

The probability that a draft is accepted, if all before it are, is estimated from the recent runs of
its sequence. The cost of its row is measured: the times of steps with as many sequences, by their
number of drafts. The best length gives the whole step the most tokens a second, so that drafts of
one sequence do not slow the others by more than they bring.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from signalbox_scheduler.requests.draft_use import DraftRecord

LEAST_GAIN = 0.05
"""Tokens of a step that drafts of a sequence must add beyond their cost, since both are
estimates."""
IDLE_STEPS = 256
"""Steps without a proposal after which a sequence pauses, over the sequences of a step: outside the
decode batch each of them costs the planner time, little where there are few."""
FIRST_PAUSE_STEPS, MOST_PAUSE_STEPS = 16, 1024
MEASURE_STEPS = 256
"""Steps after which one without drafts is measured again, since contexts grow."""
FORGET_STEPS = 512
"""Steps after which a mean is dropped: a number of drafts that was slow by accident is tried
again."""
_KEPT = 0.85
"""Weight that a sequence's older runs keep when one is added."""
_KEPT_OF_ALL = 0.98
_PRIOR_RUNS = 2.0
"""Weight, in runs, of the acceptance of all sequences in the estimate of one."""
_NEW = 0.25
"""Weight of the newest step in a mean."""
_MOST_AT_ONCE = 3.0
"""Largest multiple of the mean that a step counts as: one that took longer probably had to wait for
its core."""


@dataclass(slots=True)
class _Mean:
    num_drafts: float
    ns: float
    num_steps: int = 0
    last_step: int = 0
    """Number of the last such step among those of as many sequences."""

    def add(self, num_drafts: int, ns: float, step: int) -> None:
        self.num_steps, self.last_step = self.num_steps + 1, step
        weight = max(_NEW, 1 / self.num_steps)
        self.num_drafts += weight * (num_drafts - self.num_drafts)
        self.ns += weight * (min(ns, _MOST_AT_ONCE * self.ns) - self.ns)


@dataclass(slots=True)
class RowCosts:
    """Times of one worker's steps that decode, by the numbers of their sequences and drafts."""

    _means: dict[int, dict[int, _Mean]] = field(default_factory=dict)
    """By numbers of sequences, then of drafts, both rounded."""
    _num_steps: Counter[int] = field(default_factory=Counter)
    """Number of steps by that of their sequences, rounded."""

    def observe(self, *, num_seqs: int, num_drafts: int, ns: float) -> None:
        """Records an answered step without tokens of prompts."""
        size = _rounded(num_seqs)
        means = self._means.setdefault(size, {})
        self._num_steps[size] += 1
        mean = means.setdefault(_rounded(num_drafts), _Mean(num_drafts, ns))
        mean.add(num_drafts, ns, self._num_steps[size])

    def times(self, num_seqs: int, first: float, most: int) -> list[float]:
        """Returns the times of steps with `first` drafts, one more, and so on up to `most` more.

        Empty if a step without drafts must be measured first. Numbers of drafts that no step had
        are interpolated, and extrapolated a little: longer runs are measured as runs grow.
        """
        size = _rounded(num_seqs)
        step, known = self._num_steps[size], self._means.get(size, {})
        known = {n: one for n, one in known.items() if step - one.last_step < FORGET_STEPS}
        if 0 not in known or step - known[0].last_step >= MEASURE_STEPS:
            return []
        self._means[size] = known
        means = sorted((mean.num_drafts, mean.ns) for mean in known.values())
        counts, times = (np.array(column) for column in zip(*means, strict=True))
        times = np.minimum.accumulate(times[::-1])[::-1]  # more drafts take no less time
        most = min(most, max(1, int(2 * counts[-1] + num_seqs - first)))
        reach = first + most - counts[-1]
        if len(counts) > 1 and reach > 0:
            slope = (times[-1] - times[0]) / (counts[-1] - counts[0])
            counts = np.append(counts, counts[-1] + reach)
            times = np.append(times, times[-1] + slope * reach)
        found: list[float] = np.interp(first + np.arange(most + 1), counts, times).tolist()
        return found


class DraftLengths:
    """Chooses the lengths of one worker's runs."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._costs = RowCosts()
        self._num_accepted, self._num_refused = 3.0, 2.0  # of all sequences, older ones weigh less
        self._num_seqs = 1
        self._tokens_of_seq, self._drafts_of_seq = 1.0, 0.0  # means of a step
        self._num_tokens = 1.0  # of a step, without those of the drafts that are chosen
        self._times = [1.0] * (most + 1)
        """Times of a step, by drafts of one sequence more; equal until some are measured."""
        self.may_pay = True
        """False if drafts of a sequence would not pay though all of them were accepted."""

    @property
    def is_measuring(self) -> bool:
        """True if the next step must have no drafts, so that its time can be measured."""
        return not self._times

    def observe_step(self, *, num_seqs: int, num_drafts: int, num_tokens: int, ns: int) -> None:
        """Records an answered step without tokens of prompts.

        Args: num_tokens: those that it drew.
        """
        self._costs.observe(num_seqs=num_seqs, num_drafts=num_drafts, ns=ns)
        self._num_seqs = num_seqs
        self._tokens_of_seq += _NEW * (num_tokens / num_seqs - self._tokens_of_seq)
        self._drafts_of_seq += _NEW * (num_drafts / num_seqs - self._drafts_of_seq)
        others = num_seqs - 1
        self._num_tokens = 1 + others * self._tokens_of_seq
        self._times = self._costs.times(num_seqs, others * self._drafts_of_seq, self.most)
        self.may_pay = self.is_measuring or self._best(1.0) > 0

    def observe_run(self, record: DraftRecord, *, num_drafts: int, num_accepted: int) -> None:
        """Records how many drafts of a sequence were accepted in a step that allowed some."""
        if not num_drafts:
            record.num_idle += 1
            return
        record.num_idle = 0
        is_refused = num_accepted < num_drafts
        record.num_accepted = _KEPT * record.num_accepted + num_accepted
        record.num_refused = _KEPT * record.num_refused + is_refused
        self._num_accepted = _KEPT_OF_ALL * self._num_accepted + num_accepted
        self._num_refused = _KEPT_OF_ALL * self._num_refused + is_refused
        record.num_tried = 0 if is_refused else min(2 * record.num_tried, self.most)

    def next(self, record: DraftRecord) -> int:
        """Returns the most drafts of a sequence's next step; 0 if none pay at present."""
        if record.num_idle * self._num_seqs >= IDLE_STEPS or not self.may_pay:
            return 0
        prior = _PRIOR_RUNS * self._num_accepted / (self._num_accepted + self._num_refused)
        num_runs = record.num_accepted + record.num_refused + _PRIOR_RUNS
        best = self._best((record.num_accepted + prior) / num_runs)
        if best and record.num_accepted >= 1:
            record.num_pause_steps = 0
        return max(best, record.num_tried)

    def _best(self, share: float) -> int:
        """Returns the best length, if a draft is accepted with the probability `share` when all
        before it are."""
        best, best_rate = 0, (self._num_tokens + LEAST_GAIN) / self._times[0]
        all_before, num_tokens = 1.0, self._num_tokens
        for num_drafts, ns in enumerate(self._times[1:], start=1):
            all_before *= share
            num_tokens += all_before
            if num_tokens > best_rate * ns:
                best, best_rate = num_drafts, num_tokens / ns
        return best

    def pause(self, record: DraftRecord) -> int:
        """Begins a sequence's pause; returns its length in steps, twice that of the last one."""
        steps = min(max(FIRST_PAUSE_STEPS, 2 * record.num_pause_steps), MOST_PAUSE_STEPS)
        record.is_off, record.num_pause_steps = True, steps
        return steps

    def resume(self, record: DraftRecord) -> None:
        """Ends a pause: the next run has one draft, and each one after it twice as many while all
        are accepted."""
        record.is_off, record.num_tried, record.num_idle = False, 1, 0


def _rounded(number: int) -> int:
    """Returns a number with its three leading binary digits."""
    shift = max(0, number.bit_length() - 3)
    return number >> shift << shift
