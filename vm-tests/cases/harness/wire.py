#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What is wrong in made-up captures of the two hosts of a service, and what is not."""

import struct
from collections.abc import Callable

from points import equal, main

from net import Frame  # noqa: E402
from replica import Judge, Phase  # noqa: E402
from tcp_replica import ASK, EXID, FROM_PRIMARY, GONE, LAST, LEAVE, LEFT_ALONE, NONE, OPTION, UNKNOWN  # noqa: E402

CLIENT, SERVICE = ("192.0.2.1", 4000), ("192.0.2.10", 80)
OTHER = {"one": "two", "two": "one"}
# The ends of both directions when the connection is offered, and of the request and the answer that come then: numbers
# begin again in between
ISN, START = (1 << 32) - 20, (1 << 32) - 25
RCV, SEQ = (ISN + 11) % (1 << 32), (START + 21) % (1 << 32)
REQUEST, ANSWER = b"r" * 10, b"a" * 20
ASKED, ANSWERED = (RCV + 10) % (1 << 32), (SEQ + 20) % (1 << 32)
ID = (7, 8)


class Wire:
    """Frames, one after the other; "two" has the connection alone at first, unless another one is named."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def put(self, host: str, sent: bool, flags: str = "", seq: int = 0, ack: int = 0, payload: bytes = b"",
            option: bytes = b"", answer: bool = False) -> None:
        ends = (*SERVICE, *CLIENT) if answer else (*CLIENT, *SERVICE)
        options = [(OPTION, option)] if option else []
        self.frames.append(Frame(self.now, host, sent, b"", 0x0800, ends[0], ends[2], 6, ends[1], ends[3], flags, seq,
                                 ack, 0, options, payload))

    @property
    def now(self) -> int:
        return len(self.frames)

    def client(self, flags: str, seq: int, ack: int = 0, payload: bytes = b"") -> None:
        self.put("client", True, flags, seq, ack, payload)
        for host in OTHER:
            self.put(host, False, flags, seq, ack, payload)

    def says(self, host: str, flags: str, seq: int, ack: int, payload: bytes = b"") -> None:
        self.put(host, True, flags, seq, ack, payload, answer=True)

    def report(self, host: str, flags: int = 0, rcv_nxt: int = RCV, write_seq: int = SEQ, id: tuple[int, int] = ID,
               given: bool = True) -> None:
        option = struct.pack("!HBBBBIII8x", EXID, flags, 0, 0, 0, rcv_nxt, rcv_nxt, write_seq)
        self.put(host, True, "", *id, option=option)
        if given:
            self.put(OTHER[host], False, "", *id, option=option)

    def begin(self) -> None:
        self.client("S", ISN)
        self.says("two", "SA", START, ISN + 1)
        self.client("PA", ISN + 1, START + 1, REQUEST)
        self.says("two", "PA", START + 1, RCV, ANSWER)
        self.client("A", RCV, SEQ)

    def offer(self, host: str = "two", rcv_nxt: int = RCV, write_seq: int = SEQ, id: tuple[int, int] = ID) -> None:
        option = struct.pack("!HII8x", EXID, write_seq - 1, 0)
        for flags, seq, ack in ("S", rcv_nxt - 1, 0), ("A", rcv_nxt, write_seq):
            self.put(host, True, flags, seq, ack, option=option)
            self.put(OTHER[host], False, flags, seq, ack, option=option)
        self.report(host, FROM_PRIMARY | ASK, rcv_nxt, write_seq, id)

    def ask(self) -> None:
        self.client("PA", RCV, SEQ, REQUEST)


def alone() -> Wire:
    w = Wire()
    w.begin()
    return w


def offered() -> Wire:
    w = alone()
    w.offer()
    return w


def copied() -> Wire:
    """The offering host has the copy's report."""
    w = offered()
    w.report("one")
    return w


def taken() -> Wire:
    """... and what came after it."""
    w = copied()
    w.ask()
    w.report("one", rcv_nxt=ASKED)
    w.says("two", "A", SEQ, ASKED)
    return w


def judged(w: Wire, *phases: Phase, ungated: tuple[int, ...] = ()) -> int:
    """How many segments, of those since it has a copy again."""
    judge = Judge(w.frames, [SERVICE], list(phases) or [Phase(SERVICE, 2, "one")], ungated)
    assert len(judge.again) <= 1 and sum(judge.again.values()) <= judge.judged
    return sum(judge.again.values())


def wrong(w: Wire, what: str, *phases: Phase) -> None:
    try:
        judged(w, *phases)
    except AssertionError as error:
        assert what in str(error), error
    else:
        raise AssertionError(f"it is not found: {what}")


