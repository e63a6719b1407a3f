"""Whom --serve answers: this machine's own browser, and there the page alone."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

HEADERS = {
    "cache-control": "no-store",
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
