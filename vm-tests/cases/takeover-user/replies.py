#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The reply log: each verdict, whoever is gone, and a log that has no room."""

import signal
import time
from pathlib import Path

from takeover import ADDRESS, ALONE, BACKUP, OFF, PRIMARY, Host, end, equal, main, pair, run, wait


def given() -> None:
    """A reply is given once, to one who waits for it, and to one who comes later"""
    a, b = pair()
    primary, backup = a.client(PRIMARY, 7), b.client(BACKUP, 7)
    equal(primary.do("role"), ["1", "7"])
    backup.begin_do("wait", 7, 1)
    equal(primary.do("begin", 7, 1)[0], "OK")
    equal(primary.do("text", 0, 0, "hello,")[0], "OK")
    time.sleep(0.3)
    equal(primary.do("text", 0, 0, "world")[0], "OK")
    equal(primary.do("end", 0)[0], "OK")
    verdict, took, length, text = backup.done()
    equal((verdict, length, text), ("REPLY", "11", "hello,world"))
    assert float(took) > 0.25, took
    primary.reply(7, 2, "later")
    equal([p.name for p in b.store.iterdir()], ["192.0.2.10-80.0000000000000007.2"])
    equal(backup.do("wait", 7, 2)[::3], ["REPLY", "later"])
    wait("it has no name any more", lambda: not list(b.store.iterdir()))
    equal(backup.do("wait", 7, 2)[0], "REFUSED")
    backup.be(ALONE, 7)
    equal(backup.do("wait", 7, 2)[0], "REFUSED")
    equal(backup.do("wait", 7, 1)[0], "REFUSED")
    # An empty one, and one from a file
    primary.reply(7, 3, "")
    backup.be(BACKUP, 7)
    equal(backup.do("wait", 7, 3)[::2], ["REPLY", "0"])
    for words in ("begin", 7, 4), ("sendfile", 5_000_000, 5_000_000), ("end", 1):
        equal(primary.do(*words)[0], "OK")
    verdict, _, length, text = backup.do("wait", 7, 4)
    equal((verdict, length, text[:8]), ("REPLY", "5000000", "aaaaaaab"))
    equal((b.status()["replies"], primary.ops()), (4, []))
    end(a, b)


def stock() -> None:
    """Without a service, a takeoverd or a kernel, a connection is not protected, and nothing waits"""
    a, b = Host("a", 1, "primary"), Host("b", 2, "backup")
    plain = a.client(OFF, 0)
    equal(plain.do("role"), ["0", "0"])
    verb, took = plain.do("begin", 0, 1)
    equal(verb, "ENOTCONN")
    alone = a.client(PRIMARY, 3)
    verb, took = alone.do("begin", 3, 1)
    equal((verb, alone.ops()), ("ECONNREFUSED", ["leave"]))
    assert float(took) < 0.1, took
    equal(alone.do("gate", 1)[0], "OK")
    equal(alone.ops(), ["leave", "gate"])
    # One that is alone at last is not kept from it
    orphan = b.client(BACKUP, 3)
    orphan.begin_do("wait", 3, 1)
    time.sleep(1.5)
    orphan.be(ALONE, 3)
    verb, took, *_ = orphan.done()
    equal(verb, "EXECUTE")
    assert 1.4 < float(took) < 2, took


def promoted() -> None:
    """Promotion: what was not logged is executed, what was is given; noticed by a nudge, and without one"""
    a, b = pair()
    primary = a.client(PRIMARY, 1)
    none, half, whole = (b.client(BACKUP, n) for n in (1, 2, 3))
    other, third = a.client(PRIMARY, 2), a.client(PRIMARY, 3)
    none.begin_do("wait", 1, 1)
    half.begin_do("wait", 2, 1)
    equal(other.do("begin", 2, 1)[0], "OK")
    equal(other.do("text", 0, 0, "half")[0], "OK")
    third.reply(3, 1, "whole")
    time.sleep(0.3)
    a.kill()
    for client, id in (none, 1), (half, 2), (whole, 3):
        client.be(ALONE, id)
    equal(none.done()[0], "EXECUTE")
    equal(half.done()[0], "EXECUTE")
    equal(whole.do("wait", 3, 1)[::3], ["REPLY", "whole"])
    # What comes of it later is refused
    equal(other.do("text", 0, 0, "more")[0], "ENOSPC")
    equal(other.ops(), ["leave"])
    waiting = b.client(BACKUP, 4)
    waiting.begin_do("wait", 4, 1)
    time.sleep(0.2)
    b.ctl("promote", "web")
    waiting.be(ALONE, 4)
    since = time.monotonic()
    equal(waiting.done()[0], "EXECUTE")
    assert time.monotonic() - since < 0.3
    # Nobody logs to a host that has been promoted
    equal(primary.do("begin", 1, 2)[0], "ECONNREFUSED")
    end(b)


