"""A server of one folder on the loopback that misbehaves on request, and counts what it was asked for."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PIECE = 4096


class Server(ThreadingHTTPServer):
    """Serves `folder` below /set, with range requests unless `ranges` is false.

    faults: for each file name what its next requests meet, in turn: "500", "404", "cut" (half of the body), "wrong"
    (one byte), "hang" (half, then nothing), "refuse" (the connection closes); "always:FAULT" stays.
    rate: bytes a second of each connection. watch: called with (file name, bytes sent so far) before each piece.
    last: of the newest answer with a body, the bytes after which nothing more comes, or None where it does not hang.
    """

    daemon_threads = True

    def __init__(self, folder: Path, ranges: bool = True, rate: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.ranges, self.rate = folder, ranges, rate
        self.faults: defaultdict[str, list[str]] = defaultdict(list)
        self.requests: list[tuple[str, int]] = []  # (file name, first byte)
        self.watch: Callable[[str, int], object] = lambda name, sent: None
        self.last: int | None = None
        self.ended = threading.Event()
        self._guard = threading.Lock()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/set"

    def count(self) -> Counter[str]:
        """Requests of each shard."""
        return Counter(name for name, _ in self.requests if name.endswith(".tar"))

    def take(self, name: str, first: int) -> str:
        """Count a request and say what it meets."""
        with self._guard:
            self.requests.append((name, first))
            faults = self.faults[name]
            if not faults or faults[0].startswith("always:"):
                return faults[0].partition(":")[2] if faults else ""
            return faults.pop(0)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that were killed are nothing to report."""

    def __enter__(self) -> Server:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].removeprefix("/set/")
        wanted = self.headers.get("Range") if self.server.ranges else None
        first = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        fault, path = self.server.take(name, first), self.server.folder / name
        if fault == "refuse":
            self.hang_up()
        elif fault == "500" or fault == "404" or not path.is_file():
            self.send_error(int(fault or 404))
        else:
            self.send(name, path.read_bytes(), first, bool(wanted), fault)

    def send(self, name: str, body: bytes, first: int, partial: bool, fault: str) -> None:
        if fault == "wrong":
            body = body[:-700] + bytes([body[-700] ^ 1]) + body[-699:]
        stop = first + (len(body) - first) // 2 if fault in ("cut", "hang") else len(body)
        self.server.last = stop - first if fault == "hang" else None
        self.send_response(206 if partial else 200)
        if partial:
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - first))
        self.end_headers()
        for place in range(first, stop, PIECE):
            self.server.watch(name, place)
            self.wfile.write(body[place:min(place + PIECE, stop)])
            if self.server.rate:
                time.sleep(PIECE / self.server.rate)
        if fault == "hang":
            self.server.ended.wait()
        if fault in ("cut", "hang"):
            self.hang_up()

    def hang_up(self) -> None:
        """Also where a forked process has a copy of the socket, which keeps close() from telling the client."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests read `requests`."""
