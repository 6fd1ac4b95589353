"""Writes pre_tokenizers.json in signalbox_worker/files/checkpoints/gguf: how text is cut into words
under each name that llama.cpp knows, from its source in an sdist of llama-cpp-python.

`python -m scripts.pre_tokenizers SDIST` writes it; `make test-templates` compares. Expressions are
the models' own, which the source has in comments where llama.cpp's own differ. Names whose words
are no bytes, or are cut by code, are left out.
"""

import json
import re
import sys
import tarfile
from typing import Any

from signalbox_worker.files.checkpoints.gguf.tokenizer import TABLE

_PATH = "vendor/llama.cpp/src/llama-vocab.cpp"
_CASE = re.compile(r"case LLAMA_VOCAB_PRE_TYPE_(\w+):|(default):")
_OWN = re.compile(r'"(.*)",? *(?://.*)?')
_COMMENT = re.compile(r'//.*?"(.+)",?')
_NAME = re.compile(r'tokenizer_pre == "([^"]+)"|pre_type = LLAMA_VOCAB_PRE_TYPE_(\w+);')
_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_OF_MODELS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
"""What llama.cpp writes as `_CONTRACTIONS`."""
_BY_CODE = ("\\p{Han}+", "\\p{AFMoE_digits}")
"""Expressions that stand for a function."""


def source(sdist: str) -> str:
    with tarfile.open(sdist) as archive:
        name = next(one for one in archive.getnames() if one.endswith(_PATH))
        file = archive.extractfile(name)
        assert file is not None
        return file.read().decode()


def table(text: str) -> list[dict[str, Any]]:
    """Returns the file's content: the ways to cut words, each with the names that mean it."""
    splits, ways = _splits(text), dict[str, dict[str, Any]]()
    for name, kind, flags in _names(text):
        if kind in splits and "add_sep" not in flags:
            way = {
                "splits": splits[kind],
                "keeps_words": "ignore_merges" in flags,
                "adds_bos": "add_bos" in flags,
            }
            ways.setdefault(json.dumps(way), {"names": []} | way)["names"].append(name)
    return list(ways.values())


def _splits(text: str) -> dict[str, list[str]]:
    """Returns the expressions by type; of the default, too."""
    found, kinds, comment = dict[str, list[str]](), list[str](), ""
    body = text.partition("struct llm_tokenizer_bpe :")[2].partition("regex_exprs;")[0]
    for line in map(str.strip, body.splitlines()):
        if case := _CASE.match(line):
            kinds.append(case[1] or "DEFAULT")
            comment = ""
        elif line == "break;":
            kinds.clear()
        elif line.startswith("byte_encode = false"):
            for kind in kinds:
                del found[kind]
        elif written := _COMMENT.match(line):
            comment = written[1]
        elif own := _OWN.fullmatch(line):
            expression = json.loads(f'"{comment or own[1]}"').replace(_CONTRACTIONS, _OF_MODELS)
            comment = ""
            for kind in kinds:
                found.setdefault(kind, []).append(expression)
    return {kind: one for kind, one in found.items() if not {*one} & {*_BY_CODE}}


def _names(text: str) -> list[tuple[str, str, str]]:
    """Returns each name with its type, and the code that sets what goes with it."""
    names, found = list[str](), list[tuple[str, str, str]]()
    body = text.partition("tokenizer_pre.empty()")[2].partition('"unknown pre-tokenizer type')[0]
    for branch in re.split(r"\} else if ?\(", body):
        names = [name for name, _ in _NAME.findall(branch) if name]
        kind = next(kind for _, kind in _NAME.findall(branch) if kind)
        found += [(name, kind, branch) for name in names]
    return found


def text(sdist: str) -> str:
    return json.dumps(table(source(sdist)), ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    TABLE.write_text(text(sys.argv[1]), encoding="utf-8")
