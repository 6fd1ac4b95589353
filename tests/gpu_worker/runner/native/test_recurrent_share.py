"""Shares of the gated delta rule, whose value heads stand in turn or beside each other."""

import pytest

from signalbox_worker.config import ModelError
from signalbox_worker.models.recurrence import DeltaRule
from signalbox_worker.runner.native.recurrent_share import recurrent_share


def make_rule(num_key_heads: int, num_value_heads: int, *, in_turn: bool) -> DeltaRule:
    """A rule whose heads have one column each."""
    return DeltaRule(
        num_key_heads=num_key_heads,
        key_size=1,
        num_value_heads=num_value_heads,
        value_size=1,
        channels=2 * num_key_heads + num_value_heads,
        kernel=2,
        conv_bias=False,
        proj_bias=False,
        norm_eps=1e-6,
        heads_in_turn=in_turn,
    )


def key_of(rule: DeltaRule, head: int) -> int:
    per_key = rule.num_value_heads // rule.num_key_heads
    return head % rule.num_key_heads if rule.heads_in_turn else head // per_key


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize(("keys", "values", "size"), [(4, 8, 2), (4, 8, 4), (2, 8, 2), (4, 4, 2)])
def test_each_value_head_keeps_its_key(keys: int, values: int, size: int, in_turn: bool) -> None:
    whole = make_rule(keys, values, in_turn=in_turn)
    heads = list[int]()
    for rank in range(size):
        share = recurrent_share(whole, rank, size, channels=range(0))
        assert isinstance(share.sizes, DeltaRule)
        own_keys, _, own_values = ([*rows] for rows in share.rows["in_proj_qkv"])
        for place, row in enumerate(own_values):
            head = row - 2 * keys
            heads.append(head)
            assert own_keys[key_of(share.sizes, place)] == key_of(whole, head)
    assert heads == [*range(values)]


def test_value_heads_that_no_run_of_keys_serves_are_refused() -> None:
    whole = make_rule(4, 12, in_turn=True)
    with pytest.raises(ModelError, match="linear_num_key_heads 4 is neither a multiple nor a part"):
        recurrent_share(whole, 0, 2, channels=range(0))
