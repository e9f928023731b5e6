# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash disable=SC2034 # names are used by those who source this
# What every stage of build.sh shares: places, messages, and running a long step with its progress and log.

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# What is built for another architecture has a directory of its own; the source and what was downloaded are shared
ALL=$TOP/build
BUILD=$ALL
[[ ${PERDURE_ARCH:=x86_64} == x86_64 ]] || BUILD=$ALL/$PERDURE_ARCH
LOG=$BUILD/log
CACHE=$ALL/cache
LINUX=$ALL/linux
PATCHES=$TOP/kernel-patches
export LC_ALL=C.UTF-8
# Settings of the user must not change what we build
umask 022
export TZ=UTC
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
# Nor must who owns this directory, as in a container that mounts it
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
unset MAKEFLAGS MFLAGS KBUILD_OUTPUT ARCH CROSS_COMPILE CC CFLAGS CXXFLAGS CPPFLAGS LDFLAGS KCPPFLAGS KCFLAGS KAFLAGS HOSTCFLAGS HOSTLDFLAGS \
	USERCFLAGS USERLDFLAGS CPATH C_INCLUDE_PATH LIBRARY_PATH GCC_EXEC_PREFIX COMPILER_PATH

say() {
	printf 'build.sh: %s\n' "$*" >&2
}

die() {
	say "$*"
	exit 1
}

# A path as the user sees it
short() {
	printf '%s' "${1#"$TOP"/}"
}

need() {
	local tool missing=()
	for tool in "$@"; do
		command -v "$tool" >/dev/null || missing+=("$tool")
	done
	[[ ${#missing[@]} == 0 ]] || die "missing tools: ${missing[*]}; run ./build.sh setup"
}

# What kernel-patches/UPSTREAM says: the package, and the releases as "6.12.1 or 6.12.2"
pin() {
	case $1 in
	package) awk '$1 == "package" { print $2 }' "$PATCHES/UPSTREAM" ;;
	versions) awk '$1 == "source" && !seen[$2]++ { printf "%s%s", between, $2; between = " or " }' "$PATCHES/UPSTREAM" ;;
	esac
}

# pinned CHECKSUM: is it that of a source which the series is written for?
pinned() {
	awk -v sum="$1" '$1 == "source" && $3 == sum { found = 1 } END { exit !found }' "$PATCHES/UPSTREAM"
}

# need_space DIR MEGABYTES WHAT
need_space() {
	local free
	mkdir -p "$1"
	free=$(df --output=avail -m "$1" | tail -n 1)
	((free >= $2)) || die "no disk space: $3 needs $2 MB in $(short "$1"), $((free)) MB are free"
}

# lock WHAT: only one build of it at a time in this tree
lock() {
	mkdir -p "$ALL"
	exec 9>"$ALL/.lock-$1"
	if ! flock -n 9; then
		say "another build of the $1 is at work; waiting for it"
		flock 9
	fi
}

took() {
	local s=$1
	if ((s < 60)); then printf '%ds' "$s"; else printf '%dm%02ds' $((s / 60)) $((s % 60)); fi
}

# Elapsed time and the last line of the log: twice a second on a terminal, now and then elsewhere
progress() {
	local what=$1 log=$2 start=$SECONDS last columns next=60
	columns=$(tput cols 2>/dev/null || echo 80)
	while sleep 0.5 >/dev/null 2>&1; do
		if [[ -t 2 ]]; then
			last=$(tail -c 400 "$log" 2>/dev/null | tail -n 1 | tr -d '\r\033' || true)
			last="build.sh: $what $(took $((SECONDS - start)))  $last"
			printf '\r%s\033[K' "${last:0:columns-1}" >&2
		elif ((SECONDS - start >= next)); then
			say "$what: $(took $((SECONDS - start))) ..."
			next=$((next + 60))
		fi
	done
}

# The line of a log that says best what went wrong
reason() {
	local line
	line=$(grep -m 1 -iE 'no space left|could not (resolve|connect)|temporary failure' "$1" ||
		grep -m 1 -iE '(^|[^a-z-])error:|\bfatal:|^e: |command not found|\*\*\*' "$1" || tail -n 1 "$1")
	line=${line#"${line%%[![:space:]]*}"}
	printf '%s' "${line:0:200}"
}

# step WHAT LOGNAME COMMAND...: runs it with its output in the log
step() {
	local what=$1 log=$LOG/$2.log start=$SECONDS ticker status
	shift 2
	mkdir -p "$LOG"
	: >"$log"
	[[ -t 2 ]] || say "$what (log: $(short "$log"))"
	progress "$what" "$log" 9>&- &
	ticker=$!
	# Not as a condition: that would switch off set -e inside a function
	set +e
	(
		set -e
		"$@"
	) >"$log" 2>&1 </dev/null 9>&-
	status=$?
	set -e
	kill "$ticker" 2>/dev/null || true
	wait "$ticker" 2>/dev/null || true
	[[ ! -t 2 ]] || printf '\r\033[K' >&2
	((status == 0)) || die "$what failed: $(reason "$log") (log: $(short "$log"))"
	say "$what: done in $(took $((SECONDS - start)))"
}
