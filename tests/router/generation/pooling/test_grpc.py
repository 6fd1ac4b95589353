"""Embed, Score and Classify, with a scheduler whose vectors say what it was asked."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc

from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.generation.pooler import MAX_OUTSTANDING
from signalbox_router.prompt.tokenization.pooling_texts import QWEN3_RERANKER
from tests.router.fakes import BOS, EOS, IM_END, ids_of, make_backend, request_finished, token
from tests.router.generation.pooling.pooling_stack import (
    CLASSIFIES,
    LATE,
    SCORES,
    SETTINGS,
    embed,
    ids,
    make_inputs,
    make_pooling_stack,
    of_tokens,
    pooled,
)
from tests.router.limits.test_api_keys import BEARER, entry, write_keys
from tests.router.stack import StatusCode, make_stack


async def refusal(call: Any) -> tuple[StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


UNACTIVATED = pb.PoolingParams(use_activation=False)


async def test_each_input_is_a_request_with_its_own_special_tokens() -> None:
    async with make_pooling_stack() as stack:
        vectors = await embed(stack, "Paris", [5, 6], pooling_params=UNACTIVATED)
    second, first = sorted(stack.scheduler.added, key=lambda one: len(ids(one)))
    assert ids(first) == [token(BOS), *ids_of("Paris"), token(EOS)]
    assert ids(second) == [5, 6]
    assert [first.max_tokens, first.HasField("pooling")] == [1, True]
    assert vectors == [[len(ids(first)), 0, 0, 1], [2, 0, 0, 1]]


async def test_vectors_have_length_1_and_usage_is_summed() -> None:
    async with make_pooling_stack(vector_of=lambda _: [3, 0, 4, 0]) as stack:
        answer = await stack.client.Embed(pb.EmbedRequest(inputs=make_inputs("a", "b")))
    assert [list(one.values) for one in answer.embeddings] == [pytest.approx([0.6, 0, 0.8, 0])] * 2
    assert answer.usage == pb.Usage(prompt_tokens=14, completion_tokens=0, cached_tokens=6)


async def test_inputs_that_get_their_vectors_count_as_ended_well() -> None:
    async with make_pooling_stack() as stack:
        await embed(stack, "a", "b")
        labels = {"operation": "embeddings", "model_name": "tiny", "code": "OK"}
        count = stack.router.registry.get_sample_value
        assert count("signalbox_requests_total", labels) == 2
        assert count("signalbox_requests_total", labels | {"code": "CANCELLED"}) is None


async def test_declared_dimensions_are_cut_and_normalised_again() -> None:
    async with make_pooling_stack(vector_of=lambda _: [3, 4, 5, 6]) as stack:
        assert await embed(stack, "a", dimensions=2) == [pytest.approx([0.6, 0.8])]
        code, details = await refusal(embed(stack, "a", dimensions=3))
    assert (code, "2, 4" in details) == (StatusCode.INVALID_ARGUMENT, True)


async def test_elements_of_another_type_are_bytes() -> None:
    async with make_pooling_stack(vector_of=lambda _: [3, 0, -4, 0]) as stack:
        asked = pb.EmbedRequest(inputs=make_inputs("a"), embed_dtype=pb.EMBED_DTYPE_INT8)
        (found,) = (await stack.client.Embed(asked)).embeddings
        signs = await refusal(embed(stack, "a", embed_dtype=pb.EMBED_DTYPE_BINARY))
        unknown = await refusal(embed(stack, "a", embed_dtype=99))
    assert (found.data, list(found.values)) == (b"\x5f\x00\x81\x00", [])
    assert signs[0] is unknown[0] is StatusCode.INVALID_ARGUMENT
    assert "vectors of 4 elements" in signs[1] and "EMBED_DTYPE_INT8" in unknown[1]


async def test_vectors_of_tokens_are_counted() -> None:
    files = {SETTINGS: {"query_prefix": "[Q] ", "prompts": {}}}
    async with make_pooling_stack(LATE, vector_of=of_tokens, texts=files) as stack:
        asked = pb.EmbedRequest(inputs=make_inputs([5, 6]), task=pb.POOLING_TASK_TOKEN_EMBED)
        (floats,) = (await stack.client.Embed(asked)).embeddings
        asked.embed_dtype = pb.EMBED_DTYPE_INT8
        (codes,) = (await stack.client.Embed(asked)).embeddings
        info = (await stack.client.GetModel(pb.GetModelRequest())).pooling
        whole = await refusal(embed(stack, "a"))
        other = await refusal(embed(stack, "a", task=pb.POOLING_TASK_CLASSIFY))
    assert list(floats.values) == pytest.approx([0.6, -0.8] * 2)
    assert floats.num_vectors == 2
    assert (codes.data, codes.num_vectors) == (b"\x5f\x81" * 2, 2)
    assert (info.task, info.num_token_outputs) == (pb.POOLING_TASK_TOKEN_EMBED, 2)
    assert info.prompts == {"query": "[Q] "}
    assert whole[0] is StatusCode.FAILED_PRECONDITION
    assert other[0] is StatusCode.INVALID_ARGUMENT


async def test_the_default_prompt_precedes_texts_but_not_tokens() -> None:
    texts = {
        SETTINGS: {
            "prompts": {"query": "Find: ", "note": "N "},
            "default_prompt_name": "query",
        },
        "pooling_config.json": {"include_prompt": False},
    }
    async with make_pooling_stack(texts=texts) as stack:
        await embed(stack, "Paris", [5])
        await embed(stack, "Paris", prompt_name="note")
        await embed(stack, "Paris", prompt_text="")
        refused = await refusal(embed(stack, "a", prompt_name="other"))
    by_length = sorted(stack.scheduler.added, key=lambda one: (len(ids(one)), one.handle))
    inner = [ids(one)[1:-1] for one in by_length]
    assert {tuple(one) for one in inner} == {
        (),
        tuple(ids_of("Paris")),
        tuple(ids_of("N Paris")),
        tuple(ids_of("Find: Paris")),
    }
    skipped = {tuple(ids(one)[1:-1]): one.pooling.num_skipped_tokens for one in by_length}
    assert skipped[tuple(ids_of("Find: Paris"))] == 1 + len(ids_of("Find: "))
    assert skipped[tuple(ids_of("Paris"))] == 0
    assert refused[0] is StatusCode.INVALID_ARGUMENT
    assert "query" in refused[1]


async def test_an_input_beyond_the_models_length_is_cut_only_if_asked() -> None:
    async with make_pooling_stack(max_model_len=6) as stack:
        text = "one two three four five six"
        code, details = await refusal(embed(stack, "a", text))
        params = pb.PoolingParams(truncate_prompt_tokens=-1)
        await embed(stack, text, pooling_params=params)
        params = pb.PoolingParams(truncate_prompt_tokens=4, truncate_start=True)
        await embed(stack, text, pooling_params=params)
        useless = pb.PoolingParams(truncate_prompt_tokens=2)
        refused = await refusal(embed(stack, text, pooling_params=useless))
        beyond = pb.PoolingParams(truncate_prompt_tokens=7)
        assert "[1, 6]" in (await refusal(embed(stack, text, pooling_params=beyond)))[1]
    assert (code, "inputs[1].text" in details) == (StatusCode.INVALID_ARGUMENT, True)
    assert "maximum context length is 6 tokens" in details
    whole = ids_of(text)
    first, last = stack.scheduler.added[-2:]
    assert ids(first) == [token(BOS), *whole[:4], token(EOS)]
    assert ids(last) == [token(BOS), *whole[-2:], token(EOS)]
    assert refused[0] is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ([], "inputs"),
        (["a"] * 2049, "2049"),
        (["a", ""], "inputs[1].text"),
        ([[99_999]], "inputs[0]"),
    ],
)
async def test_inputs_that_cannot_be_served_are_named(inputs: list[Any], named: str) -> None:
    async with make_pooling_stack() as stack:
        code, details = await refusal(embed(stack, *inputs))
    assert code is StatusCode.INVALID_ARGUMENT
    assert named in details


async def test_a_call_has_a_bounded_number_of_requests_at_a_time() -> None:
    async with make_pooling_stack(vector_of=None) as stack:
        call = asyncio.ensure_future(embed(stack, *["a"] * (MAX_OUTSTANDING + 2)))
        await stack.added(MAX_OUTSTANDING)
        assert stack.router.live.num_live == MAX_OUTSTANDING
        for number in range(MAX_OUTSTANDING + 2):
            one = await stack.added(number + 1)
            one = stack.scheduler.added[number]
            stack.scheduler.send(pooled(one.handle, [number, 0, 0, 1]))
        vectors = await call
    assert len(vectors) == MAX_OUTSTANDING + 2
    assert len(stack.scheduler.added) == MAX_OUTSTANDING + 2


async def test_a_key_pays_for_all_inputs_of_a_call_that_it_may_begin(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry(tokens_per_minute=6))
    request = pb.EmbedRequest(inputs=make_inputs([5] * 4, [6] * 4, [7] * 4))
    async with make_pooling_stack(api_keys=keys) as stack:
        answer = await stack.client.Embed(request, metadata=[BEARER])
        assert len(answer.embeddings) == 3
        code, details = await refusal(stack.client.Embed(request, metadata=[BEARER]))
        assert code is StatusCode.RESOURCE_EXHAUSTED and "6 tokens a minute" in details
        assert len(stack.scheduler.added) == 3


async def test_a_failed_input_fails_the_call_and_aborts_the_others() -> None:
    async with make_pooling_stack(vector_of=None) as stack:
        call = asyncio.ensure_future(embed(stack, "a", "b", "c"))
        await stack.added(3)
        failed = stack.scheduler.added[1].handle
        ended = request_finished(failed, code=3, message="the vector is not finite")
        stack.scheduler.send(scheduler_pb2.RequestUpdates(finished_requests=[ended]))
        code, _ = await refusal(call)
        await stack.scheduler.wait_until(lambda: len(stack.scheduler.aborted) == 2)
    assert code is StatusCode.INVALID_ARGUMENT


async def test_a_cancelled_call_aborts_its_requests() -> None:
    async with make_pooling_stack(vector_of=None) as stack:
        call = stack.client.Embed(pb.EmbedRequest(inputs=make_inputs("a", "b")))
        await stack.added(2)
        call.cancel()
        await stack.scheduler.wait_until(lambda: len(stack.scheduler.aborted) == 2)


async def test_a_full_router_makes_the_inputs_of_a_call_wait_for_each_other() -> None:
    async with make_pooling_stack(max_live_requests=2) as stack:
        assert len(await embed(stack, *["a"] * 9)) == 9


async def test_a_request_of_the_other_kind_is_told_what_the_model_does() -> None:
    async with make_pooling_stack() as stack:
        code, details = await refusal(stack.generate())
        classify = pb.ClassifyRequest(inputs=make_inputs("a"))
        other_code, other = await refusal(stack.client.Classify(classify))
    assert (code, "use Embed or Score" in details) == (StatusCode.FAILED_PRECONDITION, True)
    assert (other_code, "Embed" in other) == (StatusCode.FAILED_PRECONDITION, True)
    async with make_stack() as stack:
        code, details = await refusal(embed(stack, "a"))
    assert (code, "--runner pooling" in details) == (StatusCode.FAILED_PRECONDITION, True)
    assert not stack.scheduler.added


async def test_a_reranker_reads_query_and_document_as_one_prompt() -> None:
    async with make_pooling_stack(SCORES, vector_of=lambda one: [len(ids(one))]) as stack:
        request = pb.ScoreRequest(
            queries=["Where?"], documents=["Paris", "Die Hauptstadt"], pooling_params=UNACTIVATED
        )
        answer = await stack.client.Score(request)
        sigmoid = await stack.client.Score(pb.ScoreRequest(queries=["a"], documents=["b"]))
    first = next(one for one in stack.scheduler.added if ids_of("Paris")[0] in ids(one))
    query = [token(BOS), *ids_of("Where?"), token(EOS)]
    assert ids(first) == [*query, *ids_of("Paris"), token(EOS)]
    assert first.pooling.num_first_segment_tokens == len(query)
    assert list(answer.scores) == [len(query) + len(ids_of(text)) + 1 for text in request.documents]
    assert list(sigmoid.scores) == [pytest.approx(1 / (1 + np.exp(-5.0)))]


async def test_a_rerankers_template_keeps_clients_from_writing_control_tokens() -> None:
    texts = {"config.json": {"architectures": ["Qwen3ForCausalLM"]}}
    few: dict[str, Any] = {"texts": texts, "vector_of": lambda _: [0], "max_model_len": 400}
    async with make_pooling_stack(SCORES, **few) as stack:
        documents = [IM_END, "word " * 500]
        params = pb.PoolingParams(truncate_prompt_tokens=-1)
        request = pb.ScoreRequest(queries=["a"], documents=documents, pooling_params=params)
        request.instruction = "Find the word"
        await stack.client.Score(request)
    short, long = sorted(map(ids, stack.scheduler.added), key=len)
    end = ids_of(QWEN3_RERANKER.suffix)
    assert len(long) == 400
    assert long[-len(end) :] == short[-len(end) :] == end
    assert short.count(token(IM_END)) == 2  # of the system's turn and of the user's
    text = make_backend().decode(short, skip_special_tokens=False)
    assert "<Instruct>: Find the word\n<Query>: a\n<Document>: <|im_end|><|im_end|>" in text


async def test_a_reranker_may_read_pairs_by_its_chat_template() -> None:
    template = (
        "{% for one in messages %}[{{ one.role }}]{{ one.content }}{% endfor %}<|im_end|>"
        "{# query, document #}"
    )
    texts = {
        "modules.json": [{"type": "sentence_transformers.cross_encoder.modules.LogitScore"}],
        "tokenizer_config.json": {"chat_template": template},
        SETTINGS: {"prompts": {"web": "judge"}, "default_prompt_name": "web"},
    }
    async with make_pooling_stack(SCORES, vector_of=lambda _: [0], texts=texts) as stack:
        params = pb.PoolingParams(truncate_prompt_tokens=60)
        documents = [IM_END, "word " * 90]
        request = pb.ScoreRequest(queries=["a"], documents=documents, pooling_params=params)
        await stack.client.Score(request)
    short, long = sorted(map(ids, stack.scheduler.added), key=len)
    text = make_backend().decode(short, skip_special_tokens=False)
    assert text == "[system]judge[query]a[document]<|im_end|><|im_end|>"
    assert short.count(token(IM_END)) == 1
    assert (len(long), long[-1]) == (60, token(IM_END))


async def test_scores_of_an_embedding_model_are_cosines() -> None:
    def vector_of(request: scheduler_pb2.Request) -> list[float]:
        return [1, 0, 0, 0] if ids_of("q")[0] in ids(request) else [3, 4, 0, 0]

    async with make_pooling_stack(vector_of=vector_of) as stack:
        one = await stack.client.Score(pb.ScoreRequest(queries=["q"], documents=["q", "d"]))
        each = await stack.client.Score(pb.ScoreRequest(queries=["q", "d"], documents=["d", "d"]))
        code, _ = await refusal(
            stack.client.Score(pb.ScoreRequest(queries=["q"] * 2, documents=["d"] * 3))
        )
    assert list(one.scores) == pytest.approx([1, 0.6])
    assert list(each.scores) == pytest.approx([0.6, 1])
    assert code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("name", "scores"),
    [("cosine", [1, 0.6]), ("dot", [9, 9]), ("euclidean", [0, -4]), ("manhattan", [0, -4])],
)
async def test_scores_are_by_the_similarity_that_a_model_names(
    name: str, scores: list[float]
) -> None:
    def vector_of(request: scheduler_pb2.Request) -> list[float]:
        return [3, 0, 0, 0] if ids_of("q")[0] in ids(request) else [3, 4, 0, 0]

    plain = common_pb2.PoolingModel(task="embed", num_outputs=4, activation="identity")
    texts = {SETTINGS: {"similarity_fn_name": name}}
    async with make_pooling_stack(plain, vector_of=vector_of, texts=texts) as stack:
        answer = await stack.client.Score(pb.ScoreRequest(queries=["q"], documents=["q", "d"]))
    assert list(answer.scores) == pytest.approx(scores)


async def test_a_similarity_of_many_vectors_is_refused_by_name() -> None:
    texts = {SETTINGS: {"similarity_fn_name": "maxsim"}}
    async with make_pooling_stack(texts=texts) as stack:
        code, message = await refusal(
            stack.client.Score(pb.ScoreRequest(queries=["q"], documents=["d"]))
        )
        assert code is StatusCode.FAILED_PRECONDITION and "'maxsim'" in message
        assert len(await embed(stack, "a")) == 1


async def test_scores_of_colberts_own_checkpoints_are_refused() -> None:
    """Their vectors are served; saved with modules, the model's prompts have the marks."""
    score = pb.ScoreRequest(queries=["q"], documents=["d"])
    config: dict[str, Any] = {"config.json": {"architectures": ["HF_ColBERT"]}}
    vectors = partial(make_pooling_stack, LATE, vector_of=of_tokens)
    async with vectors(texts=config) as stack:
        code, message = await refusal(stack.client.Score(score))
        assert code is StatusCode.FAILED_PRECONDITION
        assert "marked as query and document" in message and "/pooling" in message
    async with vectors(texts=config | {"modules.json": []}) as stack:
        assert len((await stack.client.Score(score)).scores) == 1


