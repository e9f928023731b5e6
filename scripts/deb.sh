#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# deb [--check] [--profile server|full|...] [--dbg] [userspace|kernel|checksums]: Debian packages into dist/. The kernel has been
# built. checksums: only those, anew, of all that is in dist/. --check: looks at the arguments only.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/dist.sh
. "$(dirname "$0")/dist.sh"

need dpkg-buildpackage dh fakeroot
[[ $(dpkg --print-architecture) == amd64 ]] ||
	die "deb: this is $(dpkg --print-architecture); packages are built on amd64, for amd64"
# Not with another Python that the user has: modules would go where that one looks
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
work=$BUILD/deb

userspace() {
	local source=$work/perdure-$VERSION
	rm -rf "$work"/userspace "$source" && mkdir -p "$work/userspace"
	export_source "$source"
	cp -r "$TOP/packaging/deb" "$source/debian"
	sed -i "s/^Maintainer: .*/Maintainer: ${MAINTAINER//[&\/]/\\&} <${MAINTAINER_EMAIL//[&\/]/\\&}>/" "$source/debian/control"
	mkdir -p "$source/debian/source"
	echo '3.0 (native)' >"$source/debian/source/format"
	printf 'perdure (%s-1) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s <%s>  %s\n' "$VERSION" "$MAINTAINER" \
		"$MAINTAINER_EMAIL" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")" >"$source/debian/changelog"
	(cd "$source" && env -u CCACHE_DIR DEB_BUILD_OPTIONS=nocheck dpkg-buildpackage --build=binary --unsigned-changes)
	mv "$work"/*.deb "$work/userspace/"
	rm -f "$work"/*.{buildinfo,changes}
}

# The kernel's own packaging (bindeb-pkg), one step at a time: between them its metadata become ours
kernel() {
	local tree=$BUILD/kernel/perdure-$1
	local make=("$TOP/scripts/kernel.sh" --profile "$1" --make)
	export KDEB_SOURCENAME=linux-perdure KDEB_PKGVERSION=$VERSION-1 KDEB_CHANGELOG_DIST=unstable KDEB_COMPRESS=xz
	export DEBFULLNAME=$MAINTAINER DEBEMAIL=$MAINTAINER_EMAIL
	[[ $2 == yes ]] || export DEB_BUILD_PROFILES=pkg.linux-perdure.nokerneldbg
	rm -rf "$work/kernel" "$tree/debian" "$tree"/../*.deb && mkdir -p "$work/kernel"
	# $(srctree) and $(MAKE) are for make
	# shellcheck disable=SC2016
	"${make[@]}" run-command KBUILD_RUN_COMMAND='$(srctree)/scripts/package/mkdebian'
	(cd "$tree" && "$TOP/packaging/deb-kernel/adapt")
	# shellcheck disable=SC2016
	"${make[@]}" run-command KBUILD_RUN_COMMAND='+$(MAKE) -f debian/rules binary-arch'
	mv "$tree"/../*.deb "$work/kernel/"
}

what=all profile=server dbg=no check='' unpinned=''
while [[ $# -gt 0 ]]; do
	case $1 in
	--profile) profile=${2:-}; shift $(($# > 1)) ;;
	--profile=*) profile=${1#*=} ;;
	--check) check=yes ;;
	--unpinned) unpinned=yes ;;
	--dbg) dbg=yes ;;
	userspace | kernel | checksums) what=$1 ;;
	*) die "usage: ./build.sh deb [--profile server|server-debug|small|full|full-debug] [--dbg] [--unpinned]" \
		"[userspace|kernel|checksums]" ;;
	esac
	shift
done
shipped "$profile"
[[ $what != @(all|kernel) ]] || trusted
[[ -z $check ]] || exit 0
lock dist
if [[ $what == all || $what == userspace ]]; then
	step "userspace packages" deb-userspace userspace
	collect "$work"/userspace/*.deb
fi
if [[ $what == all || $what == kernel ]]; then
	step "kernel packages" deb-kernel kernel "$profile" "$dbg"
	collect "$work"/kernel/*.deb
fi
finish
