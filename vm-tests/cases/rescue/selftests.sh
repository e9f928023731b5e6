#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Builds and runs the kernel tree's own tests, tools/testing/selftests/rescue; a point for each of theirs.
set -euo pipefail

tree=$PERDURE_TOP/build/linux
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Our header; all others may be the system's
mkdir -p "$out/include/linux"
cp "$tree/include/uapi/linux/rescue.h" "$out/include/linux/"
make -s -C "$tree/tools/testing/selftests/rescue" OUTPUT="$out" KHDR_INCLUDES="-isystem $out/include" "$out/$1" >&2

# Room to swap to, if there is none yet
if [ "$(wc -l < /proc/swaps)" = 1 ]; then
	truncate -s 32M "$out/swap"
	swap=$(losetup -f --show "$out/swap")
	mkswap -q "$swap"
	swapon "$swap"
	trap 'swapoff "$swap"; losetup -d "$swap"; rm -rf "$out"' EXIT
fi

# They take long there, and reach no lock and no memory that others do not: who may, kinds of faults, each reason, many of the same; and memory of the kernel is more there
if [[ ${PERDURE_PROFILE:-} == debug && $1 == rescue_test && $# == 1 ]]; then
	for test in own kinds gives_up many small threads_that_lock much_memory noted_memory cleared_tid; do
		set -- "$@" -T "$test"
	done
fi
"$out/$1" "${@:2}"
