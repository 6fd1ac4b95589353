"""In which order each policy lets requests in, and what is said of one that cannot be used."""

import math
from pathlib import Path

import pytest

from signalbox_scheduler.config import PolicySettings
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.policies import FirstComeFirstServed, SchedulingPolicy, make_policy
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from tests.scheduler_svc.make import make_loop, make_request, make_scheduler

DOCUMENT = Path(__file__).parents[3] / "docs" / "how_to" / "choose_a_policy.md"


def make_queue(name: str, *groups: SequenceGroup, **numbers: float) -> AdmissionQueue:
    settings = PolicySettings(scheduling_policy=name, **numbers)  # type: ignore[arg-type]
    queue = AdmissionQueue(make_policy(settings))
    for group in groups:
        queue.add(group)
    return queue


def order(queue: AdmissionQueue) -> list[str]:
    """Takes all requests out, in order."""
    taken = []
    while queue:
        queue.check()
        group = next(iter(queue.candidates))
        assert queue.num_ahead(group) == 0
        queue.pop(group)
        taken.append(group.request_id)
    return taken


def request(request_id: str, arrival: float, **fields: object) -> SequenceGroup:
    num_tokens = fields.pop("num_tokens", 1)
    assert isinstance(num_tokens, int)
    return make_request([1] * num_tokens, request_id=request_id, arrival=arrival, **fields)  # type: ignore[arg-type]


def test_fcfs_goes_by_arrival_and_by_nothing_else() -> None:
    queue = make_queue(
        "fcfs",
        request("b", 2.0, priority=-5),
        request("a", 1.0, num_tokens=9, tenant="t"),
        request("c", 2.0),
    )
    assert order(queue) == ["a", "b", "c"]


def test_priority_puts_the_least_first_and_equals_by_arrival() -> None:
    queue = make_queue(
        "priority",
        request("late", 3.0),
        request("low", 0.0, priority=1),
        request("high", 4.0, priority=-1),
        request("early", 2.0),
    )
    assert order(queue) == ["high", "early", "late", "low"]


def test_a_request_that_has_aged_comes_before_younger_ones_of_the_next_priority() -> None:
    aged, within, past = (
        request("aged", 0.0, priority=1),
        request("within", 59.0),
        request("past", 61.0),
    )
    assert order(make_queue("priority", aged, within, past)) == ["within", "aged", "past"]


def test_the_shortest_prompt_goes_first_until_a_longer_one_has_aged() -> None:
    long, short, late = (
        request("long", 0.0, num_tokens=101),
        request("short", 9.0),
        request("late", 11.0),
    )
    queue = make_queue("shortest-prompt", long, late, short, priority_aging_s=100.0)
    assert order(queue) == ["short", "long", "late"]


def test_fair_takes_turns_between_tenants_whatever_they_queue() -> None:
    queue = make_queue(
        "fair",
        *(request(f"a{i}", float(i), tenant="a") for i in range(4)),
        *(request(f"b{i}", 9.0 + i, tenant="b") for i in range(2)),
    )
    taken = []
    while queue:
        group = next(iter(queue.candidates))
        queue.pop(group)
        queue.charge(group.flow, num_prompt_tokens=10)
        taken.append(group.request_id)
    assert taken == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_fair_takes_turns_between_payers_of_one_tenant() -> None:
    queue = make_queue(
        "fair",
        *(request(f"a{i}", float(i), payer="10.0.0.1") for i in range(3)),
        request("b0", 9.0, payer="10.0.0.2"),
    )
    taken = []
    while queue:
        group = next(iter(queue.candidates))
        queue.pop(group)
        queue.charge(group.flow, num_prompt_tokens=10)
        queue.check()
        taken.append(group.request_id)
    assert taken == ["a0", "b0", "a1", "a2"]


@pytest.mark.parametrize(("num_read", "first"), [(19, "b0"), (21, "a0")])
def test_fair_counts_a_generated_token_as_two_of_a_prompt(num_read: int, first: str) -> None:
    queue = make_queue(
        "fair",
        request("a0", 0.0, tenant="a"),
        request("b0", 1.0, tenant="b"),
    )
    queue.charge("a", num_output_tokens=10)
    queue.charge("b", num_prompt_tokens=num_read)
    assert order(queue)[0] == first


def test_a_tenant_that_comes_back_has_saved_nothing_up() -> None:
    """It is lifted to those that wait, so that it takes turns with them at once."""
    queue = make_queue("fair", *(request(f"a{i}", float(i), tenant="a") for i in range(3)))
    queue.charge("a", num_output_tokens=1000)
    for i in range(3):
        queue.add(request(f"b{i}", 9.0 + i, tenant="b"))
    taken = []
    while queue:
        group = next(iter(queue.candidates))
        queue.pop(group)
        queue.charge(group.flow, num_prompt_tokens=10)
        taken.append(group.request_id)
    assert taken == ["a0", "b0", "a1", "b1", "a2", "b2"]


class Unfinished:
    def rank(self, group: SequenceGroup) -> float:
        return 0.0


class Demanding:
    def __init__(self, number: int) -> None: ...


class NotANumber(FirstComeFirstServed):
    def rank(self, group: SequenceGroup) -> float:
        return math.nan


def test_the_documented_policy_is_used_by_its_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = DOCUMENT.read_text().split("```python part\n")[1].split("```")[0]
    (tmp_path / "documented_policy.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    waiting = (request("a", 0.0), request("b", 9.0, tenant="acme"), request("c", 31.0, tenant="x"))
    queue = make_queue("documented_policy:PaidFirst", *waiting)
    assert order(queue) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no_such_module:Class", "cannot be used: No module named 'no_such_module'"),
        (f"{__name__}:NoSuchClass", "has no attribute 'NoSuchClass'"),
        (f"{__name__}:Demanding", "missing 1 required positional argument: 'number'"),
        (f"{__name__}:Unfinished", r"has no method flow\(\)"),
        ("..:x", "cannot be used"),
    ],
)
def test_a_policy_that_cannot_be_used_is_refused_in_one_line(name: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        make_policy(PolicySettings(scheduling_policy=name))
    assert "\n" not in str(caught.value)
    assert "scheduling_policy" in str(caught.value)


def test_a_rank_that_is_no_number_is_refused() -> None:
    policy: SchedulingPolicy = NotANumber()
    with pytest.raises(ValueError, match="NotANumber"):
        AdmissionQueue(policy).add(request("a", 0.0))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"priority_aging_s": 0.0}, "priority_aging_s\n.*greater than 0"),
        ({"priority_aging_s": math.inf}, "priority_aging_s\n.*finite"),
    ],
)
def test_numbers_of_policies_have_bounds(numbers: dict[str, float], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        PolicySettings(scheduling_policy="fair", **numbers)  # type: ignore[arg-type]


class Recorded(FirstComeFirstServed):
    """Records what it is asked to price."""

    def __init__(self) -> None:
        self.num_tokens: list[int] = []

    def cost(self, flow: str, *, num_prompt_tokens: int, num_output_tokens: int) -> float:
        self.num_tokens.append(num_prompt_tokens + num_output_tokens)
        return 0.0


def test_a_flow_is_charged_by_the_steps_that_serve_it_alone() -> None:
    policy = Recorded()
    loop = make_loop(make_scheduler(admission=AdmissionQueue(policy)))
    for token in (7, 8):  # the second begins when no request decodes any more
        loop.scheduler.admission.add(make_request([token] * 3, max_tokens=6))
        loop.run()
    assert sum(policy.num_tokens) == 2 * (3 + 6)
    assert all(policy.num_tokens)
