"""What clients send: OpenAI's fields, and the extra ones that vLLM's clients know.

Types are checked here, values where every API's are, in `validation`. Some fields are accepted
because they ask for nothing: those that only label a request, and those that are None or the
default. The docstrings are what /docs and /openapi.json say of the fields.
"""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Json = dict[str, Any]


class Body(BaseModel):
    """No value is converted. Fields that are not listed are kept for `unknown_fields`."""

    model_config = ConfigDict(extra="allow", strict=True, use_attribute_docstrings=True)

    NOT_SERVED: ClassVar[frozenset[str]] = frozenset()
    """Fields of OpenAI's or vLLM's that change answers there; None and False ask for nothing."""


class StreamOptions(Body):
    """What a stream holds besides deltas."""

    include_usage: bool | None = None
    """Whether a last event, without choices, has the usage of the request. Default false."""
    continuous_usage_stats: bool | None = None
    """vLLM's: whether each event has the usage so far; needs include_usage. Default false."""
    include_obfuscation: Literal[False] | None = None
    """Padding of events is not served."""


class JsonSchema(Body):
    """A schema that the answer conforms to."""

    name: str | None = None
    """A label without effect."""
    description: str | None = None
    """A label without effect; the model does not see it."""
    schema_: Json | bool | None = Field(None, alias="schema")
    """The JSON schema; required here."""
    strict: bool | None = None
    """Answers conform to the schema either way."""


class ResponseFormat(Body):
    """OpenAI's way to ask for structured output; a forced tool call replaces it."""

    type: Literal["text", "json_object", "json_schema"]
    """`text` asks for nothing, `json_object` for any JSON object, `json_schema` for a schema's."""
    json_schema: JsonSchema | None = None
    """The schema, with type json_schema."""


class StructuredOutputs(Body):
    """vLLM's way to ask for structured output; exactly one field."""

    json_: Json | str | None = Field(None, alias="json")
    """A JSON schema, as an object or as text."""
    json_object: Literal[True] | None = None
    """Any JSON object."""
    regex: str | None = None
    """A regular expression that the whole text matches; no look-around, no back-references."""
    grammar: str | None = None
    """A context-free grammar: GBNF, whose start is `root`, or Lark."""
    choice: list[str] | None = None
    """Up to 1,024 strings, of which the text is one."""


class Labels(Body):
    """Fields without effect."""

    user: str | None = None
    """A label without effect."""
    metadata: dict[str, str] | None = None
    """Labels without effect."""
    store: Literal[False] | None = None
    """No answers are stored."""
    service_tier: Literal["auto", "default"] | None = None
    """There is one tier; see priority."""
    safety_identifier: str | None = None
    """A label without effect."""
    prompt_cache_key: str | None = None
    """A label without effect; see cache_salt."""


