"""The HTTP endpoints for vectors and scores, with the SDKs' own calls where there is one."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import numpy as np
import openai
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.generation import pooler
from tests.router.apis.openai.clients import MODEL, Http, make_http
from tests.router.fakes import ids_of
from tests.router.generation.pooling.pooling_stack import (
    CLASSIFIES,
    EMBEDS,
    LATE,
    SCORES,
    SETTINGS,
    Vectors,
    counts,
    ids,
    make_pooling_files,
    of_tokens,
    pooling,
)


@contextlib.asynccontextmanager
async def serving(
    model: common_pb2.PoolingModel = EMBEDS,
    *,
    vector_of: Vectors | None = counts,
    texts: dict[str, Any] | None = None,
    **fields: Any,
) -> AsyncIterator[Http]:
    script = (lambda request: ()) if vector_of is None else pooling(vector_of)
    files = make_pooling_files(**texts or {})
    async with make_http(script, files=files, pooling=model, **fields) as http:
        yield http


async def post(http: Http, path: str, *, status: int = 200, **body: Any) -> Any:
    answer = await http.raw.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def first_letter(request: scheduler_pb2.Request) -> list[float]:
    """Returns 1 of a prompt with the letter x, else -1."""
    return [1.0 if ids_of("x")[0] in ids(request) else -1.0]


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        ("a", [3]),
        (["a", "a"], [3, 3]),
        ([5, 6], [2]),
        ([[5], [6, 7, 8]], [1, 3]),
    ],
)
async def test_openais_sdk_embeds_each_form_of_input(given: Any, lengths: list[int]) -> None:
    async with serving() as http:
        answer = await http.sdk.embeddings.create(
            model=MODEL, input=given, extra_body={"use_activation": False}
        )
        floats = await http.sdk.embeddings.create(
            model=MODEL, input=given, encoding_format="float", extra_body={"use_activation": False}
        )
    assert [one.embedding for one in answer.data] == [[length, 0, 0, 1] for length in lengths]
    assert [one.embedding for one in floats.data] == [[length, 0, 0, 1] for length in lengths]
    assert [one.index for one in answer.data] == list(range(len(lengths)))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 7 * len(lengths)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [0.6, 0, 0.8, 0]),
        ({"normalize": True}, [0.6, 0, 0.8, 0]),
        ({"normalize": False}, [3, 0, 4, 0]),
        ({"normalize": False, "use_activation": True}, [0.6, 0, 0.8, 0]),
    ],
)
async def test_vllms_earlier_name_of_use_activation_has_its_effect(
    asked: dict[str, bool], expected: list[float]
) -> None:
    async with serving(vector_of=lambda _: [3, 0, 4, 0]) as http:
        answer = await post(http, "/v1/embeddings", input="a", **asked)
    np.testing.assert_allclose(answer["data"][0]["embedding"], expected, rtol=1e-6)


async def test_base64_is_little_endian_float32() -> None:
    async with serving(vector_of=lambda _: [3, 0, 4, 0]) as http:
        answer = await post(http, "/v1/embeddings", input="a", encoding_format="base64")
    (data,) = answer["data"]
    vector = np.frombuffer(base64.b64decode(data["embedding"]), "<f4")
    np.testing.assert_allclose(vector, [0.6, 0, 0.8, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"encoding_format": "int8"}, [95, 0, -127, 0]),
        ({"embed_dtype": "uint8"}, [223, 128, 1, 128]),
        ({"output_dtype": "int8"}, [95, 0, -127, 0]),
        ({"embedding_type": "base64", "output_dtype": "int8"}, b"\x5f\x00\x81\x00"),
        ({"encoding_format": "base64", "embed_dtype": "bfloat16", "endianness": "big"},
         bytes.fromhex("3f1a 0000 bf4d 0000")),
        ({"embed_dtype": "float16"}, [0.60009765625, 0, -0.7998046875, 0]),
    ],
)  # fmt: skip
async def test_elements_have_the_type_that_is_asked(asked: dict[str, Any], expected: Any) -> None:
    async with serving(vector_of=lambda _: [3, 0, -4, 0]) as http:
        for path, name in (("/v1/embeddings", "embedding"), ("/pooling", "data")):
            answer = await post(http, path, input="a", **asked)
            found = answer["data"][0][name]
            assert (found if isinstance(found, list) else base64.b64decode(found)) == expected
    async with serving(CLASSIFIES, vector_of=lambda _: [3, 0, -4]) as http:
        refused = await post(http, "/pooling", status=400, input="a", **asked)
    assert refused["error"]["param"] in asked


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": ["some text"] * 3000}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": [-1]}, "input"),
        ({"input": [99_999]}, "input"),
        ({"input": "a", "dimensions": 3}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 10**30}, "truncate_prompt_tokens"),
        ({"input": "a", "prompt_name": "none"}, "prompt_name"),
        ({"input": "a", "prompt_name": "q", "prompt_text": "q"}, "prompt_text"),
        ({"input": "a", "encoding_format": "int4"}, "encoding_format"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "a", "encoding_format": "int8", "embed_dtype": "float16"}, "encoding_format"),
        ({"input": "a", "embed_dtype": "ubinary"}, "embed_dtype"),
        ({"input": "a", "messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
    ],
)
async def test_a_body_that_cannot_be_served_is_a_400(body: dict[str, Any], param: str) -> None:
    async with serving() as http:
        answer = await post(http, "/v1/embeddings", status=400, **body)
    assert answer["error"]["param"] == param
    # Inputs are sent side by side, so one before the wrong one may be computed.
    assert len(http.stack.scheduler.added) <= (param == "input[1]")


async def test_a_long_input_is_a_400_unless_it_is_cut() -> None:
    async with serving(max_model_len=6) as http:
        refused = await post(http, "/v1/embeddings", status=400, input=["one two three four " * 9])
        await post(http, "/v1/embeddings", input=["one two " * 9], truncate_prompt_tokens=-1)
    assert refused["error"]["code"] == "context_length_exceeded"
    assert refused["error"]["param"] == "input[0]"
    assert "or truncate_prompt_tokens" in refused["error"]["message"]
    assert len(ids(http.stack.scheduler.added[-1])) == 6


async def test_what_fits_is_counted_in_tokens_however_many_bytes_they_stand_for() -> None:
    backend = make_word_pieces()
    texts = ["a" + 600 * " " + "b", 600 * "x", "\t" * 600, "e\u0301" * 300 + " a"]
    files = {"tokenizer.json": json.loads(backend.to_str())}
    async with serving(max_model_len=8, texts=files) as http:
        answer = await post(http, "/v1/embeddings", input=texts)
        expected = [backend.encode(text).ids for text in texts]
        assert sorted(map(ids, http.stack.scheduler.added)) == sorted(expected)
        assert len(answer["data"]) == len(texts)
        for text in texts:
            tokenized = await post(http, "/tokenize", prompt=text)
            assert tokenized["tokens"] == backend.encode(text).ids
        refused = await post(http, "/v1/embeddings", status=400, input="a " * 7)
        assert refused["error"]["code"] == "context_length_exceeded"
        assert "a prompt of 9 tokens" in refused["error"]["message"]


def make_word_pieces() -> tokenizers.Tokenizer:
    """Returns BERT's kind of tokenizer: spaces are no tokens, and a long word is one."""
    vocab = {one: i for i, one in enumerate(["[UNK]", "[CLS]", "[SEP]", "a", "b", "##a"])}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return backend