async def test_texts_that_repeat_a_prompt_or_a_query_are_bounded_together() -> None:
    """A small call must not ask for millions of tokens."""
    inputs, documents = make_inputs(*["a"] * 2048), ["d"] * 2048
    async with make_pooling_stack() as stack:
        request = pb.EmbedRequest(inputs=inputs, prompt_text="p" * 4096)
        code, message = await refusal(stack.client.Embed(request))
        assert code is StatusCode.INVALID_ARGUMENT
        assert "at most 8388608 bytes in a call; send fewer texts" in message
        assert not stack.scheduler.added
    async with make_pooling_stack(SCORES) as stack:
        score = pb.ScoreRequest(queries=["q" * 4096], documents=documents)
        code, message = await refusal(stack.client.Score(score))
        assert code is StatusCode.INVALID_ARGUMENT and message.startswith("documents: ")
        assert not stack.scheduler.added


async def test_classes_have_probabilities_and_names() -> None:
    labels = ["good", "bad", "neither"]
    texts = {"config.json": {"id2label": dict(enumerate(labels))}}
    async with make_pooling_stack(CLASSIFIES, vector_of=lambda _: [0, 9, 0], texts=texts) as stack:
        answer = await stack.client.Classify(pb.ClassifyRequest(inputs=make_inputs("a")))
        info = (await stack.client.GetModel(pb.GetModelRequest())).pooling
        code, _ = await refusal(stack.client.Score(pb.ScoreRequest(queries=["q"], documents=["d"])))
    (result,) = answer.results
    assert result.label == "bad"
    assert sum(result.probs) == pytest.approx(1)
    assert (info.task, info.num_outputs, list(info.labels)) == (
        pb.POOLING_TASK_CLASSIFY,
        3,
        labels,
    )
    assert code is StatusCode.FAILED_PRECONDITION


