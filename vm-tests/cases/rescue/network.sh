#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# network.sh ROUNDS: the kernel tree's random test of peers that go back, on networks that lose, repeat, reorder and delay.
set -euo pipefail

for tool in tc nft; do
	command -v $tool >/dev/null || { echo "1..0 # SKIP $tool is not installed"; exit; }
done
trap 'tc qdisc del dev lo root 2>/dev/null; nft delete table inet rescue 2>/dev/null' EXIT
number=0 failed=0

# on NAME: with the network as it is
on() {
	number=$((number + 1))
	local out
	if out=$(ROUNDS=$rounds ./selftests.sh cascade_test -t random 2>&1); then
		echo "ok $number $1"
	else
		failed=1
		# shellcheck disable=SC2001
		sed 's/^/# /' <<<"$out"
		echo "not ok $number $1"
	fi
}

# A packet passes lo once on its way: the delays are those of one direction
rounds=$1
echo "KTAP version 1"
echo "1..5"
nft add table inet rescue
nft "add chain inet rescue in { type filter hook input priority 0; }"
# Numbers of packets go on by one: what is sent again has another one
nft "add rule inet rescue in iif lo tcp flags & (syn|rst) == 0 ip id & 15 == 3 drop"
on loss
nft delete table inet rescue
tc qdisc add dev lo root netem duplicate 30%
on duplicates
# Of four, one goes at once, and the others 5 ms later
tc qdisc replace dev lo root netem delay 5ms reorder 25%
on order
tc qdisc replace dev lo root netem delay 3ms 2ms loss 3% duplicate 3%
on all
rounds=$((rounds / 4 + 1))
tc qdisc replace dev lo root netem delay 50ms
on far
exit $failed
