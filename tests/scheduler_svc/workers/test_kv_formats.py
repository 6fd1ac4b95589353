"""Which workers may read each other's blocks."""

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.model import WorkerCapacity
from signalbox_scheduler.config import PeerIdentity, SchedulingSettings
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.transfers.peers import peer_identity
from signalbox_scheduler.workers.factory import make_scheduler
from tests.scheduler_svc.make import MODEL

FULL = CacheGroup(layers=(0, 2))


def window(size: int, *layers: int) -> CacheGroup:
    return CacheGroup(kind="window", window=size, layers=layers)


def format_of(*groups: CacheGroup, block_format: str = "one", arithmetic: str = "") -> str:
    capacity = WorkerCapacity(
        block_size=16,
        num_gpu_blocks=64,
        num_cpu_blocks=64,
        block_bytes=4096,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        block_format=block_format,
        groups=groups,
        arithmetic=arithmetic,
    )
    scheduler = make_scheduler(
        SchedulingSettings(),
        model=MODEL,
        capacity=capacity,
        admission=AdmissionQueue(),
        identity=PeerIdentity(address="w:1"),
    )
    return peer_identity(scheduler.state.config).kv_format


def test_a_format_of_one_full_group_does_not_name_it() -> None:
    assert format_of(FULL_GROUP) == "one, 16 tokens in 4096 bytes, None"
    assert format_of(FULL_GROUP, block_format="") == ""


def test_workers_that_divide_layers_otherwise_do_not_read_each_other() -> None:
    divisions = [
        (FULL_GROUP,),
        (FULL, window(32, 1, 3)),
        (FULL, window(33, 1, 3)),
        (FULL, window(32, 1), window(32, 3)),
        (FULL, window(32, 1, 4)),
        (FULL, CacheGroup(layers=(1, 3))),
    ]
    formats = [format_of(*groups) for groups in divisions]
    assert all(formats)
    assert len(set(formats)) == len(divisions)
    assert format_of(FULL, window(32, 1, 3)) == formats[1]
    assert format_of(FULL, window(32, 1, 3), block_format="") == ""


def test_workers_that_compute_other_bits_do_not_read_each_other() -> None:
    formats = [format_of(FULL_GROUP, arithmetic=one) for one in ("", "a" * 64, "b" * 64)]
    assert len(set(formats)) == 3
