"""Which form a checkpoint's configuration gives to each module, and what it is refused for."""

import json
from pathlib import Path
from typing import Any

import pytest

from signalbox_worker.config import ModelError
from signalbox_worker.files.quantised.checkpoint import QuantisedCheckpoint
from signalbox_worker.files.quantised.configuration import (
    FP8,
    FP8_BLOCKS,
    quantised_checkpoint,
    with_quantization,
)
from signalbox_worker.runner.loading.hf_directory import DirectorySource

UP, DOWN = "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"
QUERY, HEAD = "model.layers.0.self_attn.q_proj", "lm_head"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
E4M3 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
BY_TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


OF_MODELOPT = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
MODELOPT = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "config_groups": {
        "group_0": {
            "input_activations": OF_MODELOPT,
            "weights": OF_MODELOPT,
            "targets": ["Linear"],
        }
    },
    "ignore": ["lm_head", "model.layers.0*"],
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.35.0"},
}


def group(weights: dict[str, Any], *targets: str, **fields: Any) -> dict[str, Any]:
    return {"targets": [*targets], "weights": weights, "input_activations": None} | fields


def compressed(*groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {f"group_{i}": one for i, one in enumerate(groups)},
        **fields,
    }


def read(described: dict[str, Any]) -> QuantisedCheckpoint:
    checkpoint = quantised_checkpoint({"quantization_config": described})
    assert checkpoint is not None
    return checkpoint


def bits_of(described: dict[str, Any], *modules: str) -> list[int | None]:
    forms = [read(described).form_of(module) for module in modules]
    return [None if form is None else form.bits for form in forms]


def test_rules_of_dynamic_hold_in_order_and_for_whole_names() -> None:
    """The first that matches decides; a pattern begins where the name does."""
    dynamic: dict[str, Any] = {
        r"-:.*layers\.1\.mlp\.up": {},
        r"+:.*\.up_proj": {"bits": 8, "group_size": -1},
        r".*layers\.0\.self_attn": {"bits": 8, "group_size": 32, "sym": False},
        r"mlp\.down_proj": {"bits": 8},
    }
    described = GPTQ | {"dynamic": dynamic}
    above = "model.layers.2.mlp.up_proj"
    assert bits_of(described, UP, above, QUERY, DOWN) == [None, 8, 8, 4]
    sizes = [getattr(read(described).form_of(name), "group_size", 0) for name in (above, QUERY)]
    assert sizes == [None, 32]


IGNORED = {
    "a name": [UP],
    "an expression": [r"re:.*layers\.1.*up"],
    "the module it is fused into": ["model.layers.1.mlp.gate_up_proj"],
    "an expression for that": ["re:.*gate_up_proj"],
}


@pytest.mark.parametrize("ignored", IGNORED)
def test_what_is_ignored_has_no_form(ignored: str) -> None:
    described = compressed(group(INT4, "Linear"), ignore=IGNORED[ignored])
    assert bits_of(described, UP, DOWN) == [None, 4]


def test_a_class_may_be_ignored_or_meant() -> None:
    assert bits_of(compressed(group(INT4, "Linear"), ignore=["Linear"]), UP, HEAD) == [None, None]
    table = compressed(group(INT4, "Embedding"))
    assert bits_of(table, "model.embed_tokens", HEAD) == [4, None]


def test_a_part_of_a_name_matches_nothing() -> None:
    for name in ("up_proj", "re:up_proj", "model.layers.1"):
        assert bits_of(compressed(group(INT4, "Linear"), ignore=[name]), UP) == [4]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_most_specific_of_several_groups_is_meant(first: int) -> None:
    """A name before an expression before a class, in whatever order the groups are."""
    groups = [
        group(INT4, "Linear"),
        group(INT4 | {"group_size": 32}, "re:.*down_proj$"),
        group(INT8, DOWN),
    ]
    described = compressed(*groups[first:], *groups[:first])
    forms = [read(described).form_of(name) for name in (UP, "model.layers.0.mlp.down_proj", DOWN)]
    assert [(form.bits, form.group_size) for form in forms if form] == [
        (4, 128),
        (4, 32),
        (8, None),
    ]


