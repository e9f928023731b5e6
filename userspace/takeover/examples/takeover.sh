#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# keepalived calls it when the other host has died or is back: takeover.sh MARK INSTANCE NAME STATE PRIORITY

# A machine in the clients' network that is neither of the hosts, answers ping, and is up whenever the service is to be: the router.
# A host that does not hear the other one asks it whether it has itself lost the network. Without an answer it does not go on.
GATEWAY=192.0.2.1
DIRECTORY=/run/takeover
ADVERTS=2	# seconds: a few of advert_int

case $4 in
MASTER | BACKUP) ;;
*) exit ;;
esac

# keepalived does not wait, and two that it calls at once may begin in any order: each looks what is so by now
dead() { [ "$(ip -o address show to "$1")" ]; }
exec 9>$DIRECTORY/keepalived.lock
flock 9

# Said whenever keepalived calls it, and not first when the other host has died
lost=''
failed=''
if ! command -v ping >/dev/null; then
	logger -t takeover.sh -p daemon.err "ping is not installed: without it this host is never promoted: install iputils-ping"
	lost=1
fi

# A host that has lost the network itself does not go on before it has it again, and still does not hear the other one
while dead "$1"; do
	if ! ping -q -c 1 -w 1 "$GATEWAY" >/dev/null; then
		[ "$lost" ] || logger -t takeover.sh -p daemon.err "the other host is silent, and ping does not reach GATEWAY, $GATEWAY: not promoted until it does"
		lost=1
		sleep 0.2
	elif [ "$lost" ]; then
		logger -t takeover.sh -p daemon.notice "ping reaches GATEWAY, $GATEWAY, again"
		lost=
		sleep $ADVERTS
	else
		said=$(takeoverctl promote all 2>&1)
		case $? in
		0 | 3) exit 0 ;;	# 3: the other one has been promoted
		esac
		# takeoverd may be down, or started anew with a mistake in its file; keepalived does not call a second time
		[ "$failed" ] || logger -t takeover.sh -p daemon.err "this host is not promoted, and tries again until it is: $said"
		failed=1
		sleep 0.2
	fi
done

# The other one is back. takeoverd asks it when the address is here.
until status=$(takeoverctl status); do
	dead "$1" && exit
	sleep 0.2
done
echo "$status" | while read -r service _ _ state _; do
	case $state in
	alone | promoting) takeoverctl protect "$service" ;;
	esac
done
