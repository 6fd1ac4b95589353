"""`signalbox doctor`: reports what the machine offers, what will be used, and problems.

It works without PyTorch, and then leaves out what only PyTorch can tell. Its exit status is 0
unless a problem keeps Signalbox from running as installed. With a model it reports on that.
"""

import argparse
import importlib.util
import json
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from signalbox import version
from signalbox.commands.inspect import model_report, rank_links
from signalbox.commands.inspect.report import Report
from signalbox.stack import machine_info
from signalbox_rpc.transport.listening_ports import BindError, check_free
from signalbox_worker.device import cgroups
from signalbox_worker.device.ram import available_ram

DISTRIBUTION = "signalbox-serving"
DEMO_MODEL = Path("models/SmolLM2-135M-Instruct.Q4_1.gguf")
PORTS = {
    8000: ("router, HTTP", "--http-port"),
    50051: ("router, gRPC", "--grpc-port"),
    50052: ("scheduler", "--port"),
}
OUR_PACKAGES = (
    "signalbox_protos",
    "signalbox_contract",
    "signalbox_rpc",
    "signalbox_router",
    "signalbox_scheduler",
    "signalbox_worker",
    "signalbox_kernels",
    "signalbox",
)
WORKER_EXTRA = "worker"
INSTALL_WORKER = f"pip install '{DISTRIBUTION}[{WORKER_EXTRA}]'"
_SIGNS = {WORKER_EXTRA: "torch"}
"""A package of each extra; without it the extra is not installed."""

_GIB = 1 << 30
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)[^;]*?(?:>=|==)(?P<least>[\d.]+)[^;]*(?:;.*extra == \W(?P<extra>\w+)\W)?"
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    model_report.add_flags(parser)
    rank_links.add_flags(parser)


def run(options: dict[str, Any]) -> None:
    """Prints the report, that on a model, or a worker's links. Raises Unhealthy, or what these
    raise."""
    if options["placement"]:
        rank_links.run(options)
        return
    if model_report.is_meant(options):
        model_report.run(options)
        return
    report = examine()
    if options["json"]:
        print(json.dumps(asdict(report), indent=2))
    else:
        report.show()
    report.refuse()


def examine() -> Report:
    report = Report()
    report.sections["machine"] = _machine()
    report.sections["compilers"] = machine_info.compilers()
    report.sections["signalbox"] = _installation(report)
    report.sections["packages"] = _packages(report)
    report.sections["on this machine"] = _surroundings(report)
    _add_worker(report)
    return report


def _machine() -> dict[str, str | None]:
    quota, limit = cgroups.cpu_quota(), cgroups.memory_limit()
    gpus = machine_info.nvidia_gpus()
    return {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": machine_info.cpu_model(),
        "instructions": " ".join(machine_info.cpu_features()) or None,
        "cores": str(machine_info.usable_cores()) + (f", {quota:g} by cgroup" if quota else ""),
        "memory": _gib(machine_info.total_memory()),
        "memory available": _gib(available_ram()),
        "memory limit (cgroup)": _gib(limit),
        **({f"GPU {i}": gpu for i, gpu in enumerate(gpus)} or {"GPU": None}),
    }


def _installation(report: Report) -> dict[str, str | None]:
    """Returns the packages' location; another installation may hide one of them."""
    home = Path(version.__file__).parent.parent
    for name in OUR_PACKAGES:
        folder = _folder_of(name)
        if (
            folder is None or home not in folder.parents[:2]
        ):  # in a checkout, router/signalbox_router
            report.problems.append(
                f"the package {name} is taken from {folder or 'nowhere'}, not from {home}; "
                f"install {DISTRIBUTION} in an environment of its own"
            )
    return {
        "version": version.VERSION,
        "python": f"{platform.python_version()} at {sys.executable}",
        "installed in": str(home),
    }


