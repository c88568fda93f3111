"""A small Hub on loopback, as well-behaved or as broken as a test wants it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class File:
    """What the Hub says to a request for one file. `headers` are added, `length` replaces the true Content-Length."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    hub_headers: bool = True
    delay_s: float = 0


@dataclass
class Hub:
    """Files by "owner/name/file" and what was asked of them."""

    url: str
    files: dict[str, File]
    asked: list[tuple[str, str]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    stop: threading.Event = field(default_factory=threading.Event)

    def add(self, repo: str, config: dict[str, Any] | bytes, filename: str = "config.json", **how: Any) -> None:
        body = config if isinstance(config, bytes) else json.dumps(config).encode()
        self.files[f"{repo}/{filename}"] = File(body, **how)


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            repo, _, rest = self.path.strip("/").partition("/resolve/")
            revision, _, filename = rest.partition("/")
            hub.asked.append((self.command, f"{repo}@{revision}/{filename}"))
            hub.tokens.add(self.headers.get("authorization"))
            file = hub.files.get(f"{repo}/{filename}")
            if file is None:
                known = any(name.startswith(f"{repo}/") for name in hub.files)
                file = File(status=404, headers={"X-Error-Code": "EntryNotFound" if known else "RepoNotFound"})
            elif revision not in ("main", COMMIT):
                file = File(status=404, headers={"X-Error-Code": "RevisionNotFound"})
            hub.stop.wait(file.delay_s)
            self.send_response(file.status)
            self.send_header("Content-Length", str(len(file.body) if file.length is None else file.length))
            if file.hub_headers:
                self.send_header("ETag", f'"{abs(hash(file.body)):x}"')
                self.send_header("X-Repo-Commit", COMMIT)
            for name, value in file.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(file.body)

        def log_message(self, *_: Any) -> None:
            """Silence: a test's output is its own."""

    return Handler


@contextmanager
def serving() -> Iterator[Hub]:
    """A Hub that answers until the block ends."""
    hub = Hub("", {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.stop.set()
        server.shutdown()
        thread.join()
        server.server_close()
