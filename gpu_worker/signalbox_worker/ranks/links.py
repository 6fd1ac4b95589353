"""The links between ranks: whether each rank reaches all the others, and how fast they are.

A worker's ranks meet before weights are read; `signalbox doctor` has them meet, and measure.
"""

from concurrent.futures import ThreadPoolExecutor

from signalbox_rpc.transport.tls import CLEAR, TlsConfig
from signalbox_worker.ranks.rank_pool import RankPool
from signalbox_worker.ranks.service.rank_client import greet, measure_link
from signalbox_worker.ranks.service.rank_messages import Link, Meet, Met


def meet(others: RankPool) -> None:
    """Has each rank exchange a message with every other one.

    Raises ConnectionError that names all pairs which cannot; if rank 0 is in one of them, those of
    rank 0 alone, because a rank that it does not reach may never answer.
    """
    command = Meet(others.addresses)
    others.send(command)
    found = {0: obey(command, rank=0, tls=others.tls).faults}
    if not found[0]:
        found |= {rank: one.faults for rank, one in enumerate(others.answers(Met), start=1)}
    faults = [f"rank {rank}: cannot reach {fault}" for rank in found for fault in found[rank]]
    if faults:
        raise ConnectionError(f"{'; '.join(faults)}; let such ports through")


def measure(others: RankPool) -> list[tuple[Link, ...]]:
    """Returns the links of each rank, by rank. One pair at a time has its link for itself.

    Raises ConnectionError.
    """
    addresses, found = others.addresses, []
    for rank in range(len(addresses)):
        command = Meet(addresses, measuring=rank)
        others.send(command)
        met = [obey(command, rank=0, tls=others.tls), *others.answers(Met)][rank]
        if met.faults:
            raise ConnectionError(f"rank {rank}: cannot reach {'; '.join(met.faults)}")
        found.append(met.links)
    return found


def obey(command: Meet, *, rank: int, tls: TlsConfig = CLEAR) -> Met:
    """Reaches or measures what the command says."""
    others = [(other, to) for other, to in enumerate(command.addresses) if other != rank]
    if command.measuring is None:
        with ThreadPoolExecutor(max(1, len(others)), "greets") as pool:
            faults = pool.map(lambda one: greet(one[1], rank=rank, other=one[0], tls=tls), others)
        return Met(faults=tuple(filter(None, faults)))
    if command.measuring != rank:
        return Met()
    try:
        return Met(
            links=tuple(measure_link(to, rank=rank, other=one, tls=tls) for one, to in others)
        )
    except ConnectionError as error:
        return Met(faults=(str(error),))
