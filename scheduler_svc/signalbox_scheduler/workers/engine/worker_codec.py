"""Encodes what the scheduler asks of a worker beside steps."""

from signalbox_contract.structured_output import constraint_codec, grammar_cost
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_scheduler.planning.worker_grammars import Preparation


def prepare_request(preparation: Preparation, *, epoch: int) -> pb.PrepareGrammarRequest:
    message = pb.PrepareGrammarRequest(epoch=epoch, cost=grammar_cost.encode(preparation.cost))
    constraint_codec.encode(message.structured_output, preparation.constraint)
    for constraint in preparation.forgotten:
        constraint_codec.encode(message.forgotten.add(), constraint)
    return message
