import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.sampling_defaults import NO_DEFAULTS
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.params import params_validation
from signalbox_router.params.params_validation import check_sampling, resolve_params
from signalbox_router.params.token_validation import MAX_STOPS
from tests.router.fakes import EOS, MAX_MODEL_LEN, make_model, token

MODEL = make_model()
FLOATS = st.floats(width=32)


def is_accepted(**fields: Any) -> bool:
    try:
        check_sampling(fields, MODEL)
    except InvalidArgument as error:
        (name,) = fields
        assert error.message.startswith(f"sampling_params.{name}: ")
        return False
    return True


def resolve(num_prompt_tokens: int = 10, *, cuts: bool = False, **fields: Any) -> Any:
    check_sampling(fields, MODEL)
    return resolve_params(
        fields,
        num_prompt_tokens=num_prompt_tokens,
        model=MODEL,
        defaults=NO_DEFAULTS,
        cuts_max_tokens=cuts,
    )


def refused_field(**fields: Any) -> str:
    with pytest.raises(InvalidArgument) as error:
        check_sampling(fields, MODEL)
    return error.value.message.split(": ")[0]


@given(n=st.integers(1, 64), best_of=st.integers(0, 2**32 - 1) | st.integers(0, 70))
def test_best_of_is_at_least_n(n: int, best_of: int) -> None:
    if n <= best_of <= 64:
        assert resolve(n=n, best_of=best_of).num_sequences == best_of
    else:
        assert refused_field(n=n, best_of=best_of) == "sampling_params.best_of"


def test_log_probabilities_that_only_rank_are_hidden() -> None:
    ranked = resolve(best_of=3)
    assert (ranked.hides_logprobs, ranked.is_ranked) == (True, True)
    assert ranked.sampling.num_logprobs == 0
    asked = resolve(best_of=3, logprobs=2)
    assert not asked.hides_logprobs and asked.sampling.num_logprobs == 2
    plain = resolve(n=3, best_of=3)
    assert (plain.hides_logprobs, plain.is_ranked) == (False, False)
    assert plain.sampling.num_logprobs is None


@given(width=st.integers(0, 2**32 - 1) | st.integers(0, 34), n=st.integers(1, 34))
def test_beams_have_bounds(width: int, n: int) -> None:
    if not 1 <= width <= 32:
        where = refused_field(n=n, beam_search={"width": width} if width else {})
        assert where == "sampling_params.beam_search.width"
    elif n > width:
        assert refused_field(n=n, beam_search={"width": width}) == "sampling_params.n"
    else:
        search = resolve(n=n, beam_search={"width": width}).beam_search
        assert (search.width, search.length_penalty, search.early_stopping) == (width, 1.0, False)


@given(FLOATS)
def test_length_penalties_have_bounds(value: float) -> None:
    search = {"width": 2, "length_penalty": value}
    if -5 <= value <= 5:
        assert resolve(beam_search=search).beam_search.length_penalty == value
    else:
        assert refused_field(beam_search=search) == "sampling_params.beam_search.length_penalty"


@pytest.mark.parametrize(
    "refused",
    [
        {"best_of": 2},
        {"stop": ["x"]},
        {"logprobs": 0},
        {"structured_output": ("regex", "x")},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.5},
        {"logit_bias": [(1, 1.0)]},
        {"allowed_token_ids": [1]},
        {"bad_words": ["x"]},
        {"prediction": "x"},
    ],
)
def test_what_beams_cannot_honour_is_refused_by_name(refused: dict[str, Any]) -> None:
    (name,) = refused
    assert refused_field(beam_search={"width": 2}, **refused) == f"sampling_params.{name}"


def test_a_prediction_needs_speculation() -> None:
    assert refused_field(prediction="x", speculation=False) == "sampling_params.prediction"
    assert resolve(prediction="x", speculation=True).speculation
    assert not resolve(prediction="", speculation=False).speculation


def test_neutral_values_are_no_obstacle_to_beams() -> None:
    resolve(
        beam_search={"width": 2, "early_stopping": True},
        stop=(),
        presence_penalty=0.0,
        repetition_penalty=1.0,
        temperature=0.7,
        min_tokens=3,
        stop_token_ids=[9],
    )


