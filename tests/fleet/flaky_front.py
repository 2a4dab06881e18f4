"""A proxy before a real engine that fails as networks and full engines do: refuses, drops answers, answers late."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from toolkit.telemetry.fleet.address import address_of

DROP_ANSWER = "drop the answer"
DROP_REQUEST = "drop the request"
ERROR = "error"

TOO_MANY_PARTS = (
    "Code: 252, e.displayText() = DB::Exception: Too many parts (300). Merges are slower, e.what() = x"
)
NO_SPACE = (
    "Code: 243. DB::Exception: Cannot reserve 1.00 MiB, not enough space. (NOT_ENOUGH_SPACE) (version 26.9)"
)


class FlakyFront:
    """Passes requests on to a port of this machine, except those that `faults` (used up one by one) are for."""

    def __init__(self, port: int) -> None:
        self.faults: list[tuple[str, str]] = []
        """What to do with the next inserts: one of the above, and a text."""
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                fault, text = front.next_fault() if "INSERT" in self.path else ("", "")
                if fault == DROP_REQUEST:
                    self.close_connection = True
                    return
                status, answer = 500, text.encode()
                if fault != ERROR:
                    passed = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                    passed.request("POST", self.path, body, dict(self.headers))
                    response = passed.getresponse()
                    status, answer = response.status, response.read()
                    passed.close()
                if fault == DROP_ANSWER:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def next_fault(self) -> tuple[str, str]:
        return self.faults.pop(0) if self.faults else ("", "")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def address(self):
        """Return its address, as that of an engine."""
        return address_of(f"clickhouse://127.0.0.1:{self.port}/telemetry")
