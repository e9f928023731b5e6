#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Each row of the table in perdure_restart(7) names its test in a comment, and each test has its row."""

import os
import re
import subprocess
import sys
from pathlib import Path

page = Path(os.environ["PERDURE_TOP"], "userspace/man/perdure_restart.7").read_text()
program = Path(os.environ["PERDURE_BUILD"], "userspace/vm-tests/cases/owners/owners")
tests = subprocess.run([program, "-l"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
rows = re.findall(r'^\.\\" test: (\w+)\n\.It Sy .* \\\(em (?:kept|reset|refused|as execve)', page, re.M)
wrong = [f"{test}: no row" for test in tests if test not in rows] + \
        [f"{row}: no test" for row in rows if row not in tests] + \
        [f"{row}: two rows" for row in set(rows) if rows.count(row) > 1]

print("KTAP version 1\n1..1")
for line in wrong:
    print("#", line)
print("not ok 1 table" if wrong or not rows else "ok 1 table", f"# {len(rows)} rows")
sys.exit(bool(wrong or not rows))
