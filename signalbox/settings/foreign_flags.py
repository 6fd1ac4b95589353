"""The flags of other servers that `serve` knows: those of vLLM, llama.cpp and Ollama.

The tables are the one source of the command line, of the keys of a YAML file, and of the pages of
docs/reference/ about them.
"""

from collections.abc import Mapping

from signalbox.settings.flag_kinds import ForeignFlag
from signalbox.settings.llama_cpp_flags import LLAMA_CPP_FLAGS, SHORT_NAMES
from signalbox.settings.vllm_flags import SHORT_FLAGS, VLLM_FLAGS

FOREIGN_FLAGS: Mapping[str, ForeignFlag] = {**VLLM_FLAGS, **LLAMA_CPP_FLAGS}

MODEL_FLAG = "model_tag"
"""Row of --model; it is separate, so that --model together with MODEL is detected."""


def other_names(name: str) -> tuple[str, ...]:
    """Returns the other spellings of a row's flag, or of one of our settings."""
    shorts = {**SHORT_FLAGS, **SHORT_NAMES}
    short = tuple(short for short, long in shorts.items() if long == name)
    return (*short, *(FOREIGN_FLAGS[name].also if name in FOREIGN_FLAGS else ()))
