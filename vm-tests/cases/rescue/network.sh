#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# The kernel tree's random test of peers that go back, while each sixteenth segment is lost.
set -euo pipefail

command -v nft >/dev/null || { echo "1..0 # SKIP nft is not installed"; exit; }
nft add table inet rescue
nft "add chain inet rescue in { type filter hook input priority 0; }"
# Numbers of packets go on by one: what is sent again has another one
nft "add rule inet rescue in iif lo tcp flags & (syn|rst) == 0 ip id & 15 == 3 drop"
trap 'nft delete table inet rescue' EXIT

ROUNDS=${ROUNDS:-80} ./selftests.sh cascade_test -t random
