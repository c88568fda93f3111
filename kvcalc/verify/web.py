"""Pages of one HTTP server, read so that it can neither hold us up, nor fill the memory, nor send us elsewhere, nor learn an API key that is not its own."""

import io
import json
import socket
import ssl
import time
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import urljoin, urlsplit

from kvcalc.errors import ExitCode, KvcalcError, printable
from kvcalc.units import exact_decimal, exact_int, format_bytes, shorten

CONNECT_S: float = 5
TOTAL_S: float = 20
"""For all pages together, however slowly they come."""
MAX_BYTES: int = 8 << 20
"""Of one answer, headers and all. A busy server's /metrics has some 200 KiB."""
MAX_REDIRECTS: Final = 3

EXAMPLE: Final = "write it like http://localhost:8000"


class Address(NamedTuple):
    """Where a server listens, and the path before its own pages."""

    scheme: str
    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_address(url: str) -> Address:
    """An http or https URL; a `/v1` at its end, as clients want it, is left out. Raises KvcalcError (usage), in words that repeat nothing of it, since
    there may be a password in it.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise KvcalcError("the server's URL is not one", hint=EXAMPLE, code=ExitCode.USAGE) from None
    if "@" in parts.netloc:
        raise KvcalcError("the server's URL holds a user name or a password", hint="an API key is taken from KVCALC_API_KEY", code=ExitCode.USAGE)
    if parts.scheme not in ("http", "https") or not host:
        raise KvcalcError("the server's URL does not begin with http:// or https:// and a host", hint=EXAMPLE, code=ExitCode.USAGE)
    if parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise KvcalcError("the server's URL has more in it than host, port and path", hint=EXAMPLE, code=ExitCode.USAGE)
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Address(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), path)


class NotJsonError(KvcalcError):
    """A page that holds something else than was asked for."""


class Site:
    """One server, of which pages are read by GET alone, each over a connection of its own. `api_key` goes to this host and port, and into no text."""

    def __init__(self, address: Address, api_key: str | None) -> None:
        self.address = address
        self._key = (api_key or "").strip()
        self._deadline = time.monotonic() + TOTAL_S
        if not (self._key.isascii() and self._key.isprintable()):
            raise KvcalcError("the API key has letters that no HTTP header can hold", hint="check KVCALC_API_KEY", code=ExitCode.USAGE)

    def shown(self, text: str) -> str:
        """What the server said, safe to print: short, in one line, and without the key, which it may have sent back."""
        return shorten(printable(text.replace(self._key, "***") if self._key else text), 200)

    def json(self, path: str) -> Any:  # noqa: ANN401 (whatever the page holds)
        """A page of JSON, numbers with a point as Decimal; None where there is no such page. Raises NotJsonError, and KvcalcError as `get` does."""
        body = self.get(path)
        if body is None:
            return None
        try:
            return json.loads(body, parse_int=exact_int, parse_float=exact_decimal, parse_constant=_no_constant)
        except (ValueError, RecursionError):  # broken UTF-8 is a ValueError too
            raise NotJsonError(f"{self.address}{path} does not hold JSON", hint="a proxy or a login page may stand before the server") from None

    def get(self, path: str) -> bytes | None:
        """A page; None where there is none, or the server says no more than that it failed.

        Raises KvcalcError: not reachable, too slow, still loading, wants another key (exit 4); does not speak HTTP, answers without end, leads
        elsewhere (exit 3).
        """
        target = f"{self.address.path}{path}"
        for _ in range(MAX_REDIRECTS + 1):
            try:
                status, location, body = self._ask(target)
            except TimeoutError:
                raise KvcalcError(
                    f"{self.address}{path} did not answer in time", hint="is the server busy, or still loading?", code=ExitCode.ENVIRONMENT
                ) from None
            except ssl.SSLError:
                hint = "is it http:// that the server speaks?"
                raise KvcalcError(f"{self.address} does not speak TLS, or its certificate is not accepted", hint=hint, code=ExitCode.ENVIRONMENT) from None
            except IncompleteRead as error:
                announced = "" if error.expected is None else f" of {len(error.partial) + error.expected:,}"
                raise KvcalcError(
                    f"{self.address}{path} did not arrive whole: {len(error.partial):,}{announced} bytes", hint="try again", code=ExitCode.ENVIRONMENT
                ) from None
            except (HTTPException, ValueError):
                raise KvcalcError(f"{self.address} does not answer as an HTTP server", hint="is it https:// that it speaks?") from None
            except OSError as error:
                why = f": {error.strerror}" if error.strerror else ""
                raise KvcalcError(f"{self.address} cannot be reached{why}", hint="check host and port", code=ExitCode.ENVIRONMENT) from None
            if status not in (301, 302, 303, 307, 308):
                return self._page(status, path, body)
            target = self._followed(path, target, location)
        raise KvcalcError(f"{self.address}{path} redirects without end", hint="name the server itself")

    def _page(self, status: int, path: str, body: bytes) -> bytes | None:
        if status in (401, 403):
            hint = "check KVCALC_API_KEY" if self._key else "put its API key into KVCALC_API_KEY"
            raise KvcalcError(
                f"{self.address}{path} is not shown without {'another' if self._key else 'a'} key ({status})", hint=hint, code=ExitCode.ENVIRONMENT
            )
        if status == 503:
            raise KvcalcError(f"{self.address} is not ready ({status})", hint="try again when it has loaded its model", code=ExitCode.ENVIRONMENT)
        if status in (429, 502, 504):
            what = "wants fewer requests" if status == 429 else "is behind a proxy that does not reach it"
            raise KvcalcError(f"{self.address}{path} {what} ({status})", hint="try again later, or name the server itself", code=ExitCode.ENVIRONMENT)
        return body if status == 200 else None

    def _followed(self, path: str, target: str, location: str) -> str:
        """The page behind a redirect within the same host and port: another one would be asked in this one's name, and with its key."""
        origin = self.address._replace(path="")
        try:
            to = parse_address(urljoin(f"{origin}{target}", location))
        except KvcalcError:
            raise KvcalcError(f"{self.address}{path} redirects to what is no address", hint="name the server itself") from None
        if to._replace(path="") != origin:
            raise KvcalcError(
                f"{self.address}{path} redirects to {self.shown(str(to._replace(path='')))}, which is not followed", hint="name the server that it leads to"
            )
        return urlsplit(urljoin(f"{origin}{target}", location)).path or "/"

    def _ask(self, target: str) -> tuple[int, str, bytes]:
        """Status, Location, and body of one answer."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        make = HTTPSConnection if self.address.scheme == "https" else HTTPConnection
        connection = make(self.address.host, self.address.port, timeout=min(CONNECT_S, left))
        # A compressed answer would have no bound to what it holds.
        headers = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "kvcalc"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            connection.request("GET", target, headers=headers)
            with HTTPResponse(_Limited(connection.sock, self._deadline), method="GET") as response:  # type: ignore[arg-type]  # it asks no more of a socket than makefile
                response.begin()
                return response.status, response.getheader("Location", ""), self._body(response)
        except _TooLongError:
            raise KvcalcError(f"{self.address} sends more than {format_bytes(MAX_BYTES)} in one answer", hint="no server of a model does that") from None
        finally:
            connection.close()

    @staticmethod
    def _body(response: HTTPResponse) -> bytes:
        """In small steps: a length that is announced reserves no memory."""
        length = response.length
        if length is not None and length > MAX_BYTES:
            raise _TooLongError
        data = bytearray()
        while length is None or len(data) < length:
            step = response.read1(1 << 16 if length is None else min(1 << 16, length - len(data)))
            if not step:
                break
            data += step
        if length is not None and len(data) < length:
            raise IncompleteRead(bytes(data), length - len(data))
        return bytes(data)


def _no_constant(_name: str) -> NoReturn:
    """NaN and Infinity are no JSON, though Python reads them."""
    raise ValueError


class _TooLongError(Exception):
    """An answer has passed MAX_BYTES."""


class _Limited:
    """A socket as HTTPResponse uses it, until a moment and up to MAX_BYTES: a time-out of the socket itself starts anew with each byte."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._raw = _Raw(sock, deadline)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._raw)


class _Raw(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline
        self._left = MAX_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 (typeshed's WriteableBuffer has no public name)
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        count = self._sock.recv_into(buffer)
        self._left -= count
        if self._left < 0:
            raise _TooLongError
        return count
