"""The guard of --serve: it answers this machine's own browser and there the page alone, and waits for no one long."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

SLOW = 10  # seconds that a request may take to arrive
MOST_CONNECTIONS = 128
HEADERS = {
    "cache-control": "no-store",
    "connection": "close",  # one request each, so that none is kept by who has nothing more to ask
    "content-security-policy": "frame-ancestors 'self'",  # beside the policy that each page has in itself
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Guard:
    """Answers this machine's browser alone, at the page's own address, and there the page alone: no other site may ask,
    not even by a name of its own that leads here (DNS rebinding)."""

    def __init__(self, app, address: str):
        self.app = app
        self.hosts = {address, address.replace("127.0.0.1", "localhost")}

    async def __call__(self, scope, receive, send) -> None:
        async def with_headers(message):
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        own = f"http://{hosts[0]}" if hosts else ""
        origin = headers.get("origin", "" if scope["method"] == "POST" else own)
        from_here = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        app = self.app
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            app = PlainTextResponse("this server has another name", 421)
        elif origin != own or not (from_here or scope["path"] == "/"):  # a link to the page may stand anywhere
            app = PlainTextResponse("only the page itself may ask", 403)
        await app(scope, receive, with_headers)


class Connection(H11Protocol):
    """uvicorn's, which does not wait for ever: a request that has not arrived in time is dropped. Where there are too
    many connections, the oldest of those that wait for the other side makes room for the new one."""

    def __init__(self, *how, slow: float = SLOW, **more):
        super().__init__(*how, **more)
        self.slow = slow  # seconds
        self.begun = self.loop.time()

    def connection_made(self, transport) -> None:
        waiting = [one for one in self.connections if not one.has_arrived() or one.flow.write_paused]
        if len(self.connections) >= MOST_CONNECTIONS and waiting:
            min(waiting, key=lambda one: one.begun).drop()
        super().connection_made(transport)
        self.loop.call_later(self.slow, self.drop_if_late)

    def has_arrived(self) -> bool:
        """True if it has asked for something, to the last byte."""
        return self.cycle is not None and not self.cycle.more_body

    def drop_if_late(self) -> None:
        if not self.has_arrived():
            self.drop()

    def drop(self) -> None:
        self.connections.discard(self)  # at once, as many may come before the transport says that it is closed
        self.transport.abort()
