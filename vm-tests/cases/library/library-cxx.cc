// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * This test runs the library from C++: with every public header, objects that close what they have, and exceptions that leave books, updates
 * and processes in their midst. It is the same program on a kernel that has the calls and on one that has not.
 */
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <perdure.h>
#include <perdure/lazy_loader.h>
#include <perdure/rescue.h>
#include <perdure/tcp_replica.h>
#include <perdure/zlr.h>

static_assert(sizeof(rescue_point) == RESCUE_POINT_SIZE_VER0, "a C++ compiler lays it out as the kernel does");

namespace {

void need(bool ok, const char *what, int line)
{
	if (!ok)
		throw std::runtime_error("line " + std::to_string(line) + ": needed: " + what + " (" + strerror(errno) + ")");
}
#define NEED(cond) need(cond, #cond, __LINE__)

struct Skip : std::runtime_error {
	using std::runtime_error::runtime_error;
};

struct Close {
	void operator()(perdure_conns *books) const { perdure_conns_close(books); }
	void operator()(perdure_conn *connection) const { perdure_conn_close(connection); }
};
using Books = std::unique_ptr<perdure_conns, Close>;
using Connection = std::unique_ptr<perdure_conn, Close>;

/* Does the kernel hold and count? */
bool counts()
{
	return hread(-1, nullptr, 0, 0) < 0 && errno == EBADF;
}

struct Pair {
	int ours, theirs;

	Pair()
	{
		std::array<int, 2> ends;

		NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()));
		ours = ends[0];
		theirs = ends[1];
	}
	Pair(const Pair &) = delete;
	~Pair()
	{
		close(ours);
		close(theirs);
	}
};

std::string answer(const Pair &pair)
{
	std::array<char, 64> got;
	ssize_t n = read(pair.theirs, got.data(), got.size());

	NEED(n >= 0);
	return std::string(got.data(), n);
}

void streams()
{
	std::string head = "twelve ", tail = "bytes", first(7, 0), second(5, 0);
	std::array<iovec, 2> out = {{ { &head[0], head.size() }, { &tail[0], tail.size() } }};
	std::array<iovec, 2> in = {{ { &first[0], first.size() }, { &second[0], second.size() } }};
	io_log log{};
	Pair pair;

	NEED(perdure_writev(pair.theirs, out.data(), out.size()) == 12);
	NEED(perdure_readv(pair.ours, in.data(), in.size(), 0, 0) == 12);
	NEED(first == head && second == tail);
	if (counts())
		NEED(!getiolog(pair.ours, &log) && log.held == 12);
	NEED(!perdure_release(pair.ours, 12));
	NEED(perdure_write(pair.ours, head.data(), head.size()) == 7);
	NEED(perdure_read(pair.theirs, &first[0], first.size(), 7, 0) == 7 && first == head);
	NEED(perdure_read(pair.theirs, &first[0], 1, 0, HREAD_NOWAIT) < 0 && errno == EAGAIN);
}

struct Tag {
	uint64_t number;
	double weight;
};

void books()
{
	Books books(perdure_conns_open("cxx", 0, sizeof(Tag)));
	std::array<char, 16> request;
	Pair pair;

	NEED(books != nullptr);
	for (int i = 0; i < 2; i++) {
		int fd = dup(pair.ours);
		bool left = false;

		NEED(fd >= 0);
		try {
			Connection c(perdure_conn_open(books.get(), fd));

			NEED(c && perdure_conn_fd(c.get()) == fd && !perdure_conn_flags(c.get()));
			auto *tag = static_cast<Tag *>(perdure_conn_tag(c.get()));
			NEED(!tag->number);	/* the last one's went with it */
			*tag = Tag{ 7, 0.5 };
			NEED(write(pair.theirs, "request", 7) == 7);
			NEED(perdure_conn_read(c.get(), request.data(), request.size()) == 7);
			NEED(perdure_conn_write(c.get(), "answer", 6) == 6);
			NEED(!perdure_conn_done(c.get(), 7, 0));
			throw std::string("on the way out");
		} catch (const std::string &) {
			left = true;
		}
		NEED(left && fcntl(fd, F_GETFD) < 0 && errno == EBADF);
		NEED(answer(pair) == "answer");
	}
}

struct Totals {
	int32_t count;
	int32_t sum;
};

