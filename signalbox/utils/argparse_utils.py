"""The parser of vLLM's examples, in which underscores in a flag's name are dashes."""

import argparse
import sys
from typing import Any


class FlexibleArgumentParser(argparse.ArgumentParser):
    """Reads --max_model_len as --max-model-len, and accepts no abbreviation."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **({"allow_abbrev": False} | options))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else args
        return super().parse_known_args([_dashed(one) for one in given], namespace)


def _dashed(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, separator, value = argument.partition("=")
    return name.replace("_", "-") + separator + value