def free(w: Wire, host: str = "two") -> None:
    """It has gone on alone."""
    w.ask()
    w.says(host, "A", SEQ, ASKED)
    w.says(host, "PA", SEQ, ASKED, ANSWER)


ACKNOWLEDGES, SENDS, SPEAKS = "acknowledges 10 bytes", "sends 20 bytes", "the muted host speaks"


def begun() -> None:
    """A connection that begins in a phase is bound until a survivor is free, and then the other host is"""
    def start(rcv_nxt: int, write_seq: int, host: str = "two") -> Wire:
        w = Wire()
        w.client("S", ISN)
        w.says("two", "SA", START, ISN + 1)
        w.client("PA", ISN + 1, START + 1, REQUEST)
        w.report("one", 0, rcv_nxt, write_seq)
        w.says(host, "PA", START + 1, RCV, ANSWER)
        return w

    none = (ISN + 1) % (1 << 32), (START + 1) % (1 << 32)
    late = start(*none)
    for phase, works in ((Phase(SERVICE, 0, "two"), False), (Phase(SERVICE, 1, "two"), True),
                         (Phase(SERVICE, 0, "two", 5, "two"), True), (Phase(SERVICE, 0, "two", 5, "one"), False),
                         (Phase(SERVICE, 0, "two", 5), True)):
        if works:
            equal(judged(late, phase), 0)
        else:
            wrong(late, ACKNOWLEDGES, phase)
    phase = Phase(SERVICE, 0, "two")
    equal(judged(start(RCV, SEQ), phase), 0)
    wrong(start(RCV, none[1]), SENDS, phase)
    wrong(start(RCV, SEQ, "one"), SPEAKS, phase)
    reset = start(RCV, SEQ)
    reset.says("two", "R", SEQ, 0)
    wrong(reset, "a reset", phase)


def again() -> None:
    """One that has a copy again is bound by what that one reports, whichever host is the service's primary"""
    w = taken()
    equal(judged(w), 1)
    w.report("one", 0, ASKED, ANSWERED)
    w.says("two", "PA", SEQ, ASKED, ANSWER)
    for role in OTHER:
        equal(judged(w, Phase(SERVICE, 2, role)), 2)
    w.says("two", "A", ANSWERED, ASKED + 1)
    wrong(w, "acknowledges 1 bytes")


def too_much() -> None:
    """It acknowledges or sends more than the copy has, or the copy's host speaks"""
    w = copied()
    w.ask()
    w.says("two", "A", SEQ, ASKED)
    wrong(w, ACKNOWLEDGES)
    w = taken()
    w.says("two", "PA", SEQ, ASKED, ANSWER)
    wrong(w, SENDS)
    equal(judged(w, ungated=(CLIENT[1],)), 2)
    w = taken()
    w.says("one", "A", SEQ, RCV)
    wrong(w, SPEAKS)
    # What a report says of another copy says nothing of this one
    w = copied()
    w.ask()
    w.report("one", 0, ASKED, ANSWERED, id=(7, 9))
    w.says("two", "A", SEQ, ASKED)
    wrong(w, ACKNOWLEDGES)


def not_taken() -> None:
    """Before the copy is taken, the host that has offered it is free, and if it never is"""
    def with_report(add: Callable[[Wire], None]) -> None:
        w = copied()
        add(w)
        w.report("two", FROM_PRIMARY | LEFT_ALONE)
        free(w)
        w.says("one", "A", SEQ, ASKED)
        equal(judged(w), 0)

    w = alone()
    free(w)
    equal(judged(w), 0)
    w = offered()
    free(w)
    # It has read the request before
    w.report("one")
    w.says("two", "A", ANSWERED, ASKED)
    equal(judged(w), 0)
    # The report has got lost
    w = offered()
    w.report("one", given=False)
    free(w)
    equal(judged(w), 0)
    # It is another copy's, or says more than that this one is there
    for flags, id in (0, (7, 9)), (LAST, ID):
        w = offered()
        w.report("one", given=False)
        w.report("one", flags, id=id)
        free(w)
        equal(judged(w), 0)
    # The request was there, and had not been read
    w = alone()
    w.ask()
    w.offer()
    w.report("one")
    w.says("two", "A", SEQ, ASKED)
    equal(judged(w), 0)
    with_report(lambda w: None)
    # It goes on with an answer, and reads the report behind that
    with_report(lambda w: w.says("two", "PA", SEQ, RCV, ANSWER[:5]))
    # The copy's server has spoken
    w = offered()
    w.report("one", write_seq=SEQ + 1)
    free(w)
    equal(judged(w), 0)


