// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Process 1 of a test VM: makes the host's root file system, shared over 9p, look like an ordinary machine whose
 * writes go to memory, runs one command in it, and reports how that ended.
 *
 * The job is the file /job in the initramfs: strings "key=value", each ended by a NUL (see vm-tests/lib/vm.py).
 * The command's output leaves through virtio ports 1 (stdout) and 2 (stderr), its input comes from port 4. Port 3 is
 * the verdict: "boot" as soon as this program runs, "exit N" as the very last thing. A VM that says less than that has
 * failed. Two lines on the console mark where the command began and where it ended, for the scan of that log.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NEWROOT "/new"
#define MAX_ITEMS 4096

static char job[1 << 20];
static char *args[MAX_ITEMS], *envs[MAX_ITEMS], *shares[MAX_ITEMS], *rws[MAX_ITEMS];
static int nargs, nenvs, nshares, nrws;
static const char *cwd = "/";
static int tty, rows, cols;
static int verdict = -1, kmsg = -1;

static void end(void)
{
	sync();
	reboot(RB_AUTOBOOT); /* QEMU runs with -no-reboot: it ends here */
	for (;;)
		pause();
}

/* No verdict is a failure for the host, so dying is enough; the console says why. */
static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *fmt, ...)
{
	int err = errno;
	va_list ap;

	fprintf(stderr, "perdure-init: ");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, ": %s\n", strerror(err));
	end();
	__builtin_unreachable();
}

static void say(const char *text)
{
	if (write(verdict, text, strlen(text)) < 0)
		die("write verdict");
}

static void mark(const char *text)
{
	if (write(kmsg, text, strlen(text)) < 0)
		die("/dev/kmsg");
}

static void add(char **list, int *n, char *value)
{
	if (*n >= MAX_ITEMS - 1) {
		errno = E2BIG;
		die("job");
	}
	list[(*n)++] = value;
}

static void read_job(void)
{
	int fd = open("/job", O_RDONLY);
	size_t len = 0;
	ssize_t n = -1;

	if (fd < 0)
		die("/job");
	while (len < sizeof(job) - 1 && (n = read(fd, job + len, sizeof(job) - 1 - len)) > 0)
		len += n;
	if (n) {
		errno = n < 0 ? errno : E2BIG;
		die("/job");
	}
	close(fd);

	for (char *p = job; p < job + len; p += strlen(p) + 1) {
		char *value = strchr(p, '=');

		if (!value) {
			errno = EINVAL;
			die("/job: %s", p);
		}
		value++;
		if (!strncmp(p, "arg=", 4))
			add(args, &nargs, value);
		else if (!strncmp(p, "env=", 4))
			add(envs, &nenvs, value);
		else if (!strncmp(p, "share=", 6))
			add(shares, &nshares, value);
		else if (!strncmp(p, "rw=", 3))
			add(rws, &nrws, value);
		else if (!strncmp(p, "cwd=", 4))
			cwd = value;
		else if (!strncmp(p, "tty=", 4))
			tty = sscanf(value, "%dx%d", &rows, &cols) == 2;
	}
}

static void mkdirs(const char *path)
{
	char buf[PATH_MAX];

	snprintf(buf, sizeof(buf), "%s", path);
	for (char *p = buf + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = 0;
		mkdir(buf, 0755);
		*p = '/';
	}
	mkdir(buf, 0755);
}

static void mnt(const char *src, const char *dst, const char *type, unsigned long flags, const char *data)
{
	mkdirs(dst);
	if (mount(src, dst, type, flags, data))
		die("mount %s on %s", type ? type : src, dst);
}

/* Ports appear a moment after the device. */
static int open_port(int nr, int flags)
{
	char name[32];
	int fd;

	snprintf(name, sizeof(name), "/dev/vport0p%d", nr);
	for (int i = 0; i < 2000; i++) {
		fd = open(name, flags | O_CLOEXEC);
		if (fd >= 0)
			return fd;
		usleep(5000);
	}
	die("%s", name);
}

/*
 * A directory below a fresh tmpfs (a repository cloned to /tmp) is bound back to its own path, so take hold of the
 * shared ones before the tmpfs covers them.
 */