async def test_a_model_says_what_it_is_asked_for_wrongly() -> None:
    async with serving() as http:
        with pytest.raises(openai.BadRequestError, match="/v1/embeddings"):
            await http.chat()
    async with make_http() as http:
        refused = await post(http, "/v1/embeddings", status=400, input="a")
    assert "--runner pooling" in refused["error"]["message"]


async def test_a_client_that_leaves_aborts_all_inputs() -> None:
    async with serving(vector_of=None) as http:
        call = asyncio.ensure_future(post(http, "/v1/embeddings", input=["a", "b"]))
        await http.stack.added(2)
        call.cancel()
        await http.stack.scheduler.wait_until(lambda: len(http.stack.scheduler.aborted) == 2)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_documents_are_ordered_by_their_scores(path: str) -> None:
    documents = ["no", {"text": "x"}, "none"]
    async with serving(SCORES, vector_of=first_letter) as http:
        answer = await post(http, path, query="q", documents=documents)
        best = await post(
            http, path, query="q", documents=documents, top_n=1, return_documents=False
        )
        refused = await post(http, path, status=400, query="q", documents=[])
    assert [one["index"] for one in answer["results"]] == [1, 0, 2]
    assert answer["results"][0]["document"] == {"text": "x"}
    assert best["results"] == [{"index": 1, "relevance_score": pytest.approx(0.7310586)}]
    assert answer["usage"]["prompt_tokens"] == 21
    assert answer["meta"]["api_version"]["version"] == ("2" if "v2" in path else "1")
    assert refused["error"]["param"] == "documents"


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    "body",
    [
        {"text_1": "q", "text_2": ["x", "no"]},
        {"queries": ["q", "q"], "documents": ["x", "no"]},
        {"queries": "q", "items": ["x", "no"]},
        {"data_1": "q", "data_2": ["x", "no"]},
    ],
)
async def test_texts_are_scored_under_each_of_vllms_names(path: str, body: Any) -> None:
    async with serving(SCORES, vector_of=first_letter) as http:
        answer = await post(http, path, use_activation=False, **body)
    assert [one["score"] for one in answer["data"]] == [1, -1]


