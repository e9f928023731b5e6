#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Debian's trinity, which knows every call but ours, as a user without privileges, beside two services that fault.
set -euo pipefail

minutes=${PERDURE_MINUTES:-1}
seed=${PERDURE_SEED:-$(date +%s)}
dir=$(mktemp -d)
chmod 777 "$dir"
command -v trinity >/dev/null || { echo "trinity is missing: run ./build.sh setup fuzz"; exit 1; }

"$PERDURE_BUILD/userspace/vm-tests/cases/fuzz/fuzz" -m "$minutes" -s "$seed" -w 2 >"$dir/fuzz.log" 2>&1 &
end=$((SECONDS + $(awk "BEGIN { print int($minutes * 60) }")))
calls=0
runs=0
# It does not bear all that it does: again with another seed, until the time is over. Its own sockets make it fault.
# In a PID namespace, so that none of its children outlives it
while ((SECONDS < end)); do
	runs=$((runs + 1))
	timeout -k 10 "$((end - SECONDS))" unshare --pid --fork --mount-proc setpriv --reuid 65534 --regid 65534 --clear-groups \
		env -C "$dir" trinity -s "$((seed + runs))" -C 4 -N 1000000000 --logging off --disable-fds=sockets 2>&1 |
		awk '/^\[child/ { n++; bad += / = -1 \(/ } END { print n + 0, bad + 0 }' >"$dir/count" || true
	read -r n bad <"$dir/count"
	echo "# seed $((seed + runs)): $n calls, $bad failed"
	calls=$((calls + n))
done
wait
tail -n 60 "$dir/fuzz.log" | grep '^#.*\(calls\|faults\|services\)' || true

echo "KTAP version 1"
echo "1..1"
if ((calls >= 1000)); then
	echo "ok 1 trinity makes calls: $calls"
else
	echo "not ok 1 trinity makes calls: $calls"
fi
