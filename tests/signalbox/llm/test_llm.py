"""`LLM` over the simulated model, whose output is exact or wrong."""

import gc
import signal
import threading
import weakref
from typing import Any

import pytest

from signalbox import LLM, EngineDeadError, LLMEngine, SamplingParams
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox_scheduler.config import PreemptionMode, SchedulingSettings
from signalbox_scheduler.planning.worker_state import WorkerState
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.results.output_processor import OutputProcessor
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.runner.loading.byte_tokenizer import END_OF_SEQUENCE, END_OF_SEQUENCE_ID
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.router.tokenizer_kinds import backend_of
from tests.signalbox.llm.make import (
    GREEDY,
    assert_at_rest,
    assert_expected,
    greedy,
    make_llm,
    make_runner,
    tokens_of,
)
from tests.simulated_model import expected_tokens
from tests.waiting import EVENT_S

PROMPTS = [f"prompt number {i}" + " and more" * (i % 7) for i in range(24)]


def test_outputs_are_in_the_order_of_the_prompts(llm: LLM) -> None:
    params = [greedy(max_tokens=1 + i % 5) for i in range(24)]
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == PROMPTS
    for output, one in zip(outputs, params, strict=True):
        (completion,) = output.outputs
        assert_expected(output, one.max_tokens or 0)
        assert (completion.finish_reason, completion.stop_reason) == ("length", None)
        assert output.finished and output.usage.completion_tokens == one.max_tokens


@pytest.mark.parametrize("mode", PreemptionMode)
def test_preempted_requests_give_the_same_tokens(mode: PreemptionMode) -> None:
    scheduling = SchedulingSettings(preemption_mode=mode, prefix_caching=False)
    config = CoreConfig(scheduling=scheduling)
    with make_llm(config, num_gpu_blocks=24, num_cpu_blocks=24) as llm:
        params = SamplingParams(temperature=1, seed=5, n=2, max_tokens=50, ignore_eos=True)
        for output in llm.generate(PROMPTS, params, use_tqdm=False):
            assert_expected(output, 50, temperature=1, seed=5)
        assert llm.llm_engine._core.scheduler.preemption.num_preemptions > 0
        assert_at_rest(llm.llm_engine)


def test_branches_of_a_prompt_differ_and_come_in_order(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=7, max_tokens=8, ignore_eos=True)
    (output,) = llm.generate("a prompt", params, use_tqdm=False)
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 3
    assert output.usage == (8, 24, 0)


def test_the_seed_of_the_engine_repeats_a_script() -> None:
    def run(seed: int | None) -> list[list[int]]:
        with make_llm(CoreConfig(seed=seed)) as llm:
            return tokens_of(llm.generate(PROMPTS[:4], SamplingParams(), use_tqdm=False))

    assert run(0) == run(0)
    assert run(0) != run(1)
    assert run(None) != run(None)


def test_the_seed_of_a_request_does_not_depend_on_its_batch(llm: LLM) -> None:
    params = SamplingParams(seed=11, ignore_eos=True)
    alone = llm.generate(PROMPTS[3], params, use_tqdm=False)
    together = llm.generate(PROMPTS, params, use_tqdm=False)
    assert tokens_of(together)[3] == tokens_of(alone)[0]
    unseeded = llm.generate([PROMPTS[3]] * 2, SamplingParams(ignore_eos=True), use_tqdm=False)
    assert unseeded[0].outputs[0].token_ids != unseeded[1].outputs[0].token_ids


def test_a_stop_string_ends_the_text_before_it(llm: LLM) -> None:
    params = greedy(max_tokens=60)
    (plain,) = llm.generate("tell me", params, use_tqdm=False)
    stop = plain.outputs[0].text[9:14]
    for include in (False, True):
        stops = {"stop": [stop, "never said"], "include_stop_str_in_output": include}
        params = greedy(max_tokens=60, **stops)
        (output,) = llm.generate("tell me", params, use_tqdm=False)
        (completion,) = output.outputs
        before = plain.outputs[0].text.partition(stop)[0]
        assert completion.text == before + (stop if include else "")
        assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
        assert completion.token_ids == plain.outputs[0].token_ids[: len(completion.token_ids)]
        assert output.usage.completion_tokens == len(completion.token_ids) < 60