@pytest.mark.parametrize(
    ("name", "is_allowed"),
    [
        ("temperature", lambda value: 0 <= value <= 2),
        ("top_p", lambda value: 0 < value <= 1),
        ("min_p", lambda value: 0 <= value <= 1),
        ("typical_p", lambda value: 0 < value <= 1),
        ("presence_penalty", lambda value: -2 <= value <= 2),
        ("frequency_penalty", lambda value: -2 <= value <= 2),
        ("repetition_penalty", lambda value: 0 < value <= 10),
    ],
)
@given(value=FLOATS)
@example(value=math.nan)
@example(value=math.inf)
@example(value=-math.inf)
def test_floats_have_bounds(name: str, is_allowed: Callable[[float], bool], value: float) -> None:
    assert is_accepted(**{name: value}) == is_allowed(value)


@given(st.integers(0, 600), FLOATS)
def test_logit_bias_names_tokens_and_is_bounded(token_id: int, bias: float) -> None:
    is_right = token_id < MODEL.vocab_size and -100 <= bias <= 100
    try:
        check_sampling({"logit_bias": [(token_id, bias)]}, MODEL)
    except InvalidArgument as error:
        assert not is_right
        assert error.message.startswith("sampling_params.logit_bias.")
    else:
        assert is_right


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"logit_bias": [(3, 1.0), (4, 1.0), (3, 2.0)]},
            "logit_bias.token_id: .*each token once; given: 3",
        ),
        ({"logit_bias": [(i, 0.0) for i in range(1025)]}, "logit_bias: .*at most 1024.*1025"),
        ({"allowed_token_ids": [5, 10**6]}, "allowed_token_ids: .*1000000"),
        ({"allowed_token_ids": [5, 5]}, "allowed_token_ids: .*each token once; given: 5"),
        ({"bad_words": ["x"] * 65}, "bad_words: .*at most 64.*65"),
        ({"bad_words": ["fine", "é" * 65]}, "bad_words: .*1 to 128 bytes"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["  "]}, "bad_words: .*not only spaces"),
    ],
)
def test_lists_of_tokens_and_words_are_bounded(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_sampling(fields, MODEL)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("logprobs", 0, 20),
        ("prompt_logprobs", 0, 20),
        ("n", 1, 64),
        ("max_tokens", 1, 2**32 - 1),
    ],
)
@given(data=st.data())
def test_integers_have_bounds(name: str, low: int, high: int, data: st.DataObject) -> None:
    value = data.draw(st.integers(0, 2**32 - 1) | st.integers(max(0, low - 1), low + 80))
    assert is_accepted(**{name: value}) == (low <= value <= high)


@given(st.lists(st.text(max_size=3), max_size=20) | st.just(["é" * 512]) | st.just(["é" * 513]))
def test_stop_strings_are_few_and_neither_empty_nor_long(stop: list[str]) -> None:
    allowed = len(stop) <= MAX_STOPS and all(1 <= len(text.encode()) <= 1024 for text in stop)
    assert is_accepted(stop=stop) == allowed


@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 500), max_size=70))
def test_stop_token_ids_are_few_and_in_the_vocabulary(ids: list[int]) -> None:
    allowed = len(ids) <= 64 and all(token_id < MODEL.vocab_size for token_id in ids)
    assert is_accepted(stop_token_ids=ids) == allowed


def is_taken(check: Callable[..., None], value: object, **fields: Any) -> bool:
    try:
        check(value, **fields)
    except InvalidArgument:
        return False
    return True


@given(st.integers(-(2**31), 2**31 - 1) | st.integers(-1002, 1002))
def test_priorities_have_bounds(priority: int) -> None:
    assert is_taken(params_validation.check_priority, priority) == (-1000 <= priority <= 1000)


@given(st.text(max_size=130) | st.text("aé", min_size=60, max_size=130))
def test_cache_salts_are_at_most_128_bytes(salt: str) -> None:
    assert is_taken(params_validation.check_cache_salt, salt) == (len(salt.encode()) <= 128)


@given(st.text(max_size=130) | st.text("aZ~ !", min_size=120, max_size=135))
def test_request_ids_are_printable_ascii(request_id: str) -> None:
    allowed = 1 <= len(request_id) <= 128 and all(" " <= char <= "~" for char in request_id)
    assert is_taken(params_validation.check_request_id, request_id) == allowed


