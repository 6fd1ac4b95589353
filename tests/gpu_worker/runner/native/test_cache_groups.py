"""Groups of the layers of native models."""

from types import SimpleNamespace
from typing import Any

import pytest

from signalbox_contract.cache_groups import CacheGroup
from signalbox_worker.device.stage_layers import all_layers
from signalbox_worker.models.decoder_config import LayerHeads
from signalbox_worker.runner.native.kv_places import cache_groups, kv_places


def make_config(
    windows: list[int | None], *, heads: dict[int, LayerHeads] | None = None, **fields: Any
) -> Any:
    own = heads or {}
    return SimpleNamespace(
        num_layers=len(windows),
        sliding_windows=tuple(windows),
        is_bidirectional=False,
        recurrence=None,
        attends=lambda index: True,
        kv_layer=lambda index: index,
        heads_of=lambda index: own.get(index, LayerHeads(4, 2, 64)),
        **fields,
    )


def every_sixth(num_layers: int) -> list[int | None]:
    return [None if index % 6 == 5 else 512 for index in range(num_layers)]


@pytest.mark.parametrize(
    ("num_layers", "num_groups", "most"),
    [
        (24, 6, 4),
        (26, 7, 4),
        (34, 7, 5),
        (48, 6, 8),
        (62, 13, 5),  # tens would waste 11 %
    ],
)
def test_layers_are_divided_into_few_groups_that_waste_little(
    num_layers: int, num_groups: int, most: int
) -> None:
    config = make_config(every_sixth(num_layers))
    groups = cache_groups(config, max_model_len=8192)
    assert (len(groups), max(len(group.layers) for group in groups)) == (num_groups, most)
    assert sorted(index for group in groups for index in group.layers) == list(range(num_layers))
    for group in groups:
        assert {config.sliding_windows[index] or 0 for index in group.layers} == {group.window}
    places = kv_places(config, all_layers(num_layers), groups)
    assert places.num_layers == most
    taken = {(places.group_of[index], places.first[index]) for index in range(num_layers)}
    assert len(taken) == num_layers
    assert num_layers >= 0.9 * len(groups) * places.num_layers


def test_layers_of_other_heads_take_as_many_units_as_they_have() -> None:
    wide = {index: LayerHeads(8, 1, 512) for index in (5, 11)}
    config = make_config([None if i in wide else 100 for i in range(12)], heads=wide)
    groups = cache_groups(config, max_model_len=8192)
    places = kv_places(config, all_layers(12), groups)
    ends = {
        index: (places.group_of[index], places.first[index], 8 if index in wide else 2)
        for index in range(12)
    }
    slots = [(g, at) for g, first, count in ends.values() for at in range(first, first + count)]
    assert len(set(slots)) == len(slots)
    assert max(at for _, at in slots) < places.num_layers
    assert len(slots) >= 0.9 * len(groups) * places.num_layers


@pytest.mark.parametrize(
    "config",
    [
        make_config([None] * 4),
        make_config([8192] * 4),
        make_config([]),
    ],
)
def test_a_model_that_sees_all_has_one_full_group(config: Any) -> None:
    config.num_layers = 4
    (group,) = cache_groups(config, max_model_len=8192)
    assert group == CacheGroup()


def test_a_model_of_windows_alone_has_one_group() -> None:
    (group,) = cache_groups(make_config([100] * 3), max_model_len=8192)
    assert group == CacheGroup(kind="window", window=100, layers=(0, 1, 2))
