#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Builds and runs the kernel tree's own test, tools/testing/selftests/net/tcp_replica.c.
set -euo pipefail

tree=$PERDURE_TOP/build/linux
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Our header; all others may be the system's
mkdir -p "$out/include/linux"
cp "$tree/include/uapi/linux/tcp_replica.h" "$out/include/linux/"
gcc -O2 -Wall -D_GNU_SOURCE -isystem "$out/include" -o "$out/tcp_replica" "$tree/tools/testing/selftests/net/tcp_replica.c"
"$out/tcp_replica"
