"""Metrics of the scheduler for Prometheus: gauges of this moment, counts of its steps and requests.

Names are those of vLLM's engine where it has them. A worker's series end when it leaves.
"""

from collections.abc import Iterator

from signalbox_rpc.metrics.sample import Sample, gauges, labelled
from signalbox_scheduler.workers.cluster import Cluster


def samples(cluster: Cluster) -> Iterator[Sample]:
    """Yields the counts of the cluster as it is now."""
    model = cluster.model.name if cluster.model is not None else ""
    yield from labelled(cluster.samples(), model_name=model)
    yield from _workers(cluster)
    for step_loop in cluster.step_loops:
        counts = step_loop.scheduler.samples()
        yield from labelled(counts, model_name=model, worker=step_loop.worker_name)


def _workers(cluster: Cluster) -> Iterator[Sample]:
    num_draining = sum(not step_loop.scheduler.is_accepting for step_loop in cluster.step_loops)
    states = {
        "serving": len(cluster.step_loops) - num_draining,
        "draining": num_draining,
        "quarantined": sum(1 for _ in cluster.worker_records.quarantined()),
    }
    return gauges("workers", "Workers that hold a lease, or may not.", states, by="state")
