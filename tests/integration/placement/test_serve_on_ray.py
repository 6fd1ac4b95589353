"""`signalbox serve --placement ray`: workers come, are lost and come again on three nodes."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from tests.gpu_worker.tiny_models import make_model
from tests.integration.failures.test_lost_ranks import has_ended
from tests.integration.placement.ray_cluster import a_worker_node, add_node
from tests.ports import free_port
from tests.rpc.certificates import Authority
from tests.signalbox.stack.test_local_stack import eventually_in
from tests.signalbox.stacks import Stack, serve, signalbox
from tests.waiting import wait_until

pytest.importorskip("ray")
pytestmark = [pytest.mark.system, pytest.mark.xdist_group("ray")]

FLAGS = (
    *("--device=cpu", "--dtype=float32", "--num-threads=2", "--kv-cache-memory=0.002"),
    *("--max-num-seqs=4", "--max-num-batched-tokens=64", "--no-http"),
)
"""Two threads are the two CPUs of a node, so that each node has one worker."""
NUM_STREAMS, NUM_TOKENS = 6, 240


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_model(path)
    return path


def ranks(model: Path) -> list[psutil.Process]:
    """Processes of all workers, below the actors that started them."""
    found = []
    for one in psutil.process_iter(["cmdline"]):
        words = one.info["cmdline"] or []
        if "--placement=environment" in words and str(model) in words:
            found.append(one)
    return found


def until_joined(stack: Stack, number: int) -> None:
    log = stack.log
    wait_until(lambda: log.read_text().count("worker joined") == number, told=log.read_text)


def until_running(number: int, model: Path) -> None:
    wait_until(lambda: len(ranks(model)) == number)


def generate(channel: grpc.Channel, number: int) -> list[int]:
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=[5, 9, 33, 4 + number]),
        sampling_params=pb.SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True),
    )
    answer = pb_grpc.InferenceServiceStub(channel).Generate(request)
    return [token for message in answer for output in message.outputs for token in output.token_ids]


@contextmanager
def streaming(stack: Stack) -> Iterator[list[list[list[int]]]]:
    """Yields the answers of each of NUM_STREAMS threads, which ask again and again until the end of
    the context."""
    answers: list[list[list[int]]] = [[] for _ in range(NUM_STREAMS)]
    stopping = threading.Event()

    def ask(number: int) -> None:
        with grpc.insecure_channel(stack.address) as channel:
            while not stopping.is_set():
                answers[number].append(generate(channel, number))

    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        asking = [pool.submit(ask, number) for number in range(NUM_STREAMS)]
        try:
            yield answers
        finally:
            stopping.set()
        for one in asking:
            one.result()


def test_a_node_goes_in_the_middle_of_streams_and_another_one_comes(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    flags = (f"--placement=ray={cluster.address}", "--workers=3", "--placement-timeout=60")
    with serve(tmp_path / "log", str(model), *flags, f"--rank-port={free_port()}", *FLAGS) as stack:
        until_joined(stack, 3)
        with grpc.insecure_channel(stack.address) as channel:
            expected = [generate(channel, number) for number in range(NUM_STREAMS)]
        assert all(len(tokens) == NUM_TOKENS for tokens in expected)
        with streaming(stack) as answers:
            wait_until(lambda: all(answers))
            cluster.remove_node(a_worker_node(cluster))
            eventually_in(stack.log, "workers left: 2; it is started again after 1 s")
        for tokens, repeated in zip(expected, answers, strict=True):
            assert all(answer == tokens for answer in repeated)
        add_node(cluster)
        until_joined(stack, 4)
        until_running(3, model)
        running = ranks(model)
        assert stack.stop() == 0
        wait_until(lambda: all(map(has_ended, running)))


def test_workers_on_nodes_show_certificates_as_operators_do(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    host, authority = cluster.head_node.node_ip_address, Authority(tmp_path)
    roles = ("router", "scheduler", "operator")
    serving, worker = authority.member(host, "127.0.0.1", *roles), authority.member("worker")
    shown = (f"--tls-cert={serving.cert}", f"--tls-key={serving.key}", f"--tls-ca={serving.ca}")
    flags = (
        *(f"--placement=ray={cluster.address}", f"--rank-port={free_port()}", *shown),
        *(f"--scheduler-host={host}", f"--worker-tls-cert={worker.cert}"),
        *(f"--worker-tls-key={worker.key}", f"--worker-tls-ca={worker.ca}", "--workers=2"),
    )
    with serve(tmp_path / "log", str(model), *flags, *FLAGS) as stack:
        scheduler = f"{host}:{int(stack.address.rpartition(':')[2]) + 1}"
        trusted = grpc.ssl_channel_credentials(Path(authority.file).read_bytes())
        with grpc.secure_channel(stack.address, trusted) as channel:
            assert len(generate(channel, 0)) == NUM_TOKENS
        until_joined(stack, 2)
        top = ("top", "--once", "--scheduler", scheduler)
        kept = "signalbox serve keeps 2 workers running on Ray"
        wait_until(lambda: kept in signalbox(*top, *shown).stdout)
        assert signalbox(*top).returncode != 0
        assert stack.stop() == 0
        until_running(0, model)


def test_a_node_with_other_versions_is_named_before_weights_are_read(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as metadata\n"
        "real = metadata.version\n"
        "metadata.version = lambda name: '0.1' if name == 'torch' else real(name)\n"
    )
    odd = add_node(cluster, env_vars={"PYTHONPATH": str(tmp_path)}, resources={"odd": 1})
    try:
        done = signalbox(
            *("serve", str(model), f"--placement=ray={cluster.address}", "--grpc-port=0", *FLAGS),
            *("--pipeline-parallel-size=4", "--num-threads=8", "--placement-strategy=SPREAD"),
        )
    finally:
        cluster.remove_node(odd)
    assert done.returncode == 1
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("signalbox worker 0: ")]
    assert "has Signalbox " in line
    assert "PyTorch 0.1" in line
    assert line.endswith(": install the same everywhere")
    assert "loading" not in done.stderr
