"""`python -m signalbox.entrypoints.openai.api_server --model M ...` is `signalbox serve M ...`."""

import argparse
import sys
from collections.abc import Sequence


def main() -> int:
    """Runs the stack until it ends; returns the exit status."""
    from signalbox.__main__ import main as run

    sys.argv[1:] = serve_arguments(sys.argv[1:])
    return run()


def serve_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments of `serve`: MODEL is positional there, after the flags."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model")
    given, others = parser.parse_known_args(arguments)
    return ["serve", *others, *([] if given.model is None else ["--", given.model])]


if __name__ == "__main__":
    sys.exit(main())
