#!/bin/sh -e
# SPDX-License-Identifier: GPL-2.0-or-later
# In a guest: inside.sh WHAT ARGUMENT... brings the network up (QEMU's own: the host is 10.0.2.2) and does it.
what=$1
shift
ip link set eth0 up
ip address add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2

case $what in
serve)
	# DEVICE... -- CONFIG...: the logs are whole, and a server for each file
	while [ "$1" != -- ]; do
		"$CTL" verify "$1"
		shift
	done
	shift
	for config; do
		"$SERVICE" "$config" &
	done
	wait
	;;
forever)
	# CONFIG: a server, again and again; says how each has ended
	while :; do
		status=0
		"$SERVICE" "$1" || status=$?
		echo "ended with $status"
		sleep 0.2
	done
	;;
format)
	for device; do
		"$CTL" format "$device"
	done
	;;
*)
	exec "$what" "$@"
	;;
esac
