"""An LLM in a process where PyTorch and transformers cannot be imported."""

import json
import subprocess
import sys
from pathlib import Path

PROMPTS = [[3, 4, 5, 6], [7, 8]]
HIDE_PYTORCH = (Path(__file__).parents[3] / "without_pytorch.py").read_text(encoding="utf-8")
SERVE = (
    HIDE_PYTORCH
    + """
import json
from signalbox import LLM, SamplingParams
from signalbox.sampling_params import BeamSearchParams, StructuredOutputsParams

llm = LLM(sys.argv[1], load_format=sys.argv[3], device="cpu", dtype=sys.argv[4],
          quantization=sys.argv[5], num_threads=1,
          swap_space=0.001, kv_cache_memory_bytes=1 << 22, max_num_seqs=8)
prompts = [{"prompt_token_ids": ids} for ids in json.loads(sys.argv[2])]
greedy = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
drawn = llm.generate(prompts, SamplingParams(
    temperature=1.0, top_p=0.9, seed=3, n=2, logprobs=2, prompt_logprobs=1, max_tokens=4,
    repetition_penalty=1.1, ignore_eos=True))
formed = llm.generate(prompts[:1], SamplingParams(
    temperature=0, max_tokens=8,
    structured_outputs=StructuredOutputsParams(regex="[a-c]{2}")))
beams = llm.beam_search(prompts, BeamSearchParams(beam_width=2, max_tokens=4))
loaded = {name.partition(".")[0] for name in sys.modules}
llm.close()
print(json.dumps({
    "greedy": [list(one.outputs[0].token_ids) for one in greedy],
    "branches": [len(one.outputs) for one in drawn],
    "logprobs": [len(one.outputs[0].logprobs) for one in drawn],
    "prompt_logprobs": [len(one.prompt_logprobs) for one in drawn],
    "beams": [len(one.sequences) for one in beams],
    "formed": formed[0].outputs[0].text,
    "loaded": sorted(loaded & ABSENT),
}))
"""
)


EMBED = (
    HIDE_PYTORCH
    + """
import json, math
from signalbox import LLM

llm = LLM(sys.argv[1], load_format="dummy", device="cpu", num_threads=1,
          kv_cache_memory_bytes=1 << 22)
prompts = [{"prompt_token_ids": ids} for ids in json.loads(sys.argv[2])]
vectors = [one.outputs.embedding for one in llm.embed(prompts)]
loaded = {name.partition(".")[0] for name in sys.modules}
llm.close()
print(json.dumps({
    "sizes": [len(one) for one in vectors],
    "are_finite": all(math.isfinite(each) for one in vectors for each in one),
    "loaded": sorted(loaded & ABSENT),
}))
"""
)


def run(
    path: Path, *, load_format: str = "auto", dtype: str = "float32", quantization: str = "auto"
) -> subprocess.CompletedProcess[str]:
    options = [load_format, dtype, quantization]
    return subprocess.run(
        [sys.executable, "-c", SERVE, str(path), json.dumps(PROMPTS), *options],
        capture_output=True,
        text=True,
        check=False,
    )


def embed(path: Path) -> dict[str, object]:
    """Returns what made-up weights make of the prompts."""
    command = [sys.executable, "-c", EMBED, str(path), json.dumps(PROMPTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def serve(path: Path, *, load_format: str = "auto") -> dict[str, object]:
    done = run(path, load_format=load_format)
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result
