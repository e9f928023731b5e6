#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# built.sh NAME: a program that is only built where there is what it needs

program=$PERDURE_BUILD/userspace/vm-tests/cases/library/$1
case $1 in
*-32) needs="programs of 32 bits need Debian's libc6-dev-i386 and lib32gcc-12-dev (or -14-)" ;;
*-cxx) needs="programs in C++ need g++" ;;
esac
if [ ! -x "$program" ]; then
	echo "1..0 # SKIP $needs"
	exit 77
fi
exec "$program"