def test_parts_of_a_fused_matrix_may_have_schemes_of_their_own() -> None:
    fused = compressed(group(INT8, "re:.*qkv_proj"), group(INT4, "Linear"))
    assert bits_of(fused, QUERY, QUERY.replace("q_proj", "v_proj"), DOWN) == [8, 8, 4]
    single = compressed(group(INT8, "re:.*v_proj$"), group(INT4, "Linear"))
    assert bits_of(single, QUERY, QUERY.replace("q_proj", "v_proj")) == [4, 8]


def test_a_group_may_have_a_format_of_its_own() -> None:
    groups = (
        group(INT4, "re:.*mlp", format="pack-quantized"),
        group(E4M3, "re:.*self_attn", format="float-quantized"),
    )
    checkpoint = read(compressed(*groups, format="mixed-precision"))
    assert checkpoint.name == "compressed-tensors"
    assert checkpoint.form_of(QUERY) == FP8
    assert read(compressed(groups[1])).name == "fp8"


@pytest.mark.parametrize(
    ("scheme", "left_out", "stored_as"),
    [
        (INT4, {"type", "symmetric", "strategy"}, "pack-quantized"),
        (INT4 | {"group_size": -1, "strategy": "channel"}, {"strategy"}, "pack-quantized"),
        (INT8 | {"strategy": "tensor"}, {"num_bits", "type", "strategy"}, "int-quantized"),
    ],
)
def test_fields_that_a_scheme_leaves_out_have_the_librarys_defaults(
    scheme: dict[str, Any], left_out: set[str], stored_as: str
) -> None:
    """Defaults of compressed-tensors' QuantizationArgs, which also infers the strategy."""
    rest = {name: value for name, value in scheme.items() if name not in left_out}
    by_token = {name: value for name, value in BY_TOKEN.items() if name != "num_bits"}
    whole, partial = (
        read(compressed(group(weights, "Linear", input_activations=rounding), format=stored_as))
        for weights, rounding in ((scheme, BY_TOKEN), (rest, by_token))
    )
    assert (partial.forms, partial.activations) == (whole.forms, whole.activations)


@pytest.mark.parametrize("actorder", [None, "weight", "static", "group"])
def test_the_order_of_activations_is_in_the_tensors(actorder: str | None) -> None:
    assert bits_of(compressed(group(INT4 | {"actorder": actorder}, "Linear")), UP) == [4]


def test_a_sparse_model_may_be_stored_densely() -> None:
    sparsity = {"format": "dense", "global_sparsity": 14.2, "sparsity_structure": "unstructured"}
    assert bits_of(compressed(group(INT4, "Linear"), sparsity_config=sparsity), UP) == [4]


def test_forms_of_fp8_differ_by_their_scales() -> None:
    plain: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "static"}
    assert read(plain).forms == (FP8, FP8_BLOCKS), "which one, the tensors say"
    assert read(plain | {"weight_block_size": [128, 128]}).forms == (FP8_BLOCKS,)


@pytest.mark.parametrize(
    ("algorithm", "bits", "is_static"),
    [
        ("NVFP4", 4, None),
        ("W4A16_NVFP4", 4, None),
        ("FP8", 8, True),
        ("fp8_per_channel_per_token", 8, False),
    ],
)
def test_an_algorithm_of_modelopt_is_that_of_all_modules(
    algorithm: str, bits: int, is_static: bool | None, tmp_path: Path
) -> None:
    """Also in the words of hf_quant_config.json; what stays in floats has no tensors of its own."""
    weights = {name: bits if name == "num_bits" else value for name, value in OF_MODELOPT.items()}
    groups = {"group_0": {"weights": weights, "targets": ["Linear"]}}
    (tmp_path / "config.json").write_text("{}")
    of_file = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "exclude_modules": [HEAD]}
    content = {"producer": {"name": "modelopt"}, "quantization": of_file}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(content))
    beside = DirectorySource(tmp_path, name="x").config["quantization_config"]
    assert beside["kv_cache_scheme"] == "static"
    for described in (MODELOPT | {"quant_algo": algorithm, "config_groups": groups}, beside):
        checkpoint = read(dict(described))
        assert (checkpoint.forms == (FP8,)) == (bits == 8)
        assert bits_of(dict(described), UP, QUERY) == [bits, bits]
        scheme = checkpoint.activations_of(UP)
        assert (None if scheme is None else scheme.is_static) is is_static
        assert checkpoint.leaves_activations == (algorithm == "NVFP4")
    assert quantised_checkpoint({"quantization_config": described | {"quant_algo": None}}) is None