static void mount_tree(void)
{
	static const char *const memory[] = { "/tmp", "/run", "/dev/shm", "/var/tmp" };
	int held[MAX_ITEMS];
	char path[PATH_MAX + 64], target[PATH_MAX + 64];

	mnt("root", "/lower", "9p", MS_RDONLY, "trans=virtio,version=9p2000.L,msize=512000,cache=loose");
	mnt("memory", "/upper", "tmpfs", 0, "mode=0755,size=75%");
	mkdirs("/upper/data");
	mkdirs("/upper/work");
	mnt("overlay", NEWROOT, "overlay", 0, "lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work");

	for (int i = 0; i < nshares; i++) {
		snprintf(path, sizeof(path), NEWROOT "%s", shares[i]);
		held[i] = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (held[i] < 0)
			die("%s is not a directory that the VM can see", shares[i]);
	}

	mnt("proc", NEWROOT "/proc", "proc", 0, NULL);
	mnt("sys", NEWROOT "/sys", "sysfs", 0, NULL);
	mnt("cgroup2", NEWROOT "/sys/fs/cgroup", "cgroup2", 0, NULL);
	mnt("debugfs", NEWROOT "/sys/kernel/debug", "debugfs", 0, NULL);
	mnt("tracefs", NEWROOT "/sys/kernel/tracing", "tracefs", 0, NULL);
	mnt("dev", NEWROOT "/dev", "devtmpfs", 0, NULL);
	mnt("devpts", NEWROOT "/dev/pts", "devpts", 0, "gid=5,mode=0620,ptmxmode=0666");
	mnt("mqueue", NEWROOT "/dev/mqueue", "mqueue", 0, NULL);
	for (size_t i = 0; i < sizeof(memory) / sizeof(*memory); i++) {
		snprintf(path, sizeof(path), NEWROOT "%s", memory[i]);
		/* As systems do: programs do not start from /run */
		mnt("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV | (strcmp(memory[i], "/run") ? 0 : MS_NOEXEC), "mode=1777");
	}

	for (int i = 0; i < nshares; i++) {
		snprintf(path, sizeof(path), NEWROOT "%s", shares[i]);
		if (!access(path, F_OK))
			continue;
		snprintf(target, sizeof(target), NEWROOT "/proc/self/fd/%d", held[i]);
		mnt(target, path, NULL, MS_BIND, NULL);
	}
	for (int i = 0; i < nrws; i++) {
		snprintf(path, sizeof(path), NEWROOT "%s", rws[i]);
		snprintf(target, sizeof(target), "rw%d", i);
		mnt(target, path, "9p", 0, "trans=virtio,version=9p2000.L,msize=512000,cache=mmap");
	}

	symlink("/proc/self/fd", NEWROOT "/dev/fd");
	symlink("/proc/self/fd/0", NEWROOT "/dev/stdin");
	symlink("/proc/self/fd/1", NEWROOT "/dev/stdout");
	symlink("/proc/self/fd/2", NEWROOT "/dev/stderr");

	/* As switch_root does: a plain chroot could not create user namespaces */
	if (chdir(NEWROOT) || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
		die("switch root");
}

static void loopback_up(void)
{
	struct ifreq ifr = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &ifr))
		die("lo");
	close(fd);
}

static void child(int port, int out, int err)
{
	int in;
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	if (tty) {
		struct winsize ws = { .ws_row = rows, .ws_col = cols };

		in = open("/dev/hvc0", O_RDWR);
		if (in < 0 || ioctl(in, TIOCSCTTY, 1))
			_exit(127);
		ioctl(in, TIOCSWINSZ, &ws);
		out = err = in;
	} else {
		in = port;
	}
	dup2(in, 0);
	dup2(out, 1);
	dup2(err, 2);
	if (in > 2)
		close(in);
	if (chdir(cwd)) {
		fprintf(stderr, "%s: %s\n", cwd, strerror(errno));
		_exit(127);
	}
	environ = envs;
	execvp(args[0], args);
	fprintf(stderr, "%s: %s\n", args[0], strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

/* Copies what is there; 0 at the end of the output. */
static int relay(int from, int to)
{
	char buf[65536];
	ssize_t n = read(from, buf, sizeof(buf));

	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	for (ssize_t done = 0, w; done < n; done += w) {
		w = write(to, buf + done, n - done);
		if (w < 0)
			die("output");
	}
	return n > 0;
}

int main(void)
{
	int out[2], err[2], port[3], status = 0, running = 1, sfd;
	char text[32];
	sigset_t chld;
	pid_t pid;

	mkdir("/dev", 0755);
	mount("dev", "/dev", "devtmpfs", 0, NULL);
	verdict = open_port(3, O_WRONLY);
	say("boot\n");

	read_job();
	kmsg = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
	mount_tree();
	loopback_up();
	sethostname("perdure", 7);
	umask(022);
	if (!tty) {
		port[0] = open_port(1, O_WRONLY);
		port[1] = open_port(2, O_WRONLY);
		port[2] = open_port(4, O_RDONLY);
	}

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, NULL);
	sfd = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
	/* Pipes rather than the ports themselves, which cannot be opened twice as /dev/stdout must be */
	if (sfd < 0 || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
		die("pipe");
	mark("<4>perdure-init: begin\n");
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid)
		child(port[2], out[1], err[1]);
	close(out[1]);
	close(err[1]);

	/* Until both ends of output are closed, which the killing below brings about */
	for (int open_out = 1, open_err = 1; running || open_out || open_err; ) {
		struct pollfd p[] = {
			{ .fd = open_out ? out[0] : -1, .events = POLLIN },
			{ .fd = open_err ? err[0] : -1, .events = POLLIN },
			{ .fd = running ? sfd : -1, .events = POLLIN },
		};
		struct signalfd_siginfo si;
		int s;
		pid_t w;

		if (poll(p, 3, -1) < 0 && errno != EINTR)
			die("poll");
		if (p[0].revents)
			open_out = relay(out[0], port[0]);
		if (p[1].revents)
			open_err = relay(err[0], port[1]);
		if (!p[2].revents)
			continue;
		while (read(sfd, &si, sizeof(si)) > 0)
			;
		while ((w = waitpid(-1, &s, WNOHANG)) > 0) {
			if (w != pid)
				continue;
			status = s;
			running = 0;
			kill(-1, SIGKILL); /* what it left behind */
		}
	}
	while (waitpid(-1, NULL, 0) > 0)
		;
	for (int i = 0; i < nrws; i++)
		if (umount(rws[i]) && umount2(rws[i], MNT_DETACH))
			die("umount %s", rws[i]);
	sync();
	mark("<4>perdure-init: end\n");
	snprintf(text, sizeof(text), "exit %d\n",
		 WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
	say(text);
	end();
}
