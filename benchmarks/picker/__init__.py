"""The endpoint picker behind an unmodified Envoy, beside grpc.aio and the router in the path."""