def vanished() -> None:
    """The primary's process is killed in the middle: the backup waits on, then refuses, or executes when it is alone"""
    a, b = pair()
    refused, executed = b.client(BACKUP, 1), b.client(BACKUP, 2)
    for id, backup in (1, refused), (2, executed):
        primary = a.client(PRIMARY, id)
        if id == 2:
            backup.begin_do("wait", id, 1)
        equal(primary.do("begin", id, 1)[0], "OK")
        equal(primary.do("write", 100000, 0)[0], "OK")
        time.sleep(0.1)
        primary.kill()
        time.sleep(0.1)
    refused.begin_do("wait", 1, 1)
    executed.be(ALONE, 2)
    verb, took, *_ = executed.done()
    equal(verb, "EXECUTE")
    assert float(took) < 0.5, took
    verb, took, *_ = refused.done()
    equal((verb, refused.ops()), ("REFUSED", ["leave"]))
    assert 0.9 < float(took) < 3.5, took
    equal(b.status()["lost"], 2)
    # A request that nobody executes, though the primary's host is there
    verb, took, *_ = refused.do("wait", 1, 2)
    equal(verb, "REFUSED")
    # When it is not, there is nothing to give up for: the copy may be the last one
    a.kill()
    refused.begin_do("wait", 1, 3)
    time.sleep(4)
    refused.be(ALONE, 1)
    verb, took, *_ = refused.done()
    equal(verb, "EXECUTE")
    assert float(took) > 3.9, took
    end(b)


def long_one() -> None:
    """A primary that takes longer than its patience is waited for"""
    a, b = pair()
    primary, backup = a.client(PRIMARY), b.client(BACKUP)
    equal(primary.do("begin", 1, 1)[0], "OK")
    backup.begin_do("wait", 1, 1)
    time.sleep(4)
    primary.do("text", 0, 0, "at-last")
    equal(primary.do("end", 1)[0], "OK")
    equal(backup.done()[::3], ["REPLY", "at-last"])
    end(a, b)


def no_room() -> None:
    """A reply that the log has no room for is refused to both, and the next one is taken"""
    a, b = pair(options="store_limit = 1M")
    primary, backup = a.client(PRIMARY), b.client(BACKUP)
    backup.begin_do("wait", 1, 1)
    equal(primary.do("begin", 1, 1)[0], "OK")
    said = [primary.do("write", 300000, 0)[0] for _ in range(8)]
    said.append(primary.do("end", 1)[0])
    assert set(said) <= {"OK", "ENOSPC", "EPIPE"} and "ENOSPC" in said and said[-1] == "EPIPE", said
    equal((backup.done()[0], backup.ops(), primary.ops()), ("REFUSED", ["leave"], ["leave"]))
    equal(b.status()["refused"], 1)
    backup.begin_do("wait", 1, 2)
    primary.reply(1, 2, "small")
    equal(backup.done()[::3], ["REPLY", "small"])
    # Aborted
    backup.begin_do("wait", 1, 3)
    primary.do("begin", 1, 3)
    primary.do("abort")
    equal((backup.done()[0], primary.ops()), ("REFUSED", ["leave", "leave"]))
    # Too short a file
    primary.do("begin", 1, 4)
    equal(primary.do("sendfile", 5000, 4000)[0], "EIO")
    primary.do("abort")
    end(a, b)


