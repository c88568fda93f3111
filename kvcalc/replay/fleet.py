"""Replicas behind a router, and what it costs when a conversation lands on one without its cache."""

from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf
from typing import Final, get_args

from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.replay.pace import Pace
from kvcalc.replay.replica import Replica, Reserve, Shape, Tally
from kvcalc.replay.requests import MOST_CONVERSATIONS, Request
from kvcalc.results.replay import Routing

MOST_WAITING: Final = 1 << 18
"""Requests that may wait at a replica: who falls behind so far does not catch up, and memory is bounded."""
ROUTINGS: Final[tuple[Routing, ...]] = get_args(Routing)


@dataclass(slots=True)
class Lost:
    """What other replicas had cached of the prompts that were sent: `requests` of which another had more, `tokens` computed again for that, and
    `ttft_s` by which their first tokens came later, each alone.
    """

    requests: int = 0
    tokens: int = 0
    ttft_s: float = 0.0


@dataclass(slots=True)
class Fleet:
    """So many replicas of a shape. `sticky` keeps a conversation where it began, which is in turn, as all requests under `round-robin`; `prefix` looks for
    the longest prefix that is cached, and among equals for the fewest requests.
    """

    shape: Shape
    pace: Pace
    replicas: int
    routing: Routing
    reserve: Reserve | None = None
    tally: Tally = field(default_factory=Tally)
    lost: Lost = field(default_factory=Lost)
    _servers: list[Replica] = field(init=False)
    _homes: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _turn: int = -1

    def __post_init__(self) -> None:
        self._servers = [Replica(self.shape, self.pace, self.tally, self.reserve) for _ in range(self.replicas)]

    def send(self, request: Request) -> None:
        """The next request in the order of arrival."""
        alone = self.replicas == 1
        if alone or not request.keys:
            chosen = 0 if alone else self._chosen(request, [])
            self._servers[chosen].advance(request.arrival_s)
        else:
            for server in self._servers:
                server.advance(request.arrival_s)
            cached = [server.cached(request) for server in self._servers]
            chosen = self._chosen(request, cached)
            if self._servers[chosen].takes(request):
                for server in self._servers:
                    server.rest(request.arrival_s)  # until now its conversation ended there
                    server.goes_on(request)
            if max(cached) > cached[chosen] and request.prompt < self.shape.limit:
                self._count(request, cached[chosen], max(cached))
        self._servers[chosen].submit(request)
        if len(self._servers[chosen].waiting) > MOST_WAITING:
            raise KvcalcError(
                f"{MOST_WAITING:,} requests wait after {request.arrival_s:,.0f} s, and more keep coming: this deployment does not keep up with the trace",
                hint="add replicas with --dp, or slow it down with --rate-scale",
                code=ExitCode.NO,
            )

    def _chosen(self, request: Request, cached: list[int]) -> int:
        if self.routing == "prefix" and cached:
            return min(range(self.replicas), key=lambda index: (-cached[index], len(self._servers[index].running) + len(self._servers[index].waiting)))
        if self.routing == "sticky" and request.conversation is not None:
            home = self._homes.pop(request.conversation, None)
            home = self._next() if home is None else home
            self._homes[request.conversation] = home
            if len(self._homes) > MOST_CONVERSATIONS:
                self._homes.popitem(last=False)
            return home
        return self._next()

    def _next(self) -> int:
        self._turn = (self._turn + 1) % self.replicas
        return self._turn

    def _count(self, request: Request, here: int, elsewhere: int) -> None:
        self.lost.requests += 1
        self.lost.tokens += elsewhere - here
        self.lost.ttft_s += self.pace.prompt(request.prompt, here) - self.pace.prompt(request.prompt, elsewhere)

    def drain(self) -> None:
        """No more requests arrive: all end."""
        for server in self._servers:
            server.advance(inf)
        for server in self._servers:
            server.rest(self.tally.end_s)

    @property
    def warm(self) -> int:
        """Conversations of which no request runs and the cache holds the end."""
        return sum(server.pool.warm for server in self._servers)
