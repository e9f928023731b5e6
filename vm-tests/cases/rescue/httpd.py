# SPDX-License-Identifier: GPL-2.0-or-later
"""Apache with one worker process, of one thread or of several, and a module that faults when it is asked to (mod_fault.c)."""

import http.client
import os
import subprocess
import time
from pathlib import Path

BUILD = Path(os.environ["PERDURE_BUILD"])
RESCUECTL = BUILD / "userspace/userspace/rescue/rescuectl"
MODULE = BUILD / "userspace/vm-tests/cases/rescue/mod_fault.so"
# The faults of mod_fault: /fault/NAME
FAULTS = ("null", "overflow", "twice", "abort", "divide")
PORT = 8080


def apxs(name: str) -> str:
    return subprocess.run(["apxs", "-q", name], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


HTTPD = f"{apxs('SBINDIR')}/{apxs('PROGNAME')}"


def configuration(place: Path, threads: int) -> str:
    modules, mpm, limits = apxs("LIBEXECDIR"), "prefork", "MinSpareServers 1\nMaxSpareServers 1\nMaxRequestWorkers 4"
    if threads:
        mpm, limits = "event", f"ThreadsPerChild {threads}\nServerLimit 1\nMinSpareThreads 1\nMaxSpareThreads {threads}\nMaxRequestWorkers {threads}"
    loads = "\n".join(f"LoadModule {m}_module {modules}/mod_{m}.so" for m in (f"mpm_{mpm}", "authz_core", "mime", "dir"))
    return f"""
ServerRoot {place}
{loads}
LoadModule fault_module {MODULE}
ServerName service.example
User #65534
Group #65534
PidFile {place}/pid
DefaultRuntimeDir {place}
Mutex file:{place} default
ErrorLog {place}/errors
StartServers 1
{limits}
KeepAlive on
MaxKeepAliveRequests 0
TypesConfig /dev/null
DocumentRoot {place}/www
Listen 127.0.0.1:{PORT}
<Directory {place}>
    Require all granted
</Directory>
<Location /fault>
    Require all granted
    SetHandler fault
</Location>
"""


def connect() -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)


def get(connection: http.client.HTTPConnection, path: str) -> tuple[int, bytes]:
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


class Server:
    """In an empty directory; www below it is for files. `threads`: of its worker, which has else one and no more."""

    def __init__(self, place: Path, threads: int = 0) -> None:
        place.chmod(0o755)
        self.place = place
        self.files = place / "www"
        self.files.mkdir()
        (place / "conf").write_text(configuration(place, threads))
        self.process = subprocess.Popen([HTTPD, "-f", str(place / "conf"), "-DFOREGROUND"], start_new_session=True)
        # While a virtual clock's guest waits for a file of the host, it skips to the next timeout
        deadline = time.monotonic() + 300
        while True:
            try:
                assert get(connect(), "/fault/none")[1].split()[1] == b"1"
                return
            except OSError:
                assert time.monotonic() < deadline and self.process.poll() is None, "Apache does not serve"
                time.sleep(0.1)

    def died(self) -> int:
        """Workers, of a signal."""
        return (self.place / "errors").read_text().count("exit signal")

    def stop(self) -> None:
        self.process.terminate()
        status = self.process.wait(20)
        assert not status, f"Apache ended with status {status}"
