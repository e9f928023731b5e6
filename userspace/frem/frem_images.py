# SPDX-License-Identifier: GPL-2.0-or-later
"""What frem has to know of CRIU's images: where the memory of a process is in them, and which files it writes."""

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


class Plain(Exception):
    """Why a restore has to be CRIU's own."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def numbers(data: bytes) -> dict[int, int]:
    """The integer fields of a protobuf message."""
    found: dict[int, int] = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            found[key >> 3], at = varint(data, at)
        elif key & 7 == 2:
            size, at = varint(data, at)
            at += size
        else:
            at += 8 if key & 7 == 1 else 4
    return found


def nested(data: bytes, field: int) -> Iterator[bytes]:
    """The messages in a field of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        size = 4
        if key & 7 == 0:
            size = varint(data, at)[1] - at
        elif key & 7 == 1:
            size = 8
        elif key & 7 == 2:
            size, at = varint(data, at)
            if key >> 3 == field:
                yield data[at:at + size]
        at += size


def encoded(values: dict[int, int]) -> bytes:
    """A protobuf message of integers."""
    data = bytearray()
    for field, value in values.items():
        for number in field << 3, value:
            while number >= 128:
                data.append(number & 127 | 128)
                number >>= 7
            data.append(number)
    return bytes(data)


