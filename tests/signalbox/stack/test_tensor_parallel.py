"""`signalbox serve --tensor-parallel-size 2`, as processes: one worker to the other services."""

import re
from pathlib import Path

import grpc
import psutil

from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig
from gpu_worker.runner.model_runner import ModelRunner
from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc as pb_grpc
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.tiny_models import make_model
from tests.signalbox.stack.test_local_stack import eventually_in
from tests.signalbox.stacks import Stack, serve, signalbox
from tests.waiting import wait_until

PROMPT = [5, 9, 33, 4]
NUM_TOKENS = 200
FLAGS = (
    "--tensor-parallel-size=2",
    "--device=cpu",
    "--dtype=float32",
    "--max-num-seqs=4",
    "--max-num-batched-tokens=64",
)


def expected_tokens(path: Path) -> list[int]:
    """Of one rank, in this process."""
    runner = ModelRunner(
        ModelConfig(model=str(path), dtype="float32"),
        CacheConfig(),
        device_config=DeviceConfig(device="cpu"),
    )
    runner.init_cache_engine(num_gpu_blocks=16, num_cpu_blocks=0)
    (tokens,) = Driver(runner=runner).generate([PROMPT], num_tokens=NUM_TOKENS)
    return tokens


def ranks_of(worker: psutil.Process) -> list[psutil.Process]:
    return [
        one for one in worker.children() if "gpu_worker.ranks.follower_process" in one.cmdline()
    ]


def workers_of(stack: Stack) -> list[psutil.Process]:
    children = psutil.Process(stack.process.pid).children()
    return [child for child in children if "worker" in child.cmdline()]


def busiest(ranks: list[psutil.Process]) -> psutil.Process:
    """Of the worker that has the request; those of others only wait."""
    before = [rank.cpu_times().user for rank in ranks]

    def spent() -> list[float]:
        return [rank.cpu_times().user - was for rank, was in zip(ranks, before, strict=True)]

    wait_until(lambda: max(spent()) >= 0.05)
    return ranks[(found := spent()).index(max(found))]


def test_requests_go_on_elsewhere_when_a_rank_dies_and_none_is_left_at_the_end(
    tmp_path: Path,
) -> None:
    make_model(tmp_path)
    log = tmp_path / "log"
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=PROMPT),
        sampling_params=pb.SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True),
    )
    with serve(log, str(tmp_path), "--workers=2", *FLAGS) as stack:
        workers = workers_of(stack)
        assert [len(ranks_of(worker)) for worker in workers] == [1, 1]
        eventually_in(log, "float32, ranks: 2)")
        (address,) = re.findall(r"ranks: 2\) on (\S+), ", log.read_text())[:1]
        done = signalbox("health", "--address", address)
        assert f"{address} is serving {tmp_path.name} on 2 tensor-parallel ranks" in done.stdout
        # A rank that loads its weights is busier than one that computes.
        wait_until(lambda: log.read_text().count("worker joined") == 2, told=log.read_text)
        tokens: list[int] = []
        with grpc.insecure_channel(stack.address) as channel:
            for message in pb_grpc.InferenceServiceStub(channel).Generate(request):
                if not tokens:
                    busiest([rank for worker in workers for rank in ranks_of(worker)]).kill()
                for output in message.outputs:
                    tokens += output.token_ids
        assert tokens == expected_tokens(tmp_path)
        eventually_in(log, "rank 1 was killed by SIGKILL; the worker exits")
        eventually_in(log, "exited with status 1; workers left: 1")
        eventually_in(log, "it is started again after 1 s")
        wait_until(lambda: log.read_text().count("worker joined") == 3, told=log.read_text)
        left = workers_of(stack)
        assert len(left) == 2
        others = [*left, *(rank for worker in left for rank in ranks_of(worker))]
        assert stack.stop() == 0
        assert not [process for process in others if process.is_running()]
