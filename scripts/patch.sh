#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# patch [--force]: makes build/linux a git tree with one commit per patch of the series, to build and to work in.
#
# The commits are made from the index alone and checked out in one step at the end, so a patch that does not apply
# leaves the tree as it was, and a file that ends up the same keeps its time stamp: make rebuilds only what changed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

force=
keep=
saved=
for arg in "$@"; do
	case $arg in
	--force) force=1 ;;
	--keep) keep=1 ;; # as a part of another verb: local work is built as it is
	--saved) saved=1 ;; # nothing but: is there local work?
	*) die "usage: ./build.sh patch [--force]" ;;
	esac
done
# In the order of the series, one "commit checksum name" line per patch that the tree has
applied=$LINUX/.git/perdure-applied

unpack() {
	rm -rf "$LINUX.new"
	mkdir -p "$LINUX.new"
	echo "unpacking $tarball"
	XZ_DEFAULTS=-T0 tar -C "$LINUX.new" --strip-components=1 -xf "$tarball"
	cd "$LINUX.new"
	# Debian's last lines ignore whatever is new
	sed -i '\#^/\*$#d' .gitignore
	echo "committing it"
	git init -q -b perdure .
	git config gc.auto 0
	git config core.whitespace -trailing-space,-space-before-tab
	local version
	version=$(make -s kernelversion)
	# All of it is source, whatever .gitignore says; in one uncompressed pack rather than 80000 files
	git -c core.bigFileThreshold=1 -c core.compression=0 add -A -f .
	GIT_AUTHOR_NAME=Perdure GIT_AUTHOR_EMAIL=perdure@localhost GIT_AUTHOR_DATE='2025-01-01 00:00:00 +0000' \
	GIT_COMMITTER_NAME=Perdure GIT_COMMITTER_EMAIL=perdure@localhost GIT_COMMITTER_DATE='2025-01-01 00:00:00 +0000' \
		git commit -q -m "Linux $version, as Debian ships it"
	git tag base
	echo "$source" >.git/perdure-source
	: >.git/perdure-applied
	cd ..
	rm -rf "$LINUX"
	mv "$LINUX.new" "$LINUX"
}

# Says what would be lost; nothing when nothing would
local_work() {
	local last
	last=$(tail -n 1 "$applied" | cut -d ' ' -f 1)
	if [[ $(git -C "$LINUX" rev-parse HEAD) != "${last:-$(git -C "$LINUX" rev-parse base)}" ]]; then
		echo "commits that are not in the series"
	elif [[ -n $(git -C "$LINUX" status --porcelain | head -n 1) ]]; then
		echo "changes that are not committed"
	fi
}

if [[ -n $saved ]]; then
	[[ -d $LINUX/.git ]] || exit 0
	work=$(local_work)
	[[ -z $work ]] || die "build/linux holds $work: ./build.sh refresh writes commits to the series; distclean --force removes all"
	exit 0
fi
need git make tar xz
lock kernel
{ read -r tarball; read -r sum; } <"$CACHE/source"
source="$sum, as unpacked by recipe 2"

# apply NAME PARENT: makes the commit and prints it
apply() {
	local name=$1 parent=$2 dir=$LINUX/.git/perdure-mail info tree
	mkdir -p "$dir"
	info=$(git -C "$LINUX" mailinfo -b "$dir/msg" "$dir/diff" <"$PATCHES/$name")
	field() { sed -n "s/^$1: //p" <<<"$info"; }
	[[ -n $(field Author) && -n $(field Subject) && -n $(field Date) ]] ||
		{ echo "error: $name lacks From, Subject or Date" >&2; return 1; }
	export GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_AUTHOR_DATE
	GIT_AUTHOR_NAME=$(field Author) GIT_AUTHOR_EMAIL=$(field Email) GIT_AUTHOR_DATE=$(field Date)
	git -C "$LINUX" apply --cached --whitespace=nowarn "$dir/diff" || return 1
	tree=$(git -C "$LINUX" write-tree)
	{ field Subject; echo; cat "$dir/msg"; } |
		git -C "$LINUX" interpret-trailers --trailer "Perdure-Patch: $name" |
		GIT_COMMITTER_NAME=$GIT_AUTHOR_NAME GIT_COMMITTER_EMAIL=$GIT_AUTHOR_EMAIL \
		GIT_COMMITTER_DATE=$GIT_AUTHOR_DATE git -C "$LINUX" commit-tree "$tree" -p "$parent"
}

if [[ ! -d $LINUX/.git || $(cat "$LINUX/.git/perdure-source" 2>/dev/null) != "$source" ]]; then
	if [[ -d $LINUX/.git && -z $force && -n $(local_work) ]]; then
		[[ -z $keep ]] || exit 0
		die "another kernel source than build/linux has, which holds $(local_work): ./build.sh refresh keeps them, ./build.sh patch --force throws them away"
	fi
	need_space "$BUILD" 7000 "the kernel source and its build"
	step "unpack the kernel source" unpack unpack
fi

work=$(local_work)
if [[ -n $work && -z $force ]]; then
	if [[ -n $keep ]]; then
		say "note: build/linux holds $work; building it as it is"
		exit 0
	fi
	die "build/linux holds $work: ./build.sh refresh turns commits into patches, ./build.sh patch --force throws them away"
fi

names=()
while read -r name; do
	[[ -z $name || $name == '#'* ]] || names+=("$name")
done < <(cat "$PATCHES/series" 2>/dev/null || true)

# How many patches of the tree are still the first of the series?
parent=$(git -C "$LINUX" rev-parse base)
same=0
lines=()
while read -r commit key name; do
	[[ $same -lt ${#names[@]} && ${names[same]} == "$name" ]] || break
	[[ -f $PATCHES/$name && $(sha256sum <"$PATCHES/$name" | cut -d ' ' -f 1) == "$key" ]] || break
	parent=$commit
	lines+=("$commit $key $name")
	same=$((same + 1))
done <"$applied"
if [[ $same == "${#names[@]}" && -z $work && $(wc -l <"$applied") == "$same" ]]; then
	exit 0
fi

log=$LOG/patch.log
mkdir -p "$LOG"
: >"$log"
export GIT_INDEX_FILE=$LINUX/.git/perdure-index
cp "$LINUX/.git/index" "$GIT_INDEX_FILE"
git -C "$LINUX" read-tree "$parent"
for name in "${names[@]:same}"; do
	[[ -f $PATCHES/$name ]] || die "kernel-patches/series names $name, which is not there"
	parent=$(apply "$name" "$parent" 2>>"$log") ||
		die "$name does not apply to $(git -C "$LINUX" log -1 --format=%s base): $(reason "$log") (log: $(short "$log"))"
	lines+=("$parent $(sha256sum <"$PATCHES/$name" | cut -d ' ' -f 1) $name")
	echo "applied $name" >>"$log"
done
rm -f "$GIT_INDEX_FILE"
unset GIT_INDEX_FILE
[[ -z $work ]] || git -C "$LINUX" clean -q -f -d
git -C "$LINUX" checkout -q -f -B perdure "$parent"
printf '%s\n' "${lines[@]}" | sed '/^$/d' >"$applied"
say "patch: ${#names[@]} patches, $same of them applied before"