def _folder_of(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def _packages(report: Report) -> dict[str, str | None]:
    """Returns the versions of dependencies; those of an extra are checked if it is installed."""
    versions: dict[str, str | None] = {}
    for name, least, extra in _requirements(report):
        found = versions[name] = _version_of(name)
        remedy = (
            f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install '{name}>={least}'"
        )
        if extra and not _is_there(_SIGNS[extra]):
            continue
        if found is None:
            report.problems.append(f"{name} is not installed; {remedy}")
        elif found is not None and _as_numbers(found) < _as_numbers(least):
            versions[name] = f"{found}, older than {least}"
            report.problems.append(f"{name} is {found}, older than {least}; {remedy}")
    return versions


def _requirements(report: Report) -> Iterator[tuple[str, str, str | None]]:
    """Yields name, lowest version and extra of what services and workers need."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        report.notes.append(f"{DISTRIBUTION} is not installed, so versions are not checked")
        return
    for line in lines:
        found = _REQUIREMENT.fullmatch(line)
        if found and found["extra"] in (None, *_SIGNS):
            yield found["name"], found["least"], found["extra"]


def _is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _as_numbers(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version, without zeros at the end."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


def _surroundings(report: Report) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for port, (service, flag) in PORTS.items():
        try:
            check_free("127.0.0.1", port)
            found[f"port {port} ({service})"] = "free"
        except BindError as error:
            taken_by, is_own = _listener(port)
            found[f"port {port} ({service})"] = taken_by or str(error)
            if not is_own:
                report.notes.append(
                    f"port {port} is taken; give the {service.partition(',')[0]} another {flag}"
                )
    found["demo model"] = str(DEMO_MODEL) if DEMO_MODEL.is_file() else None
    return found


def _listener(port: int) -> tuple[str | None, bool]:
    """Returns the process on a port, None if it is not to be seen, and whether it is Signalbox."""
    listener = machine_info.listener_of(port)
    if listener is None:
        return None, False
    process_id, words = listener
    names = [Path(word).name for word in words]
    is_own = "signalbox" in names[:3]  # python -m signalbox router
    name = " ".join(names[names.index("signalbox") :][:2]) if is_own else names[0] if names else "?"
    return f"taken by {name} (process {process_id})", is_own


def _add_worker(report: Report) -> None:
    """Adds what native programs and PyTorch support, and what a worker with a model would use."""
    from signalbox_worker.runner.native.capabilities import probe_natively

    try:
        found = probe_natively()
    except ValueError as error:  # an environment variable would stop any worker from starting
        report.problems.append(str(error))
        return
    report.sections["worker"] = {
        "native CPU kernels": found.kernels,
        "quantised weights": found.quantizations,
    }
    report.sections["will be used"] = {
        "device": "cpu",
        "dtype of 16-bit models": found.half_dtype,
        "threads": str(found.num_threads),
    }
    if _is_there("torch"):
        _add_pytorch(report)
    elif found.kernels.startswith("none"):
        report.problems.append(
            f"no model can be served without native CPU kernels ({found.kernels}); {INSTALL_WORKER}"
        )
    else:
        report.notes.append(
            f"only models that run natively can be served, without PyTorch; {INSTALL_WORKER}"
        )


def _add_pytorch(report: Report) -> None:
    from signalbox_worker.runner import gpu_compiler
    from signalbox_worker.runner.capabilities import probe  # imports torch: seconds

    found = probe()
    report.sections["pytorch"] = {
        "version": found.torch_version,
        "built for CUDA": found.cuda_version,
        "GPUs": "; ".join(found.gpus) or None,
        "CPU kernels": found.cpu_capability,
        "backends": " ".join(found.torch_backends),
    }
    report.sections["worker"] |= {
        "attention backends": " ".join(found.attention_backends),
        "tensor parallelism": found.collectives,
    }
    report.sections["will be used"]["attention backend"] = found.attention_backend
    if found.device != "cpu":
        report.sections["will be used"]["device"] = found.device
        report.sections["will be used"]["dtype of 16-bit models"] = found.half_dtype
    if machine_info.nvidia_gpus():
        if not found.gpus:
            report.notes.append(
                "there is a GPU, but this PyTorch cannot use it; is it a CPU build?"
            )
        compiler = gpu_compiler.examine(found.cuda_version)
        report.sections["GPU kernels"] = compiler.found
        report.problems += compiler.problems


def _gib(size: int | None) -> str | None:
    return None if size is None else f"{size / _GIB:.1f} GiB"
