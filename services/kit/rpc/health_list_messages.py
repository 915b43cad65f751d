"""The messages of grpc.health.v1.Health/List, which came to the protocol in 2025.

grpcio-health-checking has them from 1.85 on, which requires protobuf 7; with protobuf 6 they are
declared here and visible to reflection, as in
https://github.com/grpc/grpc-proto/blob/master/grpc/health/v1/health.proto.
"""

from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2

_FILE = """
    name: "cinquefoil/health_list.proto" package: "grpc.health.v1" syntax: "proto3"
    dependency: "grpc_health/v1/health.proto"
    message_type { name: "HealthListRequest" }
    message_type {
        name: "HealthListResponse"
        nested_type {
            name: "StatusesEntry" options { map_entry: true }
            field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
            field { name: "value" number: 2 label: LABEL_OPTIONAL
                    type: TYPE_MESSAGE type_name: ".grpc.health.v1.HealthCheckResponse" }
        }
        field { name: "statuses" number: 1 label: LABEL_REPEATED
                type: TYPE_MESSAGE type_name: ".grpc.health.v1.HealthListResponse.StatusesEntry" }
    }
"""

KNOWN = hasattr(health_pb2, "HealthListResponse")
"""True if the library has the messages and registers the method."""


def _declared() -> descriptor_pb2.FileDescriptorProto:
    return text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto())


def _declare() -> tuple[Any, Any]:
    pool = descriptor_pool.Default()
    if not KNOWN:
        pool.Add(_declared())
    request, response = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"grpc.health.v1.{name}"))
        for name in ("HealthListRequest", "HealthListResponse")
    )
    return request, response


HealthListRequest, HealthListResponse = _declare()


def pool_with_list(symbols: Iterable[str]) -> descriptor_pool.DescriptorPool:
    """Return a pool for reflection: these symbols and their dependencies, with Health/List.

    It is a copy, for the default pool's Health is shared and cannot be changed.
    """
    default = descriptor_pool.Default()
    if KNOWN:
        return default
    pool, copied = descriptor_pool.DescriptorPool(), set[str]()
    for name in symbols:
        _copy(default.FindFileContainingSymbol(name), pool, copied)
    return pool


def _copy(file: FileDescriptor, pool: descriptor_pool.DescriptorPool, copied: set[str]) -> None:
    """Add a file to a pool after those that it imports."""
    if file.name in copied:
        return
    copied.add(file.name)
    for imported in file.dependencies:
        _copy(imported, pool, copied)
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    if file.name == health_pb2.DESCRIPTOR.name:
        proto.message_type.extend(_declared().message_type)
        types = {"input_type": "HealthListRequest", "output_type": "HealthListResponse"}
        names = {field: f".{file.package}.{name}" for field, name in types.items()}
        proto.service[0].method.add(name="List", **names)
    pool.Add(proto)