def forgotten() -> None:
    """Replies that are begun and forgotten by a process that lives on are given up after a while; those that somebody wants are not"""
    a, b = pair(options="store_limit = 64k")
    assert b.process
    descriptors = len(list(Path(f"/proc/{b.process.pid}/fd").iterdir()))
    careless, slow, wanted, backup = a.client(PRIMARY, 1), a.client(PRIMARY, 2), a.client(PRIMARY, 3), b.client(BACKUP, 3)
    backup.begin_do("wait", 3, 1)
    for client, id in (slow, 2), (wanted, 3):
        equal(client.do("begin", id, 1)[0], "OK")
    for id in range(100, 113):
        careless.be(PRIMARY, id)
        equal(careless.do("begin", id, 1)[0], "OK")
    wait("they are open", lambda: b.host_status()["store"]["open"] == 15)
    (b.place / "later").write_text("50")
    time.sleep(1.1)
    equal(slow.do("text", 0, 0, "slow")[0], "OK")
    time.sleep(0.1)
    (b.place / "later.new").write_text("65")
    (b.place / "later.new").rename(b.place / "later")
    wait("they are given up", lambda: b.host_status()["store"]["open"] == 2)
    equal((b.host_status()["store"]["used"], b.status()["forgotten"], b.status()["lost"]), (2 * 4096 + 4, 13, 0))
    assert 'takeover_forgotten_total{service="web"} 13' in b.sh("curl -s http://127.0.0.1:9090/metrics")
    assert "it was begun, and nothing has come of it since" in b.text(), b.text()
    assert len(list(Path(f"/proc/{b.process.pid}/fd").iterdir())) < descriptors + 10
    # Who writes to one is told
    equal(careless.do("text", 0, 0, "late")[0], "ENOSPC")
    equal(careless.ops(), ["leave"])
    for client, text in (slow, "slow"), (wanted, "wanted"):
        if client == wanted:
            equal(client.do("text", 0, 0, text)[0], "OK")
        equal(client.do("end", 1)[0], "OK")
    equal(backup.done()[::3], ["REPLY", "wanted"])
    backup.be(BACKUP, 2)
    equal(backup.do("wait", 2, 1)[::3], ["REPLY", "slow"])
    # And its own copy does not wait
    (b.place / "later").unlink()
    backup.be(BACKUP, 112)
    equal(backup.do("wait", 112, 1)[0], "REFUSED")
    end(a, b)


def full_disk() -> None:
    """A full disk is the same, and no harm to what is there"""
    a, b = pair(protected=False)
    end(a, b)
    run("mkdir", "/run/full")
    run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/run/full")
    for host in (a, b):
        host.config.write_text(host.config.read_text().replace(f"store_dir = {host.store}", f"store_dir = /run/full/{host.name}"))
        host.start()
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    assert "0 MiB are used" in b.text() and b.ctl("status", "--json").count('"limit": 524288') == 1, b.text()
    Path("/run/full/other").write_bytes(bytes(900_000))
    primary, backup = a.client(PRIMARY), b.client(BACKUP)
    primary.reply(1, 1, "kept")
    backup.begin_do("wait", 1, 2)
    equal(primary.do("begin", 1, 2)[0], "OK")
    said = [primary.do("write", 300000, 0)[0] for _ in range(8)]
    equal(primary.do("end", 1)[0], "EPIPE")
    assert "ENOSPC" in said, said
    equal(backup.done()[0], "REFUSED")
    equal(backup.do("wait", 1, 1)[::3], ["REPLY", "kept"])
    assert "No space left on device" in b.text(), b.text()
    # Where it is, a server finds without takeoverd, too; and it does not execute what it cannot look up
    primary.reply(1, 3, "kept")
    late = b.client(ALONE)
    b.kill()
    equal(late.do("wait", 1, 3)[::3], ["REPLY", "kept"])
    (b.place / "replies").unlink()
    (b.place / "replies").symlink_to("/run/elsewhere")
    equal(late.do("wait", 1, 4)[0], "REFUSED")
    end(a)
    run("umount", "/run/full")


