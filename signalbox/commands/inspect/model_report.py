"""`signalbox doctor MODEL`: what a model is, what it takes, and how it would run on this machine.

Nothing of the weights is fetched: a model on the hub is described by its configuration and the
heads of its files.
"""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from signalbox.commands.inspect.report import Report
from signalbox.settings.sources import CONFIG_FILE

if TYPE_CHECKING:
    from signalbox.settings.serve_settings import ServeSettings
    from signalbox.stack.model_needs import Examined, ModelNeeds

FLAGS = (
    *("revision", "dtype", "quantization", "load_format", "model_plugin", "model_impl", "runner"),
    *("convert", "trust_remote_code", "max_model_len", "block_size", "kv_cache_dtype"),
    *("kv_cache_memory", "swap_space", "gpu_memory_utilization", "device", "cpu_backend"),
    *("tensor_parallel_size", "pipeline_parallel_size", "pipeline_layer_partition", "workers"),
)
"""Settings of serve that change the report."""
_TASKS = {
    "generate": "text",
    "embed": "embeddings",
    "classify": "scores",
    "token_embed": "vectors of tokens",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    from signalbox.settings.flags.service_flags import add_flag
    from signalbox.settings.serve_settings import ServeSettings

    group = parser.add_argument_group("report on a model, as `signalbox serve` would load it")
    group.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=argparse.SUPPRESS,
        help="report on this model alone, without fetching its weights: a GGUF file, a directory,"
        " or a hub id such as org/name or org/name:Q4_K_M",
    )
    group.add_argument(
        f"--{CONFIG_FILE}",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="with MODEL, YAML file with settings of serve",
    )
    for name in FLAGS:
        add_flag(group, name, ServeSettings.model_fields[name], help="as for serve")


def is_meant(options: dict[str, Any]) -> bool:
    """Says whether a model is named. Raises ValueError for flags of one that is not."""
    if "model" in options:
        return True
    if given := sorted({*FLAGS, CONFIG_FILE} & options.keys()):
        raise ValueError(f"--{given[0].replace('_', '-')} goes with a MODEL; give one")
    return False


def run(options: dict[str, Any]) -> None:
    """Prints the report. Raises SettingsError, or Unhealthy for a model that cannot be served."""
    from signalbox.settings.loading import load
    from signalbox.settings.serve_settings import ServeSettings

    meant = {"model", CONFIG_FILE, *FLAGS}
    settings = load(ServeSettings, {name: options[name] for name in meant & options.keys()})
    report, needs = examine(settings)
    if options["json"]:
        found = None if needs is None else asdict(needs)
        kept = {"model": found, "problems": report.problems, "notes": report.notes}
        print(json.dumps(kept, indent=2))
    else:
        report.show()
    report.refuse()


def examine(settings: "ServeSettings") -> "tuple[Report, ModelNeeds | None]":
    """Returns the report, and the numbers in it; no numbers of a model that is not served."""
    from signalbox.settings.loading import in_words_of_flags
    from signalbox.stack.model_needs import examine_model

    report = Report()
    try:
        found = examine_model(settings)
    except (ValueError, OSError) as error:
        report.sections["model"] = {"name": settings.model, "runs": "not here"}
        report.problems.append(in_words_of_flags(str(error)))
        return report, None
    report.sections["model"] = _described(settings.model, found.needs)
    report.sections["memory"] = _memory(settings, found, report)
    return report, found.needs


def _described(model: str, needs: "ModelNeeds") -> dict[str, str | None]:
    from signalbox.settings.loading import in_words_of_flags
    from signalbox_worker.files.hub.gguf_file_names import format_bytes

    count = needs.num_parameters
    fetched = sum(needs.to_fetch.values())
    text_of, why_not = needs.multimodal_architecture, needs.why_not_native
    return {
        "name": model,
        "architecture": needs.architecture,
        **({"text part of": text_of} if text_of else {}),
        "makes": _TASKS.get(needs.task, needs.task),
        "parameters": f"{count:,}" if count else "unknown",
        "weights in its files": needs.stored_form,
        "layers": _layers(needs),
        "window": f"{needs.max_model_len:,} tokens, of at most {needs.longest_window:,}",
        "chat template": "yes" if needs.has_chat_template else None,
        "to fetch": f"{format_bytes(fetched)} in {len(needs.to_fetch)} files" if fetched else None,
        "runs": "natively" if needs.is_native else "through PyTorch",
        **({"why not natively": in_words_of_flags(why_not)} if why_not else {}),
        "device": needs.device,
        "computes in": needs.dtype,
    }