async def test_a_score_names_the_field_that_is_missing_or_twice() -> None:
    async with serving(SCORES, vector_of=first_letter) as http:
        missing = await post(http, "/score", status=400, text_1="q")
        twice = await post(http, "/score", status=400, text_1="q", queries="q", text_2="x")
        unequal = await post(http, "/score", status=400, text_1=["a", "b"], text_2=["a"] * 3)
    assert [one["error"]["param"] for one in (missing, twice, unequal)] == [
        "text_2",
        "text_1",
        "text_1",
    ]


async def test_an_embedding_model_takes_no_instruction() -> None:
    async with serving() as http:
        body = {"text_1": "q", "text_2": "x", "instruction": "Find the word"}
        answer = await post(http, "/score", status=400, **body)
        assert answer["error"]["param"] == "instruction"


async def test_classes_have_labels() -> None:
    texts = {"config.json": {"id2label": {"0": "good", "1": "bad", "2": "neither"}}}
    async with serving(CLASSIFIES, vector_of=lambda _: [0, 9, 0], texts=texts) as http:
        answer = await post(http, "/classify", input=["a", "b"])
        raw = await post(http, "/pooling", input="a", use_activation=False)
    first, second = answer["data"]
    assert (first["label"], first["num_classes"], second["index"]) == ("bad", 3, 1)
    assert sum(first["probs"]) == pytest.approx(1)
    unnamed = {"config.json": {"num_labels": 3}}
    async with serving(CLASSIFIES, vector_of=lambda _: [0, 0, 9], texts=unnamed) as http:
        answer = await post(http, "/classify", input=["a"])
    assert answer["data"][0]["label"] == "LABEL_2"  # as in transformers' configurations
    assert raw["data"] == [{"index": 0, "object": "pooling", "data": [0, 9, 0]}]


async def test_an_error_of_coheres_api_names_its_fields() -> None:
    async with serving() as http:
        for fields in (
            {"output_dimension": 3},
            {"max_tokens": 1},
            {"max_tokens": 0},
            {"embedding_types": ["float", "binary"]},
        ):
            answer = await post(http, "/v2/embed", status=400, texts=["a"], **fields)
            (param,) = fields
            assert answer["error"]["param"] == param
            assert answer["error"]["message"].startswith(f"{param}: allowed: ")
        await post(http, "/v2/embed", texts=["a"], max_tokens=10**9)  # cuts nothing


async def test_each_token_has_a_vector() -> None:
    async with serving(LATE, vector_of=of_tokens) as http:
        answer = await post(http, "/pooling", input=[[5, 6, 7], [5]], task="token_embed")
        codes = await post(http, "/pooling", input=[5, 6], embed_dtype="int8")
        content = await post(http, "/pooling", input=[5, 6], encoding_format="base64")
        scored = await post(http, "/score", text_1="q", text_2=["x", "x x"])
        refused = await post(http, "/v1/embeddings", status=400, input="a")
        cut = await post(http, "/pooling", status=400, input="a", dimensions=1)
    vector = [pytest.approx(0.6), pytest.approx(-0.8)]
    assert [one["data"] for one in answer["data"]] == [[vector] * 3, [vector]]
    assert codes["data"][0]["data"] == [[95, -127]] * 2
    floats = np.frombuffer(base64.b64decode(content["data"][0]["data"]), "<f4")
    np.testing.assert_allclose(floats, [0.6, -0.8] * 2, rtol=1e-6)
    assert [one["score"] for one in scored["data"]] == [pytest.approx(3)] * 2
    assert "makes vectors of tokens" in refused["error"]["message"]
    assert cut["error"]["param"] == "dimensions"


