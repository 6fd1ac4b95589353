"""The most tokens/s that this machine could give offline: what a step must read and multiply.

A decode step takes at least the time to read all matrices, and K and V of its sequences, once, and
at least the time to multiply; a prompt takes the time to multiply. The machine's rates are measured
by machine_rates.cpp, compiled for the instruction set that our kernels take, on as many threads.
"""

import subprocess
import tempfile
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader

from benchmarks.comparison.loads import Load
from signalbox_kernels.compilation import flags_of_sets, machine
from signalbox_kernels.native import NativeUnavailable, best_isa

PROBE = (
    *("g++", "-std=c++20", "-O3", "-pthread"),
    str(Path(__file__).with_name("machine_rates.cpp")),
)
"""The command that compiles the probe, without the flags of an instruction set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Most that all threads together do in a second."""

    read_bytes: float
    float_operations: float
    """Multiplications and additions in the arithmetic of bfloat16 weights."""
    byte_operations: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Needs of a model in one form."""

    weight_bytes: int
    """Bytes of all matrices, the output layer included; a step reads them once."""
    weights: int
    """Matrix elements that a token is multiplied with, the output layer included."""
    output_weights: int
    """Matrix elements of the output layer, which a prompt needs for its last token alone."""
    kv_bytes_per_token: int
    num_layers: int
    state_bytes: int = 0
    """Bytes of the states of a sequence, which a step reads and writes."""
    expert_bytes: int = 0
    """Bytes of all experts' matrices, of which a step reads those that its rows choose."""
    expert_weights: int = 0
    expert_share: float = 0.0
    """Experts of a layer that a token chooses, of all."""
    in_bytes: bool
    """True if products are of 8 bits."""


def measure_rates(num_threads: int) -> Rates:
    """Compiles and runs the probe. Raises NativeUnavailable if there is nothing to compile for."""
    name = best_isa().name.lower()
    flags = flags_of_sets(machine())[name]
    if machine() != "x86_64" or name == "portable":
        raise NativeUnavailable(f"no probe of the machine's rates for {name}")
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "machine_rates")
        try:
            subprocess.run([*PROBE, *flags, "-o", program], check=True, capture_output=True)
            ran = subprocess.run(
                [program, str(num_threads)], check=True, capture_output=True, text=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise NativeUnavailable(f"the probe of the machine's rates: {error}") from error
    read_bytes, floats, of_bytes = map(float, ran.stdout.split())
    return Rates(read_bytes=read_bytes, float_operations=floats, byte_operations=of_bytes)


def needs_of(model: Path, *, in_bytes: bool) -> Needs:
    """Returns what a GGUF file needs in its own blocks, or with all weights in 16 bits."""
    reader = GGUFReader(model)
    experts = [tensor for tensor in reader.tensors if len(tensor.shape) == 3]
    of_experts = sum(prod(map(int, tensor.shape)) for tensor in experts)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    output = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    matrices = [
        tensor
        for name, tensor in tensors.items()
        if len(tensor.shape) == 2
        and name.endswith(".weight")
        and (name == output or name != "token_embd.weight")
    ]
    sizes = {tensor.name: prod(int(size) for size in tensor.shape) for tensor in matrices}
    own_bytes = sum(int(tensor.n_bytes) for tensor in matrices)
    kv_elements = sum(
        int(tensor.shape[1])
        for tensor in matrices
        if tensor.name.endswith((".attn_k.weight", ".attn_v.weight"))
    )
    return Needs(
        weight_bytes=own_bytes if in_bytes else 2 * sum(sizes.values()),
        weights=sum(sizes.values()),
        output_weights=sizes[output],
        kv_bytes_per_token=2 * kv_elements,
        state_bytes=_state_bytes(reader),
        num_layers=sum(tensor.name.endswith(".attn_q.weight") for tensor in matrices),
        expert_bytes=sum(int(one.n_bytes) for one in experts) if in_bytes else 2 * of_experts,
        expert_weights=of_experts,
        expert_share=_number(reader, "expert_used_count") / _number(reader, "expert_count", 1),
        in_bytes=in_bytes,
    )


def is_quantized(model: Path) -> bool:
    """Says whether a file's matrices are in blocks, so that products are of 8 bits."""
    wide = {GGMLQuantizationType.BF16, GGMLQuantizationType.F16, GGMLQuantizationType.F32}
    return any(tensor.tensor_type not in wide for tensor in GGUFReader(model).tensors)


def _state_bytes(reader: GGUFReader) -> int:
    """Returns the bytes of the matrices that recurrent layers keep, in float32."""
    layers = sum(tensor.name.endswith(".ssm_conv1d.weight") for tensor in reader.tensors)
    rows, columns = _number(reader, "ssm.state_size"), _number(reader, "ssm.inner_size")
    return 4 * layers * rows * columns


def _number(reader: GGUFReader, name: str, default: int = 0) -> int:
    found = [field for key, field in reader.fields.items() if key.endswith(f".{name}")]
    return int(found[0].contents()) if found else default


def tokens_per_s(load: Load, needs: Needs, rates: Rates) -> float:
    """Returns the bound for a load whose requests come all at once, or a wave at a time."""
    count = load.concurrency
    weights = needs.weights + needs.expert_weights * needs.expert_share
    expert_bytes = needs.expert_bytes * (1 - (1 - needs.expert_share) ** count)
    operations = rates.byte_operations if needs.in_bytes else rates.float_operations
    rows = (weights - needs.output_weights) * load.prompt_tokens + needs.output_weights
    prompts_s = 2 * count * rows / operations
    context = load.prompt_tokens + load.max_tokens / 2
    kept = context * needs.kv_bytes_per_token + 2 * needs.state_bytes
    read = needs.weight_bytes + expert_bytes + count * kept
    step_s = max(read / rates.read_bytes, 2 * count * weights / operations)
    return count * load.max_tokens / (prompts_s + (load.max_tokens - 1) * step_s)
