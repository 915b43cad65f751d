"""Ray Serve's side: one replica that answers every ModelInfer at once. Runs in Ray's environment.

python ray_app.py PORT HTTP_PORT ANSWER_FILE
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import ray
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions

from inference import grpc_service_pb2 as pb

ADD = "inference.grpc_service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"


class Model:
    """Answers."""

    def __init__(self, answer: bytes) -> None:
        self._answer = pb.ModelInferResponse.FromString(answer)

    async def ModelInfer(  # noqa: N802 - gRPC's name
        self, _: pb.ModelInferRequest
    ) -> pb.ModelInferResponse:
        """Answer at once."""
        return self._answer


def main(port: int, http_port: int, answer: bytes) -> None:
    """Serve until killed."""
    ray.init(include_dashboard=False, log_to_driver=False)
    serve.start(
        http_options=HTTPOptions(host="127.0.0.1", port=http_port),
        grpc_options=gRPCOptions(port=port, grpc_servicer_functions=[ADD]),
    )
    # The default, 5, would be unfair to it.
    deployment = serve.deployment(max_ongoing_requests=100)(Model)
    serve.run(deployment.bind(answer))
    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]).read_bytes())
