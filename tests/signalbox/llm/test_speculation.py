"""An engine that computes drafts, over the simulated model."""

from signalbox import LLM, SamplingParams, StructuredOutputsParams
from signalbox.llm.metrics import Counter, Metric, Vector
from signalbox_worker.config import SpeculationConfig
from tests.signalbox.llm.make import make_llm

PROMPT = [11, 12, 13]
TEXT = "the only answer that there is"


def ask(llm: LLM, **fields: bool) -> tuple[str, dict[str, float] | None]:
    """Returns the text of a request that has one possible text, and what became of its drafts."""
    params = SamplingParams(
        temperature=0,
        max_tokens=64,
        structured_outputs=StructuredOutputsParams(choice=[TEXT]),
        **fields,  # type: ignore[arg-type]
    )
    (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    return output.outputs[0].text, output.metrics.speculative_decoding


def metric(llm: LLM, name: str) -> Metric:
    (found,) = (one for one in llm.get_metrics() if one.name == f"vllm:spec_decode_{name}")
    return found


def test_an_engine_says_what_became_of_drafts() -> None:
    llm = make_llm(speculation=SpeculationConfig(num_tokens=4))
    text, counts = ask(llm)
    assert text == TEXT
    assert counts is not None
    kept = counts["num_accepted_draft_tokens"]
    assert kept == counts["num_draft_tokens"] > len(TEXT) // 2, "no other text is allowed"
    assert counts["draft_acceptance_rate"] == 1
    assert ask(llm, speculation=False) == (TEXT, None)
    drafts, by_place = metric(llm, "num_drafts"), metric(llm, "num_accepted_tokens_per_pos")
    assert isinstance(drafts, Counter)
    assert drafts.value == counts["num_spec_steps"]
    assert isinstance(by_place, Vector)
    assert (len(by_place.values), sum(by_place.values)) == (4, kept)
    assert "position" not in by_place.labels
    llm.close()


def test_an_engine_without_drafts_has_no_counts_of_them() -> None:
    llm = make_llm()
    assert ask(llm) == (TEXT, None)
    assert not any("spec_decode" in one.name for one in llm.get_metrics())
    llm.close()