@given(st.integers(0, 2 * MAX_MODEL_LEN))
def test_a_prompt_leaves_room_for_a_token(num_tokens: int) -> None:
    check = params_validation.check_prompt_length
    is_right = 1 <= num_tokens < MAX_MODEL_LEN
    assert is_taken(check, num_tokens, field="text", model=MODEL) == is_right


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: params_validation.check_priority(1001), r"^priority: "),
        (lambda: params_validation.check_cache_salt("é" * 65), r"^cache_salt: "),
    ],
)
def test_what_is_out_of_bounds_is_named(check: Callable[[], None], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check()


def test_a_long_prompt_is_refused_with_both_lengths() -> None:
    with pytest.raises(InvalidArgument, match=r"128 tokens.*200 tokens"):
        params_validation.check_prompt_length(200, field="text", model=MODEL)


@given(st.integers(1, MAX_MODEL_LEN - 1), st.integers(1, 2 * MAX_MODEL_LEN))
def test_max_tokens_fit_the_window(num_prompt_tokens: int, max_tokens: int) -> None:
    if num_prompt_tokens + max_tokens <= MAX_MODEL_LEN:
        assert resolve(num_prompt_tokens, max_tokens=max_tokens).max_tokens == max_tokens
    else:
        with pytest.raises(InvalidArgument, match=rf"{num_prompt_tokens} tokens?.*: {max_tokens}"):
            resolve(num_prompt_tokens, max_tokens=max_tokens)
    cut = resolve(num_prompt_tokens, cuts=True, max_tokens=max_tokens)
    assert cut.max_tokens == min(max_tokens, MAX_MODEL_LEN - num_prompt_tokens)
    assert cut.max_tokens_is_default  # a scheduler whose window is shorter cuts it further


def test_max_tokens_default_to_what_the_window_leaves() -> None:
    assert resolve(10).max_tokens == MAX_MODEL_LEN - 10


def test_min_tokens_are_at_most_max_tokens() -> None:
    assert resolve(min_tokens=5, max_tokens=5).sampling.min_tokens == 5
    with pytest.raises(InvalidArgument, match="min_tokens"):
        resolve(min_tokens=6, max_tokens=5)
    with pytest.raises(InvalidArgument, match="min_tokens"):
        resolve(min_tokens=MAX_MODEL_LEN)


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 9e-6])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    (as_sent,) = struct.unpack("<f", struct.pack("<f", temperature))
    assert resolve(temperature=as_sent).sampling.temperature == 0.0


def test_zero_is_not_unset() -> None:
    params = resolve(temperature=0.0, seed=0, logprobs=0, top_k=0).sampling
    assert (params.temperature, params.seed, params.num_logprobs) == (0.0, 0, 0)
    assert resolve().sampling.temperature == 1.0
    assert resolve().sampling.num_logprobs is None


def test_seeds_are_drawn_when_unset() -> None:
    assert len({resolve().sampling.seed for _ in range(100)}) == 100


def test_the_models_end_of_sequence_stops_unless_ignored() -> None:
    assert resolve(stop_token_ids=[9, 9]).sampling.stop_token_ids == (9, token(EOS))
    assert resolve(stop_token_ids=[9], ignore_eos=True).sampling.stop_token_ids == (9,)


def test_every_field_of_the_contract_is_served() -> None:
    """Fails when the contract grows and this package does not."""
    served = {
        "request_id", "model", "text", "token_ids", "messages", "sampling_params",
        "add_special_tokens", "add_generation_prompt", "priority", "cache_salt", "chat_template",
        "chat_template_kwargs", "continue_final_message", "tools", "tool_choice",
        "parallel_tool_calls", "parse_special_tokens",
        "truncate_prompt_tokens", "echo", "output_kind", "stream_interval", "thinking", "receipt",
        "session", "prefix_ttl",
    }  # fmt: skip
    served |= {
        f"sampling_params.{name}"
        for name in (
            "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "stop",
            "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "logprobs", "n",
            "skip_special_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty",
            "typical_p", "logit_bias", "allowed_token_ids", "bad_words", "prompt_logprobs",
            "best_of", "beam_search", "structured_output", "logprob_token_ids", "speculation",
            "prediction",
        )
    }  # fmt: skip
    requests = [pb.GenerateRequest.DESCRIPTOR, pb.ChatRequest.DESCRIPTOR]
    fields = {field.name for request in requests for field in request.fields}
    fields |= {f"sampling_params.{field.name}" for field in pb.SamplingParams.DESCRIPTOR.fields}
    assert fields == served
