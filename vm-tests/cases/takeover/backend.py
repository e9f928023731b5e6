#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
In a guest: a server behind the hosts' ones. /FORM/NAME/SIZE/HOLD is answered in this form, "sized" or "chunked"; with HOLD "within" only
half of it before /run/go is there. It says what it executes: the name, what the request is called, who asks. No two answers are the same.
"""

import http.server
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

PORT, GO = 8080, Path("/run/go")
CHUNK = 50_000


def answer(name: str, number: int, asker: str, size: int) -> bytes:
    """What it says when it executes this for the `number`-th time."""
    line = f"{name} {number} {asker}\n"
    return line.encode() + random.Random(line).randbytes(size)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    lock, executed = threading.Lock(), Counter[str]()

    def do_GET(self) -> None:
        form, name, size, hold = self.path.strip("/").split("/")
        with self.lock:
            self.executed[name] += 1
            print("executes", name, self.headers["Idempotency-Key"], self.client_address[0], flush=True)
            data = answer(name, self.executed[name], self.client_address[0], int(size))
        chunked = form == "chunked"
        self.send_response(200)
        self.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(data)))))
        self.end_headers()
        for at in range(0, len(data), CHUNK):
            while hold == "within" and at > len(data) // 2 and not GO.exists():
                time.sleep(0.05)
            part = data[at:at + CHUNK]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """It says enough."""


if __name__ == "__main__":
    sys.stderr = sys.stdout
    http.server.ThreadingHTTPServer(("", PORT), Handler).serve_forever()
