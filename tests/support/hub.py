"""The two routes of the Hugging Face hub that its client takes for a model: its list, its files."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from threading import Thread
from urllib.parse import urlsplit

from tests.support.file_server import Server

COMMIT = "c0ffee" * 6 + "c0de"


@dataclass
class Hub:
    """State of the hub.

    Attributes:
        repository: The model that it has.
        files: The content of its files by path.
        digests: SHA-256 that it names in place of a file's own.
        url: Address of the hub.
        sent: Paths of the files that were sent.
    """

    repository: str
    files: Mapping[str, bytes]
    digests: dict[str, str] = field(default_factory=dict)
    url: str = ""
    sent: list[str] = field(default_factory=list)

    def listed(self) -> dict[str, object]:
        """Return the list of files, with their sizes and digests."""
        siblings = [
            {"rfilename": path, "size": len(content), "blobId": "0", "lfs": self._lfs(path)}
            for path, content in self.files.items()
        ]
        return {"id": self.repository, "sha": COMMIT, "siblings": siblings}

    def _lfs(self, path: str) -> dict[str, object]:
        own = hashlib.sha256(self.files[path]).hexdigest()
        size = len(self.files[path])
        return {"sha256": self.digests.get(path, own), "size": size, "pointerSize": 1}


@contextmanager
def hub_of(repository: str, files: Mapping[str, bytes]) -> Iterator[Hub]:
    """Serve one model for the time of the block."""
    hub = Hub(repository, files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            resolved = f"/{hub.repository}/resolve/{COMMIT}/"
            if path.startswith(f"/api/models/{hub.repository}"):
                self._send(200, json.dumps(hub.listed()).encode())
            elif (name := path.removeprefix(resolved)) in hub.files:
                if self.command == "GET":
                    hub.sent.append(name)
                self._send(200, hub.files[name])
            else:
                self._send(404, b"", ("X-Error-Code", "RepoNotFound"))

        def _send(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
            self.send_response(status)
            own = ("ETag", f'"{hashlib.sha256(body).hexdigest()}"'), ("X-Repo-Commit", COMMIT)
            for name, value in (("Content-Length", str(len(body))), *own, *headers):
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        yield hub
        server.shutdown()
        thread.join()
