#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""nginx's module of takeover: two nginxes that write the same bytes, whatever is asked of them."""

import grp
import gzip
import os
import pwd
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pair import (BUILD, FAKE, LOG, PLACE, RESET, ROLES, Backend, Client, Host, Pair, behind_the_rest, chunked,
                  encrypted, equal, free_port, in_a_row, main, mark, request, run, split, tells_of_the_next,
                  tells_when_busy, until, writable)

MODULE = BUILD / "userspace/userspace/services/nginx/ngx_http_takeover_module.so"
SMALL, LARGE, BODY = os.urandom(1000).hex().encode(), os.urandom(6 << 20), os.urandom(1 << 20)
TAIL = request("/small", last=True)
STATUS_OK = "HTTP/1.1 200 OK"

backends = {role: Backend() for role in ROLES}


def configuration(role: str, ports: list[int], more: str = "", name: str = "",
                  threads: str = "thread_pool default threads=16;", workers: int = 2) -> str:
    place = PLACE / (name or role)
    temporary = "\n".join(f"    {name}_temp_path {place}/{name};" for name in
                          ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"""
load_module {MODULE};
daemon off;
user {pwd.getpwuid(65534).pw_name} {grp.getgrgid(65534).gr_name};
worker_processes {workers};
pid {place}/pid;
error_log {place}/errors info;
env FAKE_ROLE;
env FAKE_LOG;
env LD_PRELOAD;
{threads}
events {{ worker_connections 200; }}
http {{
{temporary}
    log_format notes '$takeover $status $body_bytes_sent $request_method $uri';
    access_log {place}/access.log notes;
    keepalive_timeout 20s;
    keepalive_requests 20;
    client_max_body_size 100m;
    root {place}/www;
    default_type application/octet-stream;
    port_in_redirect off;
    takeover on;
    takeover_mode sync-static;
    takeover_max_reply 30000000;
    proxy_set_header Idempotency-Key $takeover_request;
    {more}
    server {{
        listen 127.0.0.1:{ports[0]};
        gzip on;
        gzip_types application/octet-stream;
        gzip_proxied any;
        location /app/ {{
            takeover_mode dynamic;
            proxy_pass http://127.0.0.1:{backends[role].port};
        }}
        location /stream/ {{
            takeover_mode dynamic;
            proxy_buffering off;
            proxy_pass http://127.0.0.1:{backends[role].port};
        }}
        location /primary-only {{
            takeover_mode dynamic;
            error_page 404 =200 /small;
        }}
        location /failing/ {{
            takeover_mode dynamic;
            error_page 500 /small;
            proxy_pass http://127.0.0.1:{backends[role].port};
        }}
        location /gone {{
            takeover_mode dynamic;
            error_page 404 /small;
        }}
        location /try/ {{ try_files $uri @app; }}
        location @app {{
            takeover_mode dynamic;
            proxy_pass http://127.0.0.1:{backends[role].port};
        }}
        location /pages/ {{
            takeover_mode dynamic;
            ssi on;
            ssi_types *;
        }}
        location /static-page {{ ssi on; ssi_types *; }}
        location /pre/ {{ gzip_static on; }}
        location /always/ {{ alias {place}/www/pre/; gzip_static always; gunzip on; }}
        location /asked/ {{
            takeover_mode dynamic;
            auth_request /app/;
            alias {place}/www/;
        }}
        location /redirected {{ return 302 /small; }}
        location /ungated {{ takeover_mode static; }}
        location /off {{ takeover_mode off; }}
        location /limited {{ takeover_mode dynamic; client_max_body_size 1000; }}
    }}
    server {{
        listen 127.0.0.1:{ports[1]} ssl;
        ssl_certificate {PLACE}/certificate;
        ssl_certificate_key {PLACE}/key;
    }}
    server {{
        listen 127.0.0.1:{ports[2]};
        takeover_acknowledge on;
        takeover_mode dynamic;
        location / {{ proxy_pass http://127.0.0.1:{backends[role].port}; }}
    }}
    server {{ listen 127.0.0.1:{ports[3]} http2; }}
    server {{
        listen 127.0.0.1:{ports[4]};
        keepalive_time 2s;
        takeover_mode dynamic;
        location / {{ proxy_pass http://127.0.0.1:{backends[role].port}; }}
        location /small {{ takeover_mode sync-static; }}
    }}
}}
"""


def nginx(role: str, place: Path, ports: list[int], conf: str) -> Host:
    (place / "conf").write_text(conf)
    return Host(role, [NGINX, "-p", str(place), "-c", str(place / "conf"), "-e", str(place / "stderr")], ports, place.name)


def host(role: str) -> Host:
    place, ports = writable(PLACE / role), [free_port() for _ in range(5)]
    www = writable(place / "www")
    for name, data in (("small", SMALL), ("large", LARGE), ("ungated", LARGE)):
        (www / name).write_bytes(data)
        os.utime(www / name, (1e9, 1e9))
    page = '<!--#include virtual="/{0}" -->B<!--#include virtual="/small" -->C<!--#include virtual="/{0}" -->'
    writable(www / "pages")
    writable(www / "pre")
    for name, data in ("only", SMALL + b"only"), ("both", SMALL + b"both"), ("both.gz", gzip.compress(SMALL + b"both", mtime=0)):
        (www / "pre" / name).write_bytes(data)
        os.utime(www / "pre" / name, (1e9, 1e9))
    for name, include in ("pages/page", "app/?0"), ("static-page", "small"), ("static-page-large", "large"):
        (www / name).write_text(page.format(include))
        os.utime(www / name, (1e9, 1e9))
    if role == "primary":
        (www / "primary-only").write_bytes(BODY)
    return nginx(role, place, ports, configuration(role, ports))


def host_with_few_threads(role: str) -> Host:
    place, ports = writable(PLACE / f"few-{role}"), [free_port() for _ in range(5)]
    threads = "\n".join(f"thread_pool {pool} threads=2 max_queue=6;" for pool in ("default", "takeover"))
    return nginx(role, place, ports, configuration(role, ports, name=place.name, threads=threads, workers=1))


def executed() -> tuple[int, int]:
    """By each, since the last call."""
    counts = tuple(backends[role].count for role in ROLES)
    for role in ROLES:
        backends[role].count = 0
    return counts[0], counts[1]


def files() -> None:
    """Files: the same bytes from both, at different times, without Date"""
    cases: list[tuple[str, str, int]] = [
        ("/small", "", 200), ("/large", "", 200), ("/none", "", 404), ("/", "", 403), ("/redirected", "", 302),
        ("/small", "If-Modified-Since: Mon, 01 Jan 2024 00:00:00 GMT", 200),
        ("/small", "If-Modified-Since: Sun, 09 Sep 2001 01:46:40 GMT", 304),
        ("/large", "Range: bytes=1000-2999999", 206), ("/large", "Range: bytes=99999999-", 416),
        ("/large", "Range: bytes=0-99,200-299,1000-1099", 200),
        ("/small", "Accept-Encoding: gzip", 200), ("/large", "Accept-Encoding: gzip", 200)]
    for path, field, status in cases:
        data = request(path, *[field] * bool(field), last=True)
        reply, = split(pair.same(data, later=1.1 if path == "/small" else 0))
        equal(int(reply[0].split()[1]), status)
        assert "date" not in reply[1] and "server" in reply[1], reply[:2]
        if status == 200 and path == "/large" and "content-encoding" not in reply[1]:
            equal(reply[2], LARGE)
    # What is compressed already is sent so
    for path, encoding in ("/pre/only", None), ("/pre/both", "gzip"), ("/always/both", "gzip"):
        reply, = split(pair.same(request(path, "Accept-Encoding: gzip", last=True)))
        equal((reply[1].get("content-encoding"), gzip.decompress(reply[2]) if encoding else reply[2]),
              (encoding, SMALL + path[-4:].encode()))
    replies = split(pair.same(request("/always/both")))
    equal((replies[0][1].get("content-encoding"), replies[0][2], replies[0][1]["connection"]), (None, SMALL + b"both", "close"))
    head = pair.same(request("/large", method="HEAD", last=True))
    assert b"Content-Length: %d" % len(LARGE) in head and head.endswith(b"\r\n\r\n") and b"Date" not in head


def malformed() -> None:
    """Requests that no server takes: the same answer, and an end"""
    get = b"GET / HTTP/1.1\r\nHost: a"
    for data, status in ((b"nonsense\r\n\r\n", 400), (b"GET /" + b"x" * 40000 + b" HTTP/1.1\r\n\r\n", 414),
                         (b"GET / HTTP/9.9\r\n\r\n", 505), (b"GET / HTTP/1.1\r\n\r\n", 400),
                         (get + b"\r\nx: " + b"y" * 40000 + b"\r\n\r\n", 400),
                         (request("/", "Content-Length: 1x"), 400),
                         (request("/app/", "Transfer-Encoding: gzip", method="POST"), 501),
                         (request("/app/", "Transfer-Encoding: chunked", method="POST", body=b"zz\r\nxx\r\n"), 400),
                         (request("/limited", method="POST", body=b"x" * 2000), 413),
                         (request("/app/") + b"nonsense\r\n\r\n", 400)):
        reply = split(pair.same(data, later=1.1 if b"9.9" in data else 0))[-1]
        equal((data[:40], int(reply[0].split()[1])), (data[:40], status))
        assert "date" not in reply[1], reply
    equal(executed(), (1, 0))


def dynamic() -> None:
    """A dynamic request: one execution, one reply, from both"""
    for path in ("/app/?3000", "/app/?20000", "/stream/?20000", "//app/.//?0", "/app/?300000"):
        size = int(path.partition("?")[2])
        for field in "", "Accept-Encoding: gzip":
            reply, = split(pair.same(request(path, *[field] * bool(field), last=True)))
            assert reply[0] == STATUS_OK and reply[1].get("content-encoding") or len(reply[2]) == size + 2, reply
            equal((executed(), "date" in reply[1]), ((1, 0), True))
    # What is on one host's disk does not matter
    equal(split(pair.same(request("/primary-only", last=True)))[0][2], BODY)
    head = pair.same(request("/app/", method="HEAD", last=True))
    assert head.endswith(b"\r\n\r\n") and b"200 OK" in head, head
    for h in pair.hosts:
        h.notes()
    pair.same(request("/app/?4992", last=True))
    pair.same(TAIL)
    notes = [h.notes() for h in pair.hosts]
    equal(notes[0], ["primary 200 4994 GET /app/", f"primary 200 {len(SMALL)} GET /small"])
    equal(notes[1], [line.replace("primary", "backup") for line in notes[0]])
    executed()


def inner() -> None:
    """An error's page, what a location gives to another one, what is included and who is asked: one request"""
    after = "/app/?10"
    cases: list[tuple[str, str, bytes | int]] = [
        ("/gone", "404", SMALL), (after, "200", 10), ("/try/x?20", "200", 20), (after, "200", 10),
        ("/asked/small", "200", SMALL), ("/pages/page", "200", len(SMALL)), (after, "200", 10)]
    backends["primary"].keys.clear()
    client = Client(pair)
    port = client.sockets[0].getsockname()[1]
    for (path, _, body), got in zip(cases, in_a_row(client, cases, TAIL)):
        if isinstance(body, bytes):
            equal((path, got), (path, body))
        else:
            assert body < len(got) < body + 10, (path, got)
    equal(executed(), (7, 0))
    # The parts of a page are asked for at once, and come in any order
    equal(sorted(backends["primary"].keys), [f"{port:016x}-{name}" for name in ("2", "3.1", "4", "5.1", "6.1", "6.2", "7")])
    until(lambda: not list(LOG.glob("*.part")))
    # Begun on one, and executed again by the other
    for h in pair.hosts:
        h.notes()
    for b in backends.values():
        b.keys.clear()
    backends["primary"].hold.clear()
    client = Client(pair)
    client.send(request("/small") + request("/try/x?9") + TAIL)
    until(lambda: backends["primary"].count)
    mark("promoted")
    equal([len(r[2]) for r in split(client._read(client.sockets[1], -1, 0))], [len(SMALL), 11, len(SMALL)])
    backends["primary"].hold.set()
    client.close()
    until(lambda: pair.primary.notes())
    equal((executed(), backends["primary"].keys), ((1, 1), backends["backup"].keys))
    mark()


def unknown_lengths() -> None:
    """What each host makes for itself is the same bytes, however fast its own client reads: no chunks"""
    for path, body in (("/static-page", SMALL + b"B" + SMALL + b"C" + SMALL), ("/static-page-large", LARGE + b"B" + SMALL + b"C" + LARGE),
                       ("/large", LARGE)):
        client = Client(pair, window=16384)
        client.send(request(path, "Accept-Encoding: gzip") + (TAIL if path == "/large" else b""))
        fast, slow = client.read_at_two_speeds()
        client.close()
        reply = split(fast)[0]
        equal((path, fast == slow, reply[2] == body), (path, True, True))
        equal((reply[1].get("content-encoding"), reply[1].get("transfer-encoding")), (None, None))
        # The one whose length is not known ends the connection
        equal(reply[1]["connection"], "keep-alive" if path == "/large" else "close")
    # Of a dynamic one the reply is logged as it is
    reply, = split(pair.same(request("/primary-only", "Accept-Encoding: gzip", last=True)))
    equal((reply[1].get("content-encoding"), reply[1].get("transfer-encoding")), ("gzip", "chunked"))
    # Of a connection that one host alone has, too
    for role, how in enumerate(("alone", "promoted")):
        mark(how)
        for path, encoding in ("/large", "gzip"), ("/ungated", None):
            reply, = split(pair.both(request(path, "Accept-Encoding: gzip", last=True))[role])
            equal((how, path, reply[1].get("content-encoding")), (how, path, encoding))
        mark()


def ends() -> None:
    """Whether a connection is kept both know"""
    old = pair.same(request("/app/", version="1.0"))
    assert b"Connection: close" in old and b"chunked" not in old
    old = pair.same(request("/app/", "Connection: keep-alive", version="1.0") + TAIL)
    equal(old.count(b"HTTP/1.1 200"), 2)
    many = b"".join(request(path) * 10 for path in ("/app/", "/small", "/app/?70000"))
    equal(len(split(pair.same(many))), 20)
    executed()
    replies = split(pair.same(request("/app/") + request("/app/", last=True) + request("/app/")))
    equal((len(replies), executed()), (2, (2, 0)))


def pipelined() -> None:
    """Pipelined: every mode in turn, each reply in its place"""
    paths = ["/app/?10", "/small", "/large", "/app/?200000", "/ungated", "/stream/?50", "/none", "/small", "/ungated"]
    replies = split(pair.same(b"".join(map(request, paths)) + TAIL, later=0.2))
    equal([len(r[2]) for r in replies][:6], [12, 2000, len(LARGE), 200002, len(LARGE), 52])
    equal((len(replies), executed()), (len(paths) + 1, (3, 0)))


def bodies() -> None:
    """Bodies of any size and form, read whole before anyone executes"""
    for body in (b"x", BODY[:20000], BODY, BODY * 5):
        forms: list[tuple[list[str], bytes]] = [([], body), (["Transfer-Encoding: chunked"], chunked(body, 7777))]
        for fields, data in forms:
            reply = split(pair.same(request("/app/?7", *fields, method="POST", body=data, last=True)))[-1]
            equal((reply[0], reply[2][2:-7] == body, executed()), (STATUS_OK, True, (1, 0)))
    client = Client(pair)
    client.send(request("/app/?7", "Expect: 100-continue", f"Content-Length: {len(BODY)}", method="POST", last=True))
    equal(client.read(25), [b"HTTP/1.1 100 Continue\r\n\r\n"] * 2)
    client.send(BODY)
    a, b = client.read()
    equal((a == b, executed()), (True, (1, 0)))


def big() -> None:
    """Replies that no memory holds, also to clients that read slowly, and many at once"""
    reply, = split(pair.same(request("/app/?20000000", last=True)))
    equal(len(reply[2]), 20000002)
    client = Client(pair)
    client.send(request("/stream/?9000000") + TAIL)
    time.sleep(1)
    slow = [bytearray(), bytearray()]
    for got, s in zip(slow, client.sockets):
        while data := s.recv(200000):
            got += data
            time.sleep(0.002)
    equal((slow[0] == slow[1], len(split(bytes(slow[0]))[0][2])), (True, 9000002))
    clients = [Client(pair) for _ in range(30)]
    for client in clients:
        client.send(request("/app/?300000") + request("/large") + TAIL)
    for client in clients:
        a, b = client.read()
        equal((a == b, len(a) > 6300000), (True, True))
    equal(executed(), (32, 0))


def loop() -> None:
    """Whoever waits for the other host does not keep others waiting"""
    backends["primary"].hold.clear()
    clients = [Client(pair) for _ in range(8)]
    for client in clients:
        client.send(request("/app/", last=True))
    begin = time.monotonic()
    for _ in range(4):
        pair.same(TAIL)
    assert time.monotonic() - begin < 5
    backends["primary"].hold.set()
    for client in clients:
        a, b = client.read()
        equal((a == b, len(split(a))), (True, 1))
    executed()


def promoted() -> None:
    """The backup executes what the primary has not logged, and nothing that it has"""
    for method, body in (("GET", b""), ("POST", BODY[:300000])):
        backends["primary"].hold.clear()
        client = Client(pair)
        client.send(request("/small") + request("/app/?9", method=method, body=body) + TAIL)
        until(lambda: backends["primary"].count)
        mark("promoted")
        replies = split(client._read(client.sockets[1], -1, 0))
        equal([len(r[2]) for r in replies], [len(SMALL), 2 + len(body) + 9, len(SMALL)])
        equal(["date" in r[1] for r in replies], [False, True, False])
        backends["primary"].hold.set()
        client.close()
        until(lambda: pair.primary.notes())
        equal(executed(), (1, 1))
        mark()
    # Logged, and promoted before this host has read the request
    client = Client(pair)
    client._send(client.sockets[0], request("/app/", last=True), 0)
    first = client._read(client.sockets[0], -1, 0)
    (LOG / "promoted").touch()
    client._send(client.sockets[1], request("/app/", last=True), 0)
    equal((client._read(client.sockets[1], -1, 0) == first, executed()), (True, (1, 0)))
    mark()


def own_errors() -> None:
    """What one host has no room for ends its copy, or its protection: the backup makes no answer of it"""
    body = BODY[:300000]
    for role, status in ("backup", "200"), ("primary", "500"):
        for fields, data in ([], body), (["Transfer-Encoding: chunked"], chunked(body, 7777)):
            mark(f"no-room-{role}")
            a, b = pair.both(request("/app/?7", *fields, method="POST", body=data, last=True))
            (line, _, got), = split(a)
            equal((line.split()[1], b), (status, RESET))
            equal((executed(), status == "500" or got[2:-7] == body), ((int(status == "200"), 0), True))
            # With a page for the error
            a, b = pair.both(request("/failing/?7", *fields, method="POST", body=data, last=True))
            (line, _, got), = split(a)
            equal((line.split()[1], b, executed()[1], status == "200" or got == SMALL), (status, RESET, 0, True))
    # A reply that has no room, either: it comes whole all the same
    a, b = pair.both(request("/stream/?300000", method="POST", body=BODY[:8000]) + TAIL)
    replies = split(a)
    equal((len(replies), replies[0][2][2:8002] == BODY[:8000], len(replies[0][2]), replies[1][2], b),
          (2, True, 308002, SMALL, RESET))
    executed()
    mark()


def again() -> None:
    """The primary goes on alone; protected again, by a backup to which the connection is new"""
    client = Client(pair)
    tells_when_busy(client, "/app/")
    client.close()
    tells_of_the_next(pair, "/app/")
    client = Client(pair)
    client.send(request("/app/") + request("/small"))
    client.read(rest=1.5)
    client.send(request("/ungated"))
    client.read(rest=1.5)
    equal((LOG / "gates").read_text(), "201")
    mark("alone")
    tells_when_busy(client, "/app/", alone=True)
    tells_of_the_next(pair, "/app/", alone=True)
    client.reset(client.sockets.pop())
    mark("again")
    client.connect(pair.backup.port, port=client.sockets[0].getsockname()[1])
    client.send(request("/app/") + request("/ungated") + TAIL)
    a, b = client.read()
    equal((a == b, len(split(a)), executed()), (True, 3, (50, 0)))
    # Its gate is shut, whatever was so before
    equal((LOG / "gates").read_text()[:1], "2")
    client.close()
    mark()


def for_long() -> None:
    """keepalive_time, which each of the two has begun at another time, ends nothing that both have"""
    client = Client(pair, which=4)
    client._send(client.sockets[0], request("/small"), 0)
    client._read(client.sockets[0], -1, 2.5)
    client.reset(client.sockets.pop())
    mark("again")
    client.connect(pair.backup.ports[4], port=client.sockets[0].getsockname()[1])
    client.send(request("/small"))
    a, b = client.read(rest=2.5)
    equal((a == b, b"Connection: keep-alive" in a), (True, True))
    client.send(TAIL)
    a, b = client.read()
    equal((a == b, len(split(a))), (True, 1))
    mark()
    # One that no other host has, it ends
    with socket.create_connection(("127.0.0.1", pair.primary.ports[4]), source_address=("127.0.0.2", 0)) as s:
        for kept in (True, False):
            s.sendall(request("/small"))
            assert (b"Connection: keep-alive" in client._read(s, -1, 2.5)) == kept


def opposite() -> None:
    """Two services, each host the primary of one: those who wait as the backup of one do not keep back the other"""
    mark(f"swapped-{few.primary.ports[4]}", f"swapped-{few.backup.ports[4]}")
    clients = [[Client(few, which=2) for _ in range(6)], [Client(few, which=4) for _ in range(6)]]
    for service, backup in (0, 1), (1, 0):
        for client in clients[service]:
            client._send(client.sockets[backup], request("/app/", last=True), 0)
    time.sleep(1)
    for service, primary in (0, 0), (1, 1):
        for client in clients[service]:
            client._send(client.sockets[primary], request("/app/", last=True), 0)
    for client in clients[0] + clients[1]:
        a, b = client.read(rest=20)
        equal((a == b, [r[0] for r in split(a)]), (True, [STATUS_OK]))
        client.close()
    equal(executed(), (6, 6))
    mark()


def crowded() -> None:
    """No thread is free, nor room to wait for one: a backup's copy ends, and a primary goes on alone"""
    clients = [Client(few, which=2) for _ in range(20)]
    for client in clients:
        client._send(client.sockets[1], request("/app/", last=True), 0)
    time.sleep(1)
    for client in clients:
        client._send(client.sockets[0], request("/app/", last=True), 0)
    got = [client.read() for client in clients]
    equal([[r[0] for r in split(a)] for a, _ in got], [[STATUS_OK]] * 20)
    # Two have a thread, and six wait for one
    equal((sum(a == b for a, b in got), sum(b == RESET for _, b in got)), (8, 12))
    for client in clients:
        client.close()
    assert "unprotected: no thread" in few.backup.errors.read_text()
    executed()
    # Of replies that wait for an acknowledgment, eight; others come unprotected, and so do those to requests that come then
    backends["primary"].hold.clear()
    clients = [Client(few, which=2) for _ in range(30)]
    for count, client in enumerate(clients[:20]):
        client._send(client.sockets[0], request("/app/", last=True), 0)
        until(lambda: backends["primary"].count > count)
    mark("wait")
    backends["primary"].hold.set()
    time.sleep(1)
    for client in clients[20:]:
        client._send(client.sockets[0], request("/app/", last=True), 0)
    with ThreadPoolExecutor(30) as pool:
        at_once = list(pool.map(lambda c: c._read(c.sockets[0], -1, 3), clients))
    mark()
    later = [client._read(client.sockets[0], -1, 0) for client in clients]
    equal((at_once[:20].count(b""), at_once[20:].count(b"")), (8, 0))
    equal([[r[0] for r in split(x + y)] for x, y in zip(at_once, later)], [[STATUS_OK]] * 30)
    for client in clients:
        client.close()
    assert "unprotected: no thread" in few.primary.errors.read_text()
    executed()
    mark()


def refused() -> None:
    """What cannot be logged ends the backup's connection alone"""
    for why in ("no-log", "full", ""):
        mark(*[why] * bool(why))
        size = 1000 if why else 31000000
        a, b = pair.both(request(f"/app/?{size}", method="POST", body=b"hello", last=True))
        equal((len(split(a)[0][2]), b, executed()), (size + 7, RESET, (1, 0)))
    assert "cannot be logged" in pair.primary.errors.read_text() and "unprotected" in pair.backup.errors.read_text()
    mark()
    # The client goes in the middle: the reply is not whole, and is not logged
    backends["primary"].hold.clear()
    client = Client(pair)
    client.send(request("/app/?9000000"))
    until(lambda: backends["primary"].count)
    client.close()
    backends["primary"].hold.set()
    until(lambda: not list(LOG.glob("*.part")))
    executed()
    mark()


def acknowledged() -> None:
    """takeover_acknowledge: not a byte before the backup's word"""
    mark("wait")
    client = Client(pair, which=2)
    client.send(request("/app/?1000", last=True))
    a, b = client.read(rest=1)
    equal((a, len(split(b)[0][2])), (b"", 1002))
    mark()
    equal(client._read(client.sockets[0], -1, 0) == b, True)
    # The client goes while a thread waits
    mark("wait")
    client = Client(pair, which=2)
    client.send(request("/app/?1000"))
    client.read(rest=1.5)
    for s in client.sockets:
        client.reset(s)
    time.sleep(0.5)
    mark()
    time.sleep(0.5)
    executed()


def gates() -> None:
    """Static: ungated where it is safe, gated again for what follows"""
    client = Client(pair)
    for path in ("/small", "/ungated", "/ungated", "/app/", "/ungated"):
        client.send(request(path))
        client.read(rest=1)
    equal((LOG / "gates").read_text(), "101")
    # What is answered before it has got as far as its mode
    client.send(request("/redirected"))
    client.read(rest=1)
    equal((LOG / "gates").read_text(), "1010")
    client.send(request("/ungated") + b"nonsense\r\n\r\n")
    client.read()
    client.close()
    equal((LOG / "gates").read_text(), "1010232")
    mark()
    behind_the_rest(pair, "/app/")
    equal((LOG / "gates").read_text(), "20")
    executed()


def unprotected() -> None:
    """TLS, HTTP/2 and what is configured so: the primary goes on alone, and says it"""
    a, b = pair.both(request("/off", last=True))
    equal((split(a)[0][0], b), ("HTTP/1.1 404 Not Found", RESET))
    a, b = (encrypted(h.ports[1], "/small") for h in pair.hosts)
    assert a.endswith(SMALL) and b in (b"", RESET), (a, b)
    curl = ["curl", "-s", "--http2-prior-knowledge", "-o", PLACE / "got", "-w", "%{http_code}"]
    got = [run(*curl, f"http://127.0.0.1:{h.ports[3]}/small", ok=None if h is pair.backup else 0) for h in pair.hosts]
    equal(got[0], "200")
    for h in pair.hosts:
        for why in ("TLS", "its mode is off", "HTTP/2"):
            assert f"unprotected: {why}" in h.errors.read_text(), (h.role, why)


def ordinary() -> None:
    """A connection that no other host has is as it was"""
    data = request("/app/") + request("/large", "Range: bytes=0-9,20-29") + TAIL
    for h in pair.hosts:
        h.notes()
    a, b = pair.both(data, address="127.0.0.2")
    for got in (a, b):
        assert got.count(b"\r\nDate: ") == 3 and b"multipart/byteranges" in got
    equal(executed(), (1, 1))
    for h in pair.hosts:
        assert h.notes()[-1].startswith("- "), h.notes()


def mistaken() -> None:
    """Mistakes in the configuration, and their messages"""
    for more, message in (("takeover_mode dynamique;", 'invalid value "dynamique"'),
                          ("takeover maybe;", "invalid value"), ("takeover_max_reply many;", "invalid value"),
                          ("takeover_mode;", "invalid number of arguments")):
        text = configuration("primary", pair.primary.ports, "server { " + more + " }")
        (PLACE / "wrong").write_text(text)
        said = run(NGINX, "-t", "-p", PLACE / "primary", "-c", PLACE / "wrong", ok=1, env={"LD_PRELOAD": str(FAKE)})
        assert message in said, said


def clean() -> None:
    """No process died, and no file is left behind"""
    for h in pair.hosts + few.hosts:
        text = h.errors.read_text()
        assert "exited on signal" not in text and "[alert]" not in text, text
        equal([p for p in (h.place / "client_body").rglob("*") if p.is_file()], [])


NGINX = "/usr/sbin/nginx"
run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=service.example",
    "-keyout", PLACE / "key", "-out", PLACE / "certificate")
PLACE.chmod(0o755)
pair = Pair([host(role) for role in ROLES])
few = Pair([host_with_few_threads(role) for role in ROLES])
main(files, malformed, dynamic, inner, unknown_lengths, ends, pipelined, bodies, big, loop, promoted, own_errors, again,
     for_long, opposite, crowded, refused, acknowledged, gates, unprotected, ordinary, mistaken, clean)
