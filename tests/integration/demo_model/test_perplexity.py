"""What quantised weights cost the demo model, on a text that no model has read."""

from pathlib import Path

import pytest

from benchmarks.perplexity import TEXT, measure
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

MODEL = Path("models/SmolLM2-135M-Instruct.Q4_1.gguf")

pytestmark = [pytest.mark.model]


def test_eight_bits_and_the_files_own_types_are_within_two_percent_of_float32() -> None:
    """They cost 0.3 %, told to half a percent by 510 predictions: 1.1 % with AMX, 0.5 with AVX2."""
    text = TEXT.read_text(encoding="utf-8")[:4800]  # two chunks: 510 predictions

    def of(form: str) -> float:
        return measure(str(MODEL), form, text=text, context=512)

    floats = of("float32")
    assert 10 < floats < 60
    assert of("int8") == pytest.approx(floats, rel=0.02)
    assert of("gguf") == pytest.approx(floats, rel=0.02)
