# SPDX-License-Identifier: GPL-2.0-or-later
"""What the two hosts of a connection tell each other, as in net/ipv4/tcp_replica.c."""

import struct
from typing import NamedTuple

OPTION, EXID = 254, 0x5252
# A report's flags
FROM_PRIMARY, LAST, GONE, ASK, UNKNOWN, LEFT_ALONE, LEAVE, NONE = (1 << n for n in range(8))
FAREWELLS = UNKNOWN | LEFT_ALONE | NONE     # of a host that has no copy


class Report(NamedTuple):
    """The option's value."""
    exid: int
    flags: int
    options: int
    acked: int
    reserved: int
    rcv_nxt: int
    rcv_end: int
    write_seq: int
    mac: bytes

    LAYOUT = struct.Struct("!HBBBBIII8s")     # type: ignore[misc]


def report_in(value: bytes | None) -> Report | None:
    """The value of a segment's option 254, if it has one."""
    if value is None or len(value) != Report.LAYOUT.size:
        return None
    report = Report(*Report.LAYOUT.unpack(value))
    return report if report.exid == EXID else None


class Offer(NamedTuple):
    """The option's value in the SYN by which a host offers a copy, and in the acknowledgment behind it."""
    exid: int
    isn: int
    tsval: int
    mac: bytes

    LAYOUT = struct.Struct("!HII8s")     # type: ignore[misc]


def offer_in(value: bytes | None) -> Offer | None:
    if value is None or len(value) != Offer.LAYOUT.size:
        return None
    offer = Offer(*Offer.LAYOUT.unpack(value))
    return offer if offer.exid == EXID else None


def ahead(a: int, b: int) -> int:
    """How far one sequence number is after another one."""
    return (a - b + (1 << 31)) % (1 << 32) - (1 << 31)
