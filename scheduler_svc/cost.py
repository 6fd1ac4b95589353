"""What it costs to bring a preempted group back: by copies, or by computing it again.

Begins with the rates that a worker announces and follows those that its answers show. Choosing by
bytes over bandwidth against tokens over prefill rate follows vLLM (SOSP 2023, section 4.5).
"""

from dataclasses import dataclass

from scheduler_svc.plan import StepPlan, StepTimings

MIN_PREFILL_TOKENS = 32  # smaller steps say nothing of the rate of a prefill
WEIGHT = 0.2  # of a new observation


@dataclass(slots=True, kw_only=True)
class CostModel:
    """One worker's rates; 0 is not known yet, and what is not known costs nothing."""

    block_bytes: int = 0
    copy_bytes_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0

    def prefers_swap(self, *, num_blocks: int, num_tokens: int) -> bool:
        """Says whether copying blocks out and in takes less than computing their tokens again."""
        return self.swap_s(num_blocks) <= self.recompute_s(num_tokens)

    def swap_s(self, num_blocks: int) -> float:
        """Seconds to copy blocks to the CPU and back."""
        if not self.copy_bytes_per_s:
            return 0.0
        return 2 * num_blocks * self.block_bytes / self.copy_bytes_per_s

    def recompute_s(self, num_tokens: int) -> float:
        return num_tokens / self.prefill_tokens_per_s if self.prefill_tokens_per_s else 0.0

    def observe(self, plan: StepPlan, timings: StepTimings) -> None:
        """Follows the rates of a step that was answered."""
        num_bytes = self.block_bytes * (len(plan.swap_out) + len(plan.swap_in))
        if num_bytes and timings.swap_ns and not plan.copy:
            rate = num_bytes / timings.swap_ns * 1e9
            self.copy_bytes_per_s = _follow(self.copy_bytes_per_s, rate)
        num_tokens = plan.total_tokens
        # A prefill of any size beside it, a decode reads all weights for one token.
        if timings.forward_ns and num_tokens >= max(MIN_PREFILL_TOKENS, 8 * len(plan.seqs)):
            rate = num_tokens / timings.forward_ns * 1e9
            self.prefill_tokens_per_s = _follow(self.prefill_tokens_per_s, rate)


def _follow(known: float, seen: float) -> float:
    return known + WEIGHT * (seen - known) if known else seen
