"""Decides how many drafts a sequence computes: the number that gives the most tokens a second.

The probability that a draft is accepted, if all before it are, is estimated from the recent runs of
its sequence from each source, and from those since the last refusal, since texts are copied in
stretches. The source of the next drafts is not known before the worker has them: each counts as
often as it had drafts recently, so that those of a grammar, which are mostly right, are not taken
for those of a text. The cost
of its row is measured: the times of steps with as many sequences, by their number of drafts. The
best length gives the whole step the most tokens a second, so that drafts of one sequence do not
slow the others by more than they bring.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, repeat
from operator import mul

import numpy as np

from signalbox_scheduler.requests.draft_use import DraftRecord, SourceRecord

LEAST_GAIN = 0.05
"""Tokens of a step that drafts of a sequence must add beyond their cost, since both are
estimates."""
CAUTION = 1.1
"""Times the estimated cost that counts: of several lengths, the one that looks best is rather one
whose cost is estimated too low."""
HOPE = 0.9
"""Probability at which drafts must pay to be tried at all; longer copies have about as much."""
IDLE_STEPS = 8
"""Steps without a proposal after which a sequence waits for an offer: outside the decode batch it
costs the scheduler and the worker time in each step."""
FIRST_PAUSE_STEPS, MOST_PAUSE_STEPS = 16, 1024
FAILED_TRIALS = 8
"""Trials that fail in a row, after which first pauses are twice as long, and after as many more
twice again."""
MEASURE_STEPS = 256
"""Steps after which one without drafts is measured again, since contexts grow."""
FORGET_STEPS = 512
"""Steps after which a mean is dropped: a number of drafts that was slow by accident is tried
again."""
_KEPT = 0.85
"""Weight that a sequence's older runs keep when one is added."""
_KEPT_OF_ALL = 0.98
_KEPT_RUNS = 0.95
"""Weight that older runs keep in the frequencies of a sequence's sources."""
_PRIOR_RUNS = 2.0
"""Weight, in runs, of the acceptance of all sequences in the estimate of one."""
_NEW = 0.25
"""Weight of the newest step in the means of tokens and drafts."""
_NEWEST_TIME = 1 / 16
"""Weight of the newest step in the mean time of such steps: their differences are small."""
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

    @property
    def weight(self) -> float:
        """Number of steps that the mean is as certain as."""
        return min(self.num_steps, 1 / _NEWEST_TIME)

    def add(self, num_drafts: int, ns: float, step: int) -> None:
        self.num_steps, self.last_step = self.num_steps + 1, step
        weight = max(_NEWEST_TIME, 1 / self.num_steps)
        self.num_drafts += weight * (num_drafts - self.num_drafts)
        self.ns += weight * (min(ns, _MOST_AT_ONCE * self.ns) - self.ns)


@dataclass(slots=True)
class RowCosts:
    """Times of one worker's steps that decode, by the numbers of their sequences and drafts."""

    _means: dict[int, dict[int, _Mean]] = field(default_factory=dict)
    """Means by numbers of sequences, then of drafts, both rounded."""
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
        means = sorted(known.values(), key=lambda mean: mean.num_drafts)
        counts, times = [mean.num_drafts for mean in means], _convex(means)
        most = min(most, max(1, int(2 * counts[-1] + num_seqs - first)) if counts[-1] else 1)
        reach = first + most - counts[-1]
        if len(counts) > 1 and reach > 0:
            slope = (times[-1] - times[0]) / (counts[-1] - counts[0])
            counts.append(counts[-1] + reach)
            times.append(times[-1] + slope * reach)
        found: list[float] = np.interp(first + np.arange(most + 1), counts, times).tolist()
        return found