class Update {
	const void *area;
	bool over = false;

public:
	explicit Update(const void *shared) : area(shared) { NEED(!perdure_shared_begin(area, 1000)); }
	Update(const Update &) = delete;
	~Update()
	{
		if (!over)
			perdure_shared_cancel(area);
	}
	template <typename T> void set(const T &to, const T &from)
	{
		NEED(!perdure_shared_stage(area, &to, &from, sizeof(from)));
	}
	void commit()
	{
		NEED(!perdure_shared_commit(area));
		over = true;
	}
};

void areas()
{
	std::string name = "cxx-" + std::to_string(getpid());
	int inherited = -1, existed = -1;
	auto *state = static_cast<Totals *>(perdure_state_open("cxx", sizeof(Totals), 1, nullptr, &inherited));
	const Totals next{ 1, 2 };

	NEED(state && !inherited && !perdure_state_update(state, state, &next, sizeof(next)) && state->sum == 2);
	perdure_state_close(state);

	auto *shared = static_cast<const Totals *>(perdure_shared_open(name.c_str(), sizeof(Totals), 1, &existed));
	NEED(shared && !existed);
	std::unique_ptr<const std::string, void (*)(const std::string *)> gone(&name, [](const std::string *s) {
		perdure_shared_remove(s->c_str());
	});
	{
		Update update(shared);

		update.set(shared->count, 5);
		update.commit();
	}
	try {
		Update update(shared);

		update.set(shared->count, 6);
		throw 1;
	} catch (int) {
	}
	NEED(shared->count == 5);
	Update(shared).commit();	/* whoever threw has ended his */
	perdure_shared_close(shared);
}

void threads()
{
	std::vector<int> fds{ 3, 4, 5 };
	std::atomic<int> sum{ 0 };

	NEED(perdure_recover_threads([](int fd, void *arg) { *static_cast<std::atomic<int> *>(arg) += fd; }, &sum, fds.data(), fds.size()) == 3);
	for (int i = 0; i < 500 && sum < 12; i++)
		usleep(10000);
	NEED(sum == 12);
}

char **arguments(std::vector<std::string> &words)
{
	static std::vector<char *> list;

	list.clear();
	for (auto &word : words)
		list.push_back(&word[0]);
	list.push_back(nullptr);
	return list.data();
}

/* Each generation of a service; the first one dies of an exception that nobody catches, and so before a destructor runs. */
int serve(int fd)
{
	std::vector<std::string> words{ "library-cxx", "serve", std::to_string(fd) };
	int restarted = perdure_register(arguments(words));
	Books books(perdure_conns_open("cxx", 0, 0));
	Connection c(perdure_conn_open(books.get(), fd));
	std::string request(7, 0);

	NEED(c != nullptr && perdure_conn_read(c.get(), &request[0], request.size()) == 7);
	if (!restarted)
		throw std::logic_error(request);
	NEED(restarted == 1 && perdure_conn_flags(c.get()) == PERDURE_CONN_INHERITED);
	NEED(perdure_conn_write(c.get(), request.data(), request.size()) == 7);
	return 0;
}

void terminate()
{
	int status;
	pid_t pid;
	Pair pair;

	if (!counts())
		throw Skip("this kernel has no restarts");
	pid = fork();
	if (!pid) {
		static const rlimit none{};

		setrlimit(RLIMIT_CORE, &none);
		execl("/proc/self/exe", "library-cxx", "serve", std::to_string(pair.ours).c_str(), nullptr);
		_exit(99);
	}
	NEED(write(pair.theirs, "request", 7) == 7);
	NEED(waitpid(pid, &status, 0) == pid);
	NEED(WIFEXITED(status) && !WEXITSTATUS(status));
	NEED(answer(pair) == "request");
}

}	/* namespace */

int main(int argc, char **argv)
{
	const std::vector<std::pair<const char *, std::function<void()>>> tests{
		{ "streams", streams }, { "books", books }, { "areas", areas }, { "threads", threads }, { "terminate", terminate },
	};
	int number = 0, failed = 0;

	if (argc == 3 && !strcmp(argv[1], "serve"))
		return serve(std::stoi(argv[2]));
	printf("KTAP version 1\n1..%zu\n", tests.size());
	for (auto &test : tests) {
		number++;
		fflush(stdout);
		try {
			test.second();
			printf("ok %d %s\n", number, test.first);
		} catch (const Skip &e) {
			printf("ok %d %s # SKIP %s\n", number, test.first, e.what());
		} catch (const std::exception &e) {
			printf("not ok %d %s # %s\n", number, test.first, e.what());
			failed++;
		}
	}
	return failed ? 1 : 0;
}
