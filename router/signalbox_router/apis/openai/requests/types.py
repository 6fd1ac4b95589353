"""Request bodies of the HTTP API: OpenAI's fields, and the extra ones of vLLM.

Types are checked here; values are checked in `params_validation`, for all APIs. The fields of
other servers are in `foreign_fields`. /docs and /openapi.json show the docstrings as the
descriptions of the fields.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, PrivateAttr

from signalbox_router.apis.openai.requests import foreign_fields

Json = dict[str, Any]
T = TypeVar("T")
_TOOL = re.compile(r"tools\[(\d+)\]")


class _FirstError(FailFast):  # a part of a union type must have a hash
    __hash__ = object.__hash__


Items = Annotated[list[T], _FirstError()]
"""A list whose first invalid item is its only error, because a client can send millions."""


class Body(BaseModel):
    """Base of request bodies. Values are not converted; unlisted fields are kept for
    `unknown_fields`."""

    model_config = ConfigDict(extra="allow", strict=True, use_attribute_docstrings=True)

    FOREIGN: ClassVar[foreign_fields.Table] = {}
    """Fields of other servers, and of OpenAI and vLLM those that are not served."""
    RENAMED: ClassVar[Mapping[str, str]] = {}
    """Fields here by their names in inference.v1, where the kind of body decides."""
    MAX_VALUES: ClassVar[Mapping[str, int]] = {}
    """JSON values that a list may have, where another kind of body has a list of that name."""
    SUBJECT: ClassVar[str] = "model"
    """Field that names what the request is about, which may not be there."""
    IS_CLOSED: ClassVar[bool] = False
    """True if any other field is refused, since the object says what the answer must be."""

    def client_name(self, field: str) -> str | None:
        """Returns the client's name for a field of inference.v1; None if the rules of chats say
        it."""
        return self.RENAMED.get(field)


class BodyWithTools(Body):
    """A body of tools that are not all offered to the model, or are in namespaces."""

    model: str | None = None
    """Name of the served model, as in /v1/models. Default: the served model."""
    _tool_places: list[str] = PrivateAttr(default_factory=list)
    _schema_places: list[str] = PrivateAttr(default_factory=list)

    def place_tools(self, places: Iterable[str], schema_places: Iterable[str]) -> None:
        """Stores where in the body each tool of the conversation and its schema are, for error
        messages."""
        self._tool_places, self._schema_places = list(places), list(schema_places)

    def client_name(self, field: str) -> str | None:
        if found := _TOOL.match(field):
            index, rest = int(found[1]), field[found.end() :]
            if rest == ".parameters":
                return self._schema_places[index]
            return f"{self._tool_places[index]}{rest}"
        return super().client_name(field)


class StreamOptions(Body):
    """Options of a streamed response."""

    include_usage: bool | None = None
    """True if a last event, without choices, has the request's token usage. Default false."""
    continuous_usage_stats: bool | None = None
    """vLLM: true if each event has the usage so far; needs include_usage. Default false."""
    include_obfuscation: Literal[False] | None = None
    """Must be false: events are not padded."""


class JsonSchema(Body):
    """JSON schema that the answer conforms to, as in OpenAI's response_format."""

    IS_CLOSED = True

    name: str | None = None
    """A label; no effect."""
    description: str | None = None
    """A label; no effect. The model does not see it."""
    schema_: Json | bool | None = Field(None, alias="schema")
    """The JSON schema. Required."""
    strict: bool | None = None
    """No effect: answers always conform to the schema."""


class ResponseFormat(Body):
    """OpenAI's structured output. Has no effect if tool_choice forces a call."""

    IS_CLOSED = True

    type: Literal["text", "json_object", "json_schema", "json", "regex"]
    """`text`: no structure; `json_object`: any JSON object, or as the schema says; `json_schema`:
    as the schema says. TGI's `json` and `regex` need a value."""
    json_schema: JsonSchema | None = None
    """The schema; required if type is json_schema and neither schema nor value is set."""
    schema_: Json | bool | None = Field(None, alias="schema")
    """llama.cpp: the JSON schema, if type is json_object or json_schema."""
    value: Json | str | None = None
    """TGI: the JSON schema, the object with it if type is json_schema, or the regular
    expression."""


