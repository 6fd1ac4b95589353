"""Our attention kernel, of a Llama-3-8B layer, beside the card's own rates and other kernels.

Decodes are compared with the copy bandwidth, by the bytes of K and V that they must read, and with
flash-attn where it is installed; prefills with PyTorch's fused attention. Times are a kernel's own:
calls are recorded in graphs, and read caches in turn that do not fit into the card's.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.bench import BLOCK_SIZE, Bench
from benchmarks.gpu.measures import Measure
from benchmarks.gpu.parts.probes import use_kernels
from benchmarks.gpu.parts.roofline import COPY
from signalbox_kernels import ops, triton

if TYPE_CHECKING:
    from signalbox_kernels.triton.attention.tiles import Tile

_FLASH_PAGE = 256  # what upstream's flash-attn 2 takes
_MORE_THAN_CACHE = 256 << 20
"""Bytes of K and V that calls read in turn."""
_FUSED = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Sequences of one length, with several caches of random K and V."""

    query: Tensor
    caches: list[Tensor]
    """Each [num_blocks, 2, BLOCK_SIZE, num_kv_heads, head_size]."""
    num_seqs: int
    num_new: int
    context: int

    @property
    def kv_bytes(self) -> int:
        """K and V that a call must read."""
        kv_heads, size = self.caches[0].shape[-2:]
        return 2 * 2 * self.num_seqs * self.context * kv_heads * size

    def calls(
        self, *, tile: "Tile | None" = None, joins_inside: bool = True
    ) -> list[Callable[[], Tensor]]:
        """Returns a call of one layer for each cache, with scattered blocks.

        Args: as of Triton's kernel, whose plan of a step is made before, as for all layers.
        """
        device, width = self.query.device, -(-self.context // BLOCK_SIZE)
        query_start = torch.arange(self.num_seqs + 1, device=device) * self.num_new
        context_lens = torch.full((self.num_seqs,), self.context, device=device)
        attend: Callable[..., Tensor]
        if uses_triton(device):
            from signalbox_kernels.triton.attention import paged_attention, paged_kernel

            work = paged_attention.plan_attention(
                query_start,
                context_lens,
                num_tokens=len(self.query),
                most_queries=self.num_new,
                num_heads=self.query.shape[1],
                num_kv_heads=self.caches[0].shape[3],
                head_size=self.query.shape[2],
                dtype=self.query.dtype,
                tile=tile,
            )
            attend = partial(paged_kernel.attend, work=work, joins_inside=joins_inside)
        else:
            attend = partial(
                ops.paged_attention, query_start=query_start, context_lens=context_lens
            )

        def call(cache: Tensor) -> Callable[[], Tensor]:
            blocks = torch.randperm(len(cache), device=device)[: self.num_seqs * width]
            tables = blocks.view(self.num_seqs, width).int()
            scale = self.query.shape[-1] ** -0.5
            return lambda: attend(self.query, cache, block_tables=tables, scale=scale)

        return [call(cache) for cache in self.caches]


def uses_triton(device: torch.device) -> bool:
    """Returns whether Triton's kernels run here: on a card, or interpreted."""
    if not triton.is_installed():
        return False
    from signalbox_kernels.triton.launch import is_interpreted

    return device.type == "cuda" or is_interpreted()


def make_problem(bench: Bench, *, num_seqs: int, num_new: int, context: int) -> Problem:
    heads, kv_heads, size = (32, 8, 128) if not bench.tiny else (4, 2, 16)
    pages = num_seqs * -(-context // _FLASH_PAGE)
    shape = (pages * (_FLASH_PAGE // BLOCK_SIZE), 2, BLOCK_SIZE, kv_heads, size)
    num_caches = bench.pick(1 + _MORE_THAN_CACHE // (2 * torch.Size(shape).numel()), 2)
    return Problem(
        query=torch.randn(num_seqs * num_new, heads, size, device=bench.device).bfloat16(),
        caches=[
            torch.randn(shape, device=bench.device, dtype=torch.bfloat16)
            for _ in range(num_caches if num_new == 1 else 1)
        ],
        num_seqs=num_seqs,
        num_new=num_new,
        context=context,
    )


@torch.inference_mode()
def measure(bench: Bench) -> list[Measure]:
    use_kernels(bench)
    decodes = ((256, 512), (64, 2048), (1, 8192), (1, 32768)) if not bench.tiny else ((2, 64),)
    prefills = (2048, 8192) if not bench.tiny else (64,)
    found = []
    for num_seqs, context in decodes:
        problem = make_problem(bench, num_seqs=num_seqs, num_new=1, context=context)
        found += _decode(bench, problem, f"attention, {num_seqs} decodes of context {context}")
    for length in prefills:
        problem = make_problem(bench, num_seqs=1, num_new=length, context=length)
        found += _prefill(bench, problem, f"attention, prefill of {length}")
    return found


def _decode(bench: Bench, problem: Problem, title: str) -> list[Measure]:
    seconds = bench.kernel_seconds(*problem.calls())
    rate = Measure(
        name=f"{title}: K and V read",
        value=problem.kv_bytes / seconds / 1e9,
        unit="GB/s",
        of=COPY,
        aim=0.80,
    )
    return [rate, *_beside_flash(bench, problem, title, seconds)]


def _prefill(bench: Bench, problem: Problem, title: str) -> list[Measure]:
    seconds = bench.kernel_seconds(*problem.calls())
    fused = f"{title}: fused in PyTorch"
    beside = _beside(f"{title}: ours, beside PyTorch's", seconds, of=fused)
    flash = _beside_flash(bench, problem, title, seconds)
    return [fused_attention(bench, problem, fused), beside, *flash]


def fused_attention(bench: Bench, problem: Problem, name: str) -> Measure:
    """Times the fastest of PyTorch's fused kernels for a prompt, on K and V that are contiguous."""
    heads = problem.query.shape[1]
    kv = problem.caches[0].transpose(1, 2).flatten(0, 1)[: problem.context]
    key, value = (
        part.repeat_interleave(heads // part.shape[1], dim=1).transpose(0, 1)[None].contiguous()
        for part in kv.unbind(dim=1)
    )
    query = problem.query.transpose(0, 1)[None].contiguous()
    seconds, refused = dict[str, float](), list[str]()
    for backend in _FUSED:

        def attend(backend: SDPBackend = backend) -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(query, key, value, is_causal=True)

        try:
            seconds[backend.name] = bench.kernel_seconds(attend)
        except RuntimeError:
            refused.append(f"not {backend.name}")
    fastest = min(seconds, key=lambda each: seconds[each])
    note = ", ".join([fastest, *refused])
    return Measure(name=name, value=seconds[fastest] * 1e6, unit="µs", note=note)


def _beside(name: str, seconds: float, *, of: str) -> Measure:
    return Measure(name=name, value=seconds * 1e6, unit="µs", of=of, aim=1.15, is_least=False)


def _beside_flash(bench: Bench, problem: Problem, title: str, seconds: float) -> list[Measure]:
    name = f"{title}: flash-attn"
    ours = _beside(f"{title}: ours", seconds, of=name)
    if bench.device.type != "cuda" or importlib.util.find_spec("flash_attn") is None:
        return [ours]
    return [Measure(name=name, value=_flash_seconds(bench, problem) * 1e6, unit="µs"), ours]


def _flash_seconds(bench: Bench, problem: Problem) -> float:
    """Times flash-attn on the same K and V, in pages of its own."""
    from flash_attn import flash_attn_with_kvcache

    device, num_seqs = problem.query.device, problem.num_seqs
    width = -(-problem.context // _FLASH_PAGE)
    lens = torch.full((num_seqs,), problem.context, dtype=torch.int32, device=device)
    queries = problem.query.view(num_seqs, problem.num_new, *problem.query.shape[1:])

    def call(cache: Tensor) -> Callable[[], object]:
        pages = cache.transpose(1, 2).reshape(-1, _FLASH_PAGE, 2, *cache.shape[-2:])
        keys, values = (part.contiguous() for part in pages.unbind(dim=2))
        blocks = torch.randperm(len(keys), device=device)[: num_seqs * width]
        tables = blocks.view(num_seqs, width).int()
        return lambda: flash_attn_with_kvcache(
            queries, keys, values, cache_seqlens=lens, block_table=tables, causal=True
        )

    return bench.kernel_seconds(*(call(cache) for cache in problem.caches))
