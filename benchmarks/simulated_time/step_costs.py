"""What a step costs a worker, as a function of what it computes; measured, or of a data sheet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What a step computes and copies."""

    num_seqs: int
    num_tokens: int
    num_read: int = 0
    """Tokens of context that sequences of one new token read."""
    num_pairs: int = 0
    """Pairs of a token of a longer piece and a token that it attends to."""
    num_copied: int = 0
    """Blocks that are copied from one pool to the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Costs of one worker and its model, in seconds."""

    name: str
    launch_s: float = 0.0
    """Of a step, whatever it has."""
    weights_s: float = 0.0
    """Time that the weights take to be read; a step takes no less."""
    token_s: float
    """Of each token, beside attention."""
    read_s: float
    """Of each token of context that a sequence of one new token reads."""
    pair_s: float
    """Of each pair of tokens in a prompt's attention."""
    block_bytes: int
    copy_bytes_per_s: float
    """Rate between the pools of a worker."""
    peer_bytes_per_s: float
    """Rate from one worker's CPU pool to another's."""

    def step_s(self, work: StepWork) -> float:
        """Returns the time of a step: tokens share one reading of the weights."""
        matrices_s = max(self.weights_s, work.num_tokens * self.token_s) if work.num_seqs else 0.0
        attention_s = work.num_read * self.read_s + work.num_pairs * self.pair_s
        copies_s = work.num_copied * self.block_bytes / self.copy_bytes_per_s
        return self.launch_s + matrices_s + attention_s + copies_s

    def prefill_s(self, num_tokens: int) -> float:
        """Returns the time to compute a prompt in one step."""
        pairs = num_tokens * (num_tokens + 1) // 2
        return self.step_s(StepWork(num_seqs=1, num_tokens=num_tokens, num_pairs=pairs))


DEMO_ON_CPU = StepCosts(
    name="SmolLM2-135M Q4_1, K and V in bfloat16, two cores of a Zen 3 server with AVX2",
    launch_s=0.0038,
    token_s=0.00148,
    read_s=1.6e-6,
    pair_s=1.0e-7,
    block_bytes=16 * 45 << 10,
    copy_bytes_per_s=5e9,
    peer_bytes_per_s=0.5e9,
)
"""Fitted to `python -m benchmarks.cpu_step MODEL --forms auto`."""

LLAMA_8B_ON_H100 = StepCosts(
    name="a model of 8e9 bfloat16 weights in the shape of Llama 3 8B on an H100 SXM (data sheet)",
    launch_s=0.0005,
    weights_s=16e9 / (0.8 * 3.35e12),
    token_s=2 * 8e9 / (0.6 * 989e12),
    read_s=(128 << 10) / (0.8 * 3.35e12),
    pair_s=4 * 32 * 4096 / (0.4 * 989e12),
    block_bytes=16 * 128 << 10,
    copy_bytes_per_s=50e9,
    peer_bytes_per_s=10e9,
)
"""3.35 TB/s and 989 TFLOP/s, of which 0.8, and 0.6 and in attention 0.4 are reached; blocks move
over PCIe 5.0 x16 to the host, and from host to host by Ethernet of 100 Gbit/s."""

PROFILES = {"cpu": DEMO_ON_CPU, "h100": LLAMA_8B_ON_H100}
