"""State of the card in words: its clocks, power and temperature, as nvidia-smi gives them."""

import platform
import shutil
import subprocess

import torch

_FIELDS = {
    "clocks.sm": "SM",
    "clocks.max.sm": "of at most",
    "clocks.mem": "memory",
    "power.draw": "power",
    "power.limit": "of at most",
    "temperature.gpu": "temperature in °C",
    "clocks_event_reasons.active": "reasons for lower clocks",
}
_LIMIT_S = 20.0


def state(device: str) -> str:
    """Returns one line, or why it is not known; empty without a card."""
    program = shutil.which("nvidia-smi")
    if device != "cuda" or program is None:
        return "" if device != "cuda" else "no nvidia-smi, so the clocks are not known"
    query = f"--query-gpu={','.join(_FIELDS)}"
    command = [program, query, "--format=csv,noheader", f"--id={_first_visible()}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"nvidia-smi did not answer within {_LIMIT_S:.0f} s"
    if done.returncode:
        return f"nvidia-smi failed: {(done.stdout + done.stderr).strip()}"
    values = done.stdout.strip().split(", ")
    named = zip(_FIELDS.values(), values, strict=False)
    return ", ".join(f"{name} {value}" for name, value in named)


def _first_visible() -> str:
    """Returns what nvidia-smi calls PyTorch's first device; the two may count differently."""
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def machine(device: str) -> dict[str, str]:
    """Returns the card and the versions that figures depend on."""
    known = {"PyTorch": torch.__version__, "Python": platform.python_version()}
    known |= {"Triton": _triton_version()}
    if device != "cuda":
        return {"device": "a CPU: the figures mean nothing"} | known
    properties = torch.cuda.get_device_properties(0)
    memory = f"{properties.total_memory / (1 << 30):.0f} GiB"
    return {"device": f"{properties.name} ({memory})", "CUDA": str(torch.version.cuda)} | known


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return "not installed"
    return str(triton.__version__)
