"""A Ray cluster on this machine to which an autoscaler adds nodes.

It is what `ray.cluster_utils.AutoscalingCluster` makes, which ends all clusters of the machine
first, and whose file of defaults the wheel lacks.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.integration.placement.ray_cluster import STORE_BYTES
from tests.ports import free_port
from tests.waiting import wait_until


@contextmanager
def autoscaling_cluster(folder: Path, *, version: int) -> Iterator[str]:
    """Yields the address of a head without resources; up to two nodes of two CPUs may come."""
    from ray._private.services import get_node_ip_address
    from ray.autoscaler._private.fake_multi_node.node_provider import (
        FAKE_HEAD_NODE_ID,
        FAKE_HEAD_NODE_TYPE,
    )

    address = f"{get_node_ip_address()}:{free_port()}"
    config, log = folder / "cluster.json", folder / "head.log"
    config.write_text(json.dumps(_config(address, FAKE_HEAD_NODE_ID)))
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *(f"--port={address.rpartition(':')[2]}", f"--autoscaling-config={config}"),
        *("--num-cpus=0", f"--object-store-memory={STORE_BYTES}", "--include-dashboard=false"),
        *(f"--ray-client-server-port={free_port()}", "--dashboard-agent-listen-port=0"),
        *("--min-worker-port=0", "--max-worker-port=0"),  # else 10002 to 19999, which tests use
    ]
    variables = {
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_NODE_TYPE_NAME": FAKE_HEAD_NODE_TYPE,  # as `ray up` and KubeRay set it
        "RAY_enable_autoscaler_v2": "1" if version == 2 else "0",
    }
    with log.open("wb") as sink:
        head = psutil.Popen(
            command, env=os.environ | variables, stdout=sink, stderr=subprocess.STDOUT
        )

    def is_up() -> bool:
        assert head.poll() is None, log.read_text()
        return "--block" in log.read_text()

    try:
        wait_until(is_up, told=log.read_text)
        yield address
    finally:
        started = [*head.children(recursive=True), head]
        for one in started:
            if one.is_running():
                one.kill()
        psutil.wait_procs(started)


def _config(address: str, head_id: str) -> dict[str, object]:
    from ray.autoscaler._private.fake_multi_node import node_provider
    from ray.autoscaler._private.monitor import BASE_READONLY_CONFIG

    provider = node_provider.FakeMultiNodeProvider
    resources = {"CPU": 2, "object_store_memory": STORE_BYTES}
    return {
        **BASE_READONLY_CONFIG,
        "max_workers": 2,
        "provider": {
            "type": "external",
            "module": f"{provider.__module__}.{provider.__name__}",
            "gcs_address": address,
            "launch_multiple": True,
            "head_node_id": head_id,
        },
        "available_node_types": {
            node_provider.FAKE_HEAD_NODE_TYPE: {
                "resources": {},
                "node_config": {},
                "max_workers": 0,
            },
            "two_cpus": {"resources": resources, "node_config": {}, "max_workers": 2},
        },
        "idle_timeout_minutes": 5,
    }
