#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# rpm [--check] [--profile server|full|...] [userspace|kernel]: RPM packages into dist/. The kernel has been built.
# --check: looks at the arguments only.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/dist.sh
. "$(dirname "$0")/dist.sh"

what=all profile=server check='' unpinned=''
while [[ $# -gt 0 ]]; do
	case $1 in
	--profile) profile=${2:-}; shift $(($# > 1)) ;;
	--profile=*) profile=${1#*=} ;;
	--check) check=yes ;;
	--unpinned) unpinned=yes ;;
	userspace | kernel) what=$1 ;;
	*) die "usage: ./build.sh rpm [--profile server|server-debug|small|full|full-debug] [--unpinned] [userspace|kernel]" ;;
	esac
	shift
done
shipped "$profile"
[[ $(uname -m) == x86_64 ]] || die "rpm: this is $(uname -m); packages are built on x86_64, for x86_64"
[[ $what != @(all|kernel) ]] || trusted
[[ -z $check ]] || exit 0
need rpmbuild
# Not with another Python that the user has: modules would go where that one looks
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
lock dist
work=$BUILD/rpm

# build SPEC DEFINE...: the same bytes on any host and day
build() {
	local spec=$1 define args=()
	shift
	for define in "_topdir $work" "_buildhost perdure" "use_source_date_epoch_as_buildtime 1" \
		"clamp_mtime_to_source_date_epoch 1" "build_mtime_policy clamp_to_source_date_epoch" \
		"_binary_payload w19.zstdio" "version_perdure $VERSION" "_build_id_links none" "packager $MAINTAINER <$MAINTAINER_EMAIL>" "$@"; do
		args+=(--define "$define")
	done
	# Debian's rpm knows no installed packages
	rpmbuild -bb --nodeps --target x86_64-linux "${args[@]}" "$TOP/packaging/rpm/$spec"
}

userspace() {
	rm -rf "$work/SOURCES" && mkdir -p "$work/SOURCES"
	export_source "$work/SOURCES/perdure-$VERSION"
	tar -C "$work/SOURCES" -cf "$work/SOURCES/perdure-$VERSION.tar" "perdure-$VERSION"
	rm -f "$work"/RPMS/x86_64/perdure-*
	build perdure.spec
}

kernel() {
	local tree=$BUILD/kernel/perdure-$1 stage=$work/stage release modules headers
	local make=("$TOP/scripts/kernel.sh" --profile "$1" --make)
	release=$(<"$tree/include/config/kernel.release")
	modules=$stage/lib/modules/$release
	headers=$stage/usr/src/kernels/$release
	rm -rf "$stage" "$work"/RPMS/x86_64/kernel-perdure-* && mkdir -p "$modules" "$stage/usr/src/kernels"
	"${make[@]}" modules_install INSTALL_MOD_PATH="$stage" INSTALL_MOD_STRIP=1
	rm -f "$modules/build"
	install -m 755 "$tree/arch/x86/boot/bzImage" "$modules/vmlinuz"
	install -m 600 "$tree/System.map" "$modules/System.map"
	install -m 644 "$tree/.config" "$modules/config"
	# $(srctree) is for make
	# shellcheck disable=SC2016
	"${make[@]}" run-command KBUILD_RUN_COMMAND='$(srctree)/scripts/package/install-extmod-build '"$headers"
	"$TOP/packaging/kernel-headers" "$headers"
	ln -s "/usr/src/kernels/$release" "$modules/build"
	build kernel-perdure.spec "kversion ${release%%-*}" "krelease $release" "release_perdure $(sed 's/.*-perdure-//; s/-/./g' <<<"$release")" "stage $stage"
}

if [[ $what != kernel ]]; then
	step "userspace RPMs" rpm-userspace userspace
	collect "$work"/RPMS/x86_64/perdure-*.rpm
fi
if [[ $what != userspace ]]; then
	step "kernel RPMs" rpm-kernel kernel "$profile"
	collect "$work"/RPMS/x86_64/kernel-perdure-*.rpm
fi
finish
