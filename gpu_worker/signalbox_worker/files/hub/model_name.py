"""Names of models on the hub, as vLLM, llama.cpp and Ollama take them."""

import re
from dataclasses import dataclass

_PREFIX = re.compile(r"(https?://)?(hf\.co|huggingface\.co)/", re.IGNORECASE)
_NAME = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(?::(?P<tag>[\w-][\w./-]*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A repository and, of one that holds GGUF files, which of them."""

    repository: str
    """org/name."""
    tag: str | None
    """A quantisation such as Q4_K_M in any case, or a file's name; None leaves the choice open."""
    has_prefix: bool
    """True if the name begins with the hub's prefix, so that it is not a path."""

    @property
    def name(self) -> str:
        """The last part of the repository's name, under which clients know the model."""
        return self.repository.rpartition("/")[2]

    def __str__(self) -> str:
        return self.repository if self.tag is None else f"{self.repository}:{self.tag}"


def parse_hub_name(model: str) -> HubName | None:
    """Reads [hf.co/]org/name[:TAG]. Returns None for what is no such name."""
    rest = _PREFIX.sub("", model, count=1) if _PREFIX.match(model) else model
    match = _NAME.fullmatch(rest)
    if match is None or match["repository"].endswith(".gguf"):
        return None
    return HubName(repository=match["repository"], tag=match["tag"], has_prefix=rest != model)