@pytest.mark.parametrize("num_tokens", [1, 2])
def test_a_stop_string_of_special_tokens_ends_the_sequence(llm: LLM, num_tokens: int) -> None:
    stop = END_OF_SEQUENCE * num_tokens  # `greedy` ignores it as the end of a sequence
    params = greedy(max_tokens=9, stop=[stop], allowed_token_ids=[END_OF_SEQUENCE_ID])
    (output,) = llm.generate("tell me", params, use_tqdm=False)
    (completion,) = output.outputs
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert (completion.text, completion.token_ids) == ("", [END_OF_SEQUENCE_ID] * num_tokens)
    assert_at_rest(llm.llm_engine)


def test_a_stop_token_is_reported_and_has_no_text(llm: LLM) -> None:
    params = greedy(max_tokens=20)
    (plain,) = llm.generate("tell me", params, use_tqdm=False)
    token_id = plain.outputs[0].token_ids[5]
    params.stop_token_ids = [token_id]
    (output,) = llm.generate("tell me", params, use_tqdm=False)
    (completion,) = output.outputs
    assert (completion.finish_reason, completion.stop_reason) == ("stop", token_id)
    assert completion.token_ids[-1] == token_id
    assert plain.outputs[0].text.startswith(completion.text)


def test_logprobs_name_the_drawn_token_and_the_likeliest(llm: LLM) -> None:
    params = greedy(max_tokens=4, logprobs=2)
    (output,) = llm.generate("tell me", params, use_tqdm=False)
    (completion,) = output.outputs
    assert completion.logprobs is not None and len(completion.logprobs) == 4
    token_text = llm._controlled.model.tokenizer.vocabulary.token_text
    for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True):
        assert position[token_id].rank == 1 and len(position) == 2
        assert position[token_id].decoded_token == token_text(token_id)
    drawn = [p[t].logprob for t, p in zip(completion.token_ids, completion.logprobs, strict=True)]
    assert completion.cumulative_logprob == pytest.approx(sum(drawn))


def test_decoded_tokens_of_a_sentencepiece_vocabulary_have_their_spaces() -> None:
    files = {"tokenizer.json": backend_of("Llama 2").to_str().encode()}
    with make_llm(CoreConfig(tokenizer_files=files)) as llm:
        params = greedy(max_tokens=2, logprobs=2, prompt_logprobs=2)
        (output,) = llm.generate("The cat sat", params, use_tqdm=False)
        assert output.prompt_logprobs is not None
        entries = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        assert (
            "".join(one[token_id].decoded_token for token_id, one in entries if one) == " cat sat"
        )


def test_prompts_may_be_tokens(llm: LLM) -> None:
    ids = [[5, 6, 7], [8, 9]]
    plain = tokens_of(llm.generate(None, GREEDY, ids, use_tqdm=False))
    assert plain == [expected_tokens(one, num_tokens=16) for one in ids]
    dictionaries = [{"prompt_token_ids": one} for one in ids]
    assert tokens_of(llm.generate(dictionaries, GREEDY, use_tqdm=False)) == plain
    assert tokens_of(llm.generate(ids[0], GREEDY, use_tqdm=False)) == plain[:1]
    (output,) = llm.generate("its text", GREEDY, ids[0], use_tqdm=False)
    assert (output.prompt, output.prompt_token_ids) == ("its text", ids[0])


