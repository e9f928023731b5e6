// SPDX-License-Identifier: GPL-2.0-or-later
/* A security module that refuses a read or a write refuses ours, too, and nothing is lost by that. */
#include "../lib/apparmor.h"
#include "chan.h"

#define OPEN "perdure-open"	/* may do all */
#define SHUT "perdure-shut"	/* may do nothing, not even with what is open */

static const char profiles[] =
	"abi <kernel>,\n"
	"profile " OPEN " flags=(attach_disconnected) { file, network, capability, signal, ptrace, change_profile, }\n"
	"profile " SHUT " flags=(attach_disconnected) { signal, }\n";

/*
 * What somebody without a profile has opened anybody may use as a file: with sockets only who uses them as sockets is
 * asked. The others are opened with a profile; pipes without a name are beyond it.
 */
static void for_each_mediated(void (*test)(const struct kind *k))
{
	aa_load(profiles);
	for_each_kind(k, SOCK)
		test(k);
	aa_confine(OPEN);
	for_each_kind(k, PIPE | TTY)
		if (strcmp(k->name, "pipe"))
			test(k);
}

static void refuse_data(const struct kind *k)
{
	char buf[64];
	int fd[2];

	k->open(fd);
	feed(fd[1], 20, 0);
	READABLE(fd[0], 1);
	T_CHILD {
		aa_confine(SHUT);
		T_ERR(read(fd[0], buf, sizeof(buf)), EACCES);
		T_ERR(x_hread_nowait(fd[0], buf, sizeof(buf), 0), EACCES);
		T_ERR(write(fd[1], buf, 10), EACCES);
		T_ERR(x_lwrite(fd[1], buf, 10), EACCES);
	}
	T_IOLOG(fd[1], 0, 0, 0, 0);
	GET_ALL(fd[0], 20, 0, 0);
	T_ERR(x_hread_nowait(fd[0], buf, sizeof(buf), 20), EAGAIN);
}

T(data)
{
	for_each_mediated(refuse_data);
}

static void refuse_unread(const struct kind *k)
{
	char buf[64];
	int fd[2];

	k->open(fd);
	feed(fd[1], 20, 0);
	READABLE(fd[0], 1);
	T_ERR(x_hread_nowait(fd[0], buf, sizeof(buf), 60), EINVAL);
	T_IOLOG(fd[0], 20, 0, 20, 0);
	T_CHILD {
		aa_confine(SHUT);
		T_ERR(read(fd[0], buf, sizeof(buf)), EACCES);
		T_ERR(x_hread_nowait(fd[0], buf, sizeof(buf), 0), EACCES);
		if (k->flags & SOCK) {
			T_ERR(recv(fd[0], buf, sizeof(buf), 0), EACCES);
			T_ERR(recv(fd[0], buf, sizeof(buf), MSG_PEEK), EACCES);
		}
	}
	T_IOLOG(fd[0], 20, 0, 20, 0);
	T_EQ(read(fd[0], buf, sizeof(buf)), 20);
	T_EQ(t_match(buf, 20, 0), 20);
}

T(unread)
{
	for_each_mediated(refuse_unread);
}
