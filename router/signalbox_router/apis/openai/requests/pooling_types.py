"""Request bodies of embeddings, scores and classes: OpenAI's, vLLM's and Cohere's.

/docs and /openapi.json show the docstrings as the descriptions of the fields.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from signalbox_router.apis.openai.requests import foreign_fields
from signalbox_router.apis.openai.requests.types import Body, Items, Labels
from signalbox_router.generation.pooling.embed_dtypes import EmbedDtype


class PoolingBody(Labels):
    """Fields that these bodies share."""

    FOREIGN = foreign_fields.POOLING

    model: str | None = None
    """Name of the served model, as in /v1/models. Default: the served model."""
    truncate_prompt_tokens: int | None = None
    """Maximum tokens of an input, special tokens included, to which longer ones are cut, at most
    the window; -1 is what the model takes. Default: an input that is too long is an error."""
    truncation_side: Literal["left", "right"] | None = None
    """`right` cuts the end off, `left` the beginning. Default right."""
    priority: int | None = None
    """Order under the scheduling policy `priority`, lowest first; in [-1000, 1000]. Default 0."""
    cache_salt: str | None = None
    """Requests share cached prefixes only if their salts are equal; at most 128 bytes."""
    request_id: str | None = None
    """Part of the answer's id: printable ASCII, unique among running requests."""
    use_activation: bool | None = None
    """True if the model's last function is applied: length 1 for an embedding, sigmoid or softmax
    for classes. Default true."""
    normalize: bool | None = None
    """vLLM's earlier name of use_activation, which precedes it."""


class InputBody(PoolingBody):
    """Fields of bodies with inputs of one text each."""

    FOREIGN = foreign_fields.INPUT

    input: str | Items[str] | Items[int] | Items[Items[int]]
    """A text, token ids, or a list of at most 2,048 texts or of token id lists."""
    add_special_tokens: bool | None = None
    """True if the tokenizer adds its special tokens to a text. Default true."""


class EncodedBody(InputBody):
    """Fields of bodies whose answers hold vectors."""

    FOREIGN = foreign_fields.ENCODED

    encoding_format: Literal["float", "base64", "int8", "uint8", "binary", "ubinary"] | None = None
    """`float`: a list of numbers of the type embed_dtype; `base64`: their bytes, in base64; another
    one: a list of numbers of that type. Default float."""
    embed_dtype: EmbedDtype | None = None
    """Type of an embedding's elements. int8 and uint8 are in units of the vector's largest element;
    `binary` and `ubinary` have the signs of eight elements in a number. Default float32."""
    endianness: Literal["native", "little", "big"] | None = None
    """Order of the bytes in base64; `native` is little-endian. Default native."""
    dimensions: int | None = None
    """Elements of each vector, from its beginning, if the model declares that length; vectors of
    length 1 are given length 1 again. Default: all."""
    prompt_name: str | None = None
    """Name of the model's prompt that precedes each text. Default: the model's default prompt."""
    prompt_text: str | None = None
    """Text that precedes each text, instead of a prompt of the model's."""


class EmbeddingBody(EncodedBody):
    """Body of POST /v1/embeddings."""

    FOREIGN = foreign_fields.EMBEDDING


class PoolingEndpointBody(EncodedBody):
    """Body of POST /pooling, as in vLLM."""

    task: Literal["embed", "classify", "token_embed"] | None = None
    """Kind of the vectors; token_embed is a list of one for each token. Default: the model's."""


class ClassifyBody(InputBody):
    """Body of POST /classify, as in vLLM."""


class ScoreBody(PoolingBody):
    """Body of POST /v1/score, as in vLLM: two texts or lists, under either pair of names."""

    FOREIGN = foreign_fields.SCORE

    text_1: str | Items[str] | None = None
    """One text, which is scored with each of text_2, or as many as there."""
    text_2: str | Items[str] | None = None
    """A text, or a list of at most 2,048."""
    queries: str | Items[str] | None = None
    """Other name of text_1."""
    documents: str | Items[str] | None = None
    """Other name of text_2."""
    items: str | Items[str] | None = None
    """Other name of text_2."""
    data_1: str | Items[str] | None = None
    """Other name of text_1."""
    data_2: str | Items[str] | None = None
    """Other name of text_2."""
    instruction: str | None = None
    """Instruction for a reranker with a template. Default: the template's."""


class RerankDocument(Body):
    """A document as an object."""

    text: str
    """Text of the document."""


class RerankBody(PoolingBody):
    """Body of POST /rerank, /v1/rerank and /v2/rerank, as in Cohere's API, Jina's and vLLM."""

    FOREIGN = foreign_fields.RERANK

    query: str
    """The query."""
    documents: Items[str | RerankDocument]
    """Documents, at most 2,048: texts, or objects with a `text`."""
    top_n: int | None = None
    """Number of results, the best first; 0 is all. Default: all."""
    return_documents: bool | None = None
    """True if results have their documents. Default true."""
    instruction: str | None = None
    """Instruction for a reranker with a template. Default: the template's."""


class CohereContent(Body):
    """A part of an input."""

    type: Literal["text"]
    """Only text is supported."""
    text: str
    """The text."""


class CohereInput(Body):
    """An input of several parts, whose texts are joined."""

    content: Items[CohereContent]
    """The parts."""


class CohereEmbedBody(Body):
    """Body of POST /v1/embed and /v2/embed, as in Cohere's API."""

    FOREIGN = foreign_fields.COHERE_EMBED
    RENAMED: ClassVar[Mapping[str, str]] = {
        "dimensions": "output_dimension",
        "truncate_prompt_tokens": "max_tokens",
    }

    model: str | None = None
    """Name of the served model, as in /v1/models. Default: the served model."""
    texts: Items[str] | None = None
    """At most 2,048 texts; exactly one of texts and inputs is set."""
    inputs: Items[CohereInput] | None = None
    """At most 2,048 inputs of text parts."""
    input_type: str | None = None
    """Name of a prompt of the model, which comes before each text; `search_query` and
    `search_document` are those for queries and documents. Without them, and for `classification`
    and `clustering`, it is the default prompt."""
    embedding_types: (
        Items[Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]] | None
    ) = None
    """Forms of the vectors, as those of embed_dtype in /v1/embeddings. Default float;
    /v1/embed then answers with a list of vectors, without a name for their form."""
    output_dimension: int | None = None
    """Elements of each vector, if the model declares that length. Default: all."""
    truncate: Literal["NONE", "START", "END"] | None = None
    """Part of a too long text that is cut off; NONE makes it an error. Default END."""
    max_tokens: int | None = None
    """Maximum tokens of a text, to which longer ones are cut. Default: what the model takes."""
    priority: int | None = None
    """Order under the scheduling policy `priority`, lowest first; in [-1000, 1000]. Default 0."""

    @property
    def given(self) -> list[Any]:
        """The texts and inputs."""
        return [*(self.texts or ()), *(self.inputs or ())]
