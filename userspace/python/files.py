#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""files.py [PORT]: serves the working directory, as python3 -m http.server does, and outlives its faults.

Try it: download something big with curl --limit-rate, and send a SIGSEGV meanwhile.
"""

import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import perdure


class Server(perdure.Restartable, ThreadingHTTPServer):
    pass


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"           # connections are kept


if __name__ == "__main__":
    with Server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 7009), Handler) as server:
        server.serve_forever()
