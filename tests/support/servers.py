"""A server of files, with planted faults."""

import contextlib
import http.server
import threading


class Server(http.server.ThreadingHTTPServer):
    """Serves files {path: bytes}. A GET of a path takes the first of its faults: a status, where to close, "page"."""

    daemon_threads = True
    kind = "application/octet-stream"
    claimed = None  # the length that an answer tells, if it is not the body's
    shift = 0  # bytes by which the range that an answer tells is not the one that was asked for
    status = 404  # of a file that is not there
    pause = None  # an event that a GET waits for after the first half of the body

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.faults, self.ranges = files, {}, []  # ranges: (path, Range) of each GET
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_HEAD(self):  # as the hub's library asks
        self.answer(None)

    def do_GET(self):
        self.server.ranges.append((self.path, self.headers["Range"]))
        faults = self.server.faults.get(self.path)
        self.answer(faults.pop(0) if faults else None)

    def answer(self, fault):
        body = self.server.files.get(self.path.partition("?")[0])
        if body is None or isinstance(fault, int):
            self.send_error(fault or self.server.status)
            return
        kind = self.server.kind
        if fault == "page":
            body, fault, kind = b"<html>", None, "text/html; charset=utf-8"
        start = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start + self.server.shift}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Type", kind)
        claimed = self.server.claimed
        self.send_header("Content-Length", str(len(body) - start if claimed is None else claimed))
        self.end_headers()
        if self.command == "GET":
            if self.server.pause:
                self.wfile.write(body[start : len(body) // 2])
                start = len(body) // 2
                self.server.pause.wait(60)
            self.wfile.write(body[start:][: fault and fault["close"]])
        self.close_connection = True


@contextlib.contextmanager
def served(server):
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