def _convex(means: Sequence[_Mean]) -> list[float]:
    """Returns times from the first one on, by slopes that are at least 0 and do not fall: reading
    the weights hides the first rows, and each one behind them costs as much. Slopes that fall are
    pooled, so that errors of single means cancel out."""
    slopes: list[tuple[float, float, int]] = []  # slope, weight, number of gaps
    for before, mean in pairwise(means):
        gap = mean.num_drafts - before.num_drafts
        slope = (mean.ns - before.ns) / gap
        weight = gap * gap / (1 / before.weight + 1 / mean.weight)
        number = 1
        while slopes and slopes[-1][0] >= slope:
            other, other_weight, other_number = slopes.pop()
            slope = (slope * weight + other * other_weight) / (weight + other_weight)
            weight, number = weight + other_weight, number + other_number
        slopes.append((slope, weight, number))
    each = (max(0.0, slope) for slope, _, number in slopes for _ in range(number))
    gaps = (mean.num_drafts - before.num_drafts for before, mean in pairwise(means))
    return [*accumulate(map(mul, each, gaps), initial=means[0].ns)]


class DraftLengths:
    """Chooses the lengths of one worker's runs."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._costs = RowCosts()
        self._of_all = _new_of_all()
        """Acceptance of all sequences; older runs weigh less."""
        self._by_source = dict[int, SourceRecord]()
        """The same by source."""
        self.is_timed = False
        """True once the time of a step is known."""
        self._num_seqs = 1
        self._tokens_of_seq, self._drafts_of_seq = 1.0, 0.0  # means of a step
        self._has_new = False
        """True if steps were observed since the next ones were computed."""
        self._num_failed = 0
        """Consecutive trials, of all sequences, of which no draft was accepted."""
        self._num_tokens = 1.0  # of a step, without those of the drafts that are chosen
        self._times = [1.0] * (most + 1)
        """Times of a step, by drafts of one sequence more; equal until some are measured."""
        self._may_pay = True

    @property
    def is_measuring(self) -> bool:
        """True if the next step must have no drafts, so that its time can be measured."""
        self._follow()
        return not self._times

    @property
    def may_pay(self) -> bool:
        """False if drafts of a sequence would not pay though nearly all of them were accepted."""
        self._follow()
        return self._may_pay

    def observe_step(self, *, num_seqs: int, num_drafts: int, num_tokens: int, ns: int) -> None:
        """Records an answered step without tokens of prompts.

        Args: num_tokens: those that it drew.
        """
        self._costs.observe(num_seqs=num_seqs, num_drafts=num_drafts, ns=ns)
        self.is_timed, self._num_seqs = True, num_seqs
        self._tokens_of_seq += _NEW * (num_tokens / num_seqs - self._tokens_of_seq)
        self._drafts_of_seq += _NEW * (num_drafts / num_seqs - self._drafts_of_seq)
        self._has_new = True

    def _follow(self) -> None:
        """Computes what a step costs of those that were observed. It takes longer than the other
        work of an answer, and no step needs it while no sequence may have drafts."""
        if not self._has_new:
            return
        self._has_new, others = False, self._num_seqs - 1
        self._num_tokens = 1 + others * self._tokens_of_seq
        self._times = self._costs.times(self._num_seqs, others * self._drafts_of_seq, self.most)
        self._may_pay = not self._times or self._best(_powers(HOPE, self.most)) > 0

    def observe_run(
        self, record: DraftRecord, *, num_drafts: int, num_accepted: int, source: int
    ) -> None:
        """Records how many drafts of a sequence were accepted in a step that allowed some."""
        if not num_drafts:
            record.num_idle += 1
            return
        record.num_idle, record.is_idle = 0, False
        is_refused = num_accepted < num_drafts
        if record.is_trial:
            self._num_failed = 0 if num_accepted else self._num_failed + 1
        for one in record.sources.values():
            one.num_runs *= _KEPT_RUNS
        if (own := record.sources.get(source)) is None:
            own = record.sources[source] = SourceRecord()
        own.num_runs += 1
        own.num_accepted = _KEPT * own.num_accepted + num_accepted
        own.num_refused = _KEPT * own.num_refused + is_refused
        own.num_in_row = 0 if is_refused else own.num_in_row + num_accepted
        if (of_source := self._by_source.get(source)) is None:
            of_source = self._by_source[source] = _new_of_all()
        for every in (self._of_all, of_source):
            every.num_accepted = _KEPT_OF_ALL * every.num_accepted + num_accepted
            every.num_refused = _KEPT_OF_ALL * every.num_refused + is_refused
        record.is_trial = record.is_trial and not is_refused

    def next(self, record: DraftRecord) -> int:
        """Returns the most drafts of a sequence's next step; 0 if none pay at present."""
        if not self.may_pay:
            return 0
        best = self._best(self._chances(record))
        if best and any(one.num_accepted >= 1 for one in record.sources.values()):
            record.num_pause_steps = 0
        return max(best, int(record.is_trial))

    def _chances(self, record: DraftRecord) -> Iterable[float]:
        """Returns the probabilities that the first draft, the first two and so on are accepted."""
        sources = record.sources
        if not sources:
            return _powers(_share_of(self._of_all), self.most)
        if len(sources) == 1:
            ((source, one),) = sources.items()
            return _powers(self._share(source, one), self.most)
        num_runs = sum(one.num_runs for one in sources.values())
        chances = (
            _powers(self._share(source, one), self.most, one.num_runs / num_runs)
            for source, one in sources.items()
        )
        return map(sum, zip(*chances, strict=True))

    def _share(self, source: int, record: SourceRecord) -> float:
        """Returns the probability that a draft of a sequence is accepted if all before it are."""
        prior = _PRIOR_RUNS * _share_of(self._by_source.get(source, self._of_all))
        num_runs = record.num_accepted + record.num_refused + _PRIOR_RUNS
        share = (record.num_accepted + prior) / num_runs
        if record.num_in_row:
            share = max(share, (record.num_in_row + 1) / (record.num_in_row + 2))
        return share

    def _best(self, chances: Iterable[float]) -> int:
        """Returns the best length.

        Args: chances: probabilities that the first draft, the first two and so on are accepted.
        """
        without, num_tokens = self._times[0], self._num_tokens
        best, best_rate = 0, (num_tokens + LEAST_GAIN) / without
        longer = zip(self._times[1:], chances, strict=False)
        for num_drafts, (measured_ns, chance) in enumerate(longer, start=1):
            num_tokens += chance
            ns = without + CAUTION * (measured_ns - without)
            if num_tokens > best_rate * ns:
                best, best_rate = num_drafts, num_tokens / ns
        return best

    def pause(self, record: DraftRecord) -> int:
        """Begins a sequence's pause; returns its length in steps: twice that of the last one. The
        first one is longer while trials of other sequences fail."""
        first = FIRST_PAUSE_STEPS << min(2, self._num_failed // FAILED_TRIALS)
        steps = min(max(first, 2 * record.num_pause_steps), MOST_PAUSE_STEPS)
        record.is_off, record.num_pause_steps = True, steps
        return steps

    def resume(self, record: DraftRecord) -> None:
        """Lets a sequence have drafts again: at least one, until it is refused."""
        record.is_off = record.is_idle = False
        record.is_trial, record.num_idle = True, 0
        for one in record.sources.values():
            one.num_in_row = 0


def _powers(share: float, most: int, weight: float = 1.0) -> Iterable[float]:
    """Returns `most` powers of a share from the first one on, each times a weight."""
    return accumulate(repeat(share, most - 1), mul, initial=weight * share)


def _new_of_all() -> SourceRecord:
    """Returns the acceptance that is expected before any is known."""
    return SourceRecord(num_accepted=3.0, num_refused=2.0)


def _share_of(every: SourceRecord) -> float:
    """Returns the share of drafts that were accepted of those behind accepted ones."""
    return every.num_accepted / (every.num_accepted + every.num_refused)


def _rounded(number: int) -> int:
    """Returns a number with its three leading binary digits."""
    shift = max(0, number.bit_length() - 3)
    return number >> shift << shift