def mixed(**of_modules: Any) -> dict[str, Any]:
    """Fields of ModelOpt that give algorithms to modules."""
    algorithms = {name.replace("__", "."): fields for name, fields in of_modules.items()}
    layers = {name: {"quant_algo": one} for name, one in algorithms.items() if isinstance(one, str)}
    return {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": algorithms | layers,
    }


def test_modules_of_modelopt_have_algorithms_of_their_own() -> None:
    """By their names or those around them, in either order of the text part's name."""
    described = mixed(
        model__layers__1="NVFP4", model__layers__1__mlp__up_proj="FP8", lm_head="W4A16_NVFP4"
    )
    assert bits_of(described, UP, DOWN, HEAD, QUERY, "model.layers.11.up_proj") == [
        *(8, 4, 4),
        *(None, None),
    ]
    checkpoint = read(described)
    assert (checkpoint.name, checkpoint.leaves_activations) == ("modelopt", True)
    assert [form.bits for form in checkpoint.forms] == [4, 8], "the commonest first"
    schemes = [checkpoint.activations_of(name) for name in (UP, DOWN, QUERY)]
    assert [one and one.is_static for one in schemes] == [True, None, None]
    nested = mixed(model__language_model__layers__1="FP8")
    assert bits_of(nested, "language_model.model.layers.1.mlp.up_proj", UP) == [8, None]
    assert read(nested).name == "fp8"


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        ({"quant_method": name}, f"quantised by '{name}', which is not supported; use")
        for name in ("hqq", "torchao", "quark", "nvfp4", "aqlm")
    ]
    + [
        (GPTQ | {"rotation": "hadamard"}, "gptq with rotation 'hadamard', .* no rotation"),
        (GPTQ | {"dynamic": {"+:x": {"rotation": 1}}}, "gptq with rotation '1'"),
        (GPTQ | {"dynamic": ["+:x"]}, "gptq with dynamic"),
        (GPTQ | {"dynamic": {"+:(": {}}}, r"'\(', which is no regular expression"),
        (GPTQ | {"bits": 3}, "gptq with bits '3'"),
        (AWQ | {"dynamic": {"+:.*": {"bits": 8}}}, "awq with a rule of dynamic"),
        (AWQ | {"scaled": True}, "awq with scaled 'True'"),
        (BNB | {"bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type 'int4'"),
        (BNB | {"load_in_8bit": True}, "neither 4 nor 8 bits"),
        (BNB | {"llm_int8_outliers": [1]}, "with llm_int8_outliers"),
        ({"quant_method": "mxfp4", "rounding": "up"}, "mxfp4 with rounding 'up'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fp8 with fmt 'e5m2'"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"by blocks of \[64, 64\]"),
        ({"quant_method": "fp8", "rounding": "up"}, "fp8 with rounding 'up'"),
        ({"quant_method": "fp8", "expert_dtype": "mxfp4"}, "fp8 with expert_dtype 'mxfp4'"),
        (
            {"quant_method": "fp8", "weight_scale_semantics": "inverse"},  # of GPTQModel: divides
            "fp8 with weight_scale_semantics 'inverse'",
        ),
        (compressed() | {"config_groups": [1]}, r"with config_groups '\[1\]'"),
        (compressed(sparsity_config={"format": "sparse-bitmask"}), "sparsity_config"),
        (
            compressed(group(INT4, "Linear"), sparsity_config={"format": "sparse-24-bitmask"}),
            "sparsity_config 'sparse-24-bitmask'",
        ),
        (compressed(group(INT4, "Linear"), transform_config={"a": 1}), "transform_config"),
        (compressed(group(INT4 | {"zero": 1}, "Linear")), "with zero '1'"),
        (compressed(group(INT4, "Linear", output_activations=INT8)), "output_activations"),
        (compressed(group(INT4 | {"num_bits": 3}, "Linear")), "'pack-quantized' of int in 3 bits"),
        (compressed(group(INT4 | {"group_size": None}, "Linear")), "groups of 'None'"),
        (
            compressed(group(INT8, "Linear", input_activations=BY_TOKEN | {"num_bits": 16})),
            "activations of 16 bits by token",
        ),
        (
            compressed(
                group(
                    INT4 | {"type": "float", "strategy": "tensor_group", "group_size": 32},
                    "Linear",
                ),
                format="nvfp4-pack-quantized",
            ),
            "'nvfp4-pack-quantized' of float in 4 bits by tensor_group",
        ),
        (MODELOPT | {"quant_algo": "W4A8_AWQ"}, "quant_algo 'W4A8_AWQ', .* with FP8, .* NVFP4"),
        (MODELOPT | {"quant_algo": "FP8"}, "modelopt with weights .* of FP8, .* 8 bits"),
        (MODELOPT | {"group_size": 32}, "modelopt with groups of 32, .* groups of 16"),
        (mixed(), "MIXED_PRECISION and quantized_layers '{}'"),
        (mixed(x="FP8", y="MXFP8"), "quant_algo 'MXFP8', .* with FP8, .* NVFP4"),
        (mixed(x=["FP8"]), r"modelopt with \"\['FP8'\]\" for x"),
        (mixed(x={"quant_algo": "NVFP4", "group_size": 32}), "modelopt with groups of 32"),
        (mixed(x={"quant_algo": "NVFP4", "pre_quant_scale": True}), "with pre_quant_scale 'True'"),
        ({"quant_method": "fbgemm_fp8", "rounding": "up"}, "fbgemm_fp8 with rounding 'up'"),
        (MODELOPT | {"pre_quant_scale": True}, "modelopt with pre_quant_scale 'True'"),
    ],
)
def test_what_is_not_read_is_refused_by_name(described: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        read(described)


def test_neutral_and_informative_fields_are_no_reason() -> None:
    made = {"damp_percent": 0.05, "meta": {"quantizer": ["x"]}, "unheard_of": None, "other": False}
    assert bits_of(GPTQ | made | {"desc_act": True, "lm_head": True}, UP) == [4]
    assert bits_of(AWQ | made | {"modules_to_not_convert": ["visual"]}, UP) == [4]
    status = {"quantization_status": "compressed", "sparsity_config": {}, "transform_config": {}}
    assert bits_of(compressed(group(INT4, "Linear"), **status), UP) == [4]


KV_ALONE = {
    "config_groups": {},
    "format": "dense",
    "ignore": [],
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False},
    "quantization_status": "compressed",
    "sparsity_config": {},
    "transform_config": {},
    "version": "0.13.0",
}
"""What llm-compressor writes where K and V alone have scales."""
FLOATS = {"targets": ["Linear"], "weights": None, "input_activations": None}


