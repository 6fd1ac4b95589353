"""Our calls of flash-attn and FlashInfer fit their sources' signatures, on every machine."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from signalbox_worker.models.attention.flash_kernels import (
    FLASH_KERNELS,
    FLASHINFER,
    FlashIndexes,
    FlashRules,
)
from tests.gpu_worker.models.attention.record_signatures import (
    Parameter,
    parameters_in,
    parameters_of,
    recorded,
)

RELIED_ON = {
    "flash_attn_2": {
        "dropout_p": "0.0",
        "alibi_slopes": "None",
        "return_attn_probs": "False",
    },
    "flash_attn_3": {
        **dict.fromkeys(("k", "v", "qv", "rotary_cos", "cache_batch_idx", "cache_leftpad"), "None"),
        **dict.fromkeys(("q_descale", "k_descale", "v_descale", "scheduler_metadata"), "None"),
        "attention_chunk": "0",
        "num_splits": "0",  # chosen by a heuristic, so that a decode's keys are shared
        "return_softmax_lse": "False",
    },
    "flash_attn_4": {
        **dict.fromkeys(("qv", "cu_seqlens_k", "seqused_q", "gather_kv_indices"), "None"),
        **dict.fromkeys(("learnable_sink", "score_mod", "mask_mod"), "None"),
        "num_splits": "1",
        "return_lse": "False",
    },
    "flashinfer_context": {
        **dict.fromkeys(("out", "out_dtype", "sinks", "kv_cache_sf", "lse"), "None"),
        **dict.fromkeys(("enable_pdl", "multi_ctas_kv_counter_buffer"), "None"),
        "window_left": "-1",
        "causal": "True",
        "uses_shared_paged_kv_idx": "True",
        "return_lse": "False",
    },
    "flashinfer_decode": {
        **dict.fromkeys(("out", "out_dtype", "sinks", "mask", "kv_cache_sf", "lse"), "None"),
        **dict.fromkeys(("enable_pdl", "multi_ctas_kv_counter_buffer"), "None"),
        **dict.fromkeys(("max_q_len", "cum_seq_lens_q"), "None"),
        "window_left": "-1",
        "q_len_per_req": "1",
        "uses_shared_paged_kv_idx": "True",
        "return_lse": "False",
    },
}
"""Defaults of arguments that we leave out."""
KERNELS = {kernel.name: kernel for kernel in FLASH_KERNELS} | dict.fromkeys(
    ("flashinfer_context", "flashinfer_decode"), FLASHINFER
)
"""The kernel of each record."""


def call(record: str, *, window: int | None) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Returns the name and arguments of the call that the kernel of a record makes."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    functions = SimpleNamespace(
        **{
            name: lambda *args, _name=name, **named: calls.append((_name, args, named))
            for name in {each["function"] for each in recorded().values()}
        }
    )
    module = SimpleNamespace(**vars(functions), decode=functions, prefill=functions)
    tensor, kernel = torch.zeros(2, dtype=torch.int32), KERNELS[record]
    most_queries = 2 if record == "flashinfer_context" else 1
    at = FlashIndexes(tensor, tensor, tensor, tensor, most_queries=most_queries, most_keys=1)
    rules = FlashRules(scale=0.5, window=window, soft_cap=0.0)
    kernel.attend(module, tensor, tensor, tensor, at, rules)
    (made,) = calls
    return made


@pytest.mark.parametrize("record", KERNELS)
def test_a_call_fits_the_recorded_signature(record: str) -> None:
    signature = recorded()[record]
    names = [each["name"] for each in signature["parameters"]]
    required = {each["name"] for each in signature["parameters"] if "default" not in each}
    for window in (None, 9):
        function, args, named = call(record, window=window)
        assert function == signature["function"]
        by_position = names[: len(args)]
        assert len(by_position) == len(args)
        assert named.keys() <= set(names[len(args) :])
        assert required <= {*by_position, *named}
        assert not named.keys() & RELIED_ON[record].keys()


@pytest.mark.parametrize("record", KERNELS)
def test_the_defaults_that_calls_rely_on_are_the_recorded_ones(record: str) -> None:
    parameters = recorded()[record]["parameters"]
    defaults = {each["name"]: each.get("default") for each in parameters}
    relied_on = RELIED_ON[record]
    assert {name: defaults[name] for name in relied_on} == relied_on


@pytest.mark.parametrize("record", KERNELS)
def test_what_is_installed_has_the_recorded_signature(record: str) -> None:
    """As far as calls go: a release may add parameters that have a default."""
    kernel, signature = KERNELS[record], recorded()[record]
    if not kernel.is_installed():
        pytest.skip(f"{kernel.package} is not installed; the record stands for it")
    module = kernel.module
    if kernel is FLASHINFER:
        module = signature["path"].removesuffix(".py").replace("/", ".")
    installed = parameters_of(getattr(import_module(module), signature["function"]))
    named = {each["name"]: each.get("default") for each in installed}
    expected = {each["name"]: each.get("default") for each in signature["parameters"]}
    _, args, used = call(record, window=9)
    for name in {*list(expected)[: len(args)], *used, *RELIED_ON[record]}:
        assert named[name] == expected[name]
    new = {name for name, default in named.items() if default is None} - expected.keys()
    assert not new


SOURCE = """
def attend(q, k: Tensor, *, window: Tuple[int, int]=(-1, -1), scale: Optional[float]=None, cap):
    pass
"""


def test_a_record_is_what_a_module_says_of_itself() -> None:
    expected = [
        Parameter(name="q"),
        Parameter(name="k"),
        Parameter(name="window", default="(-1, -1)"),
        Parameter(name="scale", default="None"),
        Parameter(name="cap"),
    ]
    assert parameters_in(SOURCE, "attend") == expected

    def attend(q, k, *, window=(-1, -1), scale=None, cap):  # type: ignore[no-untyped-def]
        pass

    assert parameters_of(attend) == expected
