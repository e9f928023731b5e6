#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The judgement of made-up output and console logs."""

import contextlib
import io
import tempfile
from pathlib import Path

from points import equal, main

import compare  # noqa: E402
import ktap  # noqa: E402
import splats  # noqa: E402

HEAD = "KTAP version 1\n"


def counts(text: str, status: int = 0) -> tuple[int, int, int]:
    verdict = ktap.judge(text, status)
    return verdict.passed, len(verdict.failed), verdict.skipped


def exit_status() -> None:
    """Without KTAP, the exit status decides"""
    equal([counts("ok 1 just a word", s) for s in (0, 1, 77, 4, 139)],
          [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 1), (0, 1, 0)])


def results() -> None:
    """Passes, failures and skips are counted; nested ones through their parent's"""
    equal(counts(HEAD + "1..3\nok 1 a\n  1..1\n  not ok 1 x\nok 2 - b # SKIP no net\nnot ok 3 c # reason\n", 1), (1, 1, 1))
    equal(counts("TAP version 13\n1..1\nok 1 # x\n"), (1, 0, 0))
    equal(counts(HEAD + "ok 1 a\nok 2 b\n1..2\n"), (2, 0, 0))
    equal(counts(HEAD + "1..0 # SKIP nothing here\n"), (0, 0, 1))
    equal(counts(HEAD + "1..0 # SKIP nothing here\n", 4), (0, 0, 1))


def plans() -> None:
    """A plan that is missing, twice there or not fulfilled is a failure"""
    for text in ("ok 1 a\n", "1..1\n1..1\nok 1 a\n", "1..2\nok 1 a\n", "1..1\nok 1 a\nok 2 b\n", "1..1\n" + HEAD + "ok 1 a\n"):
        assert counts(HEAD + text)[1] == 1, text


def numbers() -> None:
    """So are results without a number, with the same one, or out of order"""
    for text in ("ok a\n", "ok 2 a\n"):
        assert counts(HEAD + "1..1\n" + text)[1] == 1, text
    for text in ("ok 1 a\nok 1 b\n", "ok 2 a\nok 1 b\n"):
        assert counts(HEAD + "1..2\n" + text)[1] == 1, text


def bail_out() -> None:
    """So is to bail out"""
    assert counts(HEAD + "1..1\nok 1 a\nBail out! no more\n")[1] == 1


def disagreement() -> None:
    """So is a status that says otherwise than the results, and a test that is expected to fail"""
    equal(counts(HEAD + "1..1\nok 1 a\n", 1), (1, 1, 0))
    equal(counts(HEAD + "1..1\nok 1 a\n", 77), (1, 1, 0))
    equal(counts(HEAD + "1..1\nnot ok 1 a\n", 0), (0, 1, 0))
    equal(counts(HEAD + "1..1\nok 1 a # TODO later\n"), (0, 1, 0))


BOOT = """[    0.000000] Linux version 6.12.117 (perdure@perdure)
[    0.000000] Command line: console=ttyS0 panic=-1 oops=panic
[    0.312345] rcu: Hierarchical RCU implementation.
[    0.400000] kmemleak: Kernel memory leak detector initialized (mem pool available: 33000)
[    0.500000] random: crng init done
[    1.000000] x[77]: segfault at 0 ip 0000000000401136 sp 00007ffd7a34e2c0 error 6 in x[401000+1000]
[    1.000000] traps: x y[53] general protection fault ip:56295ddebc6a sp:7ffd7b28a1e8 error:0 in x[3c6a,56295ddeb000+6000]
"""
BEGIN = "[    1.100000] perdure-init: begin\n"
END = "[    2.200000] perdure-init: end\n[    2.300000] reboot: Restarting system\n"
SPLATS = """BUG: kernel NULL pointer dereference, address: 0000000000000000
BUG: KASAN: slab-use-after-free in zlr_hread+0x12/0x40
BUG: sleeping function called from invalid context at kernel/locking/mutex.c:580
BUG: scheduling while atomic: x/77/0x00000002
BUG: unable to handle page fault for address: ffffc90000000000
BUG: Bad page state in process x  pfn:01234
BUG: Bad rss-counter state mm:00000000 type:MM_FILEPAGES val:1
BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 31s!
BUG: memory leak
watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [x:77]
watchdog: Watchdog detected hard LOCKUP on cpu 1
WARNING: CPU: 0 PID: 77 at kernel/zlr/io.c:123 zlr_release+0x10/0x20
WARNING: possible circular locking dependency detected
WARNING: possible recursive locking detected
WARNING: suspicious RCU usage
WARNING: stack recursion on stack type 4
INFO: task x:77 blocked for more than 120 seconds.
INFO: trying to register non-static key.
rcu: INFO: rcu_preempt self-detected stall on CPU
rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
kernel BUG at mm/slub.c:4000!
Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP
Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b
UBSAN: shift-out-of-bounds in kernel/zlr/io.c:10:5
ODEBUG: free active (active state 0) object: 0000000000000000 object type: timer_list
refcount_t: underflow; use-after-free.
list_del corruption, ffff888000000000->next is LIST_POISON1 (dead000000000100)
DEBUG_LOCKS_WARN_ON(!current->lockdep_depth)
unregister_netdevice: waiting for lo to become free. Usage count = 2
sysctl table check failed: kernel/restart/enabled Not a file
kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)
Call Trace:
perdure-init: output: Broken pipe"""


