"""Encodes memory reports, profiles and files of adapters as messages of worker.v1."""

from collections.abc import AsyncIterator, Iterator

from signalbox_contract.model import WorkerCapacity
from signalbox_contract.tokenizer_files import MAX_CHUNK_BYTES
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_worker.device.inspection import MemoryReport, ProfileOptions
from signalbox_worker.files.adapters.received_adapters import FileChunk
from signalbox_worker.service.profiler import Profile


def encode_memory(report: MemoryReport | None, capacity: WorkerCapacity) -> list[pb.MemoryPart]:
    parts = report.parts(activations=capacity.activations_bytes) if report is not None else ()
    return [pb.MemoryPart(name=name, meaning=why, num_bytes=size) for name, why, size in parts]


def decode_profile_options(request: pb.ProfileRequest) -> ProfileOptions:
    return ProfileOptions(
        duration_s=request.duration_ns / 1e9,
        record_shapes=request.record_shapes,
        with_stack=request.with_stack,
    )


def encode_profile(profile: Profile) -> Iterator[pb.ProfileResponse]:
    yield pb.ProfileResponse(num_steps=profile.num_steps, kernel_ns=profile.kernel_ns)
    for start in range(0, len(profile.chrome_trace), MAX_CHUNK_BYTES):
        yield pb.ProfileResponse(chunk=profile.chrome_trace[start : start + MAX_CHUNK_BYTES])


async def adapter_chunks(
    requests: AsyncIterator[pb.SendAdapterRequest],
) -> AsyncIterator[FileChunk]:
    """Yields what follows the header."""
    async for request in requests:
        yield FileChunk(request.chunk.file_name, request.chunk.content)