@pytest.mark.parametrize("config_groups", [{}, None, {"group_0": FLOATS}])
def test_weights_beside_scales_of_k_and_v_alone_are_floats(config_groups: object) -> None:
    described = KV_ALONE | {"quant_method": "compressed-tensors", "config_groups": config_groups}
    assert quantised_checkpoint({"quantization_config": described}) is None


INT4_GROUPS = compressed(group(INT4, "Linear"))
WITHOUT_METHOD = {name: INT4_GROUPS[name] for name in ("format", "config_groups")}


@pytest.mark.parametrize(
    ("config", "of_file", "expected"),
    [
        ({"quantization_config": {}}, None, None),
        ({"quantization_config": {}, "compression_config": {}}, {}, None),
        ({"quantization_config": None}, GPTQ, GPTQ),
        ({"quantization_config": {}}, GPTQ, GPTQ),
        ({"quantization_config": AWQ, "compression_config": INT4_GROUPS}, GPTQ, AWQ),
        ({"compression_config": INT4_GROUPS}, GPTQ, INT4_GROUPS),
        ({"compression_config": WITHOUT_METHOD}, None, INT4_GROUPS),
        (
            {"compression_config": {"quantization_config": INT4_GROUPS, "sparsity_config": {}}},
            None,
            INT4_GROUPS | {"sparsity_config": {}},
        ),
        ({"quantization_config": {"quantization_config": AWQ}}, None, AWQ),
        ({"quantization_config": 5}, None, 5),
    ],
)
def test_description_that_counts_is_found(
    config: dict[str, Any], of_file: dict[str, Any] | None, expected: object
) -> None:
    found = dict(with_quantization(config | {"vocab_size": 3}, of_file))
    assert found.pop("vocab_size") == 3
    assert found == ({} if expected is None else {"quantization_config": expected})