class StructuredOutputs(Body):
    """vLLM's structured output; exactly one field is set."""

    FOREIGN = foreign_fields.STRUCTURED_OUTPUTS
    IS_CLOSED = True

    json_: Json | str | None = Field(None, alias="json")
    """JSON schema of the text, as an object or as a string."""
    json_object: Literal[True] | None = None
    """True if the text is any JSON object."""
    regex: str | None = None
    """Regular expression that the whole text matches, without look-around or back-references."""
    grammar: str | None = None
    """Context-free grammar of the text: GBNF, which starts at `root`, or Lark."""
    choice: Items[str] | None = None
    """Strings of which the text is exactly one; at most 1,024."""


class Labels(Body):
    """OpenAI's fields that label a request and change no answer."""

    user: str | None = None
    """A label; no effect."""
    metadata: dict[str, str] | None = None
    """Labels; no effect."""
    store: Literal[False] | None = None
    """Must be false: answers are not stored."""
    service_tier: Literal["auto", "default"] | None = None
    """No effect: there is one tier. See priority."""
    safety_identifier: str | None = None
    """A label; no effect."""
    prompt_cache_key: str | None = None
    """A label; no effect. See cache_salt."""


class PromptCacheOptions(Body):
    """Options of the prompt cache. Every prefix is cached, for as long as there is room."""

    FOREIGN = foreign_fields.PROMPT_CACHE_OPTIONS

    mode: Literal["implicit", "explicit"] | None = None
    """No effect: every prefix is cached."""
    ttl: Literal["30m", "12h"] | None = None
    """Time that the client needs its prefix. The scheduler is told, and shows it to operators."""


class StreamableBody(Body):
    """A body whose answer is generated."""

    stream: bool | None = None
    """True if the answer comes as server-sent events. Default false."""


