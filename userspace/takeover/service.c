// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What becomes of a service: who is the primary, whether both hosts have it, who goes on when one is gone.
 *
 * Who is a member, who is dead, and where the address points, others decide: keepalived, Pacemaker, an administrator. They call
 * `takeoverctl promote` at the host that goes on. The two takeoverd talk only so that not both go on:
 *
 *   ask	Once a second. The answer is what the other one is. One that hears that its peer has been promoted, in a later epoch, abandons.
 *   protect	From the host that has the address, and is to be the muted one. It is answered by yes when the other one has become the primary,
 *		and the epoch of both is then one more than the higher of theirs. Only then does the asking host mute itself, and copy packets.
 *   claim	From one that is to be promoted, over each address of the peer, for at most `arbitrate`. A peer that has been promoted says no; any
 *		other abandons, and says yes. If both claim, the muted one gets it: it is where the client's packets arrive. Who hears no
 *		goes the other way: it abandons. Who hears nothing goes on. Its epoch is one more.
 *
 * A host that stood still for a while may have been given up meanwhile, and cannot know it: in the second after that, it waits for an answer.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include <perdure/tcp_replica.h>
#include "record.h"
#include "takeoverd.h"

#define PROTECT_NS	(10 * SECOND_NS)	/* the peer runs programs before it answers */
#define CLAIM_AGAIN_NS	200000000ull
#define WALK_NS		100000000ull	/* the kernel has done by then what does not sleep */
#define JOINS		4	/* a second */
#define JOIN_US		200000
#define RULES_AGAIN_NS	(5 * SECOND_NS)
#define SILENT_ASKS	3
#define CLOCK_MOST_MS	1000	/* half of what the kernel allows for */
#define LEAVE_NS	(10 * SECOND_NS)	/* nobody has died: there is time to ask the peer */
#define STATE_SIZE	512	/* of a file, always */
#define ANNOUNCEMENTS	4	/* one may get lost, or come before a switch has learnt where we are */

extern char **environ;

struct service *services;
uint64_t woken_at;

struct claim {
	done_fn done;
	void *arg;
	const char *cause;
	uint64_t begun, deadline;
	uint32_t lot;
	struct dial *dials[2];
};

static const char *const state_names[] = { [WAITING] = "waiting", [PROTECTED] = "protected", [ALONE] = "alone", [ABANDONED] = "abandoned" };

const char *state_name(const struct service *svc) { return state_names[svc->state]; }

struct service *service_at(const struct endpoint *at)
{
	struct service *svc;

	LL_FOREACH(services, svc)
		if (!memcmp(&svc->c->at, at, sizeof(*at)))
			return svc;
	return NULL;
}

struct service *service_by_name(const char *name)
{
	struct service *svc;

	LL_FOREACH(services, svc)
		if (!strcmp(svc->c->name, name))
			return svc;
	return NULL;
}

/* The kernel. */

/* Kept: when it matters, there may be no other left */
static int kernel = -1;

static void kernel_open(void)
{
	if (kernel < 0)
		kernel = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/* What visits connections may sleep until a process lets go of its own. This one must not: a thread does it. */
struct kernel_job {
	struct tcp_replica arg;
	struct service *svc;
	atomic_int users;	/* the last one frees it */
	sem_t ended;
	int err;
	uint64_t begun;
};

static void job_put(struct kernel_job *job)
{
	if (atomic_fetch_sub(&job->users, 1) > 1)
		return;
	sem_destroy(&job->ended);
	explicit_bzero(job, sizeof(*job));
	free(job);
}

static void *job_do(void *arg)
{
	struct kernel_job *job = arg;

	/* The kernel offers some at a time, so that the peer's listener has room for clients, too */
	const unsigned int times = job->arg.op == TCP_REPLICA_JOIN ? JOINS : 1;

	for (unsigned int i = 0; i < times && !job->err; i++) {
		if (i)
			usleep(JOIN_US);
		job->err = setsockopt(kernel, IPPROTO_TCP, TCP_REPLICA, &job->arg, sizeof(job->arg)) ? errno : 0;
	}
	if (job->arg.op == TCP_REPLICA_JOIN)
		job->svc->joining = false;
	sem_post(&job->ended);
	job_put(job);
	return NULL;
}

static const char *kernel_error(int err)
{
	return err == ENOPROTOOPT ? "it is none with TCP_REPLICA" :
	       err == EBUSY ? "connections of another peer or key are still there: `takeoverctl promote` or `abandon` it first" : strerror(err);
}

/* A walk that takes longer than an order waits for it: status says so until it ends */
static void walk_keep(struct service *svc, struct kernel_job *job)
{
	say(LOG_WARNING, "%s: the kernel is not done with each connection yet: a process may keep one from it: the others have gone on", svc->c->name);
	/* One behind another ends after it */
	if (svc->walk)
		job_put(svc->walk);
	svc->walk = job;
}

static void walk_look(struct service *svc, uint64_t now)
{
	struct kernel_job *job = svc->walk;

	if (!job || sem_trywait(&job->ended))
		return;
	say(job->err ? LOG_ERR : LOG_NOTICE, "%s: the kernel is done with all connections, after %" PRIu64 " ms%s%s", svc->c->name,
	    (now - job->begun) / 1000000, job->err ? ": " : "", job->err ? strerror(job->err) : "");
	svc->walk = NULL;
	job_put(job);
}

const char *state_shown(const struct service *svc)
{
	if (svc->walk && svc->state == ALONE)
		return "promoting";
	return svc->walk && svc->state == ABANDONED ? "abandoning" : state_name(svc);
}

static int kernel_op(struct service *svc, uint32_t op, uint32_t role)
{
	const struct endpoint *at = &svc->c->at, peer = endpoint_of(&svc->peer);
	struct kernel_job *job = must_alloc(sizeof(*job));
	struct timespec until;
	pthread_t thread;
	int err = 0;

	job->svc = svc;
	job->begun = now_ns();
	job->arg = (struct tcp_replica){
		.op = op, .role = role, .patience_ms = svc->c->patience / 1000000, .family = at->family, .port = at->port,
	};
	memcpy(job->arg.address, at->address, sizeof(job->arg.address));
	memcpy(job->arg.key, svc->c->key, sizeof(job->arg.key));
	memcpy(job->arg.peer, peer.address, sizeof(job->arg.peer));
	if (at->family == AF_INET6)
		job->arg.ifindex = ((const struct sockaddr_in6 *)&svc->peer)->sin6_scope_id;
	sem_init(&job->ended, 0, 0);
	job->users = 2;
	if (op == TCP_REPLICA_SET || pthread_create(&thread, NULL, job_do, job))
		job_do(job);
	else
		pthread_detach(thread);
	/* By then it has done all those that nobody uses just now; and the role itself */
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += WALK_NS;
	until.tv_sec += until.tv_nsec / SECOND_NS;
	until.tv_nsec %= SECOND_NS;
	if (op != TCP_REPLICA_JOIN && sem_clockwait(&job->ended, CLOCK_MONOTONIC, &until)) {
		walk_keep(svc, job);
		return 0;
	}
	if (op != TCP_REPLICA_JOIN)
		err = job->err;
	job_put(job);
	return err;
}

static bool kernel_there(void)
{
	struct tcp_replica arg;
	socklen_t len = sizeof(arg);

	kernel_open();
	return !getsockopt(kernel, IPPROTO_TCP, TCP_REPLICA, &arg, &len);
}

/* A line of it that is a service's begins so; then there is "ADDRESS:PORT role=ROLE", and what it counts */
#define SERVICE_LINE	"service service="

static struct service *kernel_line(const char *line)
{
	char want[INET6_ADDRSTRLEN + 40];
	struct service *svc;

	LL_FOREACH(services, svc) {
		snprintf(want, sizeof(want), svc->c->at.family == AF_INET ? SERVICE_LINE "%s:%u " : SERVICE_LINE "[%s]:%u ",
			 endpoint_text(&svc->c->at), ntohs(svc->c->at.port));
		if (!strncmp(line, want, strlen(want)))
			return svc;
	}
	return NULL;
}

/* What it counts of each service, as key=value. It has a line of each connection, too: it is read once for all services. */
static void kernel_read(void)
{
	FILE *f = fopen("/proc/net/tcp_replica", "re");
	struct service *svc;
	char *line = NULL;
	size_t room = 0;

	LL_FOREACH(services, svc) {
		free(svc->counts);
		svc->counts = NULL;
	}
	while (f && getline(&line, &room, f) > 0) {
		svc = kernel_line(line);
		if (svc && !svc->counts)
			svc->counts = strdup(strchr(line + strlen(SERVICE_LINE), ' ') + 1);
	}
	free(line);
	if (f)
		fclose(f);
}

/*
 * One that is not in the file any more, and of which nothing else is known, would stay as it was. A muted one has the clients' packets: its
 * connections go on here, since nobody copies them to the peer any more. The peer cannot be asked.
 */
static void kernel_leave(void)
{
	FILE *f = fopen("/proc/net/tcp_replica", "re");
	char *line = NULL, *role, at[64];
	union address address;
	struct service *svc;
	size_t room = 0;
	bool muted;
	int err;

	while (f && getline(&line, &room, f) > 0) {
		role = strstr(line, " role=");
		if (!role || kernel_line(line) || sscanf(line, SERVICE_LINE "%63s", at) != 1 || !address_parse(at, true, &address))
			continue;
		role += strlen(" role=");
		role[strcspn(role, " \n")] = 0;
		if (!strcmp(role, "off"))
			continue;
		muted = !strcmp(role, "muted");
		say(LOG_WARNING, "%s is not in the file any more, and was %s: %s its new connections are ordinary ones", at, role,
		    muted ? "this host goes on with those that it shares, and cannot tell the peer;" : "");
		svc = must_alloc(sizeof(*svc));
		svc->c = must_alloc(sizeof(*svc->c));
		snprintf(svc->c->name, sizeof(svc->c->name), "%s", at);
		svc->c->at = endpoint_of(&address);
		svc->peer.any.sa_family = svc->c->at.family;
		err = muted ? kernel_op(svc, TCP_REPLICA_PROMOTE, 0) : 0;
		if (!err)
			err = kernel_op(svc, TCP_REPLICA_SET, TCP_REPLICA_OFF);
		if (err)
			say(LOG_ERR, "%s: the kernel does not leave it: %s", at, strerror(err));
		if (svc->walk)
			job_put(svc->walk);
		free(svc->c);
		free(svc);
	}
	free(line);
	if (f)
		fclose(f);
}

/* The network. */

/* With @input on its standard input; 0 if it cannot be started */
static pid_t start(const char *input, const char *const argv[])
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none;
	int to[2], err;
	pid_t pid;

	if (pipe2(to, O_CLOEXEC)) {
		say(LOG_ERR, "%s: %s", argv[0], strerror(errno));
		return 0;
	}
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, to[0], 0);
	posix_spawnattr_init(&attr);
	sigemptyset(&none);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
	err = posix_spawnp(&pid, argv[0], &actions, &attr, (char *const *)argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attr);
	close(to[0]);
	if (!err && input && write(to[1], input, strlen(input)) < 0)
		say(LOG_ERR, "%s: %s", argv[0], strerror(errno));
	close(to[1]);
	if (err)
		say(LOG_ERR, "%s: %s%s", argv[0], strerror(err), err == ENOENT ? ": it has to be installed" : "");
	return err ? 0 : pid;
}

