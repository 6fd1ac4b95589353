"""Participants of the comparison: Signalbox in each form, and every peer in its best setting."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.comparison.loads import Kind
from benchmarks.peers import offline
from benchmarks.peers.llama_server import (
    IkLlamaServer,
    LlamaServer,
    QuantizedIkLlamaServer,
    QuantizedLlamaServer,
    Slots,
)
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.signalbox_server import SignalboxServer
from benchmarks.peers.vllm_server import VllmGrpcServer, VllmHttpServer

OURS, OURS_BF16 = "signalbox", "signalbox, bfloat16"
OURS_OFFLINE, OURS_OFFLINE_BF16 = "signalbox LLM", "signalbox LLM, bfloat16"
"""Ours without a flag, which run the file's own blocks, and those with `BFLOAT16_FLAGS`."""
BFLOAT16_FLAGS = "--dtype bfloat16 --quantization none"
"""The form that peers without quantised weights compute in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """A process, the loads that it takes, and the one of ours that it is compared with."""

    process: PeerProcess
    kinds: frozenset[Kind]
    beside: str = ""
    max_rounds: int = sys.maxsize
    """Most rounds, for a participant that takes many times as long as the others."""

    @property
    def name(self) -> str:
        return self.process.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings that all participants share."""

    model: Path
    peers: Path
    num_threads: int
    log_folder: Path
    bfloat16_flags: Sequence[str]
    """Flags of ours in the rows beside peers that compute in bfloat16."""
    slots: Slots = field(default_factory=Slots)
    is_same_file: bool = False
    """True if the peers that read GGUF serve `model` itself, and no others take part."""


def participants(setting: Setting) -> list[Participant]:
    """Returns all participants; one that is not installed fails when it is started."""
    if setting.is_same_file:
        return _readers(setting)
    return [*_servers(setting), *_offline(setting)]


def _readers(setting: Setting) -> list[Participant]:
    served, logs = frozenset({Kind.STREAM, Kind.PREFILL}), setting.log_folder
    # Files with random weights repeat themselves, so that drafts would gain what they do not
    # elsewhere; peers have none either.
    ours = SignalboxServer(setting.model, log_folder=logs, extra_arguments=("--no-speculation",))
    peers = [
        server(
            setting.peers,
            num_threads=setting.num_threads,
            log_folder=logs,
            model=setting.model,
            slots=setting.slots,
        )
        for server in (LlamaServer, IkLlamaServer)
    ]
    return [
        Participant(process=ours, kinds=served),
        *(Participant(process=peer, kinds=served, beside=OURS) for peer in peers),
    ]


def _servers(setting: Setting) -> list[Participant]:
    logs, model = setting.log_folder, setting.model
    ours = SignalboxServer(model, log_folder=logs)
    bfloat16 = SignalboxServer(
        model, log_folder=logs, extra_arguments=setting.bfloat16_flags, label="bfloat16"
    )
    peers = {"num_threads": setting.num_threads, "log_folder": logs}
    llama = {**peers, "slots": setting.slots}
    stream = frozenset({Kind.STREAM})
    served = stream | {Kind.PREFILL}
    return [
        Participant(process=ours, kinds=served | {Kind.BEAM}),
        Participant(process=bfloat16, kinds=served | {Kind.BEAM}),
        Participant(
            process=VllmHttpServer(setting.peers, **peers),
            kinds=served | {Kind.BEAM},
            beside=OURS_BF16,
        ),
        Participant(process=VllmGrpcServer(setting.peers, **peers), kinds=stream, beside=OURS_BF16),
        Participant(process=LlamaServer(setting.peers, **llama), kinds=served, beside=OURS_BF16),
        Participant(
            process=QuantizedLlamaServer(setting.peers, **llama), kinds=stream, beside=OURS
        ),
        Participant(process=IkLlamaServer(setting.peers, **llama), kinds=stream, beside=OURS_BF16),
        Participant(
            process=QuantizedIkLlamaServer(setting.peers, **llama), kinds=stream, beside=OURS
        ),
    ]


def _offline(setting: Setting) -> list[Participant]:
    common = {"num_threads": setting.num_threads, "log_folder": setting.log_folder}
    kinds = frozenset({Kind.OFFLINE})
    ours = [
        offline.SignalboxOffline(
            setting.model,
            extra_arguments=["--options", json.dumps(_as_options(flags))],
            label=label,
            **common,
        )
        for flags, label in (((), ""), (setting.bfloat16_flags, "bfloat16"))
    ]
    peers: list[tuple[type[offline.OfflineProcess], str]] = [
        (offline.VllmOffline, OURS_OFFLINE_BF16),
        (offline.LlamaBatchedBench, OURS_OFFLINE_BF16),
        (offline.QuantizedLlamaBatchedBench, OURS_OFFLINE),
        (offline.IkLlamaBatchedBench, OURS_OFFLINE_BF16),
        (offline.QuantizedIkLlamaBatchedBench, OURS_OFFLINE),
        (offline.OpenVinoOffline, OURS_OFFLINE_BF16),
        (offline.OrtGenAiOffline, OURS_OFFLINE),
        (offline.Float32OrtGenAiOffline, OURS_OFFLINE_BF16),
    ]
    return [
        *(Participant(process=process, kinds=kinds) for process in ours),
        *(
            Participant(process=peer(setting.peers, **common), kinds=kinds, beside=beside)
            for peer, beside in peers
        ),
        Participant(
            process=offline.MistralRsOffline(setting.peers, **common),
            kinds=kinds,
            beside=OURS_OFFLINE_BF16,
            max_rounds=1,
        ),
    ]


def _as_options(flags: Sequence[str]) -> dict[str, str]:
    """Returns `--dtype bfloat16 ...` as the keyword arguments of `LLM`."""
    names, values = flags[::2], flags[1::2]
    return {
        name.removeprefix("--").replace("-", "_"): value
        for name, value in zip(names, values, strict=True)
    }