def in_between() -> None:
    """What it sends after it has got the copy's report is wrong if it has taken it then, which is known only later"""
    w = copied()
    w.ask()
    w.says("two", "PA", SEQ, RCV, ANSWER)
    equal(judged(w), 0)
    w.report("one", 0, ASKED, ANSWERED)
    w.says("two", "A", ANSWERED, ASKED)
    wrong(w, SENDS)
    # Who asks the copy has taken it
    w = copied()
    w.report("two", FROM_PRIMARY | ASK)
    w.says("two", "A", SEQ, RCV)
    equal(judged(w), 1)
    w.says("two", "PA", SEQ, RCV, ANSWER)
    wrong(w, SENDS)


def farewells() -> None:
    """It is free again when either host says that it has none, or goes on alone"""
    for host, flags in (("one", GONE), ("one", GONE | LEAVE), ("one", NONE), ("one", UNKNOWN),
                        ("two", FROM_PRIMARY | LEFT_ALONE), ("two", FROM_PRIMARY | GONE)):
        w = taken()
        w.report(host, flags)
        w.says("two", "PA", SEQ, ASKED + 1, ANSWER)
        equal(judged(w), 1)
    # Of another copy; a wish; what a host says of packets that came before it had the copy
    for host, flags, id in (("one", GONE, (7, 9)), ("two", FROM_PRIMARY | LEFT_ALONE, (7, 9)),
                            ("two", FROM_PRIMARY | LEAVE, ID)):
        w = taken()
        w.report(host, flags, id=id)
        w.says("two", "PA", SEQ, ASKED, ANSWER)
        wrong(w, SENDS)
    w = offered()
    w.report("one", UNKNOWN, id=(RCV, SEQ))
    w.report("one")
    free(w)
    wrong(w, ACKNOWLEDGES)


def phases() -> None:
    """Phases bind it as they do others; one that begins later does so only to what is not about to end"""
    w = taken()
    end = w.now
    w.says("two", "PA", SEQ, ASKED, ANSWER)
    equal(judged(w, Phase(SERVICE, 2, "one", end, "two")), 1)
    wrong(w, SENDS, Phase(SERVICE, 2, "one", end, "one"))
    equal(judged(w, Phase(SERVICE, 2, "one", end)), 1)
    wrong(w, SENDS, Phase(SERVICE, 0, "one", 1), Phase(SERVICE, end, "one"))
    equal(judged(w, Phase(("192.0.2.11", 80), 2, "one")), 0)
    # Alone since the first phase has ended, whatever the copy says still
    w = copied()
    end = w.now
    w.report("one")
    free(w)
    equal(judged(w, Phase(SERVICE, 2, "one", end, "two"), Phase(SERVICE, w.now - 4, "one")), 0)
    for service in "one", "two":
        w = taken()
        w.says("one", "A", SEQ, ASKED)
        if service == "one":
            equal(judged(w, Phase(SERVICE, 2, "one", w.now - 1, "one")), 1)
        else:
            wrong(w, SPEAKS, Phase(SERVICE, 2, "one", w.now - 1, "two"))
    w = taken()
    w.says("two", "FA", SEQ, ASKED)
    w.says("two", "A", SEQ + 1, ASKED + 1)
    equal(judged(w, Phase(SERVICE, w.now - 1, "one")), 0)
    wrong(w, "sends 1 bytes")


def offered_again() -> None:
    """An offer frees it until the new copy is taken, by either host"""
    for host in OTHER:
        w = taken()
        w.report("one", 0, ASKED, ANSWERED)
        w.says("two", "PA", SEQ, ASKED, ANSWER)
        w.client("A", ASKED, ANSWERED)
        w.offer(host, ASKED, ANSWERED, (1, 2))
        w.report(OTHER[host], 0, ASKED, ANSWERED, (1, 2))
        w.client("PA", ASKED, ANSWERED, REQUEST)
        w.report(OTHER[host], 0, ASKED + 10, ANSWERED, (1, 2))
        w.says(host, "A", ANSWERED, ASKED + 10)
        equal(judged(w), 3)
        w.says(host, "PA", ANSWERED, ASKED + 10, b"a")
        wrong(w, "sends 1 bytes")
    w = taken()
    w.offer(rcv_nxt=ASKED, id=(1, 2))
    w.client("PA", ASKED, SEQ, REQUEST)
    w.says("two", "PA", SEQ, ASKED + 10, ANSWER)
    equal(judged(w), 1)
    # What the last copy had, this one has not
    w = taken()
    w.report("one", 0, ASKED + 10, ANSWERED)
    w.report("one", GONE)
    w.offer(rcv_nxt=ASKED, id=(1, 2))
    w.report("one", 0, ASKED, SEQ, (1, 2))
    w.client("PA", ASKED, SEQ, REQUEST)
    w.says("two", "A", SEQ, ASKED + 10)
    wrong(w, ACKNOWLEDGES)


main(begun, again, too_much, not_taken, in_between, farewells, phases, offered_again)