def last_words() -> None:
    """What the primary had said is read before a request is executed"""
    a, b = pair(service="patience = 10s")
    primary, backup = a.client(PRIMARY), b.client(BACKUP)
    assert b.process
    descriptors = len(list(Path(f"/proc/{b.process.pid}/fd").iterdir()))
    for number in range(1, 101):
        primary.reply(1, number, str(number))
    # Those that nobody has asked for take none
    assert len(list(Path(f"/proc/{b.process.pid}/fd").iterdir())) < descriptors + 5
    equal([backup.do("wait", 1, number)[3] for number in range(1, 101)], [str(number) for number in range(1, 101)])
    for number in range(101, 106):
        backup.be(BACKUP, 1)
        backup.begin_do("wait", 1, number)
        time.sleep(0.2)
        b.process.send_signal(signal.SIGSTOP)
        primary.reply(1, number, "last", acknowledged=False)
        backup.be(ALONE, 1)
        time.sleep(0.3)
        b.process.send_signal(signal.SIGCONT)
        equal(backup.done()[::3], ["REPLY", "last"])
    end(a, b)


def restarted() -> None:
    """takeoverd is started anew at the backup: whole replies stay, waits go on, and the primary finds its way"""
    a, b = pair()
    primary, backup, late = a.client(PRIMARY), b.client(BACKUP, 2), b.client(BACKUP)
    primary.reply(1, 1, "before")
    backup.begin_do("wait", 2, 1)
    broken = a.client(PRIMARY, 5)
    equal(broken.do("begin", 5, 1)[0], "OK")
    b.kill()
    time.sleep(0.3)
    equal(broken.do("text", 0, 0, "x")[0], "EPIPE")
    equal(broken.ops(), ["leave"])
    b.start()
    equal(b.state(), "protected")
    equal(late.do("wait", 1, 1)[::3], ["REPLY", "before"])
    a.client(PRIMARY, 2).reply(2, 1, "after")
    equal(backup.done()[::3], ["REPLY", "after"])
    # It goes in the middle of a file, which must not end the writer
    assert b.process
    equal(broken.do("begin", 5, 2)[0], "OK")
    b.process.send_signal(signal.SIGSTOP)
    broken.begin_do("sendfile", 30_000_000, 30_000_000)
    time.sleep(0.5)
    b.kill()
    equal(broken.done()[0], "EPIPE")
    b.start()
    # The same process has a connection that is broken, and finds it out in time
    primary.reply(1, 2, "again")
    equal(late.do("wait", 1, 2)[::3], ["REPLY", "again"])
    # With no takeoverd, what it had is still there, and nothing else is
    primary.reply(1, 3, "kept")
    b.kill()
    late.be(ALONE, 1)
    equal(late.do("wait", 1, 3)[::3], ["REPLY", "kept"])
    equal(late.do("wait", 1, 4)[0], "EXECUTE")
    end(a)


def left_over() -> None:
    """Logged replies of a service that is not in the file any more, and of none, are taken away; those of one that stays are kept"""
    a, b = pair()
    text = b.config.read_text()
    a.client(PRIMARY, 3).reply(3, 1, "logged")
    logged, = b.store.iterdir()
    # Both hosts have it still when it is taken out
    other = text.split("[service web]")[1].replace(f"address = {ADDRESS}", "address = 192.0.2.11")
    b.config.write_text(text.split("[service web]")[0] + "[service other]" + other)
    a.kill()
    b.kill()
    b.start()
    assert logged.exists()
    equal(b.host_status()["store"]["replies"], 1)
    b.ctl("abandon", "web")
    wait("it is left", lambda: "it has been left" in b.text())
    for name in "192.0.2.11-80.0000000000000005.1", "192.0.2.99-80.0000000000000005.1", "2001:db8::1-80.0000000000000005.1", "notes":
        (b.store / name).write_text("x")
    b.kill()
    b.start()
    equal(sorted(p.name for p in b.store.iterdir()), ["192.0.2.11-80.0000000000000005.1", "notes"])
    equal(b.host_status()["store"]["used"], 4096 + 1)
    end(b)


def restarted_primary() -> None:
    """takeoverd is started anew at the primary: what it has opened goes on without it"""
    a, b = pair()
    primary, backup = a.client(PRIMARY), b.client(BACKUP)
    primary.reply(1, 1, "one")
    a.kill()
    primary.reply(1, 2, "two")
    new = a.client(PRIMARY, 2)
    equal(new.do("begin", 2, 1)[0], "ECONNREFUSED")
    a.start()
    new.reply(2, 2, "three")
    equal([backup.do("wait", 1, n)[3] for n in (1, 2)], ["one", "two"])
    end(a, b)


