// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Who can change a checkpoint: what a restore runs, it runs as root, and the checksums of a checkpoint are no signature.
 * So nobody but root and who calls us may be able to write to any part of it, or to put another one in its place.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frem.h"

#define LINKS_MAX	40

/* Why others can change it, or NULL */
static const char *changed_by_others(const struct stat *st)
{
	if (st->st_uid && st->st_uid != geteuid())
		return "belongs to another user";
	/* The bits of the group are also those of an access control list. In a sticky directory others cannot replace what is ours */
	if (!S_ISLNK(st->st_mode) && st->st_mode & 022 && !(S_ISDIR(st->st_mode) && st->st_mode & S_ISVTX))
		return "can be written by others";
	return NULL;
}

static void refuse(const char *dir, const char *what, const char *why)
{
	die("%s: %s %s, who could put there what is to run as root. Make it root's alone (chown, chmod go-w), "
	    "or copy the checkpoint, if you trust it, to a place that is", dir, what, why);
}

/* What is open on fd, for those who named it */
void trust_file(const char *dir, const char *name, int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		die("%s/%s: %m", dir, name);
	if (!S_ISREG(st.st_mode))
		die("%s/%s is not a file", dir, name);
	if (changed_by_others(&st))
		refuse(dir, name, changed_by_others(&st));
}

/*
 * Opens a directory, as O_PATH. Each directory and each link on the way is looked at before it is used, so nobody else can
 * exchange it afterwards.
 */
int trust_directory(const char *dir)
{
	char rest[2 * PATH_MAX], at[PATH_MAX + 16], target[PATH_MAX], name[NAME_MAX + 1];
	int fd = open(*dir == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC), next, links = 0;
	size_t len, skip;
	struct stat st;
	ssize_t n;

	/* Where we stand is reached by its path, too */
	if (fd >= 0 && *dir != '/') {
		close(fd);
		if (!getcwd(target, sizeof(target)))
			die("%s: %m", dir);
		fd = trust_directory(target);
	}
	if (fd < 0)
		die("%s: %m", dir);
	if (strlen(dir) >= sizeof(target))
		die("%s: %s", dir, strerror(ENAMETOOLONG));
	strcpy(rest, dir);
	for (;;) {
		skip = strspn(rest, "/");
		memmove(rest, rest + skip, strlen(rest + skip) + 1);
		if (!*rest || (fstat(fd, &st) == 0 && changed_by_others(&st)))
			break;
		len = strcspn(rest, "/");
		if (len > NAME_MAX)
			die("%s: %s", dir, strerror(ENAMETOOLONG));
		memcpy(name, rest, len);
		name[len] = '\0';
		memmove(rest, rest + len, strlen(rest + len) + 1);
		next = openat(fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
		if (next < 0 || fstat(next, &st))
			die("%s: %s", dir, errno == ENOENT ? "not a checkpoint of frem: there is no such directory" :
				       strerror(errno));
		if (!S_ISLNK(st.st_mode)) {
			close(fd);
			fd = next;
			continue;
		}
		if (changed_by_others(&st))
			refuse(dir, name, changed_by_others(&st));
		n = readlinkat(next, "", target, sizeof(target) - 1);
		close(next);
		if (n <= 0 || ++links > LINKS_MAX || n + strlen(rest) + 2 > sizeof(target))
			die("%s: %s", dir, strerror(ELOOP));
		target[n] = '\0';
		if (*target == '/') {
			close(fd);
			fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
		}
		memmove(rest + n + 1, rest, strlen(rest) + 1);
		memcpy(rest, target, n);
		rest[n] = '/';
	}
	if (fstat(fd, &st))
		die("%s: %m", dir);
	if (!S_ISDIR(st.st_mode))
		die("%s: %s", dir, strerror(ENOTDIR));
	if (changed_by_others(&st)) {
		snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
		n = readlink(name, at, sizeof(at) - 1);
		at[n > 0 ? n : 0] = '\0';
		refuse(dir, at, changed_by_others(&st));
	}
	/* Sticky is good enough on the way only: there others can add what CRIU looks for */
	if (st.st_mode & 022)
		refuse(dir, "it", "can be written by others");
	return fd;
}

/*
 * What a checkpoint may ask of CRIU: nothing that names a program, a library, another configuration or a file to write.
 * Options that are not here have to be given by who restores.
 */
static const struct option_of_criu {
	const char *name;
	char letter;
	bool argument;		/* which follows, if it is not behind a '=' */
} options_of_criu[] = {
	{ "allow-uprobes", 0, false },
	{ "cgroup-props", 0, true },
	{ "cgroup-root", 0, true },
	{ "cpu-cap", 0, false },
	{ "empty-ns", 0, true },
	{ "enable-external-masters", 0, false },
	{ "enable-external-sharing", 0, false },
	{ "enable-fs", 0, true },
	{ "evasive-devices", 0, false },
	{ "ext-mount-map", 0, true },
	{ "ext-unix-sk", 'x', false },
	{ "external", 0, true },
	{ "file-locks", 'l', false },
	{ "file-validation", 0, true },
	{ "force-irmap", 0, false },
	{ "ghost-limit", 0, true },
	{ "irmap-scan-path", 0, true },
	{ "link-remap", 0, false },
	{ "lsm-mount-context", 0, true },
	{ "lsm-profile", 0, true },
	{ "manage-cgroups", 0, false },
	{ "mntns-compat-mode", 0, false },
	{ "network-lock", 0, true },
	{ "root", 'r', true },
	{ "shell-job", 'j', false },
	{ "skip-in-flight", 0, false },
	{ "skip-mnt", 0, true },
	{ "tcp-close", 0, false },
	{ "tcp-established", 0, false },
	{ "timeout", 0, true },
	{ "weak-sysctls", 0, false },
};

static const struct option_of_criu *known(const char *option)
{
	const struct option_of_criu *one, *end = options_of_criu + sizeof(options_of_criu) / sizeof(*options_of_criu);
	size_t len;

	if (*option++ != '-')
		return NULL;
	for (one = options_of_criu; one < end; one++) {
		if (*option != '-' && one->letter && *option == one->letter && !option[1])
			return one;
		len = strlen(one->name);
		if (*option == '-' && !strncmp(option + 1, one->name, len) && strchr("=", option[1 + len]))
			return one;
	}
	return NULL;
}

/* Of what a checkpoint asks of CRIU, what a restore hands over; it says what it does not. Returns how many. */
size_t trusted_options(char **options, size_t nr, const char **trusted)
{
	const struct option_of_criu *one;
	size_t found = 0;
	bool follows;

	for (size_t i = 0; i < nr; i++) {
		one = known(options[i]);
		follows = one && one->argument && !strchr(options[i], '=');
		if (!one || (follows && i + 1 == nr)) {
			say("a restore does not take %s from a checkpoint: if CRIU needs it there, give it to frem restore, after --",
			    options[i]);
			continue;
		}
		trusted[found++] = options[i];
		if (follows)
			trusted[found++] = options[++i];
	}
	return found;
}
