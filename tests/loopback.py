"""A small Hub on loopback, as well-behaved or as broken as a test wants it."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class File:
    """What the Hub says to a request for one file. `headers` are added, `length` replaces the true Content-Length. `ranges`: a request for a part gets
    no more than that. After each `step` bytes it waits for `pause_s`, and after `cut` bytes the connection ends. `got` answers a GET in its place, and
    `first` the first requests, each once.
    """

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    hub_headers: bool = True
    delay_s: float = 0
    pause_s: float = 0
    ranges: bool = True
    step: int = 1024
    cut: int | None = None
    got: "File | None" = None
    first: "list[File]" = field(default_factory=list)


@dataclass
class Hub:
    """Files by "owner/name/file", what was asked of them, which bytes of them, and how many bytes of them were sent."""

    url: str
    files: dict[str, File]
    asked: list[tuple[str, str]] = field(default_factory=list)
    ranges: list[tuple[str, str]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    sent_bytes: int = 0
    listing: File | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def add(self, repo: str, config: dict[str, Any] | bytes, filename: str = "config.json", **how: Any) -> None:
        body = config if isinstance(config, bytes) else json.dumps(config).encode()
        self.files[f"{repo}/{filename}"] = File(body, **how)


def look_up(hub: Hub, repo: str, revision: str, filename: str) -> File:
    """What to say to a request for a file that is there or not."""
    file = hub.files.get(f"{repo}/{filename}")
    if file is None:
        known = any(name.startswith(f"{repo}/") for name in hub.files)
        return File(status=404, headers={"X-Error-Code": "EntryNotFound" if known else "RepoNotFound"})
    if revision not in ("main", COMMIT):
        return File(status=404, headers={"X-Error-Code": "RevisionNotFound"})
    return file


def part_of(file: File, wanted: str) -> tuple[int, bytes, dict[str, str]]:
    """Status, bytes and headers for a Range header (RFC 9110, 14)."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted)
    assert match is not None, wanted
    size = len(file.body)
    start = int(match[1]) if match[1] else max(0, size - int(match[2]))
    end = min(size, int(match[2]) + 1 if match[1] and match[2] else size)
    if start >= end:
        return 416, b"", {"Content-Range": f"bytes */{size}", **file.headers}
    return 206, file.body[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{size}", **file.headers}


def listing(hub: Hub, path: str) -> File:
    """The files of a repository, as huggingface_hub's model_info asks for them."""
    repo = "/".join(path.partition("?")[0].split("/")[3:5])
    names = [name.removeprefix(f"{repo}/") for name in hub.files if name.startswith(f"{repo}/")]
    hub.asked.append(("GET", f"files of {repo}"))
    return hub.listing or File(json.dumps({"id": repo, "siblings": [{"rfilename": name} for name in names]}).encode(), hub_headers=False)


def asked_for(hub: Hub, method: str, path: str) -> tuple[str, File]:
    """The name of what is asked for, and what to say to this request."""
    if path.startswith("/api/models/"):
        return "files", listing(hub, path)
    repo, _, rest = path.strip("/").partition("/resolve/")
    revision, _, filename = rest.partition("/")
    hub.asked.append((method, f"{repo}@{revision}/{filename}"))
    file = look_up(hub, repo, revision, filename)
    if file.first:
        file = file.first.pop(0)
    elif method == "GET" and file.got is not None:
        file = file.got
    return f"{repo}/{filename}", file


def send(hub: Hub, to: BufferedIOBase, body: bytes, file: File) -> None:
    """Sends as much as the client takes, in pieces."""
    with suppress(ConnectionError):  # the client has read enough
        for start in range(0, len(body), file.step):
            piece = body[start : start + file.step]
            to.write(piece)
            hub.sent_bytes += len(piece)
            if file.pause_s and hub.stop.wait(file.pause_s):
                return


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            hub.tokens.add(self.headers.get("authorization"))
            name, file = asked_for(hub, self.command, self.path)
            hub.stop.wait(file.delay_s)
            status, body, headers = file.status, file.body, dict(file.headers)
            if file.ranges and status == 200 and (wanted := self.headers.get("Range")):
                status, body, headers = part_of(file, wanted)
                hub.ranges.append((name, wanted))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if file.length is None else file.length))
            if file.hub_headers:
                self.send_header("ETag", f'"{abs(hash(file.body)):x}"')
                self.send_header("X-Repo-Commit", COMMIT)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                send(hub, self.wfile, body[: file.cut], file)

        def log_message(self, *_: Any) -> None:
            """Silence: a test's output is its own."""

    return Handler


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler], stop: threading.Event) -> Iterator[str]:
    """The address of a server that answers until the block ends; `stop` ends what still waits within an answer."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        stop.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving() -> Iterator[Hub]:
    """A Hub that answers until the block ends."""
    hub = Hub("", {})
    with listening(_handler(hub), hub.stop) as hub.url:
        yield hub
