#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""mod_takeover: two Apaches that write the same bytes, whatever is asked of them.

usage: apache.py MPM
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

from pair import (BUILD, CONTINUE, FAKE, LOG, PLACE, RESET, ROLES, Backend, Client, Host, Pair, behind_the_rest,
                  chunked, encrypted, equal, free_port, in_a_row, main, mark, request, run, split, tells_of_the_next,
                  tells_when_busy, until, writable)

HERE = Path(__file__).resolve().parent
MODULE = BUILD / "userspace/userspace/services/apache/mod_takeover.so"
MPM = sys.argv[1]
SBIN, HTTPD, MODULES = (run("apxs", "-q", name).strip() for name in ("SBINDIR", "PROGNAME", "LIBEXECDIR"))
HTTPD = f"{SBIN}/{HTTPD}"
SMALL, LARGE, BODY = os.urandom(1000).hex().encode(), os.urandom(6 << 20), os.urandom(1 << 20)
DYNAMIC = "/cgi-bin/program"
TAIL = request("/static/small", last=True)

backend = Backend()


def configuration(role: str, ports: list[int], more: str = "") -> str:
    place = PLACE / role
    modules = [f"mpm_{MPM}", "authz_core", "cgi" if MPM == "prefork" else "cgid", "alias", "mime", "dir", "env",
               "proxy", "proxy_http", "ssl", "http2", "deflate", "filter", "setenvif", "include", "rewrite"]
    # It looks at a request before the server does. With it, a child of prefork that is to end drops one of which it has half.
    modules += ["reqtimeout"] * (MPM != "prefork")
    loads = "\n".join(f"LoadModule {m}_module {MODULES}/mod_{m}.so" for m in modules)
    return f"""
ServerRoot {place}
{loads}
LoadModule takeover_module {MODULE}
ServerName service.example
User #65534
Group #65534
PidFile {place}/pid
DefaultRuntimeDir {place}
Mutex file:{place} default
ErrorLog {place}/errors
LogLevel info
LogFormat "%{{takeover}}n %>s %b %m %U" notes
CustomLog {place}/access.log notes
{"" if MPM == "prefork" else f"ScriptSock {place}/cgid"}
StartServers 1
{"MaxRequestWorkers 12" if MPM == "prefork" else "ThreadsPerChild 12"}
KeepAlive on
MaxKeepAliveRequests 20
KeepAliveTimeout 20
Timeout 20
TypesConfig /dev/null
DocumentRoot {place}/www
SetEnv ROLE {role}
SetEnv EXECUTED {place}/executed
SetEnv HOLD {PLACE}
ScriptAlias /cgi-bin/ {place}/cgi-bin/
ScriptAlias /alias/ {place}/cgi-bin/
ProxyPass /proxy/ http://127.0.0.1:{backend.port}/
SetOutputFilter DEFLATE
<Directory {place}>
    Require all granted
</Directory>
<Directory {place}/www>
    Options +Includes
    AddOutputFilter INCLUDES .shtml
</Directory>
<Directory {place}/cgi-bin>
    RewriteEngine on
    RewriteRule ^pretty$ /cgi-bin/program?7 [L]
</Directory>
<Directory {place}/cgi-bin/narrow>
    LimitRequestBody 1000
</Directory>
<LocationMatch ^/(limited|cgi-bin/limited)>
    LimitRequestBody 1000
</LocationMatch>
<Location /cgi-bin/gone>
    ErrorDocument 404 /static/small
</Location>
<Location /static/gone>
    ErrorDocument 404 /cgi-bin/program?5
</Location>
LimitRequestBody 100000000

TakeoverEngine on
TakeoverPrefix / sync-static
TakeoverPrefix /cgi-bin/ dynamic
TakeoverPrefix /cgi-bin/off off
TakeoverPrefix /proxy/ dynamic
TakeoverPrefix /ungated static
TakeoverPrefix /pages/ dynamic
TakeoverMaxReply 30000000
TakeoverMaxBody 10000000
<Location /alias/program>
    TakeoverMode dynamic
</Location>
Listen 127.0.0.1:{ports[0]}
Listen 127.0.0.1:{ports[1]}
Listen 127.0.0.1:{ports[2]}
Listen 127.0.0.1:{ports[3]}
<VirtualHost *:{ports[1]}>
    SSLEngine on
    SSLCertificateFile {PLACE}/certificate
    SSLCertificateKeyFile {PLACE}/key
</VirtualHost>
<VirtualHost *:{ports[2]}>
    TakeoverAcknowledge on
</VirtualHost>
<VirtualHost *:{ports[3]}>
    Protocols h2c http/1.1
</VirtualHost>
{more}
"""


