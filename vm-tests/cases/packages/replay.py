#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""On an installed system: a server of libreplay, killed after each answer. Says what it answered."""

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from perdure import replay

PORT = 18080
CONF = f"[server]\nname = sum\nlog = sum.log\nlisten = 127.0.0.1:{PORT}\n"


def serve() -> None:
    server = replay.Server()

    @server.method
    def add(call: replay.Call, by: int) -> replay.JSON:
        return call.shared.add("sum", by)

    server.run("sum.conf")


def ask(key: str, body: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/add", body.encode(), {"Idempotency-Key": key})
    end = time.monotonic() + 300
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise RuntimeError(error.read().decode()) from error
        except OSError:
            pass
        assert time.monotonic() < end, "the server does not answer"
        time.sleep(0.1)


if sys.argv[1:] == ["serve"]:
    serve()
    sys.exit()
os.chdir(tempfile.mkdtemp())
with open("sum.conf", "w") as file:
    file.write(CONF)
subprocess.run(["replayctl", "format", "sum.log", "--size", "2M"], check=True)
said = []
for key, body in (("one", '{"by": 2}'), ("one", '{"by": 2}'), ("two", '{"by": 1}')):
    server = subprocess.Popen([sys.executable, __file__, "serve"])
    try:
        said.append(ask(key, body))
    finally:
        server.kill()
        server.wait()
verdict = subprocess.run(["replayctl", "verify", "sum.log"], check=True, capture_output=True, text=True).stdout
print(f"{' '.join(said)}, the log is {'whole' if ': whole' in verdict else verdict}")