static int finish(pid_t pid, const char *name)
{
	int status = -1;

	if (!pid)
		return -1;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	ticked_at = now_ns();	/* it was us who took the time */
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		return 0;
	say(LOG_ERR, "%s has failed, with %s %d: what it has said itself is beside this", name, WIFEXITED(status) ? "status" : "signal",
	    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
	return -1;
}

/* Is it the first of those that share an address and a peer? */
static bool first_of_address(const struct service *svc)
{
	const struct service *other;

	LL_FOREACH(services, other)
		if (other == svc || (other->state == PROTECTED && other->backup && other->c->at.family == svc->c->at.family &&
				     !memcmp(other->c->at.address, svc->c->at.address, 16) && !memcmp(&other->peer, &svc->peer, sizeof(svc->peer))))
			return other == svc;
	return true;
}

/* How many rules there are then */
static int nft_family(FILE *f, uint16_t family)
{
	const char *ip = family == AF_INET ? "ip" : "ip6";
	const char *errors = family == AF_INET ? "icmp type { destination-unreachable, time-exceeded, parameter-problem }" :
			     "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem }";
	const struct service *svc;
	char device[IF_NAMESIZE + 16], name[IF_NAMESIZE], peer[INET6_ADDRSTRLEN];
	int count = 0;

	/* Added, so that it can be deleted: all of it in one step */
	fprintf(f, "table %s takeover\ndelete table %s takeover\n", ip, ip);
	fprintf(f, "table %s takeover {\n\tchain arrive {\n\t\ttype filter hook prerouting priority raw;\n", ip);
	LL_FOREACH(services, svc) {
		const char *address = endpoint_text(&svc->c->at);
		const unsigned int port = ntohs(svc->c->at.port);
		const struct sockaddr_in6 *v6 = (const void *)&svc->peer;

		if (svc->state != PROTECTED || svc->c->at.family != family)
			continue;
		inet_ntop(family, family == AF_INET ? (const void *)&((const struct sockaddr_in *)&svc->peer)->sin_addr : (const void *)&v6->sin6_addr,
			  peer, sizeof(peer));
		*device = 0;
		if (family == AF_INET6 && v6->sin6_scope_id && if_indextoname(v6->sin6_scope_id, name))
			snprintf(device, sizeof(device), " device \"%s\"", name);
		fprintf(f, "\t\t%s daddr %s tcp dport %u notrack\n", ip, address, port);
		count++;
		if (!svc->backup)
			continue;
		/* What the hosts tell each other carries an option of its own */
		fprintf(f, "\t\t%s daddr %s tcp dport %u tcp option @254,16,16 0x5252 return\n", ip, address, port);
		fprintf(f, "\t\t%s daddr %s tcp dport %u dup to %s%s\n", ip, address, port, peer, device);
		count += 2;
		if (first_of_address(svc)) {
			fprintf(f, "\t\t%s daddr %s %s dup to %s%s\n", ip, address, errors, peer, device);
			count++;
		}
	}
	fprintf(f, "\t}\n\tchain leave {\n\t\ttype filter hook output priority raw;\n");
	LL_FOREACH(services, svc)
		if (svc->state == PROTECTED && svc->c->at.family == family) {
			fprintf(f, "\t\t%s saddr %s tcp sport %u notrack\n", ip, endpoint_text(&svc->c->at), ntohs(svc->c->at.port));
			count++;
		}
	fprintf(f, "\t}\n}\n");
	return count;
}

/* One that is not waited for: a host that goes on alone has more urgent things to do than to stop copying */
static pid_t nft_running;
static bool nft_stale;
static int rules_wanted[2];
static struct watch nft_watch = { -1, NULL };

static void nft_ended(struct watch *watch, uint32_t events)
{
	(void)events;
	watch_close(watch);
	watch->fd = -1;
	finish(nft_running, "nft");
	nft_running = 0;
}

static int nft_apply(bool patient)
{
	static const char *const argv[] = { "nft", "-f", "-", NULL };
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	pid_t pid;

	if (!f)
		return -1;
	rules_wanted[0] = nft_family(f, AF_INET);
	rules_wanted[1] = nft_family(f, AF_INET6);
	fclose(f);
	nft_stale = false;
	if (nft_running)
		nft_ended(&nft_watch, 0);
	pid = start(text, argv);
	free(text);
	if (!patient && pid) {
		nft_watch = (struct watch){ syscall(SYS_pidfd_open, pid, 0), nft_ended };
		if (nft_watch.fd >= 0 && !watch_add(&nft_watch, EPOLLIN)) {
			nft_running = pid;
			return 0;
		}
	}
	return finish(pid, "nft");
}

/* How many rules our table has in the kernel; -1: that cannot be told now */
static int rules_there(uint8_t family)
{
	struct {
		struct nlmsghdr head;
		struct nfgenmsg of;
		struct nlattr attribute;
		char table[12];
	} ask = {
		.head = { sizeof(ask), NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETRULE, NLM_F_REQUEST | NLM_F_DUMP, 0, 0 },
		.of = { family, NFNETLINK_V0, 0 }, .attribute = { NLA_HDRLEN + sizeof("takeover"), NFTA_RULE_TABLE }, .table = "takeover",
	};
	static _Alignas(struct nlmsghdr) char buffer[32768];
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER), count = 0;
	bool more = fd >= 0 && send(fd, &ask, sizeof(ask), 0) == sizeof(ask);
	const struct nlmsghdr *h;
	ssize_t n;

	if (!more)
		count = -1;
	while (more) {
		n = recv(fd, buffer, sizeof(buffer), 0);
		if (n <= 0)
			count = -1;
		for (h = (void *)buffer, more = n > 0; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
			if (h->nlmsg_type == NLMSG_ERROR || h->nlmsg_flags & NLM_F_DUMP_INTR)
				count = -1;
			else if (h->nlmsg_type != NLMSG_DONE && count >= 0)
				count++;
			more &= h->nlmsg_type != NLMSG_DONE && h->nlmsg_type != NLMSG_ERROR;
		}
	}
	if (fd >= 0)
		close(fd);
	return count;
}