def torn_cable() -> None:
    """A kept connection whose other end is gone unheard, since the cable was torn: it is not used again"""
    a, b = pair()
    primary = a.client(PRIMARY)
    primary.reply(1, 1, "before")
    a.sh("ip link set eth0 down")
    b.kill()
    # As long as the kernel of the other host says that it is over
    time.sleep(3)
    a.sh("ip link set eth0 up")
    b.start()
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    for number in 2, 3:
        primary.reply(1, number, "after")
    equal(primary.ops(), [])
    equal([b.client(BACKUP).do("wait", 1, n)[3] for n in (1, 2, 3)], ["before", "after", "after"])
    end(a, b)


def waited_for() -> None:
    """A takeoverd that is started anew, on either host, is waited for, and no connection goes on alone; one that stays away is not, for long"""
    a, b = pair()
    primary, backup = a.client(PRIMARY), b.client(BACKUP)
    for number in 1, 2:
        (b.kill if number == 1 else b.stop)()
        primary.begin_do("begin", 1, number)
        time.sleep(0.3)
        b.start()
        equal(primary.done()[0], "OK")
        equal(primary.do("text", 0, 0, f"reply-{number}")[0], "OK")
        equal(primary.do("end", 1)[0], "OK")
        equal(backup.do("wait", 1, number)[::3], ["REPLY", f"reply-{number}"])
    for id in 2, 3:
        new = a.client(PRIMARY, id)
        (a.kill if id == 2 else a.stop)()
        new.begin_do("begin", id, 1)
        time.sleep(0.3)
        a.start()
        equal((new.done()[0], new.ops(), primary.ops()), ("OK", [], []))
    new.do("end", 1)
    # It stays away: its own host's is asked for a second, and then at once for none
    a.kill()
    lone = a.client(PRIMARY, 4)
    for least, most in (0.8, 1.5), (0, 0.1), (0, 0.1):
        verb, took = lone.do("begin", 4, 1)
        equal(verb, "ECONNREFUSED")
        assert least <= float(took) < most, took
    a.start()
    wait("the peer is there", lambda: a.status()["peer"]["alive"])
    equal(lone.do("begin", 4, 2)[0], "OK")
    equal(lone.do("end", 1)[0], "OK")
    # The peer's is waited for as long as the service is patient
    b.kill()
    verb, took = lone.do("begin", 4, 3)
    equal((verb, lone.ops()[-1]), ("EHOSTUNREACH", "leave"))
    assert 0.8 < float(took) < 1.5, took
    wait("it is known", lambda: not a.status()["peer"]["alive"])
    verb, took = lone.do("begin", 4, 4)
    equal(verb, "EHOSTUNREACH")
    assert float(took) < 0.1, took
    end(a)


def hung_up() -> None:
    """Nobody waits for a client that has gone, and a host that hangs is not waited for"""
    a, b = pair()
    backup = b.client(BACKUP)
    equal(backup.do("hang-up")[0], "OK")
    verb, took, *_ = backup.do("wait", 1, 1)
    equal(verb, "REFUSED")
    assert float(took) < 0.5, took
    primary = a.client(PRIMARY)
    primary.reply(1, 1, "x")
    b.sh("ip link set eth0 down")
    equal(primary.do("begin", 1, 2)[0], "OK")
    said: list[list[str]] = []
    while not said or said[-1][0] == "OK":
        said.append(primary.do("write", 1_000_000, 0))
    assert said[-1][0] in ("ETIMEDOUT", "EPIPE"), said
    assert float(said[-1][1]) < 2.5, said
    verb, took = primary.do("begin", 1, 3)
    equal(verb, "EHOSTUNREACH")
    assert float(took) < 2, took
    assert float(primary.do("begin", 1, 4)[1]) < 1.5
    b.sh("ip link set eth0 up")
    end(a, b)


