"""A real agent whose workers lie on demand: the command line, with another module for workers."""

from benchmarks.attacks.lies import evil_worker
from services.cli.main import app
from services.gpuagent.supervision import processes

if __name__ == "__main__":
    processes._MODULE = evil_worker.__name__  # type: ignore[misc]  # noqa: SLF001
    app(prog_name="cinquefoil")
