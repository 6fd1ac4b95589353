"""One load of a model on a CPU by itself: time, CPU seconds, memory, and the size of its files.

    python -m benchmarks.memory.model_load MODEL [--threads 2] [--quantization auto]
        [--packed-weights off]

A second run with a folder for packed weights is a later start. CPU is that of the load alone;
memory is the process's, Python included. `benchmarks.harness.random_checkpoint` writes models.
"""

import argparse
import threading
import time
from pathlib import Path
from typing import cast

from signalbox_worker.config import DeviceConfig, ModelConfig, QuantizationName
from signalbox_worker.device.ram import procfs_bytes
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.ranks.rank_shard import load_shard

_STATUS = Path("/proc/self/status")
_MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--packed-weights", default="off")
    options = parser.parse_args()
    model = ModelConfig(
        model=str(options.model),
        quantization=cast(QuantizationName, options.quantization),
        packed_weights=options.packed_weights,
    )
    device = DeviceConfig(device="cpu", cpu_backend="native", num_threads=options.threads)
    began, began_at = time.process_time(), time.perf_counter()
    runner = load_shard(RunnerConfig(model=model, device=device))
    seconds, wall_s = time.process_time() - began, time.perf_counter() - began_at
    files = [options.model] if options.model.is_file() else options.model.glob("*.safetensors")
    print(f"files    {sum(file.stat().st_size for file in files) / _MIB:8,.0f} MiB")
    print(f"weights  {runner.executor.weights_bytes / _MIB:8,.0f} MiB")
    for name, field in (("peak", "VmHWM"), ("resident", "VmRSS"), ("mapped", "RssFile")):
        print(f"{name:8} {procfs_bytes(field, _STATUS) / _MIB:8,.0f} MiB")
    print(f"CPU      {seconds:8.2f} s")
    print(f"wall     {wall_s:8.2f} s")
    for thread in threading.enumerate():
        if thread.name == "keep packed weights":
            thread.join()


if __name__ == "__main__":
    main()
