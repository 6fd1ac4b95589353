"""The file of a GGUF repository, or of a folder, that a quantisation names."""

from pathlib import Path

import pytest

from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.hub.gguf_file_names import choose_variant, find_variants
from signalbox_worker.runner.loading.model_source import find_model, model_name

SIZES = {"tiny-Q2_K.gguf": 40, "tiny-Q4_K_M.gguf": 60, "tiny-Q8_0.gguf": 100}


@pytest.mark.parametrize(
    ("sizes", "tag", "file"),
    [
        (SIZES, None, "tiny-Q4_K_M.gguf"),
        (SIZES, "q8_0", "tiny-Q8_0.gguf"),
        (SIZES, "tiny-Q2_K.gguf", "tiny-Q2_K.gguf"),
        (
            {"m.Q6_K.gguf": 66, "m.Q4_0.gguf": 47, "m.Q2_K.gguf": 32, "m.f16.gguf": 160},
            None,
            "m.Q4_0.gguf",
        ),
        ({"m-Q8_0.gguf": 85, "m-BF16.gguf": 160}, None, "m-Q8_0.gguf"),
        ({"m-Q5_K_M.gguf": 57, "m-Q4_K_L.gguf": 50}, None, "m-Q4_K_L.gguf"),
        ({"m-UD-Q4_K_XL.gguf": 50, "m-Q8_0.gguf": 85}, "q4_k_xl", "m-UD-Q4_K_XL.gguf"),
        ({"m-UD-Q4_K_M.gguf": 50, "m-Q4_K_M.gguf": 49}, None, "m-Q4_K_M.gguf"),
        ({"model.gguf": 9, "mmproj-F16.gguf": 5, "m.imatrix.gguf": 5}, None, "model.gguf"),
        ({"a-Q4_K_M.gguf": 49, "b-Q4_K_M.gguf": 49}, "b-q4_k_m", "b-Q4_K_M.gguf"),
        (
            {"Q8_0/m-Q8_0-00002-of-00002.gguf": 40, "Q8_0/m-Q8_0-00001-of-00002.gguf": 45},
            "Q8_0",
            "Q8_0/m-Q8_0-00001-of-00002.gguf",
        ),
    ],
)
def test_a_quantisation_names_a_file(sizes: dict[str, int], tag: str | None, file: str) -> None:
    chosen = choose_variant("org/name", find_variants(sizes), tag)
    assert chosen.files[0] == file
    assert chosen.num_bytes == sum(sizes[part] for part in chosen.files)


@pytest.mark.parametrize(
    ("sizes", "tag", "reason"),
    [
        (SIZES, "Q3_K_S", r"has no Q3_K_S; it has Q2_K \(.*\), Q4_K_M \(.*\), Q8_0"),
        (
            {"a-Q4_K_M.gguf": 1, "b-Q4_K_M.gguf": 1},
            None,
            "name:FILE; it has a-Q4_K_M.gguf, b-",
        ),
        ({"a.gguf": 1, "b.gguf": 1}, None, r"several GGUF models.* it has a\.gguf, b\.gguf"),
    ],
)
def test_a_choice_that_nothing_decides_lists_what_there_is(
    sizes: dict[str, int], tag: str | None, reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        choose_variant("org/name", find_variants(sizes), tag)


def test_a_folder_with_one_gguf_model_is_that_model(tmp_path: Path) -> None:
    for part in (1, 2):
        (tmp_path / f"big-Q8_0-0000{part}-of-00002.gguf").write_bytes(b"")
    (tmp_path / "config.json").write_text("{}")
    config = ModelConfig(model=str(tmp_path))
    assert find_model(config) == tmp_path / "big-Q8_0-00001-of-00002.gguf"
    assert model_name(config) == "big"


def test_a_folder_with_several_gguf_models_lists_them(tmp_path: Path) -> None:
    for name, size in SIZES.items():
        (tmp_path / name).write_bytes(bytes(size << 14))
    reason = r"several GGUF models; give one of them: tiny-Q2_K\.gguf \(640\.0 KiB\), tiny-Q4_K_M"
    with pytest.raises(ModelError, match=reason):
        find_model(ModelConfig(model=str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert find_model(ModelConfig(model=str(tmp_path))) == tmp_path