def host(role: str) -> Host:
    place, ports = writable(PLACE / role), [free_port() for _ in range(4)]
    www, cgi = writable(place / "www/static"), writable(place / "cgi-bin")
    pages, narrow = writable(place / "www/pages"), writable(cgi / "narrow")
    for name, data in (("small", SMALL), ("large", LARGE)):
        (www / name).write_bytes(data)
        os.utime(www / name, (1e9, 1e9))
    (place / "www/ungated").write_bytes(LARGE)
    os.utime(place / "www/ungated", (1e9, 1e9))
    for directory, virtual in (www, "fixed"), (pages, "program?9"):
        include = f'<!--#include virtual="/cgi-bin/{virtual}" -->'
        (directory / "page.shtml").write_text(f'A{include}B<!--#include virtual="/static/small" -->C{include}\n')
        os.utime(directory / "page.shtml", (1e9, 1e9))
    (cgi / "fixed").write_text('#!/bin/sh\necho >> "$EXECUTED"\nprintf "Content-Type: text/plain\\r\\n\\r\\nfixed"\n')
    (cgi / "fixed").chmod(0o755)
    for at in cgi / "program", cgi / "limited", narrow / "program":
        shutil.copy(HERE / "program", at)
    if role == "primary":
        shutil.copy(HERE / "program", cgi / "primary-only")
    writable(place / "tmp")
    (place / "conf").write_text(configuration(role, ports))
    return Host(role, [HTTPD, "-f", str(place / "conf"), "-DFOREGROUND"], ports)


def files() -> None:
    """Files: the same bytes from both, at different times, without Date"""
    cases: list[tuple[str, str, int]] = [
        ("/static/small", "", 200), ("/static/large", "", 200), ("/static/none", "", 404), ("/", "", 404),
        ("/static/small", "If-Modified-Since: Mon, 01 Jan 2024 00:00:00 GMT", 304),
        ("/static/large", "Range: bytes=1000-2999999", 206), ("/static/large", "Range: bytes=99999999-", 416),
        ("/static/large", "Range: bytes=0-99,200-299,1000-1099", 200),
        ("/static/small", "Accept-Encoding: gzip", 200), ("/static/large", "Accept-Encoding: gzip", 200),
        ("/static/small", "Expect: something", 417), ("/%zz", "", 400), ("/../..", "", 400)]
    for path, field, status in cases:
        data = request(path, *[field] * bool(field), last=True)
        reply, = split(pair.same(data, later=1.1 if path == "/static/small" else 0))
        equal(int(reply[0].split()[1]), status)
        assert "date" not in reply[1] and "server" in reply[1], reply[:2]
        if status == 200 and path == "/static/large" and "content-encoding" not in reply[1]:
            equal(reply[2], LARGE)
    head = pair.same(request("/static/large", method="HEAD", last=True))
    assert b"Content-Length: %d" % len(LARGE) in head and head.endswith(b"\r\n\r\n") and b"Date" not in head
    # Also in chunks, however fast each host's client reads
    client = Client(pair, window=16384)
    client.send(request("/static/large", "Accept-Encoding: gzip", last=True))
    fast, slow = client.read_at_two_speeds()
    client.close()
    assert b"\r\nTransfer-Encoding: chunked\r\n" in fast and fast == slow, fast[:500]
    # Kept, one after the other, with what they count down
    replies = split(pair.same(b"".join(request("/static/small") for _ in range(25)), later=1.1))
    equal((len(replies), replies[-1][1]["connection"]), (21, "close"))