async def test_a_request_moves_to_the_scheduler_that_comes_back() -> None:
    async with make_pooling_stack(vector_of=None) as stack:
        call = asyncio.ensure_future(embed(stack, "a", pooling_params=UNACTIVATED))
        await stack.added()
        stack.scheduler.end_stream()
        again = await stack.added(2)
        assert (again.attempt, again.HasField("pooling")) == (1, True)
        stack.scheduler.send(pooled(again.handle, [1, 2, 3, 4]))
        assert await call == [[1, 2, 3, 4]]


async def test_gateways_of_vllms_protocol_embed_tokens() -> None:
    async with make_pooling_stack(vector_of=lambda _: [3, 0, 4, 0]) as stack:
        stub: Any = vllm_engine_pb2_grpc.VllmEngineStub(stack.channel)
        tokens = vllm_engine_pb2.TokenizedInput(input_ids=[5, 6])
        answer = await stub.Embed(vllm_engine_pb2.EmbedRequest(request_id="a", tokenized=tokens))
        empty = vllm_engine_pb2.EmbedRequest(tokenized=vllm_engine_pb2.TokenizedInput())
        code, _ = await refusal(stub.Embed(empty))
    assert list(answer.embedding) == [pytest.approx(one) for one in (0.6, 0, 0.8, 0)]
    assert (answer.prompt_tokens, answer.embedding_dim) == (7, 4)
    assert [ids(one) for one in stack.scheduler.added] == [[5, 6]]
    assert code is StatusCode.INVALID_ARGUMENT
