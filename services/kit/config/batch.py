"""Answering requests that can wait."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from services.kit.config.section import Address, Database, Endpoint, Positive

Place = Annotated[str, Field(pattern=r"^[a-z][a-z0-9+]*://")]
"""URL of a folder."""


class BatchService(Endpoint):
    """The batch service; a deployment without this section has none.

    Attributes:
        http_listen: "host:port" of OpenAI's Files and Batch API; empty: none. The router passes
            /v1/files and /v1/batches on to it.
        http_address: "host:port" that routers connect to; empty: `http_listen`.
        router_url: URL of the router's HTTP address; empty: that of `router.http_listen`.
        database: SQLite file, or URL of a PostgreSQL database, which several batch services share.
        files: Folder of the files, or a URL that fsspec knows (s3://, gs://).
        max_file_mib: Largest file, MiB.
        max_lines: Largest number of requests in a file.
        max_stored_mib: Largest size of one caller's files together, MiB.
        max_open_batches: Largest number of one caller's batches that have not ended.
        max_waiting_lines: Largest number of one caller's requests that wait.
        max_waiting_tokens: Largest number of one caller's tokens that wait: an estimate of the
            prompts, and what the answers may have. None: any number.
        max_in_flight: Largest number of one model's requests that are with the router at a time.
        max_attempts: Times that a request is tried whose answer is an error of the server.
        keep_files_s: Time after which files are deleted, s.
        min_free_mib: Room on the disk below which new files are refused, MiB.
        max_connections: Largest number of HTTP connections.
        max_requests: Largest number of calls at a time.
    """

    listen: Address = "127.0.0.1:8468"
    http_listen: Address = "127.0.0.1:8469"
    http_address: Address = ""
    router_url: Annotated[str, Field(pattern=r"^(https?://[^\s/]+)?$")] = ""
    database: Database = Path("out/state/batch.sqlite3")
    files: Path | Place = Path("out/state/batch-files")
    max_file_mib: Positive = 200.0
    max_lines: Annotated[int, Field(ge=1, le=10_000_000)] = 50_000
    max_stored_mib: Positive = 10_240.0
    max_open_batches: Annotated[int, Field(ge=1)] = 100
    max_waiting_lines: Annotated[int, Field(ge=1)] = 1_000_000
    max_waiting_tokens: Annotated[int, Field(ge=1)] | None = None
    max_in_flight: Annotated[int, Field(ge=1, le=4096)] = 1024
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    keep_files_s: Positive = 30 * 86_400.0
    min_free_mib: Annotated[float, Field(ge=0)] = 256.0
    max_connections: Annotated[int, Field(ge=1)] = 256
    max_requests: Annotated[int, Field(ge=1)] = 256
