/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The kinds of channel that this suite's programs go through. */
#ifndef CHAN_H
#define CHAN_H

#include "../lib/t.h"

#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <termios.h>

enum {
	STREAM = 1,	/* bytes are one sequence */
	DGRAM = 2,	/* boundaries are kept */
	SOCK = 4,
	TCP = 8,
	TTY = 16,
	INET = 32,
	PIPE = 64,
	TLS = 128,
};

struct kind {
	const char *name;
	int flags;
	void (*open)(int fd[2]);	/* [0] reads, [1] writes */
};

static void open_pipe(int fd[2])
{
	T_OK(pipe(fd));
}

static void open_fifo(int fd[2])
{
	static int nr;
	char path[PATH_MAX], name[32];

	snprintf(name, sizeof(name), "fifo%d.%d", getpid(), nr++);
	T_OK(mkfifo(t_path(path, name), 0600));
	fd[0] = T_OK(open(path, O_RDONLY | O_NONBLOCK));
	fd[1] = T_OK(open(path, O_WRONLY));
	T_OK(fcntl(fd[0], F_SETFL, 0));
}

static void open_unix(int fd[2])
{
	T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
}

static void open_unix_dgram(int fd[2])
{
	T_OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, fd));
}

static void open_seqpacket(int fd[2])
{
	T_OK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd));
}