def scan(text: str | bytes | None, **options: object) -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        console = Path(directory, "console")
        if text is not None:
            console.write_bytes(text if isinstance(text, bytes) else text.encode())
        return splats.scan(console, **options)


def clean_console() -> None:
    """A clean console has no complaint, with carriage returns and bytes that are no text, too"""
    equal(scan(BOOT + BEGIN + END), [])
    equal(scan((BOOT + BEGIN + END).replace("\n", "\r\n").encode() + b"\xff\xfe\n"), [])


def each_splat() -> None:
    """Every kind of splat is seen, before and after the command began"""
    for line in SPLATS.splitlines():
        for text in (f"{BOOT}[    1.0] {line}\n{BEGIN}{END}", f"{BOOT}{BEGIN}[    1.5][  T77] {line}\n{END}"):
            assert scan(text), f"not seen: {line}"


RACE = """==================================================================
BUG: KCSAN: data-race in {0} / {2}

write to 0xffff888003a3f0c8 of 8 bytes by task 77 on cpu 1:
 {0}+0x1a/0x40
 {1}+0x63/0x80
 do_syscall_64+0x4b/0x110

read to 0xffff888003a3f0c8 of 8 bytes by interrupt on cpu 0:
 {2}+0x9/0x80
 {3}+0x70/0x90
 entry_SYSCALL_64_after_hwframe+0x76/0x7e

value changed: 0x0000000000000000 -> 0x0000000000000001

Reported by Kernel Concurrency Sanitizer on:
CPU: 0 PID: 78 Comm: x Not tainted 6.12.117-kcsan #1
=================================================================="""
UNKNOWN = """BUG: KCSAN: data-race in {0}+0x1a/0x40

race at unknown origin, with read to 0xffff888003a3f0c8 of 8 bytes by task 77 on cpu 1:
 {0}+0x1a/0x40
 {1}+0x63/0x80

Reported by Kernel Concurrency Sanitizer on:
=================================================================="""


def races() -> None:
    """A data race counts where a function stands that the series defines, or one that it changes makes the access"""
    def said(report: str, *functions: str) -> int:
        lines = report.format(*functions).splitlines()
        return len(scan(BOOT + BEGIN + "".join(f"[    1.5][  T77] {line}\n" for line in lines) + END))

    stock = ("udp_poll", "do_poll", "udp_queue_rcv_one_skb", "__x64_sys_sendto")
    equal(said(RACE, *stock), 0)
    for place in range(4):
        for function in ("zlr_hread", "zlr_piece_alloc.part.0", "__x64_sys_reregist", "lazy_work", "proc_pid_restart"):
            functions = list(stock)
            functions[place] = function
            equal((functions, said(RACE, *functions)), (functions, 1))
    # get_signal() calls zlr_restart() and a lot else
    equal([said(RACE, "get_signal", *stock[1:]), said(RACE, stock[0], "get_signal", *stock[2:])], [1, 0])
    for entry in "asm_sysvec_apic_timer_interrupt", "handle_softirqs":
        interrupt = RACE.replace("\n {3}", f"\n {entry}+0x16/0x20\n {{3}}")
        equal([said(interrupt, *stock[:3], "lazy_work"), said(interrupt, "lazy_work", *stock[1:])], [0, 1])
    for shared, caller in ("touch_atime", "zlr_read_file"), ("alloc_bprm", "restart_execve"):
        report = RACE.replace("\n {3}", f"\n {shared}+0x16/0x20\n {{3}}")
        equal([said(report, *stock[:3], caller), said(report, caller, *stock[1:])], [0, 1])
    # The other side is marked as meant
    equal([said(UNKNOWN, *pair) for pair in (stock, ("zlr_wait", "do_poll"), ("fdget_pos", "__x64_sys_lwrite"))], [0, 1, 0])
    # A kernel that does not look for any
    clean = "[    0.1] kcsan: selftest: 3/3 tests passed\n" + BOOT + BEGIN + END
    equal([len(scan(text, profile=p)) for text in (clean, BOOT + BEGIN + END) for p in ("kcsan", "vm")], [0, 0, 1, 0])
    # Other complaints in between, and reports that are cut
    equal(said(RACE.replace("value changed", "Bad page state"), *stock), 1)
    equal(said(RACE.partition("Reported")[0] + RACE, *stock), 1)
    equal(said(RACE.partition("Reported")[0], *stock), 1)


