"""Faults under load."""

import os

# Programs are started beside gRPC's threads; its handlers of fork() have crashed `pg_ctl` there.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