def malformed() -> None:
    """Requests that no server takes: the same answer, and an end"""
    get = b"GET / HTTP/1.1\r\nHost: a"
    for data, status in ((b"nonsense\r\n\r\n", 400), (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
                         (b"GET / HTTP/9.9\r\n\r\n", 400), (get + b" b\r\n\r\n", 400), (b"GET / HTTP/1.1\r\n\r\n", 400),
                         (get + b"\r\nbad\r\n\r\n", 400), (get + b"\r\nx: " + b"y" * 9000 + b"\r\n\r\n", 400),
                         (request("/", "Content-Length: 1x"), 400), (request("/", "Transfer-Encoding: gzip"), 400),
                         (request(DYNAMIC, "Transfer-Encoding: chunked", method="POST", body=b"zz\r\nxx\r\n"), 400),
                         (request(DYNAMIC, *CONTINUE, "Transfer-Encoding: chunked", method="POST", body=b"zz\r\n"), 400),
                         (request(DYNAMIC, "Content-Length: 200000000", method="POST"), 413),
                         (request("/limited/x", method="POST", body=b"x" * 2000), 413),
                         (request("/cgi-bin/limited", method="POST", body=b"x" * 2000), 413)):
        reply = split(pair.same(data, later=1.1 if b"9.9" in data else 0))[-1]
        equal((data[:40], int(reply[0].split()[1])), (data[:40], status))
        assert "date" not in reply[1], reply
    equal(pair.executed(), (0, 0))
    # A directory's limit the primary alone comes to know
    reply = split(pair.same(request("/cgi-bin/narrow/program", method="POST", body=b"x" * 2000, last=True)))[-1]
    equal((int(reply[0].split()[1]), pair.backup.executed()), (413, 0))
    pair.executed()


def dynamic() -> None:
    """A dynamic request: one execution, one reply, from both"""
    for path in (DYNAMIC, "/%63gi-bin//./program", "/alias/program", "/static/../cgi-bin/program"):
        reply, = split(pair.same(request(path + "?3000", last=True)))
        assert reply[0] == "HTTP/1.1 200 OK" and reply[2].startswith(b"primary\n") and len(reply[2]) == 3008, reply
        assert "date" in reply[1], reply
        equal(pair.executed(), (1, 0))
    # What is on one host's disk does not matter
    equal(split(pair.same(request("/cgi-bin/primary-only", last=True)))[0][0], "HTTP/1.1 200 OK")
    equal(split(pair.same(request("/cgi-bin/none", last=True)))[0][0], "HTTP/1.1 404 Not Found")
    equal(pair.executed(), (1, 0))
    head = pair.same(request(DYNAMIC, method="HEAD", last=True))
    assert head.endswith(b"\r\n\r\n") and b"200 OK" in head, head
    equal(pair.executed(), (1, 0))
    pair.primary.notes(), pair.backup.notes()
    pair.same(request(DYNAMIC + "?4992", last=True))
    pair.same(request("/cgi-bin/none", last=True))
    pair.same(TAIL)
    notes = [h.notes() for h in pair.hosts]
    equal(notes[1], [line.replace("primary", "backup") for line in notes[0]])
    assert notes[1][0].startswith("backup 200 50") and notes[1][1].startswith("backup 404 "), notes
    pair.executed()


def inner() -> None:
    """An error's page, what is rewritten and what is included are no requests of their own"""
    after = DYNAMIC + "?10"
    cases = [("/cgi-bin/gone", "404", SMALL), (after, "200", None), ("/cgi-bin/pretty", "200", None),
             (after, "200", None), ("/static/gone", "404", None),
             ("/static/page.shtml", "200", b"AfixedB" + SMALL + b"Cfixed\n"), ("/static/small", "200", SMALL),
             ("/pages/page.shtml", "200", None), (after, "200", None)]
    for h in pair.hosts:
        h.notes(), h.names()
    client = Client(pair)
    port = client.sockets[0].getsockname()[1]
    for (path, _, body), got in zip(cases, in_a_row(client, cases, TAIL)):
        equal((path, got if body else got[:3]), (path, body or (b"Apr" if "page" in path else b"pri")))
    # A static page's parts both execute, as they do the page
    equal(pair.executed(), (9, 2))
    equal([h.names() for h in pair.hosts],
          [[f"{port:016x}-{name}" for name in ("2", "3.1", "4", "5", "8.1", "8.3", "9")], []])
    notes = [h.notes() for h in pair.hosts]
    equal((len(notes[0]), notes[1]), (10, [line.replace("primary", "backup") for line in notes[0]]))
    until(lambda: not list(LOG.glob("*.part")))
    # Begun on one, and executed again by the other
    hold = PLACE / "wait-primary"
    hold.touch()
    client = Client(pair)
    client.send(request("/static/small") + request("/cgi-bin/pretty") + TAIL)
    until(lambda: pair.primary.executed_file.exists())
    mark("promoted")
    equal([r[2][:7] for r in split(client._read(client.sockets[1], -1, 0))], [SMALL[:7], b"backup\n", SMALL[:7]])
    hold.unlink()
    client.close()
    until(lambda: pair.primary.notes())
    names = [h.names() for h in pair.hosts]
    equal((len(names[0]), names[0] == names[1], pair.executed()), (1, True, (1, 1)))
    mark()


def ends() -> None:
    """Whether a connection is kept, and how the replies count down, both know"""
    old = pair.same(request(DYNAMIC, version="1.0"))
    assert b"Connection: close" in old and b"chunked" not in old
    old = pair.same(request(DYNAMIC + "?70000", "Connection: keep-alive", version="1.0") + TAIL)
    assert old.count(b"HTTP/1.1 200") == 1, old
    paths = (DYNAMIC, "/static/small", DYNAMIC + "?70000")
    many = b"".join(request(path, "Connection: keep-alive") * 10 for path in paths)
    replies = split(pair.same(many))
    equal(len(replies), 21)
    assert "close" in replies[-1][1]["connection"], replies[-1][1]
    equal([r[1]["keep-alive"] for r in replies[:-1]], [f"timeout=20, max={20 - i}" for i in range(20)])
    pair.executed()
    # A dynamic one that ends it, and one after it that is not read
    replies = split(pair.same(request(DYNAMIC) + request(DYNAMIC, last=True) + request(DYNAMIC)))
    equal((len(replies), pair.executed()), (2, (2, 0)))


def pipelined() -> None:
    """Pipelined: every mode in turn, each reply in its place"""
    paths = [DYNAMIC + "?10", "/static/small", "/static/large", DYNAMIC + "?200000", "/ungated", DYNAMIC + "?50",
             "/static/none", "/proxy/x", "/static/small", "/ungated"]
    replies = split(pair.same(b"".join(map(request, paths)) + TAIL, later=0.2))
    equal([len(r[2]) for r in replies][:6], [18, 2000, len(LARGE), 200008, len(LARGE), 58])
    equal((len(replies), pair.executed()), (len(paths) + 1, (3, 0)))


def bodies() -> None:
    """Bodies of any size and form, read whole before anyone executes"""
    for body in (b"x", BODY[:20000], BODY, BODY * 5):
        forms: list[tuple[list[str], bytes]] = [([], body), (["Transfer-Encoding: chunked"], chunked(body, 7777))]
        for fields, data in forms:
            reply = split(pair.same(request(DYNAMIC + "?7", *fields, method="POST", body=data, last=True)))[-1]
            equal((reply[0], len(reply[2])), ("HTTP/1.1 200 OK", len(body) + 15))
            assert reply[2].startswith(b"primary\n" + body)
            equal(pair.executed(), (1, 0))
    # Nobody reads it, and the next request is found behind it
    posts = [request(path, method="POST", body=BODY) for path in ("/proxy/x", "/cgi-bin/none")]
    replies = split(pair.same(b"".join(posts) + TAIL))
    equal([r[0].split()[1] for r in replies], ["200", "404", "200"])
    # Longer than is kept: the primary goes on alone, and has all of it
    for fields, data in ([], BODY * 11), (["Transfer-Encoding: chunked"], chunked(BODY * 11, 77777)):
        a, b = pair.both(request(DYNAMIC + "?7", *fields, method="POST", body=data) + TAIL)
        replies = split(a)
        equal((replies[0][2][:-7] == b"primary\n" + BODY * 11, replies[1][2] == SMALL, b), (True, True, RESET))
        equal(pair.executed(), (1, 0))
    # A client that waits to be told to go on, by each of the two
    for path in (DYNAMIC, "/static/small"):
        client = Client(pair)
        client.send(request(path + "?7", *CONTINUE, f"Content-Length: {len(BODY)}", method="POST", last=True))
        if path == DYNAMIC:
            equal(client.read(25), [b"HTTP/1.1 100 Continue\r\n\r\n"] * 2)
        client.send(BODY)
        a, b = client.read()
        equal(a == b, True)
    pair.executed()
    mark()


def big() -> None:
    """Replies that no memory holds, also to clients that read slowly, and many at once"""
    reply, = split(pair.same(request(DYNAMIC + "?20000000", last=True)))
    equal(len(reply[2]), 20000008)
    client = Client(pair)
    client.send(request(DYNAMIC + "?9000000") + TAIL)
    time.sleep(1)
    slow = [bytearray(), bytearray()]
    for got, s in zip(slow, client.sockets):
        while data := s.recv(200000):
            got += data
            time.sleep(0.002)
    equal((slow[0] == slow[1], len(split(bytes(slow[0]))[0][2])), (True, 9000008))
    clients = [Client(pair) for _ in range(8)]
    for client in clients:
        client.send(request(DYNAMIC + "?300000") + request("/static/large") + TAIL)
    for client in clients:
        a, b = client.read()
        equal((a == b, len(a) > 6300000), (True, True))
    equal(pair.executed(), (10, 0))


def proxied() -> None:
    """A back end is asked once"""
    before = backend.count
    reply, = split(pair.same(request("/proxy/x?200000", last=True)))
    equal((reply[2].split()[0], len(reply[2]) > 200000, backend.count), (str(before + 1).encode(), True, before + 1))


def promoted() -> None:
    """The backup executes what the primary has not logged, and nothing that it has"""
    hold = PLACE / "wait-primary"
    for method, body in (("GET", b""), ("POST", BODY[:300000])):
        hold.touch()
        client = Client(pair)
        client.send(request("/static/small") + request(DYNAMIC + "?9", method=method, body=body) + TAIL)
        until(lambda: pair.primary.executed_file.exists())
        mark("promoted")
        replies = split(client._read(client.sockets[1], -1, 0))
        equal([r[2][:7] for r in replies], [SMALL[:7], b"backup\n", SMALL[:7]])
        equal(len(replies[1][2]), 7 + len(body) + 9)
        # What both may have sent stays as it was; what one alone makes need not
        equal(["date" in r[1] for r in replies], [False, True, False])
        hold.unlink()
        client.close()
        until(lambda: pair.primary.notes())
        equal(pair.executed(), (1, 1))
        mark()
    # Logged, and promoted before this host has read the request
    client = Client(pair)
    client._send(client.sockets[0], request(DYNAMIC, last=True), 0)
    first = client._read(client.sockets[0], -1, 0)
    (LOG / "promoted").touch()
    client._send(client.sockets[1], request(DYNAMIC, last=True), 0)
    equal(client._read(client.sockets[1], -1, 0) == first, True)
    equal(pair.executed(), (1, 0))
    pair.backup.notes()
    # A connection that this host has seen alone from its start: others may have seen it before
    reply, = split(pair.both(TAIL)[1])
    assert "date" not in reply[1], reply
    equal(pair.backup.notes(), [f"alone 200 {len(SMALL)} GET /static/small"])
    mark()


def widowed() -> None:
    """The primary goes on alone, in the middle of a reply, too"""
    client = Client(pair)
    client.send(request(DYNAMIC + "?1000"))
    client.read(rest=1.5)
    (LOG / "alone").touch()
    client._send(client.sockets[0], request(DYNAMIC + "?1000") + TAIL, 0)
    replies = split(client._read(client.sockets[0], -1, 0))
    equal([len(r[2]) for r in replies], [1008, len(SMALL)])
    assert any(line.startswith("alone 200") for line in pair.primary.notes())
    client.close()
    mark()
    pair.executed()


def own_errors() -> None:
    """A body that one host has no room for ends its copy, or its protection: it is no answer"""
    for h in pair.hosts:
        for fields, data in ([], BODY[:300000]), (["Transfer-Encoding: chunked"], chunked(BODY[:300000], 7777)):
            mark(f"no-room-{h.role}")
            a, b = pair.both(request(DYNAMIC + "?7", *fields, method="POST", body=data) + TAIL)
            replies = split(a)
            equal((replies[0][2][:-7] == b"primary\n" + BODY[:300000], replies[1][2] == SMALL, b), (True, True, RESET))
            equal(pair.executed(), (1, 0))
        assert "body cannot be kept" in h.errors.read_text()
    mark()


def again() -> None:
    """Protected again, by a backup to which the connection is new"""
    client = Client(pair)
    tells_when_busy(client, DYNAMIC)
    client.close()
    tells_of_the_next(pair, DYNAMIC)
    client = Client(pair)
    client.send(request(DYNAMIC) + request("/static/small"))
    client.read(rest=1.5)
    client.send(request("/ungated"))
    client.read(rest=1.5)
    equal((LOG / "gates").read_text(), "201")
    mark("alone")
    tells_when_busy(client, DYNAMIC, alone=True)
    tells_of_the_next(pair, DYNAMIC, alone=True)
    client.reset(client.sockets.pop())
    mark("again")
    client.connect(pair.backup.port, port=client.sockets[0].getsockname()[1])
    client.send(request(DYNAMIC) + request("/ungated") + TAIL)
    a, b = client.read()
    equal((a == b, len(split(a)), pair.executed()), (True, 3, (50, 0)))
    # Its gate is shut, whatever was so before
    equal((LOG / "gates").read_text()[:1], "2")
    client.close()
    mark()


def refused() -> None:
    """What cannot be logged ends the backup's connection alone"""
    for why in ("no-log", "full", "", "full"):
        mark(*[why] * bool(why))
        path = DYNAMIC + ("?1000" if why else "?31000000")
        a, b = pair.both(request(path, method="POST", body=b"hello", last=True))
        equal((len(split(a)[0][2]), b), (1013 if why else 31000013, RESET))
        equal(pair.executed(), (1, 0))
    mark()
    # With what went before: that comes
    mark("full")
    client = Client(pair)
    client.send(request("/static/small"))
    a, b = client.read(rest=1.5)
    equal((a == b, a.endswith(SMALL)), (True, True))
    client.send(request(DYNAMIC) + TAIL)
    a, b = client.read()
    equal((len(split(a)), b), (2, RESET))
    assert "cannot be logged" in pair.primary.errors.read_text() and "unprotected" in pair.backup.errors.read_text()
    mark()
    # The client goes in the middle: the reply is not whole, and is not logged
    hold = PLACE / "wait-primary"
    hold.touch()
    client = Client(pair)
    client.send(request(DYNAMIC + "?9000000"))
    until(lambda: pair.primary.executed_file.exists())
    client.close()
    hold.unlink()
    until(lambda: not list(LOG.glob("*.part")))
    pair.executed()
    mark()


def acknowledged() -> None:
    """TakeoverAcknowledge: not a byte before the backup's word"""
    mark("wait")
    client = Client(pair, which=2)
    client.send(request(DYNAMIC + "?1000", last=True))
    a, b = client.read(rest=1)
    equal((a, len(split(b)[0][2])), (b"", 1008))
    mark()
    equal(client._read(client.sockets[0], -1, 0) == b, True)
    pair.executed()


def gates() -> None:
    """Static: ungated where it is safe, gated again for what follows"""
    client = Client(pair)
    for path in ("/static/small", "/ungated", "/ungated", DYNAMIC, "/ungated"):
        client.send(request(path))
        client.read(rest=1)
    client.close()
    equal((LOG / "gates").read_text(), "101")
    mark()
    # Half of the next request comes while this one is executed: Apache reads it before the reply leaves
    hold = PLACE / "wait-primary"
    hold.touch()
    client = Client(pair)
    client.send(request(DYNAMIC))
    until(lambda: pair.primary.executed_file.exists())
    client.send(TAIL[:20])
    hold.unlink()
    got = client.read(rest=1.5)
    # Where each connection has a thread or process, the reply may wait for the next one's
    assert MPM != "event" or all(b"200 OK" in reply for reply in got), got
    equal((LOG / "gates").read_text(), "2")
    client.send(TAIL[20:])
    client.read()
    client.close()
    equal((LOG / "gates").read_text(), "20")
    mark()
    # The end of a dynamic reply has not left: what is behind it stays gated
    behind_the_rest(pair, DYNAMIC)
    equal((LOG / "gates").read_text(), "20")
    pair.executed()


def http2() -> None:
    """Spoken at once, or asked for first; prefork has none"""
    urls = [f"http://127.0.0.1:{h.ports[3]}{path}" for h in pair.hosts for path in ("/static/small", DYNAMIC)]
    curl = ["curl", "-s", "--http2-prior-knowledge", "-o", PLACE / "got", "-w", "%{http_code}"]
    got = [run(*curl, url, ok=0 if i < 2 else None) for i, url in enumerate(urls)]
    equal((got[:2], pair.executed()), (["200", "200"], (1, 0)))
    for path in ("/static/small", DYNAMIC):
        client = Client(pair, which=3)
        client.send(request(path, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c",
                            "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"))
        a, b = client.read(rest=1)
        equal((a[:12], b), (b"HTTP/1.1 101", RESET))
        client.close()
    equal(pair.executed(), (1, 0))


def restarted() -> None:
    """A reply of a process that ends says so, as the other host's does not: that host's copy, or its protection, ends"""
    for h in pair.hosts:
        data = request("/static/small")
        client = Client(pair)
        client.send(data[:20])
        time.sleep(0.5)
        before = h.errors.read_text().count("resuming normal operations")
        h.process.send_signal(signal.SIGUSR1)
        until(lambda: h.errors.read_text().count("resuming normal operations") > before)
        time.sleep(2)
        client.send(data[20:] + TAIL)
        a, b = client.read()
        if h is pair.primary:
            assert list(LOG.glob("*.left")), (a, b)
            assert split(a)[0][2] == SMALL and b"Connection: close" in a, a
        else:
            equal((len(split(a)), b), (2, RESET))
        assert "unprotected: this Apache ends" in h.errors.read_text()
        client.close()
        mark()


def unprotected() -> None:
    """TLS, HTTP/2 and what is configured so: the primary goes on alone, and says it once"""
    a, b = pair.both(request("/cgi-bin/off", last=True))
    equal((split(a)[0][0], b), ("HTTP/1.1 404 Not Found", RESET))
    a, b = (encrypted(h.ports[1], "/static/small") for h in pair.hosts)
    equal((a.endswith(SMALL), b), (True, RESET))
    if MPM != "prefork":
        http2()
    mark()
    # Those who do not speak it are protected there, too
    a, b = pair.both(request(DYNAMIC, last=True), which=3)
    equal((a == b, pair.executed()), (True, (1, 0)))
    for h in pair.hosts:
        text = h.errors.read_text()
        for why in ["TLS", "its mode is off"] + ["HTTP/2", "another protocol"] * (MPM != "prefork"):
            assert f"unprotected: {why}" in text, (why, text)


def ordinary() -> None:
    """A connection that no other host has is as it was"""
    data = request(DYNAMIC) + request("/static/large", "Range: bytes=0-9,20-29") + TAIL
    a, b = pair.both(data, address="127.0.0.2")
    for got in (a, b):
        assert got.count(b"\r\nDate: ") == 3 and b"multipart/byteranges" in got
    equal((b"primary\n" in a, b"backup\n" in b, pair.executed()), (True, True, (1, 1)))
    for h in pair.hosts:
        assert h.notes()[-1].startswith("- "), h.notes()


def mistaken() -> None:
    """Mistakes in the configuration, and their messages"""
    ports = pair.primary.ports
    for more, message in (("TakeoverPrefix /x dynamique", "'dynamique' is not dynamic, sync-static, static or off"),
                          ("TakeoverPrefix x dynamic", "'x' does not start with a slash"),
                          ("TakeoverPrefix /x", "takes two arguments"),
                          ("TakeoverMaxReply 0", "'0' is not a number of bytes"),
                          ("TakeoverMaxBody 0", "'0' is not a number of bytes"),
                          ("TakeoverMaxReply 1G", "'1G' is not a number of bytes"),
                          ("TakeoverEngine maybe", "must be On or Off"), ("TakeoverMode dynamic", "not allowed here"),
                          ("<Directory />\nTakeoverMode dynamic\n</Directory>", "cannot occur within <Directory>")):
        (PLACE / "wrong").write_text(configuration("primary", ports, more))
        text = run(HTTPD, "-t", "-f", PLACE / "wrong", ok=1, env={"LD_PRELOAD": str(FAKE)})
        assert message in text, text


def clean() -> None:
    """No process died, and no file is left behind"""
    for h in pair.hosts:
        text = h.errors.read_text()
        assert "exit signal" not in text and "Segmentation" not in text, text
        equal([p.name for p in h.place.iterdir() if p.name.startswith("takeover.")], [])


run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=service.example",
    "-keyout", PLACE / "key", "-out", PLACE / "certificate")
PLACE.chmod(0o755)
pair = Pair([host(role) for role in ROLES])
main(files, malformed, dynamic, inner, ends, pipelined, bodies, big, proxied, promoted, widowed, own_errors, again,
     refused, acknowledged, gates, restarted, unprotected, ordinary, mistaken, clean)
