#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""In the guest, once it is up: says which kernel runs, and what each rung of the ladder does there when something faults."""

import glob
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable

# More than the buffers of a connection hold: a server that dies early leaves a download that is not whole
SIZE = 24_000_000


def say(text: str) -> None:
    with open("/dev/console", "w") as console:
        console.write(f"\nPERDURE: {text}\n")


def download() -> str:
    os.makedirs("/srv/www", exist_ok=True)
    data = os.urandom(SIZE)
    with open("/srv/www/big.bin", "wb") as f:
        f.write(data)
    server = subprocess.Popen(["zhttpd", "-a", "127.0.0.1", "-p", "0", "-d", "/srv/www"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    port = next(int(found[1]) for line in server.stdout if (found := re.search(r"port (\d+)$", line.strip())))
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(b"GET /big.bin HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        got = bytearray()
        while len(got) < SIZE // 5:
            got += client.recv(65536)
        os.kill(server.pid, signal.SIGSEGV)
        try:
            while part := client.recv(65536):
                got += part
        except OSError:
            pass
    time.sleep(1)
    body = bytes(got).partition(b"\r\n\r\n")[2]
    same = hashlib.sha256(body).digest() == hashlib.sha256(data).digest()
    alive = server.poll() is None
    server.kill()
    return f"download {'equal' if same else 'damaged'}, server {'alive' if alive else 'dead'}"


def restarts(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/restart") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("restarts:"))
    except (OSError, StopIteration):
        return 0


def unit() -> str:
    """A service that knows nothing of a restart, with the drop-in of the manual: the kernel first, then systemd."""
    example = glob.glob("/usr/share/doc/perdure*/**/perdure.conf", recursive=True)[0]
    os.makedirs("/etc/systemd/system/unaware.service.d", exist_ok=True)
    with open(example) as source, open("/etc/systemd/system/unaware.service.d/perdure.conf", "w") as drop_in:
        # Emulated, five faults can take longer than a minute
        text = source.read().replace("/usr/sbin/NAME --its --options", "/usr/bin/sleep 1000").replace(" 60000 ", " 600000 ")
        drop_in.write(text)
    with open("/etc/systemd/system/unaware.service", "w") as file:
        file.write("[Service]\nExecStart=/usr/bin/sleep 1000\n")
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    subprocess.run(["systemctl", "start", "unaware"], check=True)

    def shown(what: str) -> int:
        return int(subprocess.run(["systemctl", "show", "-p", what, "--value", "unaware"], stdout=subprocess.PIPE, text=True).stdout)

    def program() -> int:
        """The service's process, or 0. Of a service of root's, perdurectl is the main process."""
        try:
            with open("/sys/fs/cgroup/system.slice/unaware.service/cgroup.procs") as file:
                for pid in file.read().split():
                    with open(f"/proc/{pid}/comm") as comm:
                        if comm.read().strip() == "sleep":
                            return int(pid)
        except OSError:     # it has just ended
            pass
        return 0

    kept, afresh, end = 0, 0, time.monotonic() + 300

    def wait(until: Callable[[], bool]) -> None:
        while not until():
            if time.monotonic() > end:
                raise TimeoutError(f"the service after {kept} restarts by the kernel, {afresh} by perdurectl")
            time.sleep(0.1)

    while kept + afresh < 10:
        wait(lambda: program() > 0)
        pid = program()
        subprocess.run(["systemctl", "kill", "--kill-whom=main", "-s", "SEGV", "unaware"], check=True)
        wait(lambda: restarts(pid) == kept + 1 or program() not in (0, pid))
        if shown("NRestarts"):
            break
        if restarts(pid) == kept + 1:   # it may be perdurectl yet, not the program
            kept += 1
        else:
            afresh += 1
    second = shown("NRestarts")     # which a stop resets
    subprocess.run(["systemctl", "stop", "unaware"], check=True)
    return f"unit: {kept} restarts by the kernel, {afresh} by perdurectl, {second} by systemd"


def started(name: str) -> bool:
    """A unit that has a condition is told to start, and may say that there is nothing to do."""
    subprocess.run(["systemctl", "restart", name], check=True)
    return not subprocess.run(["systemctl", "is-active", "--quiet", name]).returncode


def function() -> str:
    """json_loads() of what is no string, in another program; its point comes from the directory of the manual."""
    library = os.path.realpath(glob.glob("/usr/lib/*/libjansson.so.4")[0])
    with open("/etc/perdure/rescue.d/jansson.conf", "w") as file:
        file.write(f"[json_loads]\nbinary = {library}\nsymbol = json_loads\nvalue = 0\n")
    loaded = started("rescue-points")
    call = f"import ctypes; print(ctypes.CDLL('{library}').json_loads(ctypes.c_void_p(16), 0, None))"
    ended = subprocess.run([sys.executable, "-c", call], stdout=subprocess.PIPE, text=True)
    told = f"returned {ended.stdout.strip()}" if not ended.returncode else signal.Signals(-ended.returncode).name
    os.remove("/etc/perdure/rescue.d/jansson.conf")
    subprocess.run(["systemctl", "stop", "rescue-points"], check=True)
    return f"points {'set' if loaded else 'not set'}, function {told}"


def host() -> str:
    """One of two hosts, whose peer does not answer: Apache with its module serves alone."""
    for address in "192.0.2.2", "192.0.2.10":
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    subprocess.run(["takeoverctl", "key", "/etc/perdure/web.key"], check=True)
    with open("/etc/perdure/takeover.conf", "w") as file:
        file.write("[host]\nlog_listen = 192.0.2.2:7550\ngroup = www-data\n\n[service web]\naddress = 192.0.2.10\nport = 80\n"
                   "role = primary\npeer = 192.0.2.3\npeer_log = 192.0.2.3:7550\ninterface = lo\nkey_file = /etc/perdure/web.key\n")
    with open("/etc/apache2/conf-enabled/here.conf", "w") as file:
        for module in glob.glob("/usr/lib64/httpd/modules/mod_takeover.so"):    # where Debian's Apache does not look
            file.write(f"LoadModule takeover_module {module}\n")
        file.write("ServerName here\nTakeoverEngine on\nTakeoverPrefix / sync-static\n")
    subprocess.run(["systemctl", "restart", "takeoverd", "apache2"], check=True)
    lacks = "no TCP_REPLICA" in subprocess.run(["takeoverctl", "check"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    subprocess.run(["takeoverctl", "promote", "web"], check=True)
    state = json.loads(subprocess.run(["takeoverctl", "status", "--json"], stdout=subprocess.PIPE, check=True).stdout)["services"][0]["state"]
    with urllib.request.urlopen("http://192.0.2.10/", timeout=60) as page:
        served = page.status == 200 and b"Apache" in page.read()
    return f"takeover {state}{', without the kernel' if lacks else ''}, page {'served' if served else 'missing'}"


def points() -> int:
    """Of the name json_loads, whoever set them."""
    try:
        with open("/proc/rescue") as file:
            return sum("name=json_loads" in line.split() for line in file)
    except FileNotFoundError:   # another kernel
        return 0


def removal() -> str:
    """Packages whose units are enabled and run are purged: nothing runs, no point is set, no link to a unit is left."""
    units = "rescue-points", "takeoverd"
    library = os.path.realpath(glob.glob("/usr/lib/*/libjansson.so.4")[0])
    with open("/etc/perdure/rescue.d/jansson.conf", "w") as file:
        file.write(f"[json_loads]\nbinary = {library}\nsymbol = json_loads\nvalue = 0\n")
    subprocess.run(["systemctl", "enable", *units], check=True)
    for name in units:
        started(name)
    before = points()
    packages = ["dpkg", "--purge", "rescuectl", "takeoverd"]
    if not os.path.exists("/var/lib/dpkg/info/rescuectl.list"):
        packages = ["rpm", "-e", "--nodeps", "perdure-rescue", "perdure-takeover"]
    subprocess.run(packages, check=True)
    run = [name for name in units if not subprocess.run(["systemctl", "is-active", "--quiet", name]).returncode]
    links = [link for link in glob.glob("/etc/systemd/system/*.wants/*") if os.path.basename(link).partition(".")[0] in units]
    return f"removed: points {before} before, {points()} after, {len(run)} units run, {len(links)} enabled"


try:
    say(f"kernel {os.uname().release}")
    for tool, what in (("zhttpd", download), ("zhttpd", unit), ("rescuectl", function), ("takeoverd", host),
                       ("rescuectl", removal)):
        if shutil.which(tool):
            say(what())
    say("done")
except Exception as error:
    say(f"error {error!r}")
finally:
    subprocess.run(["systemctl", "poweroff", "--force"])
