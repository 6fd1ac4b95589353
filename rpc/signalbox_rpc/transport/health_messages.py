"""The health service's messages with `List`, which grpcio-health-checking's copy does not have.

They are in a pool of their own: the default one has that copy, and a name stands once in a pool.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2

PACKAGE = "grpc.health.v1"
LIST = "List"
_Field = descriptor_pb2.FieldDescriptorProto


def _described() -> FileDescriptor:
    """Returns the file of grpc.health.v1 with the method that it lacks, if it lacks it."""
    file = descriptor_pb2.FileDescriptorProto()
    health_pb2.DESCRIPTOR.CopyToProto(file)
    (service,) = file.service
    if LIST not in {method.name for method in service.method}:
        request, response = (file.message_type.add(name=f"HealthList{side}") for side in _SIDES)
        entry = response.nested_type.add(name="StatusesEntry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
        _add_message(entry, "value", 2, "HealthCheckResponse", _Field.LABEL_OPTIONAL)
        _add_message(
            response, "statuses", 1, "HealthListResponse.StatusesEntry", _Field.LABEL_REPEATED
        )
        names = {"input_type": request.name, "output_type": response.name}
        service.method.add(name=LIST, **{key: f".{PACKAGE}.{name}" for key, name in names.items()})
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindFileByName(file.name)


def _add_message(message: Any, name: str, number: int, kind: str, label: Any) -> None:
    message.field.add(
        name=name,
        number=number,
        type=_Field.TYPE_MESSAGE,
        type_name=f".{PACKAGE}.{kind}",
        label=label,
    )


_SIDES = ("Request", "Response")
FILE = _described()
HealthListRequest, HealthListResponse = (
    message_factory.GetMessageClass(FILE.message_types_by_name[f"HealthList{side}"])
    for side in _SIDES
)
