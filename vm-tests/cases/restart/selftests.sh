#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Builds and runs the kernel tree's own tests, tools/testing/selftests/zlr, with the headers of the kernel that runs.
set -euo pipefail

tree=$PERDURE_TOP/build/linux
objects=$PERDURE_BUILD/kernel/perdure-$PERDURE_PROFILE
dir=$tree/tools/testing/selftests/zlr
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# The two headers that are ours; all others may be the system's. Installing a whole set takes a minute in here.
mkdir -p "$out/include/linux" "$out/include/asm"
cp "$tree/include/uapi/linux/zlr.h" "$out/include/linux/"
case $(uname -m) in
x86_64) arch=x86 ;;
aarch64)
	arch=arm64
	# That of the C library does without unistd_64.h
	cp "$tree/arch/arm64/include/uapi/asm/unistd.h" "$out/include/asm/"
	;;
esac
cp "$objects/arch/$arch/include/generated/uapi/asm/unistd_64.h" "$out/include/asm/"
make -s -j"$(nproc)" -C "$dir" OUTPUT="$out" KHDR_INCLUDES="-isystem $out/include" >&2

tests=("$out"/zlr_*_test)
echo "KTAP version 1"
echo "1..${#tests[@]}"
nr=0
for test in "${tests[@]}"; do
	nr=$((nr + 1))
	rc=0
	"$test" >"$out/log" 2>&1 || rc=$?
	sed 's/^/# /' "$out/log"
	case $rc in
	0) echo "ok $nr ${test##*/}" ;;
	4) echo "ok $nr ${test##*/} # SKIP" ;;
	*) echo "not ok $nr ${test##*/} # exit code $rc" ;;
	esac
done
