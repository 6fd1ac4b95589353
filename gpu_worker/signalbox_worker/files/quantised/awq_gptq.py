"""AWQ's and GPTQ's configurations: 4 bits in AutoAWQ's GEMM packing; 4 and 8 in both formats of
GPTQ, with rules for single modules."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from signalbox_worker.files.quantised import codes
from signalbox_worker.files.quantised.checkpoint import QuantisedCheckpoint
from signalbox_worker.files.quantised.codes import NUMPY, ArrayLibrary, IntegerCodes
from signalbox_worker.files.quantised.fields import (
    Described,
    expect,
    first,
    group_size,
    not_served,
    refuse_others,
)
from signalbox_worker.files.quantised.form import FLOATS, INDICES, WORDS, QuantisedForm, Tensors
from signalbox_worker.files.quantised.module_names import expression

_NOT_READ = """
    damp_percent damp_auto_increment true_sequential static_groups act_group_aware mse method gptaq
    foem failsafe fallback moe hessian hyb_act dataset tokenizer max_input_length batch_size
    pad_token_id cache_block_outputs block_name_to_quantize module_name_preceding_first_block
    modules_in_block_to_quantize model_name_or_path model_file_base_name model_seqlen meta version
    backend exllama_config use_exllama disable_exllama use_cuda_fp16 do_fuse fuse_max_seq_len
    offload_to_disk offload_to_disk_path device pack_impl wait_for_submodule_finalizers gc_mode
    auto_forward_data_parallel dense_vram_strategy moe_vram_strategy vram_strategy lm_head desc_act
    compute_device_filter
"""
_HOW_MADE = frozenset(_NOT_READ.split())
"""Fields that say how codes were chosen, which kernels were meant, or what tensors say too."""
_ENDS = {codes.QWEIGHT: WORDS, codes.QZEROS: WORDS, codes.SCALES: FLOATS}


def awq_checkpoint(described: Described) -> QuantisedCheckpoint:
    """AutoAWQ's GEMM packing; what has no codes was not converted."""
    expect(described, "awq", 4, "bits", "w_bit")
    expect(described, "awq", "gemm", "version", "format", "checkpoint_format")
    expect(described, "awq", "int32", "pack_dtype")
    read = ("bits", "w_bit", "format", "checkpoint_format", "zero_point", "pack_dtype", "sym")
    of_modules = ("group_size", "q_group_size", "modules_to_not_convert", "dynamic")
    refuse_others(described, "awq", (*read, *of_modules, *_HOW_MADE))
    for pattern in _rules(described, "awq"):
        if not pattern.startswith("-:"):
            raise not_served("awq", f"a rule of dynamic for {pattern[:40]!r}", "one scheme")
    size = group_size(described, "group_size", "q_group_size")
    form = QuantisedForm(
        name="awq",
        marker=codes.QWEIGHT,
        ends=_ENDS,
        shape=lambda shapes, _: codes.awq_shape(shapes, group_size=size),
        decode=partial(_decode, codes.unpack_awq, size),
        bits=4,
        group_size=size,
        unpack=codes.unpack_awq,
    )
    return QuantisedCheckpoint("awq", (form,), lambda module: form)


def gptq_checkpoint(described: Described) -> QuantisedCheckpoint:
    """Both formats of GPTQ, in any order of columns."""
    expect(described, "gptq", False, "is_marlin_format")
    expect(described, "gptq", "int32", "pack_dtype")
    read = ("bits", "sym", "group_size", "checkpoint_format", "format", "dynamic", "pack_dtype")
    refuse_others(described, "gptq", (*read, "is_marlin_format", *_HOW_MADE))
    form = _gptq_form(described)
    rules = [
        (pattern, *_rule(pattern, own, described))
        for pattern, own in _rules(described, "gptq").items()
    ]

    def form_of(module: str) -> QuantisedForm | None:
        for _, matches, of_rule in rules:
            if matches(module):
                return of_rule
        return form

    forms = [form, *(of_rule for _, _, of_rule in rules if of_rule is not None)]
    return QuantisedCheckpoint("gptq", tuple(dict.fromkeys(forms)), form_of)


def _rules(described: Described, name: str) -> Mapping[str, Any]:
    rules = described.get("dynamic") or {}
    if not isinstance(rules, Mapping):
        raise not_served(name, f"dynamic {str(rules)[:40]!r}", "rules by pattern")
    return rules


def _rule(
    pattern: str, own: Any, described: Described
) -> tuple[Callable[[str], Any], QuantisedForm | None]:
    """Returns what tells the modules of a rule, and their form; None leaves them as they are."""
    matches = expression(pattern.removeprefix("-:").removeprefix("+:")).match
    if pattern.startswith("-:"):
        return matches, None
    if not isinstance(own, Mapping):
        raise not_served("gptq", f"{str(own)[:40]!r} for {pattern[:40]!r}", "fields for a pattern")
    refuse_others(own, "gptq", ("bits", "sym", "group_size", *_HOW_MADE))
    return matches, _gptq_form({**described, **own})


def _gptq_form(described: Described) -> QuantisedForm:
    bits, is_symmetric = first(described, 4, "bits"), first(described, True, "sym")
    if bits not in (4, 8):
        raise not_served("gptq", f"bits {str(bits)[:40]!r}", "4 or 8")
    bits = int(bits)
    version = str(first(described, "gptq", "checkpoint_format", "format")).lower()
    if version not in ("gptq", "gptq_v2"):
        raise not_served("gptq", f"checkpoint_format {version[:40]!r}", "'gptq' or 'gptq_v2'")
    size = group_size(described, "group_size")
    needs_index = size is not None and bool(described.get("desc_act"))
    unpack = partial(
        codes.unpack_gptq,
        bits=bits,
        is_symmetric=bool(is_symmetric),
        stores_zeros_less_one=version == "gptq",
    )
    return QuantisedForm(
        name="gptq",
        marker=codes.QWEIGHT,
        ends={**_ENDS, codes.GROUP_INDEX: INDICES},
        shape=lambda shapes, _: codes.gptq_shape(
            shapes, group_size=size, bits=bits, needs_index=needs_index
        ),
        decode=partial(_decode, unpack, size),
        bits=bits,
        group_size=size,
        unpack=unpack,
    )


def _decode(
    unpack: Callable[[Mapping[str, Any], ArrayLibrary], IntegerCodes],
    size: int | None,
    tensors: Tensors,
) -> Any:
    return codes.decode(unpack(tensors, NUMPY), group_size=size)
