"""A web server of one file, which breaks off, redirects or says less than others do."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

CUT = 4000
"""Bytes that an answer has that ends early."""


class Server(ThreadingHTTPServer):
    """A server whose clients may go in the middle of an answer."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: it would be among what a command under test prints."""


@dataclass
class Site:
    """State of the server and its faults.

    Attributes:
        content: The file's.
        url: Address of the file.
        cuts: Number of answers that end early.
        honours_ranges: A request for the rest gets the rest.
        announces: Answers say how long they are.
        redirect: Where requests are sent on to; "": they are answered.
        ranges: The header Range of each request.
    """

    content: bytes
    url: str = ""
    cuts: int = 0
    honours_ranges: bool = True
    announces: bool = True
    redirect: str = ""
    ranges: list[str] = field(default_factory=list)


@contextmanager
def file_server(content: bytes) -> Iterator[Site]:
    """Serve a file for the time of the block."""
    found = Site(content)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        site: ClassVar[Site] = found

        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            self.site.ranges.append(wanted)
            if self.site.redirect:
                self.send_response(302)
                self.send_header("Location", self.site.redirect)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            partial = bool(wanted) and self.site.honours_ranges
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if partial else 0
            body = self.site.content[start:]
            self.send_response(206 if partial else 200)
            if self.site.announces:
                self.send_header("Content-Length", str(len(body)))
            else:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.site.cuts:
                self.site.cuts -= 1
                body, self.close_connection = body[:CUT], True
            with suppress(ConnectionError):  # the client may have gone
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        found.url = f"http://127.0.0.1:{server.server_port}/f.onnx"
        yield found
        server.shutdown()
        thread.join()
