#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
web.py nginx | event: nginx, or Apache with threads, on both hosts, with files and a back end. The host of either dies in the middle of answers,
and clients, which are curl, read what a server that lives would have sent, and ask for more on the same connection.
"""

import hashlib
import random
import signal
import sys

from backend import GO, PORT, answer
from pair import HERE, LAN, OTHER, SEED, TOP, Network, Pair, Process, equal, main, wait

sys.path.insert(0, str(TOP / "demo"))
import takeover as shop  # noqa: E402

SERVER = sys.argv[1]
SIZE, SOCKET = 2_000_000, 400_000       # bytes of an answer, and what a host's socket takes
RATE = "100K"               # so slow that the host dies before the end
MIDDLE = 100_000
IDLE = 200                  # s: clients do not read while they wait for others
GOT = "/run/got"            # of the client: replies, with their heads
FIRST, LAST = 1_000, SIZE - 1_001
BACKEND = f"http://{LAN['client']}:{PORT}"
OURS = TOP / "build/userspace/userspace"
NGINX = f"""
load_module {OURS}/services/nginx/ngx_http_takeover_module.so;
daemon off;
user www-data;
pid /run/nginx/pid;
error_log /run/nginx/error.log;
events {{}}
http {{
    access_log off;
    keepalive_timeout {IDLE};
    send_timeout {IDLE};
    default_type application/octet-stream;
    root /srv/shop/www;
    takeover on;
    takeover_mode dynamic;
    proxy_http_version 1.1;
    proxy_set_header Idempotency-Key $takeover_request;
    server {{
        listen 80;
        location / {{ takeover_mode sync-static; }}
        location /static/ {{ takeover_mode static; alias /srv/shop/www/; }}
        location /app/ {{ proxy_pass {BACKEND}/; }}
        location /cgi-bin/order/ {{ proxy_buffering off; proxy_pass {BACKEND}/; }}
    }}
}}
"""
shop.NAMES = ["mpm_event", "authz_core", "alias", "mime", "cgid", "headers", "proxy", "proxy_http"]
shop.TAKEOVER += f"""
TakeoverPrefix /static/ static
TakeoverPrefix /app/ dynamic
ScriptSock /run/apache/cgid
KeepAliveTimeout {IDLE}
Timeout {IDLE}
Alias /static/ /srv/shop/www/
ProxyPass /app/ {BACKEND}/
RequestHeader set Idempotency-Key "%{{TAKEOVER_REQUEST}}e"
"""
# The back end behind a program; its answer has no length
shop.ORDER = f"""#!/bin/sh
printf 'Content-Type: application/octet-stream\\r\\n\\r\\n'
exec curl -sSN -H "Idempotency-Key: $TAKEOVER_REQUEST" "{BACKEND}$PATH_INFO"
"""
# So much is copied here that a host can be late with its adverts
shop.pairs.INTERVAL = "2"
shop.FILE = random.Random(2).randbytes(SIZE)
shop.pairs.TAKEOVER = shop.pairs.TAKEOVER.replace("[host]\n", "[host]\ngroup = www-data\n")

RANGE = ["--range", f"{FIRST}-{LAST}"]
# Path, options of curl, status, bytes of the file
FILES: dict[str, tuple[str, list[str], str, bytes]] = {
    "range": ("/film", RANGE, "206", shop.FILE[FIRST:LAST + 1]),
    "static": ("/static/film", RANGE, "206", shop.FILE[FIRST:LAST + 1]),
    # Servers part them by what each draws by lot: the modules have all of the file sent instead
    "ranges": ("/film", ["--range", f"0-99,{FIRST}-{LAST}"], "200", shop.FILE)}
PROGRAMS = {f"{where.split('/')[1]}-{form}-{hold}": f"{where}/{form}/{{}}/{SIZE}/{hold}"
            for where, form in (("/cgi-bin/order", "chunked"), ("/app", "chunked"), ("/app", "sized")) for hold in ("logged", "within")}
CELLS = [*PROGRAMS, *FILES]
DEATHS = ("primary", "backup")

pair: Pair
backend: Process


def serve(name: str) -> None:
    host = pair.hosts[name]
    host.run(f"sysctl -qw net.ipv4.tcp_wmem='4096 16384 {SOCKET}'")
    if SERVER == "event":
        shop.serve(host, True)
        return
    host.run("mkdir -p /run/nginx /srv/shop/www")
    host.put("/srv/shop/www/film", shop.FILE)
    host.put("/run/nginx/conf", NGINX.encode())
    host.run("touch -d 2026-01-01 /srv/shop/www/film")
    host.spawn("exec nginx -c /run/nginx/conf -e /run/nginx/error.log", env={"LD_LIBRARY_PATH": f"{OURS}/takeover"})
    wait("nginx listens", lambda: ":80 " in host.run("ss -tln"), 30)


def port_of(cell: str, number: int) -> int:
    return 20000 + 100 * number + CELLS.index(cell)


def curl(port: int, *asked: tuple[str, str, list[str]]) -> list[str]:
    """Of one connection: each with its file, path and options."""
    words = ["curl"]
    for file, path, options in asked:
        words += ["--next"] * (len(words) > 1) + ["-sSi", "--max-time", "120", "--local-port", str(port), "-w", "%{num_connects} %{http_code}\n",
                                                  "-o", f"{GOT}/{file}", *options, f"http://{shop.ADDRESS}{path}"]
    return words


def got(file: str) -> tuple[dict[str, str], bytes, bytes]:
    """A reply: its fields, its body, all of it."""
    text = pair.client.get(f"{GOT}/{file}")
    head, _, body = text.partition(b"\r\n\r\n")
    return {key.lower(): value for key, _, value in (line.partition(": ") for line in head.decode().split("\r\n"))}, body, text


def same(got: bytes, want: bytes) -> None:
    equal((len(got), hashlib.sha256(got).hexdigest()), (len(want), hashlib.sha256(want).hexdigest()))


def executions(name: str) -> list[list[str]]:
    """What the requests of this name were called, and who asked."""
    return [line.split()[2:] for line in backend.text().splitlines() if line.startswith(f"executes {name} ")]


def answered(name: str, file: str, size: int, *askers: str) -> dict[str, str]:
    """The reply is that of the last of these hosts; each of them has executed it once."""
    fields, body, _ = got(file)
    done = executions(name)
    equal([asker for _, asker in done], [LAN[asker] for asker in askers])
    same(body, answer(name, len(done), LAN[askers[-1]], size))
    # The second time it has the name that it had
    assert len({key for key, _ in done}) == 1 and "-" in done[0][0], done
    return fields


def dies(number: int) -> None:
    pair.settle(150)
    client, backup = pair.client, pair.backup()
    primary = OTHER[backup]
    name = primary if DEATHS[number] == "primary" else backup
    survivor = OTHER[name]
    client.run(f"rm -rf {GO} {GOT}; mkdir {GOT}")
    for cell, (path, options, status, _) in FILES.items():
        equal(client.run(curl(port_of(cell, number + 2), (f"whole-{cell}", path, options))), f"1 {status}\n")
    tag = got("whole-range")[0]["etag"]
    begun: dict[str, Process] = {}

    def size(cell: str) -> int:
        return int(client.run(f"stat -c %s {GOT}/{cell} 2>/dev/null || echo 0"))

    # One after the other: each waits for the others in the midst of its answer
    for cell in CELLS:
        file = FILES.get(cell)
        path, options = (file[0], file[1]) if file else (PROGRAMS[cell].format(f"{cell}.{number}"), [])
        # The other host knows it by the same tag
        more = [(f"{cell}.1", path, [*RANGE, "-H", f"If-Range: {tag}"])] if file else []
        begun[cell] = client.spawn(curl(port_of(cell, number), (cell, path, [*options, "--limit-rate", RATE]), *more,
                                        (f"after-{cell}", f"/app/sized/after-{cell}.{number}/1000/-", [])))
        held = f"{cell}.{number}" if cell.endswith("within") else ""
        wait(f"{cell} is in the midst of its answer", lambda: bool(executions(held)) if held else size(cell) > MIDDLE, 90)
        begun[cell].signal(signal.SIGSTOP)

    def kill() -> None:
        for process in begun.values():
            process.signal(signal.SIGCONT)
        pair.hosts[name].kill()
        now = {cell: size(cell) for cell in CELLS}
        print(f"# bytes that the client has: {now}", flush=True)
        assert all(n == 0 if cell.endswith("within") else n < SIZE - MIDDLE for cell, n in now.items()), "not in the midst"
        client.run(f"touch {GO}")

    pair.strike(f"{DEATHS[number]} killed", kill, survivor)
    wrong = []
    for cell in CELLS:
        try:
            status = FILES[cell][2] if cell in FILES else "200"
            equal((begun[cell].wait(150), begun[cell].text()), (0, f"1 {status}\n" + "0 206\n" * (cell in FILES) + "0 200\n"))
            if cell in FILES:
                same(got(cell)[2], got(f"whole-{cell}")[2])
                same(got(cell)[1], FILES[cell][3])
                same(got(f"{cell}.1")[1], FILES["range"][3])
            else:
                # What was logged is executed no more
                again = name == primary and cell.endswith("within")
                fields = answered(f"{cell}.{number}", cell, SIZE, primary, *[survivor] * again)
                equal("transfer-encoding" in fields, "chunked" in cell)
            answered(f"after-{cell}.{number}", f"after-{cell}", 1000, survivor)
        except AssertionError as error:
            wrong.append(f"{cell}: {error}")
    assert not wrong, "\n".join(wrong)


def web() -> None:
    """Answers go on, whichever host dies in the midst of them"""
    global pair, backend
    with Network(f"takeover-web-{SERVER}", SEED) as net:
        pair = Pair(net, patience="20s", memory="512M")
        try:
            # What a client has not asked for is still with the host
            pair.client.run("sysctl -qw net.ipv4.tcp_rmem='4096 32768 32768'")
            backend = pair.client.spawn([sys.executable, str(HERE / "backend.py")])
            for name in OTHER:
                serve(name)
            pair.watch()
            for number in range(len(DEATHS)):
                dies(number)
                for host in pair.hosts.values():
                    if host.dead:
                        pair.boot(host.name)
                        serve(host.name)
            pair.judge({port_of("static", number) for number in range(2 * len(DEATHS))})
        except BaseException:
            there = [host for host in pair.hosts.values() if host.name in OTHER and not host.dead]
            said = pair.log() + "".join(f"\n--- {h.name}\n" + h.run("tail -n 40 /run/*/error.log", check=False) for h in there)
            print("# " + said.replace("\n", "\n# "))
            raise


main(web)