struct rules rules;

/* Whoever loads a firewall anew may flush ours along with his own, and the primary would get no packets any more */
static void rules_check(uint64_t now)
{
	static const uint8_t families[2] = { AF_INET, AF_INET6 };
	static uint64_t checked, tried;
	bool wrong = false;

	if (now - checked < SECOND_NS || nft_running || nft_stale)
		return;
	checked = now;
	for (unsigned int i = 0; i < 2; i++) {
		const int there = rules_there(families[i]);

		wrong |= there >= 0 && there != rules_wanted[i];
	}
	if (wrong && !rules.wrong) {
		rules.lost++;
		say(LOG_ERR, "the packet filter's rules of the tables \"takeover\" are not there: somebody has flushed or changed them: they are set again");
	} else if (!wrong && rules.wrong) {
		say(LOG_NOTICE, "the packet filter's rules are there again");
	}
	if (wrong && (!rules.wrong || now - tried >= RULES_AGAIN_NS)) {
		tried = now;
		nft_apply(false);
	}
	rules.wrong = wrong;
}

static void sysctl_set(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, value, strlen(value)) < 0)
		say(LOG_ERR, "%s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
}

static bool address_there(const struct service *svc, const char *interface)
{
	struct ifaddrs *all, *a;
	bool there = false;

	if (getifaddrs(&all))
		return false;
	for (a = all; a && !there; a = a->ifa_next)
		if (a->ifa_addr && a->ifa_addr->sa_family == svc->c->at.family && !strcmp(a->ifa_name, interface))
			there = svc->c->at.family == AF_INET ?
				!memcmp(&((const struct sockaddr_in *)a->ifa_addr)->sin_addr, svc->c->at.address, 4) :
				!memcmp(&((const struct sockaddr_in6 *)a->ifa_addr)->sin6_addr, svc->c->at.address, 16);
	freeifaddrs(all);
	return there;
}

static void address_change(const struct service *svc, bool there, const char *interface)
{
	const bool v4 = svc->c->at.family == AF_INET;
	char text[INET6_ADDRSTRLEN + 4];
	const char *add[] = { "ip", v4 ? "-4" : "-6", "address", "add", text, "dev", interface, v4 ? NULL : "nodad", NULL };
	const char *remove[] = { "ip", v4 ? "-4" : "-6", "address", "flush", "dev", interface, "to", text, NULL };

	snprintf(text, sizeof(text), "%s/%u", endpoint_text(&svc->c->at), v4 ? 32 : 128);
	/* One of IPv6 is not replaced by itself: without CONFIG_IPV6_MULTIPLE_TABLES, it would be local no more */
	if (there != address_there(svc, interface))
		finish(start(NULL, there ? add : remove), "ip");
}

/* Another service here has its clients at the same address */
static bool address_shared(const struct service *svc)
{
	const struct service *other;

	LL_FOREACH(services, other)
		if (other != svc && other->c->at.family == svc->c->at.family && !memcmp(other->c->at.address, svc->c->at.address, 16) &&
		    (other->state == ALONE || (other->state == PROTECTED && other->backup)))
			return true;
	return false;
}

/*
 * Where clients find it, it is on an interface, which is the cluster manager's affair, or ours. On the primary it is on lo, and
 * nobody is told of it: two other services of this address may have it the other way round, so it stays there.
 */
static void address_place(struct service *svc)
{
	if (svc->state == PROTECTED && !svc->backup) {
		if (svc->c->at.family == AF_INET) {
			sysctl_set("/proc/sys/net/ipv4/conf/all/arp_ignore", "1");
			sysctl_set("/proc/sys/net/ipv4/conf/all/arp_announce", "2");
		}
		if (svc->c->manage_address && !address_shared(svc))
			address_change(svc, false, svc->c->interface);
		address_change(svc, true, "lo");
	} else if (svc->c->manage_address && svc->state == ABANDONED) {
		if (!address_shared(svc))
			address_change(svc, false, svc->c->interface);
	} else if (svc->c->manage_address && (svc->state == PROTECTED || svc->state == ALONE)) {
		address_change(svc, true, svc->c->interface);
		svc->announcements = ANNOUNCEMENTS;
	}
}

/* What is kept. */

static void state_path(const char *service, const char *what, char path[PATH_MAX])
{
	char name[NAME_SIZE + 8];

	snprintf(name, sizeof(name), "%s.%s", service, what);
	control_beside(name, path);
}

/* The kernel's roles live as long as this start of the host, and this network namespace */
static void this_life(char text[64])
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	char boot[40] = "-";
	struct stat st = { 0 };

	if (f && fscanf(f, "%39s", boot) != 1)
		strcpy(boot, "-");
	if (f)
		fclose(f);
	stat("/proc/self/ns/net", &st);
	snprintf(text, 64, "%s/%" PRIu64, boot, (uint64_t)st.st_ino);
}

