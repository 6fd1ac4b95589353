"""`signalbox verify`: computes the request of a receipt again, and compares all tokens."""

import argparse
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from signalbox.client.named_files import reading
from signalbox.settings.sources import CONFIG_FILE
from signalbox_contract.wording import counted

if TYPE_CHECKING:
    from signalbox.llm.in_process.engine_core import EngineCore
    from signalbox.llm.in_process.recomputation import Difference
    from signalbox.settings.serve_settings import ServeSettings
    from signalbox_router.receipts.receipt_codec import Receipt
    from signalbox_worker.runner.runner import Runner

FLAGS = (
    *("revision", "dtype", "quantization", "load_format", "model_plugin", "model_impl"),
    *("trust_remote_code", "max_model_len", "block_size", "kv_cache_dtype", "kv_cache_memory"),
    *("cpu_backend", "num_threads", "tensor_parallel_size", "pipeline_parallel_size"),
    *("pipeline_layer_partition", "lora", "speculation", "simulate"),
)
"""Settings of serve that decide the bits, or how fast and where they are computed."""
EXAMPLES = """\
examples
  signalbox verify receipt.json models/SmolLM2-135M-Instruct.Q4_1.gguf --dtype int16
  signalbox verify receipt.json MODEL --public-key router.pem
  signalbox verify receipt.json --signature-only --public-key router.pem
  signalbox verify receipt.json MODEL --tolerance 0.1      # on another kind of machine
Give the flags of the server that decide bits. The exit status is 1 if anything differs.
"""


class ReceiptDiffers(RuntimeError):
    """A receipt differs from what was computed or signed."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    from signalbox.settings.flags.service_flags import add_flag
    from signalbox.settings.serve_settings import ServeSettings

    parser.add_argument("receipt", metavar="RECEIPT", help="the receipt, or an answer that has it")
    what = "model of the receipt, as for serve"
    parser.add_argument("model", metavar="MODEL", nargs="?", default=argparse.SUPPRESS, help=what)
    parser.add_argument(
        "--public-key",
        metavar="FILE",
        help="PEM file with the key that must have signed the receipt (default: any, or none)",
    )
    parser.add_argument(
        "--tolerance",
        metavar="X",
        type=float,
        help="of a greedy request: each token's logit must be at most X below the largest (default:"
        " each token must be the same, on a machine that computes the same bits)",
    )
    what = "check the signature, and compute nothing"
    parser.add_argument("--signature-only", action="store_true", help=what)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    group = parser.add_argument_group("settings of the server")
    group.add_argument(
        f"--{CONFIG_FILE}",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="YAML file with settings of serve",
    )
    for name in FLAGS:
        add_flag(group, name, ServeSettings.model_fields[name], help="as for serve")


def run(options: dict[str, Any]) -> None:
    """Prints what was checked. Raises ReceiptDiffers for the first position that differs, and
    ValueError for what cannot be checked."""
    from signalbox_router.receipts.receipt_codec import SIGNATURE, decode

    document = _read(options["receipt"])
    receipt = decode(document)
    print(_signer(document, options["public_key"]))
    if options["signature_only"]:
        if document.get(SIGNATURE) is None:
            raise ValueError("the receipt has no signature, and nothing was computed")
        return
    num_tokens = sum(len(one.token_ids) for one in receipt.outputs)
    tolerance: float | None = options["tolerance"]
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise ValueError(f"--tolerance is {tolerance}; it must be 0 or more")
    _recompute(receipt, options, tolerance)
    how = "equal" if tolerance is None else f"within {tolerance:g} of the largest logit"
    outputs = counted(len(receipt.outputs), "sequence")
    print(f"computed again and {how}: {counted(num_tokens, 'token')} of {outputs}")


def _read(path: str) -> dict[str, Any]:
    """Returns the document of a file. Raises ValueError if it has none."""
    with reading(path):
        content = Path(path).read_text(encoding="utf-8")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if isinstance(document, dict) and isinstance(document.get("receipt"), dict):
        document = document["receipt"]
    if not isinstance(document, dict):
        raise ValueError(f"{path} has no receipt")
    if why := document.get("unavailable"):
        raise ValueError(f"there is no receipt of this request: {why}")
    return document


def _signer(document: dict[str, Any], public_key: str | None) -> str:
    """Checks the signature; returns a line that names its key. Raises as `run` does."""
    from signalbox_router.receipts.receipt_codec import SIGNATURE, signed_part
    from signalbox_router.receipts.receipt_key import (
        WrongSignature,
        check_signature,
        read_public_key,
    )

    expected = None if public_key is None else read_public_key(public_key)
    if (signature := document.get(SIGNATURE)) is None:
        if expected is not None:
            raise ReceiptDiffers("the receipt is not signed")
        return "not signed"
    try:
        key = check_signature(signature, signed_part(document), public_key=expected)
    except WrongSignature as error:
        raise ReceiptDiffers(str(error)) from None
    note = "" if expected else "; check that it is the server's: --public-key FILE"
    return f"signed by {key}{note}"


def _recompute(receipt: "Receipt", options: dict[str, Any], tolerance: float | None) -> None:
    """Raises ReceiptDiffers for the first position that differs."""
    from signalbox.llm.in_process.engine_core import EngineCore
    from signalbox.llm.in_process.recomputation import compare, recompute
    from signalbox.llm.in_process.wiring import CoreConfig
    from signalbox.settings.loading import load
    from signalbox.settings.serve_settings import ServeSettings
    from signalbox_rpc.telemetry import logs

    meant = {"model", CONFIG_FILE, *FLAGS}
    settings = load(ServeSettings, {name: options[name] for name in meant & options.keys()})
    logs.configure(service="verify", level="warning", log_format=settings.log_format)
    config = CoreConfig(scheduling=settings, grammar_bytes=settings.grammar_memory << 20)
    core = EngineCore.load(_loading(settings), config)
    try:
        if tolerance is None:
            difference = recompute(core, receipt)
        else:
            difference = compare(core, receipt, tolerance=tolerance)
        if difference is not None:
            raise ReceiptDiffers(_sentence(core, difference, receipt))
    finally:
        core.close()


def _loading(settings: "ServeSettings") -> "Callable[[], Runner]":
    """Returns a function that loads the model."""
    from signalbox.stack.processes.startup_display import own_progress
    from signalbox.stack.service_runner import simulated_runner

    if settings.simulate:
        return simulated_runner(settings)

    def make() -> "Runner":
        from signalbox_worker.service.runner_factory import make_runner  # may import torch: seconds

        with own_progress() as progress:
            return make_runner(settings.runner_config, progress=progress)

    return make


def _sentence(core: "EngineCore", difference: "Difference", receipt: "Receipt") -> str:
    text = partial(_with_text, core)
    branch, position, in_receipt, computed = difference
    place = f"token {position + 1} of sequence {branch}"
    whole = len(receipt.prompt_token_ids) + position
    return (
        f"{place} (position {whole}) differs: the receipt has {text(in_receipt)}, computed was"
        f" {text(computed)}"
    )


def _with_text(core: "EngineCore", found: int | str) -> str:
    if isinstance(found, str):
        return found
    vocabulary = core.model.tokenizer.vocabulary
    known = found < core.model.vocab_size
    return f"{found} ({vocabulary.token_text(found)!r})" if known else str(found)
