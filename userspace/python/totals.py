#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""totals.py [PORT]: answers each line, numbers with spaces between, with their sum, on any number of connections, and
outlives its faults.

A line "crash" is answered by a null pointer, once; the next generation answers it with 0.
"""

import asyncio
import ctypes
import sys

import perdure
import perdure.aio


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    info = perdure.info() if perdure.available() else None
    try:
        while line := await reader.readline():
            words = line.split()
            if words == [b"crash"] and info is not None and not info.is_restarted:
                ctypes.string_at(0)
            writer.write(b"%d\n" % sum(int(word) for word in words if word.isdigit()))
            perdure.aio.release(reader, writer)     # this line is answered: it is not read again
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def main() -> None:
    server = await perdure.aio.start_server(answer, "127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 7010)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
