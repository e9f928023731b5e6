#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Finds the kernel source that Debian ships and compares it with the pin in kernel-patches/UPSTREAM. Leaves
# build/cache/source: the tarball's path and checksum.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

package=$(pin package)
tarball=${KERNEL_SRC:-/usr/src/$package.tar.xz}
[[ -f $tarball ]] || die "$tarball is missing: install the package $package (./build.sh setup), or set KERNEL_SRC to a tarball of Linux $(pin versions)"

# Reading 150 MB again is only due when the file has changed
identity="$tarball $(stat -c '%s %Y' "$tarball")"
if [[ -f $CACHE/source && $(sed -n 3p "$CACHE/source") == "$identity" ]]; then
	exit 0
fi
mkdir -p "$CACHE"
sum=$(sha256sum "$tarball" | cut -d ' ' -f 1)
pinned "$sum" || say "warning: $tarball is not the pinned Linux $(pin versions); using it as long as the series applies"
printf '%s\n' "$tarball" "$sum" "$identity" >"$CACHE/source"
say "fetch: $tarball"