async def test_vectors_of_tokens_are_for_models_that_make_them_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as http:
        refused = await post(http, "/pooling", status=400, input="a", task="token_embed")
        unserved = await post(http, "/pooling", status=400, input="a", task="token_classify")
        assert not http.stack.scheduler.added
    assert "cannot token_embed" in refused["error"]["message"]
    assert "and not 'token_classify'" in unserved["error"]["message"]
    monkeypatch.setattr(pooler, "MAX_TOKEN_VECTOR_BYTES", 8 * 5)
    async with serving(LATE, vector_of=of_tokens) as http:
        await post(http, "/pooling", input=[[5] * 3, [5] * 2])
        refused = await post(http, "/pooling", status=400, input=[[5] * 3, [5] * 3])
        assert "at most 40 bytes" in refused["error"]["message"]
    wide = common_pb2.PoolingModel()
    wide.CopyFrom(LATE)
    wide.num_outputs = wide.num_token_outputs = 1 << 22
    async with serving(wide, vector_of=of_tokens) as http:
        refused = await post(http, "/pooling", status=400, input=[5] * 3)
        assert "at most 2, or truncate_prompt_tokens" in refused["error"]["message"]
        assert not http.stack.scheduler.added


async def test_coheres_embeddings_come_in_each_form() -> None:
    def vector_of(_: scheduler_pb2.Request) -> Iterable[float]:
        return [3, -4, 0, 0, 0, 0, 0, -1]

    eight = common_pb2.PoolingModel(task="embed", num_outputs=8, activation="identity")
    prompts = {"query": "find ", "passage": "read ", "clustering": "group "}
    texts = {SETTINGS: {"prompts": prompts}}
    async with serving(eight, vector_of=vector_of, texts=texts, max_model_len=9) as http:
        answer = await post(
            http,
            "/v2/embed",
            model=MODEL,
            texts=["a", "b " * 50],
            input_type="search_query",
            embedding_types=["float", "binary", "ubinary", "int8"],
        )
        parts = [{"content": [{"type": "text", "text": "a"}]}]
        for known in ("search_document", "clustering", "classification"):
            await post(http, "/v2/embed", model=MODEL, inputs=parts, input_type=known)
        unknown = await post(http, "/v2/embed", status=400, texts=["a"], input_type="nonexistent")
        refused = await post(
            http, "/v2/embed", status=400, model=MODEL, texts=["b " * 50], truncate="NONE"
        )
    assert answer["embeddings"] == {
        "float": [[3, -4, 0, 0, 0, 0, 0, -1]] * 2,
        "binary": [[0b10111110 - 128]] * 2,
        "ubinary": [[0b10111110]] * 2,
        "int8": [[95, -127, 0, 0, 0, 0, 0, -32]] * 2,
    }
    assert answer["texts"][0] == "a"
    assert answer["meta"]["billed_units"] == {"input_tokens": 14, "image_tokens": 0}
    asked = [ids(one)[1:-1] for one in http.stack.scheduler.added]
    for text in ("find a", "read a", "group a", "a"):
        assert ids_of(text) in asked
    assert unknown["error"]["param"] == "input_type"
    assert "classification, clustering, passage, query" in unknown["error"]["message"]
    assert refused["error"]["code"] == "context_length_exceeded"


async def test_coheres_first_version_answers_with_one_list_of_floats() -> None:
    async with serving() as http:
        plain = await post(http, "/v1/embed", model=MODEL, texts=["a", "b b"])
        named = await post(
            http, "/v1/embed", model=MODEL, texts=["a", "b b"], embedding_types=["float"]
        )
    assert plain["response_type"] == "embeddings_floats"
    assert named["response_type"] == "embeddings_by_type"
    assert len(plain["embeddings"]) == 2
    assert named["embeddings"] == {"float": plain["embeddings"]}
    assert plain["meta"]["api_version"] == named["meta"]["api_version"] == {"version": "1"}
