"""What quantised weights cost the demo model, on a text that no model has read."""

from pathlib import Path

import pytest

from benchmarks.perplexity import TEXT, Predicted, measure
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

MODEL = Path("models/SmolLM2-135M-Instruct.Q4_1.gguf")

pytestmark = [pytest.mark.model]


def test_what_forms_cost_beside_float32() -> None:
    """8 bits cost 0.3 %, told to half a percent by 510 predictions: 1.1 % with AMX, 0.5 with AVX2.
    They change some 7 % of greedy tokens, and 16 bits none or two."""
    text = TEXT.read_text(encoding="utf-8")[:4800]  # two chunks: 510 predictions

    def of(form: str) -> Predicted:
        return measure(str(MODEL), form, text=text, context=512)

    floats = of("float32")
    assert 10 < floats.perplexity < 60
    for form in ("int8", "gguf"):
        assert of(form).perplexity == pytest.approx(floats.perplexity, rel=0.02)
    wide = of("int16")
    assert wide.perplexity == pytest.approx(floats.perplexity, rel=1e-3)
    assert wide.share_that_differs(floats) < 0.01
