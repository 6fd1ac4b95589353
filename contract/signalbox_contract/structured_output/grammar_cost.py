"""The cost of compiling a structured output, as measured by the router's trial compilation.

The numbers travel with the request: the scheduler plans by them which grammar a worker compiles
next and which compiled grammars it keeps.
"""

from dataclasses import dataclass

from signalbox_protos.common.v1 import common_pb2 as pb

MAX_LEXER_STATES = 16_384
"""States that a compiled grammar's lexer may grow to while masks are computed. A grammar of a usual
schema needs some hundred; llguidance's own bound, 250,000, lets one take 130 MB."""
GROWTH_BYTES = MAX_LEXER_STATES * 512
"""Bytes that a compiled grammar may grow by with these states, at about half a KiB each."""


@dataclass(frozen=True, slots=True)
class GrammarCost:
    """CPU time and memory that a trial took; both are 0 if they are not known."""

    cpu_ns: int = 0
    peak_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of a worker's memory that a compiled grammar is counted with."""
        return self.peak_bytes + GROWTH_BYTES


UNMEASURED = GrammarCost()


def decode(message: pb.GrammarCost) -> GrammarCost:
    return GrammarCost(message.cpu_ns, message.peak_bytes)


def encode(cost: GrammarCost) -> pb.GrammarCost:
    return pb.GrammarCost(cpu_ns=cost.cpu_ns, peak_bytes=cost.peak_bytes)
