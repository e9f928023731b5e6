#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Apache with a module that faults: without a rescue point a connection breaks, with one it is answered 500."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import BUILD, equal, main, run  # noqa: E402

RESCUECTL = BUILD / "userspace/userspace/rescue/rescuectl"
MODULE = BUILD / "userspace/vm-tests/cases/rescue/mod_fault.so"
SBIN, HTTPD, MODULES = (run("apxs", "-q", name).strip() for name in ("SBINDIR", "PROGNAME", "LIBEXECDIR"))
HTTPD = f"{SBIN}/{HTTPD}"
FAULTS = ("null", "overflow", "twice", "abort", "divide")
scratch = tempfile.TemporaryDirectory(prefix="rescue-")
PLACE = Path(scratch.name)
PORT = 8080


def configuration() -> str:
    loads = "\n".join(f"LoadModule {m}_module {MODULES}/mod_{m}.so" for m in ("mpm_prefork", "authz_core", "mime", "dir"))
    return f"""
ServerRoot {PLACE}
{loads}
LoadModule fault_module {MODULE}
ServerName service.example
User #65534
Group #65534
PidFile {PLACE}/pid
DefaultRuntimeDir {PLACE}
Mutex file:{PLACE} default
ErrorLog {PLACE}/errors
StartServers 1
MinSpareServers 1
MaxSpareServers 1
MaxRequestWorkers 4
KeepAlive on
MaxKeepAliveRequests 0
TypesConfig /dev/null
DocumentRoot {PLACE}/www
Listen 127.0.0.1:{PORT}
<Directory {PLACE}>
    Require all granted
</Directory>
<Location /fault>
    Require all granted
    SetHandler fault
</Location>
"""


def point() -> dict[str, int]:
    said = subprocess.run([str(RESCUECTL), "list", "--json"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return next(p for p in json.loads(said) if p["name"] == "apache")


def get(connection: http.client.HTTPConnection, path: str) -> tuple[int, bytes]:
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


def connect() -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)


def count(served: dict[int, int], connection: http.client.HTTPConnection) -> None:
    """A request that is right: each worker counts its own, and none that has faulted."""
    status, text = get(connection, "/fault/none")
    equal(status, 200)
    pid, n = (int(word) for word in text.split())
    equal(n, served.get(pid, n - 1) + 1)
    served[pid] = n


def died() -> int:
    """Workers, of a signal."""
    return (PLACE / "errors").read_text().count("exit signal")


def start() -> None:
    """Apache serves"""
    global server
    PLACE.chmod(0o777)
    (PLACE / "www").mkdir()
    (PLACE / "www/file").write_bytes(b"x" * 100000)
    (PLACE / "conf").write_text(configuration())
    server = subprocess.Popen([HTTPD, "-f", str(PLACE / "conf"), "-DFOREGROUND"], start_new_session=True)
    deadline = time.monotonic() + 30
    while True:
        try:
            equal(get(connect(), "/fault/none")[1].split()[1], b"1")
            return
        except OSError:
            assert time.monotonic() < deadline and server.poll() is None, "it does not serve"
            time.sleep(0.1)


def without() -> None:
    """Without a point each fault kills the worker, and its connection"""
    for fault in FAULTS:
        try:
            said = get(connect(), f"/fault/{fault}")
        except (http.client.HTTPException, OSError):
            continue
        raise AssertionError(f"{fault}: {said}")
    deadline = time.monotonic() + 20
    while died() % len(FAULTS):
        assert time.monotonic() < deadline, (PLACE / "errors").read_text()
        time.sleep(0.1)


def rescued() -> None:
    """With one it is answered 500, the worker lives, and nothing is half done"""
    before = died()
    run(RESCUECTL, "add", HTTPD, "ap_run_handler", "--value", 500, "--name", "apache", "--burst", 1000000)
    connection = connect()
    served: dict[int, int] = {}
    for _ in range(10):
        for fault in FAULTS:
            count(served, connection)
            # Apache closes the connection behind such an answer, as it says
            status, text = get(connection, f"/fault/{fault}")
            equal(status, 500)
            assert b"Internal Server Error" in text, text
            count(served, connection)
    equal(get(connection, "/file"), (200, b"x" * 100000))
    equal(point()["rescued"], 10 * len(FAULTS))
    equal(died(), before)
    print(f"# {point()}")


def others() -> None:
    """Requests of others go on meanwhile: only those that fault fail"""
    bad = good = 0
    for n in range(300):
        connection = connect()
        status, text = get(connection, "/fault/null" if n % 10 == 0 else "/fault/none")
        equal(status, 500 if n % 10 == 0 else 200)
        connection.close()
        bad, good = bad + (n % 10 == 0), good + (n % 10 != 0)
    equal((bad, good), (30, 270))


def removed() -> None:
    """Without it again, a fault kills again"""
    run(RESCUECTL, "remove", "apache")
    without()


def stop() -> None:
    """Apache ends"""
    server.send_signal(signal.SIGTERM)
    equal(server.wait(20), 0)


main(start, without, rescued, others, removed, stop)
