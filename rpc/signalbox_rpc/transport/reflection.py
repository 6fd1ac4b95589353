"""gRPC reflection under both of its names: grpc.reflection.v1 and v1alpha.

`grpcurl` and `buf curl` ask for v1 first; grpcio-reflection serves only v1alpha. The two have the
same messages in different packages, so v1 is the v1alpha servicer at v1's path, and v1's descriptor
is v1alpha's under the other package.
"""

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2

from signalbox_rpc.transport import health_messages

METHOD = "ServerReflectionInfo"
V1 = "grpc.reflection.v1.ServerReflection"
SERVICE_NAMES = (V1, reflection.SERVICE_NAME)


def add_to_server(service_names: Iterable[str], server: grpc.aio.Server) -> None:
    """Adds both services; each lists `service_names` and the two of them."""
    _describe_v1()
    names = (*service_names, *SERVICE_NAMES)
    reflection.enable_server_reflection(names, server, _Pool())
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(names, _Pool()).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    service = grpc.method_handlers_generic_handler(V1, {METHOD: handler})
    server.add_generic_rpc_handlers((service,))


class _Pool:
    """The default pool, but with the health service that is served here."""

    def __getattr__(self, name: str) -> Any:
        return getattr(descriptor_pool.Default(), name)

    def FindFileByName(self, name: str) -> FileDescriptor:
        return self._pool_of(name == health_messages.FILE.name).FindFileByName(name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        is_of_health = symbol.startswith(f"{health_messages.PACKAGE}.")
        return self._pool_of(is_of_health).FindFileContainingSymbol(symbol)

    def _pool_of(self, is_of_health: bool) -> descriptor_pool.DescriptorPool:
        return health_messages.FILE.pool if is_of_health else descriptor_pool.Default()


def _describe_v1() -> None:
    """Adds v1's descriptor to the default pool, unless another package has done so."""
    pool = descriptor_pool.Default()
    try:
        pool.FindServiceByName(V1)
    except KeyError:
        alpha = descriptor_pb2.FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
        text = text_format.MessageToString(alpha).replace("v1alpha", "v1")
        v1 = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
        pool.AddSerializedFile(v1.SerializeToString())