/* So that it can be left in peace when it is not in the file any more: its connections are with both hosts then */
static bool config_save(const struct service *svc)
{
	char path[PATH_MAX], new[PATH_MAX + 8];
	bool kept = false;
	int fd;
	FILE *f;

	state_path(svc->c->name, "kept", path);
	snprintf(new, sizeof(new), "%s.new", path);
	unlink(new);
	fd = open(new, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	f = fd >= 0 ? fdopen(fd, "w") : NULL;
	if (f) {
		kept = !config_keep(svc->c, f);
		kept &= !fclose(f) && !rename(new, path);
	} else if (fd >= 0) {
		close(fd);
	}
	if (!kept)
		say(LOG_ERR, "%s: %s", path, strerror(errno));
	return kept;
}

/* In its place, which a full file system has still room for, and in one step, as it is never longer than a page */
static bool save_in_place(const char *path, const char *text, size_t size)
{
	const int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
	bool saved;

	errno = fd >= 0 ? ENOSPC : errno;	/* if less of it is written */
	saved = fd >= 0 && pwrite(fd, text, size, 0) == (ssize_t)size;

	if (fd >= 0)
		close(fd);
	return saved;
}

/* One that is not there yet comes with what it says: nobody finds it empty */
static bool save(struct service *svc, const char *what, const char *text, size_t size)
{
	char path[PATH_MAX], new[PATH_MAX + 8];
	bool saved;
	int fd;

	state_path(svc->c->name, what, path);
	snprintf(new, sizeof(new), "%s.new", path);
	if (save_in_place(path, text, size))
		return true;
	unlink(new);
	fd = open(new, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	errno = fd >= 0 ? ENOSPC : errno;
	saved = fd >= 0 && write(fd, text, size) == (ssize_t)size && !rename(new, path);
	if (!saved && !svc->unsaved)
		say(LOG_ERR, "%s: %s: it is written again each second until there is room", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return saved;
}

static void state_save(struct service *svc)
{
	char life[64], peer[128], log[128], line[STATE_SIZE + 1], claim[4];
	bool saved;

	this_life(life);
	/* What is the file's may change with it */
	snprintf(peer, sizeof(peer), "%s", memcmp(&svc->peer, &svc->c->peer, sizeof(svc->peer)) ? address_text(&svc->peer, false) : "-");
	snprintf(log, sizeof(log), "%s", memcmp(&svc->peer_log, &svc->c->peer_log, sizeof(svc->peer_log)) ? address_text(&svc->peer_log, true) : "-");
	snprintf(line, sizeof(line), "%s %s %" PRIu64 " %s %s %s %s %s", state_name(svc), svc->backup ? "backup" : "primary", svc->epoch, peer, log, life,
		 svc->known ? "known" : "-", svc->protect ? "protect" : "-");
	memset(line + strlen(line), ' ', STATE_SIZE - strlen(line));
	line[STATE_SIZE - 1] = '\n';
	saved = save(svc, "state", line, STATE_SIZE);
	/* Where the address belongs: at the host that goes on alone, then at the backup */
	snprintf(claim, sizeof(claim), "%u\n", svc->state == ALONE ? 2 : svc->backup && svc->state != ABANDONED ? 1 : 0);
	saved &= save(svc, "claim", claim, strlen(claim));
	if (saved && svc->unsaved)
		say(LOG_NOTICE, "%s: what it is has been written", svc->c->name);
	svc->unsaved = !saved;
}

/* What it was, under the name that it had */
static void state_load(struct service *svc, const char *name)
{
	char path[PATH_MAX], state[16], role[16], peer[128], log[128], life[64], now[64], known[16] = "-", protect[16] = "-";
	union address peer_address = svc->c->peer, log_address = svc->c->peer_log;
	uint64_t epoch;
	FILE *f;

	this_life(now);
	state_path(name, "state", path);
	f = fopen(path, "re");
	if (!f)
		return;
	if (fscanf(f, "%15s %15s %" SCNu64 " %127s %127s %63s %15s %15s", state, role, &epoch, peer, log, life, known, protect) < 6 ||
	    (strcmp(peer, "-") && !address_parse(peer, false, &peer_address)) || (strcmp(log, "-") && !address_parse(log, true, &log_address))) {
		say(LOG_ERR, "%s: it cannot be read: what the service was is not known", path);
	} else if (!strcmp(life, now)) {
		svc->epoch = svc->agreed = epoch;
		svc->backup = !strcmp(role, "backup");
		svc->peer = peer_address;
		svc->peer_log = log_address;
		svc->known = !strcmp(known, "known");
		svc->protect = !strcmp(protect, "protect");
		for (unsigned int i = 0; i < sizeof(state_names) / sizeof(state_names[0]); i++)
			if (!strcmp(state, state_names[i]))
				svc->state = i;
	}
	fclose(f);
}

static struct service *service_new(struct service_config *c)
{
	struct service *svc = must_alloc(sizeof(*svc));

	svc->c = c;
	svc->backup = c->backup;
	svc->peer = c->peer;
	svc->peer_log = c->peer_log;
	return svc;
}

/* Changes. */

static void event(const struct service *svc, int level, const char *outcome, const char *cause, uint64_t took)
{
	char line[256];
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	snprintf(line, sizeof(line), "%s: %s, epoch %" PRIu64 ": %s", svc->c->name, outcome, svc->epoch, cause);
	say(level, "%s", line);
	local_event(line);
	/* Its first word is the cause there */
	if (record_add(verdicts, "time_ns=%" PRIu64 " pid=%d comm=%s rung=takeover cause=%.*s outcome=%s generation=%" PRIu64 " took_ns=%" PRIu64 "\n",
		       (uint64_t)(t.tv_sec * SECOND_NS + t.tv_nsec), getpid(), svc->c->name, (int)strcspn(cause, " :"), cause, outcome, svc->epoch, took))
		say(LOG_ERR, "%s: %s", verdicts, strerror(errno));
}

static void change(struct service *svc, enum state state, const char *cause, uint64_t since)
{
	svc->state = state;
	svc->protect = svc->known = svc->split = svc->had_address = svc->displaced = false;
	svc->asked_at = 0;
	state_save(svc);
	if (state == PROTECTED)
		address_place(svc);	/* its peer relies on it */
	else
		nft_stale = svc->misplaced = true;
	event(svc, state == PROTECTED ? LOG_NOTICE : LOG_WARNING, state == PROTECTED && svc->backup ? "backup" : state == PROTECTED ? "primary" : state_name(svc),
	      cause, since ? now_ns() - since : 0);
}

/* What comes from now on is ordinary, and can be protected later */
static void kernel_alone(struct service *svc)
{
	const int err = kernel_op(svc, TCP_REPLICA_SET, TCP_REPLICA_ALONE);

	if (err && err != ENOPROTOOPT)
		say(LOG_ERR, "%s: its connections will not be protected later: %s", svc->c->name, kernel_error(err));
}

/* A kernel that does not know it has nothing to do for it */
static bool kernel_does(struct service *svc, uint32_t op, const char *what)
{
	const int err = kernel_op(svc, op, 0);

	if (err == ENOENT && op == TCP_REPLICA_PROMOTE)
		kernel_alone(svc);
	if (!err || err == ENOENT || err == ENOPROTOOPT)
		return true;
	say(LOG_ERR, "%s: the kernel does not %s it: %s", svc->c->name, what, strerror(err));
	return false;
}

/* The kernel first: clients wait for it, and nothing else here matters to them */
static bool go_alone(struct service *svc, uint64_t epoch, const char *cause, uint64_t since)
{
	if (!kernel_does(svc, TCP_REPLICA_PROMOTE, "promote"))
		return false;
	svc->epoch = epoch;
	waits_look(svc);
	change(svc, ALONE, cause, since);
	logs_close(svc);
	return true;
}

static bool give_way(struct service *svc, uint64_t epoch, const char *cause)
{
	if (!kernel_does(svc, TCP_REPLICA_ABANDON, "abandon"))
		return false;
	if (epoch > svc->epoch)
		svc->epoch = epoch;
	change(svc, ABANDONED, cause, 0);
	logs_close(svc);
	return true;
}

/* @agreed: the last epoch in which the peer may be alone, and has agreed since */
static bool become(struct service *svc, bool backup, uint64_t epoch, uint64_t agreed, const char *cause)
{
	const enum state state = svc->state;
	const bool was = svc->backup;
	int err = kernel_op(svc, TCP_REPLICA_SET, backup ? TCP_REPLICA_MUTED : TCP_REPLICA_PRIMARY);

	if (err) {
		say(LOG_ERR, "%s: the kernel does not make it %s: %s", svc->c->name, backup ? "muted" : "the primary", kernel_error(err));
		return false;
	}
	svc->backup = backup;
	svc->state = PROTECTED;
	if (nft_apply(true)) {
		say(LOG_ERR, "%s: it cannot be protected: the packet filter's rules cannot be set", svc->c->name);
		kernel_op(svc, TCP_REPLICA_PROMOTE, 0);
		svc->backup = was;
		svc->state = state == PROTECTED ? WAITING : state;
		nft_stale = true;
		state_save(svc);
		return false;
	}
	svc->epoch = epoch;
	svc->agreed = agreed;
	change(svc, PROTECTED, cause, 0);
	return true;
}

/* Claims. */

static void claim_end(struct service *svc, int status, const char *text)
{
	struct claim *claim = svc->claim;

	svc->claim = NULL;
	for (unsigned int i = 0; i < 2; i++)
		if (claim->dials[i])
			peer_forget(claim->dials[i]);
	claim->done(claim->arg, status, text);
	free(claim);
}

static const char still_walking[] = "; the kernel is still at its connections: `takeoverctl status` says promoting until it is done";

static void claim_won(struct service *svc, const char *cause)
{
	char text[NAME_SIZE + 64 + sizeof(still_walking)];

	if (!go_alone(svc, svc->epoch + 1, cause, svc->claim->begun)) {
		snprintf(text, sizeof(text), "%s: the kernel does not promote it: the journal says why\n", svc->c->name);
		claim_end(svc, 1, text);
		return;
	}
	snprintf(text, sizeof(text), "%s: this host goes on: %s%s\n", svc->c->name, cause, svc->walk ? still_walking : "");
	claim_end(svc, 0, text);
}

static void claim_lost(struct service *svc, uint64_t epoch)
{
	char text[NAME_SIZE + 64];

	/* One that waits has nothing to give up */
	if (svc->state == PROTECTED)
		give_way(svc, epoch, "yielded: the peer goes on");
	snprintf(text, sizeof(text), "%s: the peer goes on with it: this host is to give up the address\n", svc->c->name);
	claim_end(svc, 3, text);
}

static void peer_heard(struct service *svc, const struct peer_message *m);

static void asked_in_vain(struct service *svc, int error);

static bool asleep_lately(uint64_t now)
{
	return woken_at && now - woken_at < SECOND_NS;
}

/* That this host is alone, so that it does not go on itself */
static void peer_knows(struct service *svc)
{
	if (svc->state != ALONE || svc->known)
		return;
	svc->known = true;
	state_save(svc);
}

static void claim_answered(struct service *svc, unsigned int which, int error, const struct peer_message *answer)
{
	struct claim *claim = svc->claim;

	claim->dials[which] = NULL;
	if (!error) {
		peer_heard(svc, answer);
		if (svc->claim != claim)
			return;
		if (answer->verb == VERB_YES) {
			claim_won(svc, "agreed with the peer");
			peer_knows(svc);
		} else {
			claim_lost(svc, answer->epoch);
		}
	} else {
		asked_in_vain(svc, error);	/* and asked again, until the deadline */
	}
}

static void claim_answered_0(void *arg, int error, int fd, const struct peer_message *answer)
{
	(void)fd;
	claim_answered(arg, 0, error, answer);
}

static void claim_answered_1(void *arg, int error, int fd, const struct peer_message *answer)
{
	(void)fd;
	claim_answered(arg, 1, error, answer);
}

static struct peer_message message(const struct service *svc, enum verb verb);

static void claim_dial(struct service *svc)
{
	const struct peer_message question = message(svc, VERB_CLAIM);
	struct claim *claim = svc->claim;
	union address other = svc->peer;
	const uint64_t now = now_ns();
	uint64_t left = claim->deadline > now ? claim->deadline - now : 0;
	const in_port_t port = ((const struct sockaddr_in *)&svc->peer_log)->sin_port;	/* at the same place in both families */

	/* TCP itself would try it again after a second only */
	if (asleep_lately(now) && left > CLAIM_AGAIN_NS)
		left = CLAIM_AGAIN_NS;
	((struct sockaddr_in *)&other)->sin_port = port;
	claim->dials[0] = peer_dial(svc, &svc->peer_log, &question, left, claim_answered_0, svc);
	if (memcmp(&other, &svc->peer_log, sizeof(other)))
		claim->dials[1] = peer_dial(svc, &other, &question, left, claim_answered_1, svc);
}

/* Who has stood still, before or meanwhile, asks for long enough to be told */
static void claim_patient(struct service *svc, uint64_t now)
{
	if (asleep_lately(now) && svc->claim->deadline < woken_at + SECOND_NS)
		svc->claim->deadline = woken_at + SECOND_NS;
}

/* One that leaves has asked for itself */
static void left(void *arg, int status, const char *text)
{
	struct service *svc = arg;

	(void)text;
	svc->leave_after = status ? now_ns() + LEAVE_NS : 0;
}

void service_promote(struct service *svc, done_fn done, void *arg)
{
	const uint64_t now = now_ns();
	char text[NAME_SIZE + 64 + sizeof(still_walking)];

	/* And is in a hurry now */
	if (svc->claim && svc->claim->done == left) {
		svc->claim->done = done;
		svc->claim->arg = arg;
		svc->claim->deadline = now + config.arbitrate;
		claim_patient(svc, now);
		return;
	}
	if (svc->state == ALONE || svc->claim) {
		snprintf(text, sizeof(text), "%s: it %s promoted%s\n", svc->c->name, svc->claim ? "is being" : "has been",
			 !svc->claim && svc->walk ? still_walking : "");
		done(arg, svc->claim ? 1 : 0, text);
		return;
	}
	svc->claim = must_alloc(sizeof(*svc->claim));
	*svc->claim = (struct claim){ .done = done, .arg = arg, .begun = now, .deadline = now + config.arbitrate, .lot = random() };
	claim_patient(svc, now);
	claim_dial(svc);
}

static void claim_tick(struct service *svc, uint64_t now)
{
	claim_patient(svc, now);
	if (now >= svc->claim->deadline)
		claim_won(svc, "unanswered by the peer");
	else if (!svc->claim->dials[0] && !svc->claim->dials[1])
		claim_dial(svc);
}

bool service_abandon(struct service *svc)
{
	if (svc->claim)
		claim_end(svc, 1, "it has been abandoned meanwhile\n");
	return give_way(svc, svc->epoch, "asked to");
}

/* What the hosts tell each other. */

static const char *const settings[SETTINGS] = {
	"net/ipv4/tcp_timestamps", "net/ipv4/tcp_sack", "net/ipv4/tcp_window_scaling", "net/ipv4/tcp_ecn", "net/ipv4/tcp_rmem", "net/core/rmem_max",
};

/* The last number of it */
static uint32_t setting(const char *name)
{
	char path[128], text[128] = "";
	const char *last;
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/sys/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	while (n > 0 && text[n - 1] == '\n')
		text[--n] = 0;
	last = strpbrk(text, "\t ") ? strrchr(text, strchr(text, '\t') ? '\t' : ' ') + 1 : text;
	return strtoul(last, NULL, 10);
}

static struct peer_message message(const struct service *svc, enum verb verb)
{
	struct peer_message m = {
		.verb = verb, .state = svc->state, .epoch = svc->epoch, .backup = svc->backup,
		.lot = verb == VERB_ANSWER ? clock_ms() : svc->claim ? svc->claim->lot : 0,
	};

	for (unsigned int i = 0; i < SETTINGS; i++)
		m.settings[i] = setting(settings[i]);
	return m;
}

static void settings_compare(struct service *svc, const struct peer_message *m)
{
	bool differs = false;

	for (unsigned int i = 0; i < SETTINGS; i++) {
		const uint32_t here = setting(settings[i]);

		if (here == m->settings[i])
			continue;
		differs = true;
		if (!svc->differs)
			say(LOG_WARNING, "%s: %s is %u here, and %u at the peer: connections may not be the same on both", svc->c->name, settings[i], here,
			    m->settings[i]);
	}
	svc->differs = differs;
}

uint32_t clock_ms(void)
{
	struct timespec t;
	uint32_t ms;

	clock_gettime(CLOCK_REALTIME, &t);
	ms = (uint64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
	return ms ? ms : 1;
}

static bool peer_is_alive(const struct service *svc)
{
	return svc->alive_at && now_ns() - svc->alive_at < ALIVE_NS;
}

static bool clock_differs(const struct service *svc)
{
	return svc->clock_off > CLOCK_MOST_MS || svc->clock_off < -CLOCK_MOST_MS;
}

void service_clock(struct service *svc, uint32_t asked, uint32_t its)
{
	const int32_t after = its - asked, before = its - clock_ms();
	const bool differed = clock_differs(svc);

	if (!its)
		return;
	/* It answered after we had asked, and before now: how long either way took is not known */
	svc->clock_off = before > 0 ? before : after < 0 ? after : 0;
	if (clock_differs(svc) && !differed)
		say(LOG_WARNING, "%s: the peer's clock is %s by %.1f s: when the hosts' differ by more than two seconds, connections that one of them goes on "
		    "with may stand still for as long: let both set it by NTP", svc->c->name, svc->clock_off > 0 ? "ahead" : "late",
		    abs(svc->clock_off) / 1000.0);
	else if (!clock_differs(svc) && differed)
		say(LOG_NOTICE, "%s: the peer's clock is as ours again", svc->c->name);
}

/* Anything that it has said tells what it is */
static void peer_heard(struct service *svc, const struct peer_message *m)
{
	const bool split = svc->state == ALONE && m->state == ALONE;

	svc->alive_at = now_ns();
	svc->peer_state = m->state < sizeof(state_names) / sizeof(state_names[0]) ? m->state : WAITING;
	svc->peer_epoch = m->epoch;
	settings_compare(svc, m);
	if (svc->peer_state == WAITING || svc->peer_state == ABANDONED)
		peer_knows(svc);
	if (split && !svc->split)
		event(svc, LOG_CRIT, "split", "split: both hosts have been promoted: `takeoverctl abandon` one of them", 0);
	svc->split = split;
	if (svc->state == WAITING && svc->peer_state == WAITING && !svc->backup && !m->backup) {
		if (!svc->nobody_asks)
			say(LOG_ERR, "%s: both hosts are the primary: the role of the one that has the address is backup in takeover.conf", svc->c->name);
		svc->nobody_asks = true;
	}
	/* It may be about to be promoted */
	svc->silent = svc->state == PROTECTED && svc->peer_state == ABANDONED && !svc->claim ? svc->silent + 1 : 0;
	if (svc->silent == SILENT_ASKS)
		event(svc, LOG_CRIT, "silent", "silent: the peer has abandoned it, and this host has not been promoted: `takeoverctl promote` it", 0);
	/* With an older epoch it is what it was before it asked to be protected */
	if (svc->state == PROTECTED && svc->peer_state == ALONE && m->epoch > svc->agreed) {
		if (svc->claim)
			claim_lost(svc, m->epoch);
		else
			give_way(svc, m->epoch, "yielded: the peer has been promoted");
	}
}

/* Does the network bring it to this host? Its packets are copied from where they arrive. */
static bool address_here(const struct service *svc)
{
	const struct endpoint *at = &svc->c->at;
	struct ifaddrs *all = NULL, *one;
	bool here = svc->c->manage_address;

	if (here || getifaddrs(&all))
		return true;
	for (one = all; one && !here; one = one->ifa_next)
		if (one->ifa_addr && one->ifa_addr->sa_family == at->family && !(one->ifa_flags & IFF_LOOPBACK))
			here = at->family == AF_INET ? !memcmp(&((struct sockaddr_in *)one->ifa_addr)->sin_addr, at->address, 4) :
						       !memcmp(&((struct sockaddr_in6 *)one->ifa_addr)->sin6_addr, at->address, 16);
	freeifaddrs(all);
	return here;
}

/* The backup at first, and when its peer's host has been started anew; one that is alone when it is asked to */
static bool wants_protection(const struct service *svc)
{
	if (svc->leaving || !address_here(svc))
		return false;
	if (svc->state == ALONE)
		return svc->protect;
	return svc->backup && (svc->state == WAITING || (svc->state == PROTECTED && svc->alive_at && svc->peer_state == WAITING));
}

static void claimed(struct service *svc, struct peer_message *m)
{
	/* Of two that claim, the muted one gets it; of two that both are, or both are not, the lot decides */
	if (svc->state == ALONE || (svc->claim && (svc->backup != !!m->backup ? svc->backup : svc->claim->lot >= m->lot))) {
		*m = message(svc, VERB_NO);
		if (svc->claim)
			m->epoch++;	/* what it will be */
		return;
	}
	if (svc->claim)
		claim_lost(svc, m->epoch + 1);
	else if (svc->state == PROTECTED)
		give_way(svc, m->epoch + 1, "yielded: the peer claims it");
	*m = message(svc, svc->state == PROTECTED ? VERB_NO : VERB_YES);	/* the kernel has refused */
}

/* One that is alone, and had it: then the address has gone to the peer, since nobody else has it */
static void address_watch(struct service *svc)
{
	const bool here = address_here(svc);

	if (svc->state != ALONE)
		return;
	if (svc->had_address && !here && !svc->displaced)
		event(svc, LOG_CRIT, "displaced", "displaced: the address has left this host, which is alone, and so have its clients: "
		      "the cluster manager must not move it back (nopreempt)", 0);
	svc->displaced = !here && (svc->had_address || svc->displaced);
	svc->had_address = here;
}

static struct service *asking;	/* the service that we have asked to protect, until it is answered */

void service_asked(struct service *svc, struct peer_message *m)
{
	const struct peer_message asked = *m;
	const uint64_t epoch = (asked.epoch > svc->epoch ? asked.epoch : svc->epoch) + 1;
	bool may;

	peer_heard(svc, &asked);
	switch (asked.verb) {
	case VERB_CLAIM:
		claimed(svc, m);
		return;
	case VERB_PROTECT:
		/*
		 * One that is the primary already has a peer that does not know of it any more. One that is alone has something to lose: it
		 * agrees when the address is the peer's again anyway.
		 */
		address_watch(svc);
		may = !svc->leaving && (svc->state != ALONE || (svc->displaced && asked.state != ALONE)) && !svc->claim && asking != svc &&
		      !(svc->state == PROTECTED && svc->backup);
		/* What this host has left of before, the peer has gone on with */
		if (may && asked.state == ALONE)
			may = kernel_does(svc, TCP_REPLICA_ABANDON, "abandon");
		*m = message(svc, may && become(svc, false, epoch, asked.epoch, "agreed with the peer") ? VERB_YES : VERB_NO);
		m->epoch = svc->epoch;
		m->state = svc->state;
		return;
	default:
		*m = message(svc, VERB_ANSWER);
	}
}

static void asked_in_vain(struct service *svc, int error)
{
	if (error == EACCES && !svc->stranger)
		say(LOG_ERR, "%s: the peer has another key", svc->c->name);
	svc->stranger = error == EACCES;
}

static void protect_answered(void *arg, int error, int fd, const struct peer_message *answer)
{
	struct service *svc = arg;

	(void)fd;
	if (asking == svc)
		asking = NULL;
	if (error) {
		asked_in_vain(svc, error);
		return;
	}
	peer_heard(svc, answer);
	if (answer->verb == VERB_YES && !svc->claim && (wants_protection(svc) || (svc->backup && svc->state == PROTECTED)))
		if (!become(svc, true, answer->epoch, answer->epoch, "agreed with the peer"))
			svc->protect_after = now_ns() + PROTECT_NS;	/* the peer has done its part, each time */
}

static void asked_answered(void *arg, int error, int fd, const struct peer_message *answer)
{
	(void)fd;
	if (!error)
		peer_heard(arg, answer);
	else
		asked_in_vain(arg, error);
}

enum protection service_protect(struct service *svc)
{
	const bool here = address_here(svc);

	if (svc->leaving)
		return PROTECTION_LEAVING;
	if (!here && svc->state != ALONE)
		return PROTECTION_REFUSED;
	svc->protect = true;
	svc->asked_at = 0;
	/* One that had given way may have the address now: it is asked as one that is to be the muted one */
	if (svc->state == ABANDONED || svc->state == WAITING) {
		svc->backup = true;
		svc->state = WAITING;
	}
	state_save(svc);
	return here ? PROTECTION_ASKED : PROTECTION_LATER;
}

int service_set_peer(struct service *svc, const union address *peer, const union address *log)
{
	if (svc->state == PROTECTED || (peer && peer->any.sa_family != svc->c->at.family))
		return -1;
	if (peer)
		svc->peer = *peer;
	if (log)
		svc->peer_log = *log;
	state_save(svc);
	return 0;
}

/* Every second, and not all at the same moment */
static void service_ask(struct service *svc, uint64_t now)
{
	const bool protect = wants_protection(svc) && !asking && now >= svc->protect_after;
	const struct peer_message question = message(svc, protect ? VERB_PROTECT : VERB_ASK);

	if (svc->announcements) {
		announce(&svc->c->at, svc->c->interface);
		svc->announcements--;
	}
	address_watch(svc);
	svc->asked_at = now + random() % (SECOND_NS / 5);
	if (peer_dial(svc, &svc->peer_log, &question, protect ? PROTECT_NS : SECOND_NS, protect ? protect_answered : asked_answered, svc) && protect)
		asking = svc;
}

static void service_forget(const char *name)
{
	char path[PATH_MAX];

	/* Not what it claims: whoever looks after its address still looks there */
	state_path(name, "kept", path);
	unlink(path);
	state_path(name, "state", path);
	unlink(path);
}

/*
 * One that is not in the file any more. While both hosts have its connections, it stays what it was: its packets are copied, and its peer
 * is answered. The muted one has the packets of its clients, so it goes on alone: its peer is asked, and given time, since nobody has
 * died. The primary waits for its peer to do so. A host that has gone on leaves when its peer knows it.
 */
static void service_leave(struct service *svc, uint64_t now)
{
	if (svc->state == PROTECTED) {
		if (svc->backup && !svc->claim && now >= svc->leave_after) {
			service_promote(svc, left, svc);
			svc->claim->deadline = now + LEAVE_NS;
		}
		return;
	}
	if (svc->walk || svc->claim)
		return;
	if (!svc->off) {
		const int err = kernel_op(svc, TCP_REPLICA_SET, TCP_REPLICA_OFF);

		svc->off = true;
		if (err && err != ENOENT && err != ENOPROTOOPT)
			say(LOG_ERR, "%s: the kernel does not leave it: %s", svc->c->name, strerror(err));
	}
	if (svc->state == ALONE && !svc->known)
		return;
	service_forget(svc->c->name);
	svc->left = true;
	say(LOG_NOTICE, "%s: it has been left: its connections are ordinary ones", svc->c->name);
}

void services_tick(uint64_t now)
{
	struct service *svc;

	LL_FOREACH(services, svc) {
		if (svc->left)
			continue;
		if (svc->claim)
			claim_tick(svc, now);
		walk_look(svc, now);
		if (svc->leaving)
			service_leave(svc, now);
		if (svc->left)
			continue;
		if (!svc->asked_at || (now > svc->asked_at && now - svc->asked_at >= SECOND_NS)) {
			if (svc->unsaved)
				state_save(svc);
			service_ask(svc, now);
			/* Those that one host alone has, and that are idle now */
			if (svc->state == PROTECTED && svc->c->join && !svc->joining && !svc->leaving) {
				svc->joining = true;
				kernel_op(svc, TCP_REPLICA_JOIN, 0);
			}
		}
	}
	rules_check(now);
}

/* What nobody waits for, after all that somebody does */
void services_settle(void)
{
	struct service *svc;

	if (nft_stale && !nft_running)
		nft_apply(false);
	LL_FOREACH(services, svc)
		if (svc->misplaced) {
			svc->misplaced = false;
			address_place(svc);
		}
}

/* Of all that have been kept, by their names */
static struct service_config *kept_read(void)
{
	struct service_config *all = NULL, *one, *other;
	char path[PATH_MAX], name[NAME_SIZE];
	struct dirent *entry;
	char *end;
	DIR *dir;

	control_beside("", path);
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		end = strrchr(entry->d_name, '.');
		if (!end || strcmp(end, ".kept") || end - entry->d_name >= NAME_SIZE)
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)(end - entry->d_name), entry->d_name);
		state_path(name, "kept", path);
		one = config_kept(path, name);
		if (!one) {
			say(LOG_ERR, "%s: it cannot be read", path);
			continue;
		}
		LL_FOREACH(all, other)
			if (!memcmp(&other->at, &one->at, sizeof(one->at)))
				break;
		if (other)
			free(one);
		else
			LL_APPEND(all, one);
	}
	if (dir)
		closedir(dir);
	return all;
}

/* Another one may have its name by now */
static void leaving_name(struct service *svc)
{
	char name[NAME_SIZE];

	snprintf(name, sizeof(name), "%s", svc->c->name);
	for (unsigned int i = 1; service_by_name(svc->c->name); i++)
		snprintf(svc->c->name, sizeof(svc->c->name), "%.*s.left%u", NAME_SIZE - 16, name, i);
}

/* The kernel has refused the file's peer or key, since it has connections of another one */
static bool service_as_before(struct service *svc, const struct service_config *before)
{
	struct service_config *c = svc->c;

	if (!before || (!memcmp(&before->peer, &c->peer, sizeof(c->peer)) && !memcmp(before->key, c->key, KEY_SIZE)))
		return false;
	if (!memcmp(&svc->peer, &c->peer, sizeof(c->peer)))
		svc->peer = before->peer;
	if (!memcmp(&svc->peer_log, &c->peer_log, sizeof(c->peer_log)))
		svc->peer_log = before->peer_log;
	c->peer = before->peer;
	c->peer_log = before->peer_log;
	memcpy(c->key, before->key, KEY_SIZE);
	return svc->old = true;
}

static void service_start(struct service *svc, const struct service_config *before)
{
	uint32_t role = svc->backup ? TCP_REPLICA_MUTED : TCP_REPLICA_PRIMARY;
	int err;

	/* A program that is started anew finds the kernel as it was; what it finds otherwise is told to the peer as nothing known */
	if (svc->state == PROTECTED) {
		err = kernel_op(svc, TCP_REPLICA_SET, role);
		if (err == EBUSY && service_as_before(svc, before)) {
			say(LOG_ERR, "%s: it has connections with another peer or key than the file's, which it keeps: `takeoverctl promote` or `abandon` "
			    "it, then start takeoverd anew", svc->c->name);
			err = kernel_op(svc, TCP_REPLICA_SET, role);
		}
		if (err) {
			say(LOG_ERR, "%s: the kernel keeps what it has: %s", svc->c->name, kernel_error(err));
			if (err != EBUSY)
				svc->state = WAITING;
		}
	} else if (svc->state != ABANDONED && !svc->leaving) {
		kernel_alone(svc);
	}
}

int services_start(void)
{
	struct service_config *kept = kept_read(), *c, *one, *next;
	struct service *svc;

	if (!kernel_there())
		say(LOG_ERR, "this kernel has no TCP_REPLICA: no connection will be protected");
	LL_FOREACH(config.services, c) {
		svc = service_new(c);
		LL_FOREACH(kept, one)
			if (!memcmp(&one->at, &c->at, sizeof(c->at)))
				break;
		/* It may have had another name, and its name another one */
		if (one) {
			state_load(svc, one->name);
		} else {
			LL_FOREACH(kept, next)
				if (!strcmp(next->name, c->name))
					break;
			if (!next)
				state_load(svc, c->name);
		}
		LL_APPEND(services, svc);
		service_start(svc, one);
	}
	LL_FOREACH_SAFE(kept, one, next) {
		if (service_at(&one->at))
			continue;
		svc = service_new(one);
		state_load(svc, one->name);
		LL_DELETE(kept, one);
		if (svc->state != PROTECTED && (svc->state != ALONE || svc->known)) {
			if (!service_by_name(one->name))
				service_forget(one->name);
			free(svc);
			free(one);
			continue;
		}
		leaving_name(svc);
		svc->leaving = true;
		LL_APPEND(services, svc);
		say(LOG_WARNING, "%s, port %u of %s, is not in the file any more: %s", svc->c->name, ntohs(svc->c->at.port), endpoint_text(&svc->c->at),
		    svc->state == ALONE ? "the peer is to be told that this host is alone" :
		    svc->backup ? "both hosts have its connections, and this host goes on with them: the peer is asked" :
		    "both hosts have its connections: it stays until the peer goes on with them: `takeoverctl promote` it there");
		service_start(svc, NULL);
	}
	kernel_leave();
	if (nft_apply(true))
		return -1;
	/* Before anything is written in their place */
	LL_FOREACH(services, svc)
		if (svc->leaving) {
			config_save(svc);
			state_save(svc);
		}
	LL_FOREACH(services, svc) {
		address_place(svc);
		config_save(svc);
		state_save(svc);
	}
	LL_FOREACH_SAFE(kept, one, next) {
		if (!service_by_name(one->name))
			service_forget(one->name);
		explicit_bzero(one->key, sizeof(one->key));
		free(one);
	}
	return 0;
}

void services_stop(void)
{
	struct service *svc;

	LL_FOREACH(services, svc)
		if (!svc->left)
			state_save(svc);
}

/* Looking at it. */

static void counts_add(json_t *to, char *line)
{
	char *save, *pair;

	for (pair = strtok_r(line, " \n", &save); pair; pair = strtok_r(NULL, " \n", &save)) {
		char *value = strchr(pair, '='), *end;
		long long n;

		if (!value)
			continue;
		*value++ = 0;
		n = strtoll(value, &end, 10);
		if (*value && !*end)
			json_object_set_new(to, pair, json_integer(n));
	}
}

json_t *services_status(void)
{
	json_t *all = json_array();
	struct service *svc;

	kernel_read();

	LL_FOREACH(services, svc) {
		const bool alive = peer_is_alive(svc);
		json_t *counts;

		if (svc->left)
			continue;
		counts = json_object();
		if (svc->counts)
			counts_add(counts, svc->counts);
		json_array_append_new(all, json_pack(
			"{s:s, s:s, s:i, s:s, s:s, s:I, s:{s:s, s:s, s:b, s:s}, s:b, s:b, s:b, s:b, s:b, s:i, s:b, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:o}",
			"name", svc->c->name, "address", endpoint_text(&svc->c->at), "port", ntohs(svc->c->at.port), "state", state_shown(svc),
			"role", svc->backup ? "backup" : "primary", "epoch", (json_int_t)svc->epoch,
			"peer", "address", address_text(&svc->peer, false), "log", address_text(&svc->peer_log, true), "alive", alive,
			"state", alive ? state_names[svc->peer_state] : "unknown",
			"split", svc->split, "displaced", svc->displaced, "silent", svc->silent >= SILENT_ASKS, "settings_differ", svc->differs,
			"clocks_differ", alive && clock_differs(svc), "clock_ms", svc->clock_off, "protect", wants_protection(svc),
			"asked", svc->state != ALONE || svc->protect, "in_file", !svc->leaving && !svc->old,
			"replies", (json_int_t)svc->replies, "executed", (json_int_t)svc->executed, "refused", (json_int_t)svc->refused,
			"lost", (json_int_t)svc->lost, "forgotten", (json_int_t)svc->forgotten, "kernel", counts));
	}
	return all;
}

static bool in_path(const char *program)
{
	const char *path = getenv("PATH");
	char *copy = strdup(path ? path : "/usr/sbin:/usr/bin:/sbin:/bin"), *save, *dir, name[PATH_MAX];
	bool found = false;

	for (dir = copy ? strtok_r(copy, ":", &save) : NULL; dir && !found; dir = strtok_r(NULL, ":", &save)) {
		snprintf(name, sizeof(name), "%s/%s", dir, program);
		found = !access(name, X_OK);
	}
	free(copy);
	return found;
}

unsigned int host_check(void (*found)(void *arg, const char *text), void *arg)
{
	static const char *const programs[] = { "nft", "ip" };
	const struct service_config *c;
	const struct service *svc;
	struct if_nameindex *interfaces = if_nameindex();
	unsigned int count = 0;
	char text[512], name[64];
	bool v4 = false;

#define FOUND(...) do { snprintf(text, sizeof(text), __VA_ARGS__); found(arg, text); count++; } while (0)
	if (!kernel_there())
		FOUND("this kernel has no TCP_REPLICA: boot Perdure's, with CONFIG_TCP_REPLICA");
	for (unsigned int i = 0; i < 2; i++)
		if (!in_path(programs[i]))
			FOUND("%s is not there: install %s", programs[i], i ? "iproute2" : "nftables");
	if (config.group && !getgrnam(config.group))
		FOUND("group = %s: there is no such group: takeoverd does not start", config.group);
	if (setting("net/ipv4/tcp_syncookies") == 2)
		FOUND("net.ipv4.tcp_syncookies is 2: no connection can be protected: set it to 1");
	/* It may be another interface than the clients' */
	LL_FOREACH(config.services, c)
		v4 |= c->at.family == AF_INET;
	for (const struct if_nameindex *one = interfaces; v4 && one && one->if_name; one++) {
		const uint32_t all = setting("net/ipv4/conf/all/rp_filter");
		uint32_t its;

		snprintf(name, sizeof(name), "net/ipv4/conf/%s/rp_filter", one->if_name);
		its = setting(name);
		if (strcmp(one->if_name, "lo") && (all > its ? all : its) == 1)
			FOUND("rp_filter of %s is strict: what the peer sends in the clients' name may be dropped: set net.ipv4.conf.all.rp_filter and "
			      "net.ipv4.conf.%s.rp_filter to 2 or 0", one->if_name, one->if_name);
	}
	if_freenameindex(interfaces);
	if (rules.wrong)
		FOUND("the packet filter's rules of takeoverd are not there: `nft -f` fails, or somebody else flushes them: the journal says which");
	LL_FOREACH(services, svc)
		if (svc->backup && (svc->state == PROTECTED || svc->state == WAITING) && !address_here(svc))
			FOUND("[service %s]: this host is to be the muted one, and has not got the address: it belongs on an interface here", svc->c->name);
	LL_FOREACH(services, svc)
		if (svc->silent >= SILENT_ASKS)
			FOUND("[service %s]: the peer has abandoned it, and this host has not been promoted: `takeoverctl promote` it", svc->c->name);
	LL_FOREACH(services, svc)
		if (svc->displaced)
			FOUND("[service %s]: the address has left this host, which is alone: bring it back, or `takeoverctl protect` it at the peer", svc->c->name);
	LL_FOREACH(services, svc)
		if (svc->differs)
			FOUND("[service %s]: TCP's settings are not those of the peer: the journal says which", svc->c->name);
	LL_FOREACH(services, svc)
		if (peer_is_alive(svc) && clock_differs(svc))
			FOUND("[service %s]: the peer's clock is %s by %.1f s: let both hosts set theirs by NTP", svc->c->name,
			      svc->clock_off > 0 ? "ahead" : "late", abs(svc->clock_off) / 1000.0);
	LL_FOREACH(services, svc)
		if (svc->leaving && svc->state == PROTECTED)
			FOUND("[service %s]: it is not in the file any more, and both hosts have its connections: `takeoverctl promote` it at the host that the "
			      "address points to", svc->c->name);
	LL_FOREACH(services, svc)
		if (svc->old)
			FOUND("[service %s]: it keeps a peer or key that is not the file's: `takeoverctl promote` it at the host that the address points to, "
			      "and start takeoverd anew", svc->c->name);
#undef FOUND
	return count;
}
