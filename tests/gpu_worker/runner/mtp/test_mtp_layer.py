"""The MTP layer beside transformers' module for it, its tensors in each kind of file, and where it
is refused."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpLayer, MtpModel

from signalbox_kernels.floats import to_float32
from signalbox_worker.config import ModelError, SpeculationConfig
from signalbox_worker.drafts.proposer import NO_PROPOSER, Proposer
from signalbox_worker.models import model_spec
from signalbox_worker.runner.draft_model.draft_batch import DraftRun, draft_batch
from signalbox_worker.runner.draft_model.draft_cache import DraftCache
from signalbox_worker.runner.loading.model_source import ModelSource
from signalbox_worker.runner.mtp.mtp_tensors import mtp_tensors
from signalbox_worker.runner.native import packed_weights
from tests.gpu_worker.draft_loops import Answer, Loop, Wanted
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.mtp_models import make_glm
from tests.gpu_worker.runner.loading.gguf_files import make_gguf, open_path
from tests.gpu_worker.runner.mtp.test_mtp_proposer import Kept
from tests.gpu_worker.tiny_models import VOCAB, architecture_of, make_llama, make_model
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

MTP = SpeculationConfig(num_tokens=2, mtp=True)
FAMILIES = ("glm4-moe", "glm4-moe-lite", "qwen3-next", "qwen3.5", "qwen3.5-moe")
LATENT_SIZES = {
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}
_BESIDE = {
    "mtp_block.": "layers.0.",
    "eh_proj.": "fc.",
    "enorm.": "pre_fc_norm_embedding.",
    "hnorm.": "pre_fc_norm_hidden.",
    "post_norm.": "norm.",
}
_BEHIND = {"mtp_block.": "", "post_norm.": "shared_head.norm."}


def make_reference(path: Path, family: str, **fields: Any) -> tuple[Any, MtpLayer]:
    """Saves a random model with an MTP layer; returns both as transformers has them."""
    model = make_model(path, family, **(LATENT_SIZES if family == "glm4-moe-lite" else fields))
    num_layers = model.config.num_hidden_layers
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"] * num_layers
    index = max(i for i, kind in enumerate(kinds) if kind == "full_attention")
    block = model.model.layers[index]
    norm = type(block.input_layernorm)
    torch.manual_seed(1)
    layer = MtpLayer(model.config, type(block), norm, index).eval()
    with torch.no_grad():
        for name, parameter in [*layer.named_parameters(), *layer.named_buffers()]:
            is_norm = "norm" in name
            parameter.uniform_(0.5, 1.5) if is_norm else parameter.normal_(0, 0.2)
    _save(path, family, layer.state_dict(), num_layers)
    return model, layer


def _behind(tensors: dict[str, Any], num_layers: int) -> dict[str, Any]:
    return _renamed(tensors, _BEHIND, f"model.layers.{num_layers}.")


def _renamed(tensors: dict[str, Any], names: dict[str, str], prefix: str) -> dict[str, Any]:
    found = {}
    for name, tensor in tensors.items():
        start = next((one for one in names if name.startswith(one)), "")
        found[f"{prefix}{names.get(start, '')}{name.removeprefix(start)}"] = tensor.contiguous()
    return found


def _save(path: Path, family: str, tensors: dict[str, Any], num_layers: int) -> None:
    is_beside = family.startswith("qwen")
    found = _renamed(tensors, _BESIDE, "mtp.") if is_beside else _behind(tensors, num_layers)
    save_file(found, path / "further.safetensors")
    index = path / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    listed["weight_map"] |= dict.fromkeys(found, "further.safetensors")
    index.write_text(json.dumps(listed))


def expected_results(model: Any, layer: MtpLayer, token_ids: list[int]) -> tuple[Any, Any]:
    """Returns the model's normed hidden states, and the layer's results and likeliest tokens behind
    all tokens but the last."""
    ids = torch.tensor([token_ids])
    with torch.no_grad():
        states = model.model(ids).last_hidden_state
        embedded, positions = model.model.embed_tokens(ids[:, 1:]), torch.arange(1, ids.shape[1])
        turns = model.model.rotary_emb(embedded, position_ids=positions[None])
        mask = torch.full((1, 1, ids.shape[1] - 1, ids.shape[1] - 1), -torch.inf).triu(1)
        results = layer(
            embedded,
            states[:, :-1],
            position_embeddings=turns,
            attention_mask=mask,
            position_ids=positions[None],
            past_key_values=None,
        )
        drawn = model.lm_head(results).argmax(-1)
    return states[0, :-1].numpy(), (results[0], drawn[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model, layer = make_reference(tmp_path, family)
    token_ids = np.random.default_rng(2).integers(3, VOCAB, 60).tolist()
    states, (results, drawn) = expected_results(model, layer, token_ids)
    runner = make_runner(tmp_path, speculation=MTP)
    drafts = runner._draft_model
    executor, size = drafts.executor, drafts.capacity.block_size
    cache = DraftCache(num_rows=drafts.capacity.num_gpu_blocks, block_size=size)
    kept, start = cache.get(0), 0
    cache.reserve(0, least=len(states), most=len(states))
    for end in (1, 30, 31, len(states)):
        run = DraftRun(kept, token_ids[start + 1 : end + 1], draws=True)
        batch = draft_batch([run], num_groups=1, block_size=size)
        output, found = executor.predict(batch, states[start:end])
        torch.testing.assert_close(
            torch.from_numpy(found[0]), results[end - 1], rtol=1e-3, atol=1e-3
        )
        assert output.token_ids.tolist() == [int(drawn[end - 1])]
        kept.num_known, start = end, end


def test_its_memory_is_counted(tmp_path: Path) -> None:
    make_glm(tmp_path)
    with_layer, without = make_runner(tmp_path, speculation=MTP), make_runner(tmp_path)
    more = with_layer.memory().weights - without.memory().weights
    # Without a table and a head of its own.
    assert 0 < more < without.memory().weights / 2
    assert with_layer.memory().kv > without.memory().kv
    assert with_layer._draft_model.reserved_bytes > with_layer._draft_model.kv_bytes
    assert without.executor.take_hidden is None


OF_GLM = {
    "nextn_predict_layers": 1,
    "expert_count": 6,
    "expert_gating_func": 2,
    "expert_group_count": 3,
    "expert_group_used_count": 2,
    "expert_shared_count": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.8,
    "leading_dense_block_count": 1,
    "rope.dimension_count": 8,
}
"""Fields of a GGUF file of the model `glm4-moe`."""


def make_file(folder: Path, **options: Any) -> tuple[ModelSource, Path]:
    """Returns a model with an MTP layer, and its GGUF file."""
    model, layer = make_reference(folder / "hf", "glm4-moe", hidden_size=64)
    num_layers = model.config.num_hidden_layers
    tensors = model.state_dict() | _behind(layer.state_dict(), num_layers)
    with_ends = {
        name.replace("correction_bias", "correction.bias"): one for name, one in tensors.items()
    }
    fields = vars(model.config) | {"num_hidden_layers": num_layers + 1}
    fields |= {"rope_parameters": model.config.rope_parameters, "tie_word_embeddings": False}
    whole = SimpleNamespace(config=SimpleNamespace(**fields), state_dict=lambda: with_ends)
    file = make_gguf(folder / "x.gguf", whole, "glm4moe", extra=OF_GLM, **options)
    return open_path(folder / "hf"), file


def test_files_of_llama_cpp_have_the_same_tensors(tmp_path: Path) -> None:
    source, file = make_file(tmp_path)
    config = model_spec({"architectures": [architecture_of("glm4-moe")]}).read_config(source.config)
    expected, found = mtp_tensors(source, config), mtp_tensors(open_path(file), config)
    assert expected.keys() == found.keys()
    names = {name for name in expected if name.startswith(f"model.layers.{config.num_layers}.")}
    assert len(names) > 6 * 3
    for name in names:
        one, other = (to_float32(each[name].read()) for each in (expected, found))
        np.testing.assert_array_equal(one.squeeze(), other.squeeze(), err_msg=name)


def test_blocks_of_a_file_draft(tmp_path: Path) -> None:
    _, file = make_file(tmp_path, kind_of=lambda name: "F32" if "ffn_" in name else "Q8_0")
    runner = make_runner(file, speculation=MTP, dtype="auto")
    expected, _ = generated(runner, NO_PROPOSER)
    found, loop = generated(runner, runner._draft_model.make_proposer(), most=2)
    assert found == expected
    assert loop.num_drafts


def test_a_model_without_the_layer_is_refused(tmp_path: Path) -> None:
    make_llama(tmp_path)
    with pytest.raises(ModelError, match=r"the method mtp .* have no MTP layer; use"):
        make_runner(tmp_path, speculation=MTP)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpu_backend": "torch"}, "computed natively alone, but"),
        ({"load_format": "dummy"}, "Glm4MoeForCausalLM has no MTP layer"),
    ],
)
def test_a_worker_that_cannot_run_it_refuses_it(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_glm(tmp_path)
    with pytest.raises(ModelError, match=message):
        make_runner(tmp_path, speculation=MTP, **options)


def generated(runner: Any, proposer: Proposer, most: int = 0) -> tuple[dict[int, Answer], Loop]:
    loop = Loop(runner, proposer=proposer)
    wanted = [Wanted(prompt=prompt) for prompt in make_prompts(20, 50)]
    return loop.generate(wanted, num_tokens=24, limit=lambda: most), loop


@pytest.mark.parametrize("multimodal", [False, True])
def test_drafts_change_no_answer_of_a_hybrid(tmp_path: Path, *, multimodal: bool) -> None:
    """Its states are left behind accepted drafts alone; the layer stands beside a text part."""
    make_reference(tmp_path, "qwen3.5")
    if multimodal:
        of_text = json.loads((tmp_path / "config.json").read_text())
        whole = {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": of_text,
        }
        (tmp_path / "config.json").write_text(json.dumps(whole))
    runner = make_runner(tmp_path, speculation=MTP)
    expected, _ = generated(runner, NO_PROPOSER)
    found, loop = generated(runner, runner._draft_model.make_proposer(), most=2)
    assert found == expected
    assert loop.num_drafts


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_layers_draft_and_are_kept_packed(
    quantization: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, kept = tmp_path / "model", tmp_path / "packed"
    make_glm(model, is_right=True, hidden_size=64)
    caplog.set_level("INFO")
    for _ in range(2):
        runner = make_runner(
            model, speculation=MTP, quantization=quantization, packed_weights=str(kept)
        )
        for thread in threading.enumerate():
            if isinstance(thread, packed_weights._Keeping):
                thread.join()
        expected, without = generated(runner, NO_PROPOSER)
        found, loop = generated(runner, runner._draft_model.make_proposer(), most=2)
        assert found == expected
        assert loop.num_steps < without.num_steps / 2
    assert caplog.text.count("weights: packed before") == 2, "of the model, and of its layer"


def test_first_drafts_are_those_of_transformers(tmp_path: Path) -> None:
    """Its own model reads the same files, and the hidden states that it gives to its layer."""
    made, _ = make_reference(tmp_path, "glm4-moe")
    model: Any = type(made).from_pretrained(tmp_path)
    num_layers = model.config.num_hidden_layers
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{num_layers}\..*"]
    reference = MtpModel.from_pretrained(model)
    runner = make_runner(tmp_path, speculation=MTP)
    kept = Kept(runner._draft_model.make_proposer())
    _, loop = generated(runner, kept, most=1)
    texts = loop.texts()
    assert len(kept.found) > 30
    for (seq_id, end), drafts in kept.found.items():
        ids = torch.tensor([texts[seq_id][:end]])
        with torch.no_grad():
            states = model(ids, output_hidden_states=True).hidden_states[-1]
            expected, _, _ = reference(
                ids[:, 1:],
                states[:, :-1],
                attention_mask=None,
                position_ids=torch.arange(1, end)[None],
                mtp_cache=MtpCache(config=model.config.get_mtp_config()),
            )
        assert drafts == expected[0].tolist()
