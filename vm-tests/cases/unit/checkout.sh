#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# A program is compiled and runs with the library of a checkout, as README says: nothing is installed.
echo "KTAP version 1"
echo "1..2"
cd "$PERDURE_TOP" || exit 1
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
failed=0
point() { # STATUS NUMBER NAME
	if [ "$1" = 0 ]; then echo "ok $2 $3"; else echo "not ok $2 $3"; failed=1; fi
}
eval "$(./build.sh env)"
# shellcheck disable=SC2046 # words
cc -o "$place/counter" userspace/examples/counter.c $(pkg-config --cflags --libs perdure)
point $? 1 "a program is compiled by pkg-config's words"
"$place/counter" >"$place/said" 2>&1
[ $? != 127 ] && ! grep -q "shared libraries" "$place/said"
point $? 2 "it finds the library"
exit $failed