def test_nothing_is_generated_for_no_prompts(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_chat_is_rendered_by_the_models_template(llm: LLM) -> None:
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    (output,) = llm.chat(conversation, GREEDY, use_tqdm=False)
    assert output.prompt is not None
    assert output.prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert output.prompt_token_ids[0] == 257  # a special token is parsed as one
    two = llm.chat([conversation, conversation], GREEDY, use_tqdm=False)
    assert [one.prompt for one in two] == [output.prompt] * 2


@pytest.mark.parametrize("width", [None, 3])
def test_no_end_is_drawn_before_min_tokens_though_it_is_ignored(
    llm: LLM, width: int | None
) -> None:
    asks: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    if width is not None:
        asks |= {"n": width, "use_beam_search": True}
    prompts = [f"{i}" for i in range(200 if width is None else 60)]
    free = llm.generate(prompts, SamplingParams(**asks), use_tqdm=False)
    starved = llm.generate(prompts, SamplingParams(**asks, min_tokens=20), use_tqdm=False)
    with_end = [
        END_OF_SEQUENCE_ID in completion.token_ids[:20]
        for output in free
        for completion in output.outputs
    ]
    assert any(with_end), "no sequence has an end: the test shows nothing"
    for output in starved:
        for completion in output.outputs:
            assert len(completion.token_ids) == 24
            assert END_OF_SEQUENCE_ID not in completion.token_ids[:20]


def test_a_sequence_ends_with_the_window() -> None:
    with make_llm(max_model_len=32) as llm:
        params = greedy(max_tokens=1000, min_tokens=900)
        (output,) = llm.generate("0123456789", params, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 22
        assert output.outputs[0].finish_reason == "length"
        params = greedy(max_tokens=None)
        (output,) = llm.generate("0123456789", params, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 22
        assert_at_rest(llm.llm_engine)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (["good", ""], r"prompts\[1\]: the prompt is empty"),
        (["good", "x" * 5000], r"prompts\[1\]: .* maximum context length is"),
        (["good", [1, 512]], r"prompts\[1\]: allowed: ids in \[0, 512\), .*; given: 512"),
        (["good", [1, -1]], r"prompts\[1\]: allowed: ids in \[0, 512\), .*; given: -"),
        ([{"prompt": "x", "multi_modal_data": {}}], "'multi_modal_data' is not served"),
        (None, "give prompts or prompt_token_ids"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused(llm: LLM, prompts: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate(prompts, GREEDY, use_tqdm=False)  # type: ignore[arg-type]
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_refused_request_takes_those_before_it_along(llm: LLM) -> None:
    too_wide = SamplingParams(n=64, max_tokens=4000)
    with pytest.raises(ValueError, match=r"of 1 prompt token and .* no worker's KV cache; lower"):
        llm.generate(["a", "b"], [GREEDY, too_wide], use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    assert tokens_of(llm.generate("a", GREEDY, use_tqdm=False))


def test_lists_of_different_lengths_are_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="1 sampling_params for 2 prompts"):
        llm.generate(["a", "b"], [GREEDY], use_tqdm=False)
    with pytest.raises(ValueError, match="2 prompts and 1 prompt_token_ids"):
        llm.generate(["a", "b"], GREEDY, [[1]], use_tqdm=False)


def test_progress_is_visible_on_demand(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS[:2], GREEDY, use_tqdm=False)
    assert capfd.readouterr() == ("", "")
    llm.generate(PROMPTS[:2], GREEDY)
    shown = capfd.readouterr()
    assert shown.out == "" and "2/2" in shown.err and "tok/s" in shown.err


class Flaky(SimulatedRunner):
    """Poisons a sequence, raises, or loses its cache, when it meets a certain token."""

    poison, crash, lose = 300, 301, 302

    def execute(self, batch: Batch) -> BatchOutput:
        met = set(batch.token_ids.tolist())
        if self.crash in met:
            raise RuntimeError("kernel")
        samples = super().execute(batch)
        if self.lose in met:  # the answer does not fit the batch
            samples.token_ids = samples.token_ids[:0]
        if self.poison in met:
            samples.failed[0] = "the logits are not finite"
        return samples


def test_a_request_that_fails_does_not_harm_others() -> None:
    with LLM._from_runner(lambda: Flaky(make_runner().config)) as llm:
        bad, good = llm.generate(None, GREEDY, [[Flaky.poison, 2], [3, 4]], use_tqdm=False)
        assert bad.outputs[0].finish_reason == "error" and bad.finished
        assert bad.error == "the logits are not finite"
        assert_expected(good)
        (crashed,) = llm.generate(None, GREEDY, [Flaky.crash], use_tqdm=False)
        assert crashed.error and "log says why" in crashed.error
        assert_at_rest(llm.llm_engine)


def test_an_engine_whose_cache_is_lost_says_so() -> None:
    with LLM._from_runner(lambda: Flaky(make_runner().config)) as llm:
        with pytest.raises(EngineDeadError, match="the cache is lost"):
            llm.generate(None, GREEDY, [Flaky.lose], use_tqdm=False)
        with pytest.raises(EngineDeadError, match="the cache is lost"):
            llm.generate("again", GREEDY, use_tqdm=False)


@pytest.mark.parametrize(
    ("owner", "method"),
    [(AdmissionQueue, "add"), (WorkerState, "add"), (OutputProcessor, "process")],
)
def test_an_interrupt_leaves_the_engine_usable(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    """It comes when the state is half changed: by a request, a plan, a result."""
    change = getattr(owner, method)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        return change(*args, **kwargs)

    monkeypatch.setattr(owner, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False):
        assert_expected(output)


def test_closing_ends_every_thread() -> None:
    before = set(threading.enumerate())
    with make_llm() as llm:
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert set(threading.enumerate()) - before
    assert set(threading.enumerate()) == before
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("again", GREEDY, use_tqdm=False)


def test_closing_lets_the_model_go() -> None:
    runners: list[weakref.ref[SimulatedRunner]] = []

    def make() -> SimulatedRunner:
        runner = make_runner()
        runners.append(weakref.ref(runner))
        return runner

    llm = LLM._from_runner(make)
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    llm.close()
    llm.close()
    gc.collect()
    assert runners[0]() is None


class Launched:
    """A batch that ends when the test says so."""

    can_feed = False

    def __init__(self, samples: BatchOutput, may_end: threading.Event) -> None:
        self._samples = samples
        self._may_end = may_end

    def wait(self) -> None:
        assert self._may_end.wait(EVENT_S)

    def samples(self) -> BatchOutput:
        self.wait()
        return self._samples


class LaunchingRunner(SimulatedRunner):
    launches = True

    def __init__(self, config: SimulatedConfig, may_end: threading.Event) -> None:
        super().__init__(config)
        self._may_end = may_end

    def launch(self, batch: Batch) -> Launched:
        return Launched(self.execute(batch), self._may_end)


def test_closing_ends_a_launched_step_and_lets_the_model_go() -> None:
    may_end = threading.Event()
    before = set(threading.enumerate())
    engine = LLMEngine._from_runner(lambda: LaunchingRunner(make_runner().config, may_end))
    runner = weakref.ref(engine._core._worker._runner)  # type: ignore[arg-type]
    engine.add_request("0", PROMPTS[0], GREEDY)
    engine._core.send_steps()
    closing = threading.Thread(target=engine.close)
    closing.start()
    may_end.set()
    closing.join(EVENT_S)
    assert set(threading.enumerate()) == before
    gc.collect()
    assert runner() is None


def test_params_of_another_type_are_refused(llm: LLM) -> None:
    with pytest.raises(TypeError, match="sampling_params is a str; give SamplingParams"):
        llm.generate("a", ["greedy"], use_tqdm=False)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="use_tqdm"):
        llm.generate("a", GREEDY, use_tqdm=print)  # type: ignore[arg-type]


def test_a_model_that_does_not_load_leaves_no_thread() -> None:
    def fail() -> SimulatedRunner:
        raise FileNotFoundError("no such model")

    before = set(threading.enumerate())
    with pytest.raises(FileNotFoundError, match="no such model"):
        LLM._from_runner(fail)
    assert not [
        thread for thread in threading.enumerate() if thread not in before and not _ends(thread)
    ]


def _ends(thread: threading.Thread) -> bool:
    thread.join(EVENT_S)
    return not thread.is_alive()