def messages(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    kind = {"pagemap": 0x56084025, "mm": 0x57492820, "files": 0x56303138}[path.stem.partition("-")[0]]
    if struct.unpack_from("<II", data) != (0x54564319, kind):
        raise Plain(f"{path.name} is in a format that frem does not know")
    at = 8
    while at < len(data):
        size, = struct.unpack_from("<I", data, at)
        yield data[at + 4:at + 4 + size]
        at += 4 + size


Extent = tuple[int, int, int]   # address, length, offset in the image
Range = tuple[int, int]         # address, length


def may_be_lazy(vma: dict[int, int]) -> bool:
    """By CRIU's rules: 6 flags of mmap(2), 7 what CRIU calls it."""
    anonymous, locked, huge = 0x20, 0x2000, 0x40000
    of_the_kernel = 1 << 2 | 1 << 3 | 1 << 12
    return bool(vma[6] & mmap.MAP_PRIVATE and vma[6] & anonymous) and not vma[6] & (locked | huge) and not vma[7] & of_the_kernel


def mark_lazy(directory: Path, pid: int) -> None:
    """Marks the pages that may come later, as CRIU does unless the stack pointer of a thread is at the start of a page: it takes
    every page for a stack then, for it compares the wrong bits."""
    mm, = messages(directory / f"mm-{pid}.img")
    areas = sorted((vma[1], vma[2]) for vma in map(numbers, nested(mm, 14)) if may_be_lazy(vma))
    path = directory / f"pagemap-{pid}.img"
    head, *entries = messages(path)
    new = [head]
    for data in entries:
        entry = numbers(data)
        flags, at, end = entry.get(4, 0), entry[1], entry[1] + pages_of(entry) * PAGE
        if not flags & 4:
            new.append(data)
            continue
        for start, stop in [*((max(at, a), min(end, b)) for a, b in areas if a < end and b > at), (end, end)]:
            for piece, more in ((at, start), 0), ((start, stop), 2):
                count = (piece[1] - piece[0]) // PAGE
                pages = {2: 0, 5: count} if 5 in entry else {2: count}
                if count > 0:
                    new.append(encoded({1: piece[0], **pages, 4: flags | more}))
            at = stop
    written = path.with_suffix(".new")
    written.write_bytes(path.read_bytes()[:8] + b"".join(struct.pack("<I", len(data)) + data for data in new))
    written.rename(path)


def stored_pages(directory: Path, pid: int) -> tuple[Path, list[tuple[Extent, bool]]]:
    """The page image of a process, and what is in it; a lazy restore leaves some of that there."""
    head, *entries = messages(directory / f"pagemap-{pid}.img")
    stored: list[tuple[Extent, bool]] = []
    offset = 0
    for entry in map(numbers, entries):
        # 1 address, 2 pages, 3 in the parent, 4 flags: 1 in the parent, 2 lazy, 4 present
        flags, size = entry.get(4, 0), pages_of(entry) * PAGE
        if entry.get(3) or flags & 1:
            raise Plain("it is an incremental image")
        if 4 not in entry or flags & 4:
            stored.append(((entry[1], size, offset), bool(flags & 2)))
            offset += size
    return directory / f"pages-{numbers(head)[1]}.img", stored


def without_breakpoints(directory: Path, pid: int, map_files: Path) -> int:
    """The kernel puts breakpoints of probes and rescue points into private copies of pages of a file, and takes them out of processes
    that it knows. In an image they would stay for ever, and kill who comes to one. How many have become what the file has."""
    breakpoint_, private_of_file = 0xcc, 1 << 6
    mm, = messages(directory / f"mm-{pid}.img")
    # 1 start, 2 end, 3 offset in the file, 5 what is allowed, 7 what CRIU calls it
    areas = [vma for vma in map(numbers, nested(mm, 14))
             if vma.get(5, 0) & (mmap.PROT_EXEC | mmap.PROT_WRITE) == mmap.PROT_EXEC and vma.get(7, 0) & private_of_file]
    path, stored = stored_pages(directory, pid)
    found = [extent for extent, _ in stored]
    count = 0
    with path.open("r+b") as image:
        for vma in sorted(areas, key=lambda vma: vma[1]):
            try:
                file = (map_files / f"{vma[1]:x}-{vma[2]:x}").open("rb")
            except OSError:     # deleted, or of a device
                continue
            with file:
                for address, size, at in overlaps(found, [(vma[1], vma[2] - vma[1])]):
                    for page in range(0, size, PAGE):
                        was = os.pread(file.fileno(), PAGE, vma.get(3, 0) + address + page - vma[1])
                        have = os.pread(image.fileno(), PAGE, at + page)
                        differ = [n for n, (a, b) in enumerate(zip(have, was)) if a != b]
                        # A page that the program itself has changed is its own business
                        if differ and all(have[n] == breakpoint_ for n in differ):
                            for n in differ:
                                os.pwrite(image.fileno(), was[n:n + 1], at + page + n)
                            count += len(differ)
    return count


def page_map(directory: Path, pid: int) -> tuple[Path, list[Extent], int, list[Range]]:
    """The page image of a process, what a lazy restore leaves in it, how many bytes it holds of the process, and where
    in it what CRIU reads is."""
    image, stored = stored_pages(directory, pid)
    lazy = [extent for extent, may_wait in stored if may_wait]
    eager = [(offset, size) for (_, size, offset), may_wait in stored if not may_wait]
    return image, lazy, sum(size for (_, size, _), _ in stored), eager


def written_files(directory: Path) -> Iterator[tuple[str, int]]:
    """Of the files that are open for writing, those that CRIU wants to find with the size that it says."""
    for data in messages(directory / "files.img"):
        for file in nested(data, 3):
            # 2 flags of open(2), 6 name, 8 size
            values = numbers(file)
            if 8 in values and values.get(2, 0) & os.O_ACCMODE != os.O_RDONLY:
                yield from ((os.fsdecode(name), values[8]) for name in nested(file, 6))


def pages_of(entry: dict[int, int]) -> int:
    """Of a part of a page map; since CRIU 4.2 the number is in a field of its own, and 0 in the old one."""
    return entry.get(5) or entry[2]


def dumped(directory: Path) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in directory.glob("pagemap-[0-9]*.img"))


def overlaps(extents: list[Extent], ranges: list[Range]) -> Iterator[Extent]:
    """The parts of the ranges that are in an extent, in the order of addresses. Both are sorted."""
    at = 0
    for address, size in ranges:
        while at < len(extents) and extents[at][0] + extents[at][1] <= address:
            at += 1
        for extent in extents[at:]:
            if extent[0] >= address + size:
                break
            low, high = max(extent[0], address), min(extent[0] + extent[1], address + size)
            yield low, high - low, extent[2] + low - extent[0]