class GenerationBody(Labels):
    """What completions and chats have in common."""

    NOT_SERVED = frozenset({
        "guided_decoding_backend", "guided_whitespace_pattern", "kv_transfer_params",
        "logits_processors", "mm_processor_kwargs", "repetition_detection",
        "thinking_token_budget", "vllm_xargs",
    })  # fmt: skip

    model: str | None = None
    """Name of the served model, see /v1/models. Default: whatever is served."""
    stream: bool | None = None
    """Whether the answer comes as server-sent events. Default false."""
    stream_options: StreamOptions | None = None
    """Of a streamed answer."""
    temperature: float | None = None
    """Softmax temperature in [0, 2]; 0 is greedy. Default 1."""
    top_p: float | None = None
    """Nucleus mass in (0, 1]. Default 1."""
    n: int | None = None
    """Choices for each prompt, in [1, 64]. Default 1."""
    stop: str | list[str] | None = None
    """Up to 64 strings of 1 to 1,024 bytes that end a choice."""
    seed: int | None = None
    """The same seed and request give the same tokens; 64 bits. Default: random."""
    presence_penalty: float | None = None
    """Taken off the logit of every token that was generated, in [-2, 2]. Default 0."""
    frequency_penalty: float | None = None
    """Taken off a token's logit for each time that it was generated, in [-2, 2]. Default 0."""
    logit_bias: dict[str, float] | None = None
    """Token ids, as strings, and what is added to their logits, in [-100, 100]; up to 1,024."""
    response_format: ResponseFormat | None = None
    """Structure of the text."""
    # vLLM's.
    top_k: int | None = None
    """Most likely tokens that are kept; 0 and -1 keep all. Default 0."""
    min_p: float | None = None
    """Least probability kept, as a fraction of the most likely token's, in [0, 1]. Default 0."""
    typical_p: float | None = None
    """Mass of the most typical tokens that are kept, in (0, 1]. Default 1."""
    repetition_penalty: float | None = None
    """Weakens tokens of prompt and output; their logits are divided by it. (0, 10], default 1."""
    min_tokens: int | None = None
    """Before this many tokens nothing ends a choice; at most max_tokens. Default 0."""
    stop_token_ids: list[int] | None = None
    """Up to 256 tokens that end a choice."""
    include_stop_str_in_output: bool | None = None
    """Whether the text includes the stop that ended it. Default false."""
    ignore_eos: bool | None = None
    """Whether the model's end-of-sequence tokens do not end a choice. Default false."""
    allowed_token_ids: list[int] | None = None
    """Nothing but these tokens is generated."""
    bad_words: list[str] | None = None
    """Up to 64 strings that are never completed."""
    best_of: int | None = None
    """Sequences to generate, of which the n best are returned; in [n, 64]. Default n."""
    use_beam_search: bool | None = None
    """Whether to search with best_of (or n) beams instead of sampling. Default false."""
    length_penalty: float | None = None
    """A beam scores its log probability over its length to this power, in [-5, 5]. Default 1."""
    early_stopping: bool | None = None
    """Whether a search ends as soon as as many beams have ended as it has. Default false."""
    skip_special_tokens: bool | None = None
    """Whether special tokens are left out of the text. Default true."""
    spaces_between_special_tokens: Literal[True] | None = None
    """Only the default is served."""
    truncate_prompt_tokens: int | None = None
    """Keep only this many tokens of the prompt, the last; -1 leaves room for max_tokens."""
    prompt_logprobs: int | None = None
    """Alternatives reported for each token of the prompt, in [0, 20]; not streamed."""
    logprob_token_ids: list[int] | None = None
    """Up to 128 tokens whose log probability is reported beside each generated token, instead of
    the most likely ones; needs logprobs."""
    priority: int | None = None
    """Less comes first under the scheduling policy `priority`; in [-1000, 1000]. Default 0."""
    cache_salt: str | None = None
    """Requests share cached prefixes only with requests of the same salt; up to 128 bytes."""
    request_id: str | None = None
    """Becomes part of the answer's id; unique among running requests, printable ASCII."""
    structured_outputs: StructuredOutputs | None = None
    """Structure of the text, in vLLM's words."""
    guided_json: Json | str | None = None
    """As structured_outputs.json."""
    guided_regex: str | None = None
    """As structured_outputs.regex."""
    guided_grammar: str | None = None
    """As structured_outputs.grammar."""
    guided_choice: list[str] | None = None
    """As structured_outputs.choice."""
    return_token_ids: bool | None = None
    """Whether the answer has the token ids of prompt and choices. Default false."""
    return_tokens_as_token_ids: bool | None = None
    """Whether tokens in logprobs are written as "token_id:7". Default false."""

    @property
    def forces_call(self) -> bool:
        """Whether the answer is to be a tool call."""
        return False


class CompletionBody(GenerationBody):
    """Body of POST /v1/completions."""

    NOT_SERVED = GenerationBody.NOT_SERVED | {"prompt_embeds"}

    prompt: str | list[str] | list[int] | list[list[int]]
    """Text or token ids, or a list of up to 1,024 of either."""
    max_tokens: int | None = 16
    """Most tokens of a choice, at least 1; 0 with echo returns the prompt alone. Default 16."""
    logprobs: int | None = None
    """Alternatives reported for each token, in [0, 20]. Default: no log probabilities."""
    echo: bool | None = None
    """Whether the text begins with the prompt as it was sent. Default false."""
    suffix: Literal[""] | None = None
    """Text after the completion is not served."""
    add_special_tokens: bool | None = None
    """Whether a text gets the tokenizer's special tokens, such as the first one. Default true."""
