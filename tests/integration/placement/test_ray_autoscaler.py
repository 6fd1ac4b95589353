"""A worker on a Ray cluster whose nodes come when a placement group waits for them."""

from pathlib import Path

import pytest

from tests.gpu_worker.tiny_models import make_model
from tests.integration.failures.test_lost_ranks import has_ended
from tests.integration.placement.ray_autoscaler import autoscaling_cluster
from tests.integration.placement.test_serve_on_ray import FLAGS, ranks
from tests.ports import free_port
from tests.signalbox.stacks import serve, signalbox
from tests.waiting import wait_until

pytest.importorskip("ray")
pytestmark = [pytest.mark.system, pytest.mark.xdist_group("ray")]


@pytest.mark.parametrize("version", [1, 2])
def test_a_node_comes_for_a_worker_that_no_node_could_hold(version: int, tmp_path: Path) -> None:
    make_model(tmp_path)
    with autoscaling_cluster(tmp_path, version=version) as address:
        flags = (f"--placement=ray={address}", f"--rank-port={free_port()}", *FLAGS)
        never = signalbox(
            *("worker", str(tmp_path), *flags[:2], "--placement-timeout=2", "--num-threads=3"),
            *("--device=cpu",),
        )
        assert never.returncode == 1
        assert "no autoscaler has added nodes for {CPU: 3} (PACK) within 2 s; " in never.stderr
        timeout = "--placement-timeout=1000"
        with serve(tmp_path / "log", str(tmp_path), timeout, *flags) as stack:
            log = stack.log.read_text()
            assert "waits up to 1000 s for an autoscaler to add nodes for {CPU: 2} (PACK); " in log
            running = ranks(tmp_path)
            assert len(running) == 1
            assert stack.stop() == 0
            wait_until(lambda: all(map(has_ended, running)))