def _memory(settings: "ServeSettings", found: "Examined", report: Report) -> dict[str, str | None]:
    """Returns what the model takes and what there is; adds what does not fit to the report."""
    from signalbox_worker.files.hub.gguf_file_names import format_bytes

    needs = found.needs
    free, cache = _shares(settings, found, report)
    rows: dict[str, str | None] = {"weights": "made up"}
    if needs.weights_bytes is not None and needs.rank_weights_bytes is not None:
        rows["weights"] = f"{format_bytes(needs.weights_bytes)} in {_held(needs, found)}"
        if needs.num_ranks > 1:
            share = format_bytes(needs.rank_weights_bytes)
            rows[f"weights, each of {needs.num_ranks} ranks"] = f"about {share}"
    if needs.kv_block_bytes:
        rows |= _cache(needs, cache, report)
    rows["free, for all of it"] = format_bytes(free)
    return rows


def _layers(needs: "ModelNeeds") -> str:
    count = needs.num_recurrent_layers
    return f"{needs.num_layers}" + (f", {count} of them recurrent" if count else "")


def _cache(needs: "ModelNeeds", cache: int, report: Report) -> dict[str, str | None]:
    """Returns what sequences keep, of a cache of so many bytes."""
    from signalbox_worker.files.hub.gguf_file_names import format_bytes

    states, least = needs.states_bytes, needs.kv_block_bytes + needs.states_bytes
    block, kept = format_bytes(needs.kv_block_bytes), format_bytes(cache)
    a_token = (needs.kv_window_bytes - states) // needs.max_model_len
    if cache < least:
        takes = f"a block and two states take {format_bytes(least)}"
        if not report.problems:  # which say already that the weights take too much
            report.problems.append(
                f"{kept} are left for K and V, of which "
                f"{takes if states else f'a block takes {block}'}; free memory, or use a smaller "
                "model"
            )
    elif cache < needs.kv_window_bytes:
        report.notes.append(
            f"{kept} of K and V are {(cache - states) // a_token:,} tokens, fewer than the window;"
            f" --kv-cache-memory {needs.kv_window_bytes / 2**30:.2f} holds all of it"
        )
    of_states = {
        "states, a sequence": f"two of {format_bytes(states // 2)}",
        "sequences at once": f"at most {cache // least:,}",
    }
    also = ", states included" if states else ""
    return {
        "K and V, a token": f"{a_token / 1024:,.1f} KiB",
        "K and V, at least": f"{block}, a block of {needs.kv_block_size}",
        **(of_states if states else {}),
        "K and V, a full window": format_bytes(needs.kv_window_bytes) + also,
        "K and V, as set": kept + also,
    }


def _held(needs: "ModelNeeds", found: "Examined") -> str:
    """Returns the form of the weights in memory, in words."""
    if needs.form != "gguf" or found.sizes is None:
        return needs.form
    held = found.sizes.held_type
    return "the blocks of the file" + (f", most of them held as {held}" if held else "")


def _shares(settings: "ServeSettings", found: "Examined", report: Report) -> tuple[int, int]:
    """Returns the free bytes for each worker, and those of its K and V on all ranks."""
    from signalbox.stack.model_check import WORKER_BYTES, check_memory
    from signalbox_worker.device.ram import available_ram
    from signalbox_worker.files.hub.gguf_file_names import format_bytes
    from signalbox_worker.kv.cache.capacity import cpu_cache_bytes

    needs = found.needs
    weights = needs.weights_bytes or 0
    if needs.device_bytes is not None:
        free = needs.device_bytes * needs.num_ranks
        if weights > free:
            report.problems.append(
                f"the weights take {format_bytes(weights)}, and {format_bytes(free)} are free for"
                f" them on {needs.device}; use a smaller model, a smaller --dtype or a larger"
                " --tensor-parallel-size"
            )
        return free, settings.kv_cache_bytes or max(0, free - weights)
    free = max(0, available_ram() // settings.workers - WORKER_BYTES)
    if found.sizes is not None:
        try:
            check_memory(
                settings,
                found.sizes,
                needs.form,
                natively=needs.is_native,
                num_workers=settings.workers,
            )
        except MemoryError as error:
            report.problems.append(str(error))
    return free, settings.kv_cache_bytes or cpu_cache_bytes(free - weights)