class GenerationBody(Labels, StreamableBody):
    """Fields that completions and chat completions share."""

    FOREIGN = foreign_fields.GENERATION

    model: str | None = None
    """Name of the served model, as in /v1/models. Default: the served model."""
    stream_options: StreamOptions | None = None
    """Options of a streamed answer; needs stream."""
    temperature: float | None = None
    """Softmax temperature in [0, 2]; 0 is greedy. Default: the model's, else 1."""
    top_p: float | None = None
    """Probability mass of nucleus sampling, in (0, 1]. Default: the model's, else 1."""
    n: int | None = None
    """Number of choices for each prompt, in [1, 64]. Default 1."""
    stop: str | Items[str] | None = None
    """Strings that end a choice: at most 64, of 1 to 1,024 bytes each."""
    seed: int | None = None
    """64-bit seed: the same seed and request give the same tokens. Default: random."""
    presence_penalty: float | None = None
    """Subtracted from the logit of each generated token once, in [-2, 2]. Default 0."""
    frequency_penalty: float | None = None
    """Subtracted from a token's logit for each time it was generated, in [-2, 2]. Default 0."""
    logit_bias: dict[str, float] | None = None
    """Bias in [-100, 100] added to a token's logit, by token id as a string; at most 1,024."""
    response_format: ResponseFormat | None = None
    """Structure of the text: JSON of a schema, any JSON object, or none. Default: none."""
    metadata: dict[str, str] | None = None
    """Labels; no effect, but that of `session_id`: see prompt_cache_key."""
    prompt_cache_key: str | None = None
    """Name of the session that the request belongs to, such as an agent's conversation: of several
    schedulers, the one that had the last request takes the next, because it has the prefix.
    Default: metadata.session_id, else what a header says."""
    prompt_cache_options: PromptCacheOptions | None = None
    """Options of the prompt cache."""
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    """Older form of prompt_cache_options.ttl, which precedes it; in_memory says nothing."""
    # vLLM's.
    top_k: int | None = None
    """Number of most likely tokens to keep; 0 or -1 keeps all. Default: the model's, else 0."""
    min_p: float | None = None
    """Minimum probability relative to the most likely token's, in [0, 1]. Default: the model's,
    else 0."""
    typical_p: float | None = None
    """Probability mass of locally typical sampling, in (0, 1]. Default 1."""
    repetition_penalty: float | None = None
    """Divides the positive and multiplies the negative logits of tokens in prompt and output, in
    (0, 10]. Default: the model's, else 1."""
    min_tokens: int | None = None
    """Tokens that are generated before a stop can end a choice; at most max_tokens. Default 0."""
    stop_token_ids: Items[int] | None = None
    """Token ids that end a choice; at most 256."""
    include_stop_str_in_output: bool | None = None
    """True if the text includes the stop string that ended it. Default false."""
    ignore_eos: bool | None = None
    """True if generation goes on past the model's end-of-sequence tokens. Default false."""
    allowed_token_ids: Items[int] | None = None
    """Token ids that may be generated; all others are excluded. Default: all tokens."""
    bad_words: Items[str] | None = None
    """Strings that are never generated: at most 64, of 1 to 128 bytes each."""
    best_of: int | None = None
    """Sequences to generate, of which the n best are returned, in [n, 64]. Default n."""
    use_beam_search: bool | None = None
    """True for beam search with best_of (or n) beams instead of sampling. Default false."""
    length_penalty: float | None = None
    """Beam search: score = log probability / length ** length_penalty; [-5, 5]. Default 1."""
    early_stopping: bool | None = None
    """Beam search: true if it ends once as many hypotheses have ended as there are beams; else it
    ends when none can score better. Default false."""
    skip_special_tokens: bool | None = None
    """True if special tokens are left out of the text. Default true."""
    spaces_between_special_tokens: Literal[True] | None = None
    """Only true, the default, is supported."""
    truncate_prompt_tokens: int | None = None
    """Number of tokens to keep of the prompt, from its end, at most the window; -1 keeps what
    leaves room for max_tokens. Default: all."""
    truncation_side: Literal["left", "right"] | None = None
    """`left` cuts the beginning of the prompt off, `right` its end. Default left."""
    prompt_logprobs: int | None = None
    """Most likely tokens to report at each position of the prompt, in [0, 20]; not with stream."""
    logprob_token_ids: Items[int] | None = None
    """Token ids whose log probabilities are reported at each generated token, instead of the most
    likely ones; at most 128, needs logprobs."""
    priority: int | None = None
    """Order under the scheduling policy `priority`, lowest first; in [-1000, 1000]. Default 0."""
    cache_salt: str | None = None
    """Requests share cached prefixes only if their salts are equal; at most 128 bytes."""
    request_id: str | None = None
    """Part of the answer's id: printable ASCII, unique among running requests."""
    structured_outputs: StructuredOutputs | None = None
    """vLLM's form of response_format, with more kinds of structure."""
    guided_json: Json | str | None = None
    """Older name of structured_outputs.json."""
    guided_regex: str | None = None
    """Older name of structured_outputs.regex."""
    guided_grammar: str | None = None
    """Older name of structured_outputs.grammar."""
    guided_choice: Items[str] | None = None
    """Older name of structured_outputs.choice."""
    stream_interval: int | None = None
    """Tokens of a choice in each event of a stream, at least 1. Default 1."""
    return_token_ids: bool | None = None
    """True if the answer has the token ids of the prompt and of each choice. Default false."""
    return_tokens_as_token_ids: bool | None = None
    """True if logprobs name a token by its id, as "token_id:7". Default false."""
    speculation: bool | None = None
    """False computes no drafts of what the text goes on with; the text is the same. Default: the
    server's."""
    receipt: bool | None = None
    """True if the answer has a receipt, by which `signalbox verify` computes it again; not with
    use_beam_search or best_of. Default false."""

    @property
    def forces_call(self) -> bool:
        """True if the answer must be a tool call."""
        return False

    @property
    def asked_format(self) -> ResponseFormat | None:
        """Structure of the text in OpenAI's form."""
        return self.response_format


class CompletionBody(GenerationBody):
    """Body of POST /v1/completions."""

    FOREIGN = foreign_fields.COMPLETION

    prompt: str | Items[str] | Items[int] | Items[Items[int]]
    """A text, token ids, or a list of at most 1,024 texts or of token id lists."""
    max_tokens: int | None = 16
    """Maximum tokens of a choice, at least 1; 0 with echo returns only the prompt. Default 16."""
    logprobs: int | None = None
    """Most likely tokens to report at each position, in [0, 20]. Default: no logprobs."""
    echo: bool | None = None
    """True if the text begins with the prompt as it was sent. Default false."""
    suffix: Literal[""] | None = None
    """Must be empty: text before a given end is not supported."""
    add_special_tokens: bool | None = None
    """True if the tokenizer adds its special tokens, such as BOS, to a text. Default true."""