def cut_console() -> None:
    """A console without a beginning or an end, an empty one and none at all are failures"""
    for text in (BOOT + END, BOOT + BEGIN, "", None):
        assert scan(text), repr(text)
    equal(scan(BOOT + BEGIN, died=True), [])


def lists() -> None:
    """The allow list works; lists that are missing, empty or wrong are failures"""
    text = BOOT + BEGIN + "[ 1.0] WARNING: harmless\n" + END
    with tempfile.TemporaryDirectory() as directory:
        deny, allow = Path(directory, "deny"), Path(directory, "allow")

        def with_lists(denied: str | None, allowed: str | None) -> int:
            for path, content in ((deny, denied), (allow, allowed)):
                path.unlink(missing_ok=True)
                if content is not None:
                    path.write_text(content)
            return len(scan(text, lists=Path(directory)))

        equal([with_lists(*pair) for pair in (("WARNING:\n", "# why\nharmless$\n"), ("WARNING:\n", "# none\n"),
                                              ("# nothing\n", ""), ("(\n", ""), (None, ""), ("WARNING:\n", None))],
              [0, 1, 1, 1, 1, 1])


def said(word: str, **points: str) -> dict:
    return {"word": word, "points": points, "tail": "", "seconds": 1}


def differences() -> None:
    """What passes on stock has to pass on ours, and skips are the same; what fails there may do as it likes"""
    def count(stock: dict, ours: dict) -> int:
        return len(compare.differences(stock, ours))

    equal([count(said(a), said(b)) for a in ("pass", "skip", "fail") for b in ("pass", "skip", "fail", "late")],
          [0, 1, 1, 1, 1, 0, 1, 1, 0, 1, 0, 0])
    equal(count(said("pass", a="pass", b="fail", c="skip"), said("pass", a="fail", b="pass", c="pass")), 2)
    equal(count(said("pass", a="pass"), said("pass")), 1)


def comparison() -> None:
    """A difference counts when it shows three times; complaints, and that too little passes, in any case"""
    def status(ours: list[dict], least: int = 1, wrong: str = "") -> tuple[int, int]:
        boots: list[int] = []

        def boot(name: str, inside: list[str], kernel: str, tests: list[str], number: int, limit: float) -> tuple[dict, list[str]]:
            boots.append(number)
            verdict = said("pass") if kernel == "stock" else ours[number - 1]
            return dict.fromkeys(tests, verdict), [wrong] if wrong and kernel == "perdure" else []

        compare.boot, kept = boot, compare.boot
        try:
            with contextlib.redirect_stdout(io.StringIO()) as text:
                result = compare.compare("x", [], ["a", "b"], 1, least)
        finally:
            compare.boot = kept
        verdict = ktap.judge(text.getvalue(), result)
        equal(bool(verdict.failed), bool(result))
        return result, len(boots)

    good, bad = said("pass"), said("fail")
    equal([status([good]), status([bad, good]), status([bad, bad, bad])], [(0, 2), (1, 4), (1, 6)])
    equal([status([bad, good], least=0), status([good], least=3), status([good], wrong="oops")], [(0, 4), (1, 2), (1, 2)])


main(differences, comparison, exit_status, results, plans, numbers, bail_out, disagreement, clean_console, each_splat, races, cut_console, lists)
