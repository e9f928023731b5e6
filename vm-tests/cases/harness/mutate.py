#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a mistake of ./build.sh mutate goes, and what of a list is refused."""

import tempfile
from pathlib import Path

from points import equal, main

import mistakes  # noqa: E402

C = """static int declared(int a);

static int first(int a,
		 int b)
{
	if (a)
		return b;
	return 0;
}

COMPAT_SYSCALL_DEFINE1(call, int, a)
{
	return 1;
}

SYSCALL_DEFINE1(call, int, a)
{
	return first(a,
		     1);
}
"""
PYTHON = '''class A:
    def one(self,
            a: int) -> int:
        return a

    def two(self) -> int:
        return a
'''


def parsed(text: str) -> list[mistakes.Mistake]:
    with tempfile.TemporaryDirectory() as place:
        Path(place, "x.list").write_text(text)
        return mistakes.load(Path(place))


def one(file: str, body: str) -> mistakes.Mistake:
    return parsed(f"name\n\t{file}\n{body}\tsuite/case other\n")[0]


def found() -> None:
    """In the function that is named, wherever its lines are broken; a system call by its name; not in a declaration"""
    equal(one("kernel/x.c first", "\t- return 0;\n\t+ return 1;\n").apply(C), C.replace("return 0;", "return 1;"))
    equal(one("kernel/x.c first", "\t- if (a) return b;\n").apply(C), C.replace("if (a)\n\t\treturn b;", ""))
    equal(one("kernel/x.c call", "\t- first(a, 1)\n\t+ 2\n").apply(C), C.replace("first(a,\n\t\t     1)", "2"))
    equal(one("x.py two", "\t- return a\n\t+ pass\n").apply(PYTHON), PYTHON[:-9] + "pass\n")
    equal(one("x.py one", "\t- return a\n\t+ pass\n").apply(PYTHON), PYTHON.replace("return a\n", "pass\n", 1))
    equal(one("x.sh", "\t- b\n\t- c\n\t+ d\n\t+ e\n").apply("a\nb\n  c\n"), "a\nd\ne\n")


def misfits() -> None:
    """None, two, a function that is not there: each is a problem"""
    for where, old in ("first", "return 2;"), ("first", "return"), ("declared", "a"), ("third", "a"), ("", "return"):
        assert len(one(f"kernel/x.c {where}", f"\t- {old}\n").problems(C)) == 1, (where, old)
    equal(one("kernel/x.c first", "\t- return 0;\n").problems(C), [])


def lists() -> None:
    """What is no list is refused; comments are none of it"""
    first, second = parsed("# why\na\n\tf g\n\t- x\n\ts/c t\n\n\n# more\nb\n\tkernel/f\n\t- x\n\t+ y\n\ts\n")
    equal((first.name, first.file, first.function, first.old, first.new, first.suites, first.kernel),
          ("a", "f", "g", "x", "", ["s/c", "t"], False))
    equal((second.kernel, second.whole_suites, first.whole_suites), (True, ["s"], ["s", "t"]))
    for text in ("a\n\tf\n\ts\n", "a\n\tf\n\t- x\n\t+ x\n\ts\n", "a\n\tf\n\t- x\n\tnothing\n\ts\n", "A b\n\tf\n\t- x\n\ts\n",
                 "a\n\tf\n\t- x\n\ts\n\na\n\tf\n\t- y\n\ts\n"):
        try:
            parsed(text)
        except mistakes.Error:
            continue
        raise AssertionError(f"not refused: {text!r}")


main(found, misfits, lists)