def patient() -> None:
    """A primary that is very patient does not wait for a host that has died, once its own goes on alone"""
    a, b = pair(service="patience = 60s")
    for number, waits in enumerate((("write", 30_000_000, 0), ("end", 1)), 1):
        primary = a.client(PRIMARY, number)
        equal(primary.do("begin", number, 1)[0], "OK")
        assert b.process
        b.process.send_signal(signal.SIGSTOP)
        primary.begin_do(*waits)
        time.sleep(1)
        primary.be(ALONE, number)
        verb, took = primary.done()
        equal((verb, primary.ops()), ("EPIPE", ["leave"]))
        assert 0.9 < float(took) < 2, took
        b.process.send_signal(signal.SIGCONT)
    end(a, b)


def survivor() -> None:
    """A host that is alone does not wait for its takeoverd when that is not there, or hangs: a process finds it out once"""
    a, b = pair()
    b.kill()
    a.ctl("promote", "web")
    alone = a.client(ALONE, 77)

    def asked(number: int) -> float:
        verb, seconds, *_ = alone.do("wait", 77, number)
        equal(verb, "EXECUTE")
        return float(seconds)

    assert asked(1) < 0.5
    a.kill()
    assert 0.9 < asked(2) < 2
    took = [asked(number) for number in range(3, 13)]
    assert max(took) < 0.5, took
    a.start()
    assert asked(13) < 0.5
    assert a.process
    a.process.send_signal(signal.SIGSTOP)
    assert 3.9 < asked(14) < 6
    took = [asked(number) for number in range(15, 20)]
    assert max(took) < 0.5, took
    a.process.send_signal(signal.SIGCONT)
    wait("it is heard again", lambda: asked(20) < 0.09)
    a.process.send_signal(signal.SIGSTOP)
    alone.begin_do("wait", 77, 21)
    time.sleep(0.5)
    a.process.send_signal(signal.SIGCONT)
    verb, seconds, *_ = alone.done()
    assert verb == "EXECUTE" and float(seconds) > 0.4, seconds
    end(a)


def overtaken() -> None:
    """takeoverd wakes up while one that has waited too long for it looks into the store: what it gives just then is not executed"""
    a, b = pair(service="patience = 10s")
    a.client(PRIMARY, 7).reply(7, 1, "logged")
    b.ctl("promote", "web")
    waiting = b.client(ALONE, 7)
    assert b.process
    b.process.send_signal(signal.SIGSTOP)
    (waiting.place / "slow-look").write_text("x")
    (b.place / "slow-take").write_text("x")
    waiting.begin_do("wait", 7, 1)
    wait("it looks for the reply", (waiting.place / "looks").exists)
    b.process.send_signal(signal.SIGCONT)
    # It stands still once it has taken the name away, whatever it does next
    wait("takeoverd has taken it away", lambda: not list(b.store.iterdir()))
    (waiting.place / "slow-look").unlink()
    equal(waiting.done()[::3], ["REPLY", "logged"])
    (b.place / "slow-take").unlink()
    equal(b.status()["replies"], 1)
    # Once
    equal(waiting.do("wait", 7, 1)[0], "REFUSED")
    end(a, b)


def storm() -> None:
    """Many threads at once, and forks: each reply comes to who waits for it, and is what was written"""
    for acknowledged in (0, 1):
        a, b = pair(service="patience = 10s")
        primary, backup = a.client(PRIMARY), b.client(BACKUP)
        backup.begin_do("storm", 16, 2, 300)
        wrong, took = primary.do("storm", 16, acknowledged, 300)
        equal(wrong, "0")
        equal(backup.done()[0], "0")
        print(f"# 4800 replies, acknowledged: {acknowledged}: {float(took):.2f} s")
        end(a, b)
    a, b = pair(service="patience = 10s")
    primary = a.client(PRIMARY, 9)
    primary.reply(9, 1, "x")
    primary.begin_do("fork", 9, 10)
    equal([primary.done()[0], primary.done()[0]], ["OK", "OK"])
    backup = b.client(BACKUP, 9)
    equal([backup.do("wait", 9, n)[3] for n in range(10, 210)], ["parent", "child"] * 100)
    end(a, b)


main(given, stock, promoted, vanished, long_one, no_room, forgotten, full_disk, last_words, restarted, left_over, restarted_primary, torn_cable, waited_for, hung_up, patient, survivor, overtaken, storm)