static void open_inet(int fd[2], int family, int type)
{
	struct sockaddr_storage addr = { .ss_family = family };
	socklen_t len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	int s = T_OK(socket(family, type, 0));

	if (family == AF_INET)
		((struct sockaddr_in *)&addr)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		((struct sockaddr_in6 *)&addr)->sin6_addr = (struct in6_addr)IN6ADDR_LOOPBACK_INIT;
	T_OK(bind(s, (void *)&addr, len));
	T_OK(getsockname(s, (void *)&addr, &len));
	fd[1] = T_OK(socket(family, type, 0));
	if (type == SOCK_DGRAM) {
		T_OK(connect(fd[1], (void *)&addr, len));
		fd[0] = s;
		return;
	}
	T_OK(listen(s, 1));
	T_OK(connect(fd[1], (void *)&addr, len));
	fd[0] = T_OK(accept(s, NULL, NULL));
	T_OK(setsockopt(fd[1], IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
	close(s);
}

static void open_tcp4(int fd[2])
{
	open_inet(fd, AF_INET, SOCK_STREAM);
}

static void open_tcp6(int fd[2])
{
	open_inet(fd, AF_INET6, SOCK_STREAM);
}

static void open_udp4(int fd[2])
{
	open_inet(fd, AF_INET, SOCK_DGRAM);
}

static void open_udp6(int fd[2])
{
	open_inet(fd, AF_INET6, SOCK_DGRAM);
}

#ifndef SOL_TLS
#define SOL_TLS	282
#endif

/* Both directions have the same keys, which is good enough for a test. */
static T_UNUSED bool set_keys(int fd, int version, int type, int direction)
{
	union {
		struct tls_crypto_info info;
		struct tls12_crypto_info_aes_gcm_128 gcm128;
		struct tls12_crypto_info_aes_gcm_256 gcm256;
		struct tls12_crypto_info_chacha20_poly1305 chacha;
	} keys;
	size_t size = type == TLS_CIPHER_AES_GCM_128 ? sizeof(keys.gcm128) :
		      type == TLS_CIPHER_AES_GCM_256 ? sizeof(keys.gcm256) : sizeof(keys.chacha);

	memset(&keys, 0, sizeof(keys));
	memset((char *)&keys + sizeof(keys.info), 'k', size - sizeof(keys.info) - 8);
	keys.info.version = version;
	keys.info.cipher_type = type;
	return !setsockopt(fd, SOL_TLS, direction, &keys, size);
}

static T_UNUSED void use_tls(int fd, int version, int type)
{
	T_OK(setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", 3));
	T_ASSERT(set_keys(fd, version, type, TLS_TX));
	T_ASSERT(set_keys(fd, version, type, TLS_RX));
}

static void open_tls(int fd[2], int version, int type)
{
	open_tcp4(fd);
	use_tls(fd[0], version, type);
	use_tls(fd[1], version, type);
}

static void open_tls12(int fd[2])
{
	open_tls(fd, TLS_1_2_VERSION, TLS_CIPHER_AES_GCM_128);
}

static void open_tls13(int fd[2])
{
	open_tls(fd, TLS_1_3_VERSION, TLS_CIPHER_AES_GCM_256);
}

static void open_chacha(int fd[2])
{
	open_tls(fd, TLS_1_3_VERSION, TLS_CIPHER_CHACHA20_POLY1305);
}

static void open_pty(int fd[2])
{
	struct termios tio;

	fd[1] = T_OK(posix_openpt(O_RDWR | O_NOCTTY));
	T_OK(grantpt(fd[1]));
	T_OK(unlockpt(fd[1]));
	fd[0] = T_OK(open(ptsname(fd[1]), O_RDWR | O_NOCTTY));
	T_OK(tcgetattr(fd[0], &tio));
	cfmakeraw(&tio);
	T_OK(tcsetattr(fd[0], TCSANOW, &tio));
}

static const struct kind kinds[] = {
	{ "pipe", STREAM | PIPE, open_pipe },
	{ "fifo", STREAM | PIPE, open_fifo },
	{ "unix stream", STREAM | SOCK, open_unix },
	{ "tcp4", STREAM | SOCK | TCP | INET, open_tcp4 },
	{ "tcp6", STREAM | SOCK | TCP | INET, open_tcp6 },
	{ "tls 1.2", STREAM | SOCK | TLS, open_tls12 },
	{ "tls 1.3", STREAM | SOCK | TLS, open_tls13 },
	{ "tls 1.3 chacha", STREAM | SOCK | TLS, open_chacha },
	{ "unix dgram", DGRAM | SOCK, open_unix_dgram },
	{ "seqpacket", DGRAM | SOCK, open_seqpacket },
	{ "udp4", DGRAM | SOCK | INET, open_udp4 },
	{ "udp6", DGRAM | SOCK | INET, open_udp6 },
	{ "pty", STREAM | TTY, open_pty },
};

/* Where tests with a restart keep their channel; one more pair and two files beside it. */
enum { RD = 21, WR, RD2, WR2, FD1, FD2 };

static T_UNUSED void put_at(int fd, int at)
{
	T_OK(fd);
	if (fd == at)
		return;
	T_OK(dup2(fd, at));
	close(fd);
}

static T_UNUSED void open_at(const struct kind *k, int rd, int wr)
{
	int fd[2];

	k->open(fd);
	put_at(fd[0], rd);
	put_at(fd[1], wr);
}

static T_UNUSED const struct kind *kind_named(const char *name)
{
	for (const struct kind *k = kinds; k < kinds + ARRAY_LEN(kinds); k++) {
		if (!strcmp(k->name, name)) {
			t_context = k->name;
			return k;
		}
	}
	t_check(false, __FILE__, __LINE__, "no kind %s", name);
	_exit(1);
}

/* Sends n bytes of the stream from pos on. */
static T_UNUSED void feed(int fd, size_t n, uint64_t pos)
{
	char buf[8192];

	T_ASSERT(n <= sizeof(buf));
	t_fill(buf, n, pos);
	T_ASSERT(write(fd, buf, n) == (ssize_t)n);
}

/* The next hread() gives n bytes, those of the stream from pos on, and releases dlen. */
#define GET(fd, n, pos, dlen) do { \
	unsigned char _buf[8192]; \
	ssize_t _n = x_hread(fd, _buf, n, dlen); \
	T_EQ(_n, n); \
	if (_n > 0) \
		T_EQ(t_match(_buf, _n, pos), _n); \
} while (0)

/* As GET, but offers more room than there are bytes. */
#define GET_ALL(fd, n, pos, dlen) do { \
	unsigned char _buf[8192]; \
	ssize_t _n = x_hread_nowait(fd, _buf, sizeof(_buf), dlen); \
	T_EQ(_n, n); \
	if (_n > 0) \
		T_EQ(t_match(_buf, _n, pos), _n); \
} while (0)

#define READABLE(_fd, yes) do { \
	struct pollfd _p = { .fd = _fd, .events = POLLIN }; \
	T_EQ(poll(&_p, 1, (yes) ? 5000 : 0), yes); \
	T_EQ(!!(_p.revents & POLLIN), yes); \
} while (0)

#define EMPTY(fd) do { \
	char _c; \
	READABLE(fd, 0); \
	T_ERR(x_hread_nowait(fd, &_c, 1, 0), EAGAIN); \
} while (0)

#define for_each_kind(k, want) \
	for (const struct kind *k = kinds; k < kinds + ARRAY_LEN(kinds); k++) \
		if ((k->flags & (want)) && (t_context = k->name))

static void every_restart(void)
{
	t_sysctl("enabled", 1);
	t_sysctl("min_interval_ms", 0);
	t_sysctl("held_bytes_max", 1048576);
}

static void __attribute__((constructor)) use_every_restart(void)
{
	t_setup = every_restart;
}

#endif
