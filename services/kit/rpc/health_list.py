"""The messages of grpc.health.v1.Health/List, which came to the protocol in 2025.

grpcio-health-checking has them from 1.85 on, which asks for protobuf 7; with protobuf 6 they are
declared here, as https://github.com/grpc/grpc-proto/blob/master/grpc/health/v1/health.proto does.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
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
"""The library has the messages and registers the method by itself."""


def _declare() -> tuple[Any, Any]:
    pool = descriptor_pool.Default()
    if not KNOWN:
        pool.Add(text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto()))
    request, response = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"grpc.health.v1.{name}"))
        for name in ("HealthListRequest", "HealthListResponse")
    )
    return request, response


HealthListRequest, HealthListResponse = _declare()
