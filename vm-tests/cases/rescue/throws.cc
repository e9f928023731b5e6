// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Functions that are left by exceptions and by longjmp(), as C++ programs do. For each argument a line of numbers: what was returned;
 * then what was left behind: objects that have not ended, what was done, exceptions on their way.
 */
#include <cerrno>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <perdure.h>

#define NOINLINE	__attribute__((noinline, noipa))

static volatile int zero;
static volatile std::size_t huge = ~std::size_t{0} >> 2;
static std::jmp_buf out;
static int objects, done;

struct Object {
	const bool faults;

	explicit Object(bool f = false) : faults(f) { ++objects; }
	~Object() { objects -= faults ? 100 / zero : 1; }
};

NOINLINE static void throws(const char *why)
{
	const Object object;

	throw std::runtime_error(std::string("because of ") + why);
}

NOINLINE static void must_not_throw() noexcept
{
	throws("that");
}

struct Shop {
	static long order(const char *how);
};

/* Has the point */
NOINLINE long Shop::order(const char *how)
{
	const Object object(*how == 'd');

	++done;
	switch (*how) {
	/* An exception goes through it; a destructor faults when one does */
	case 't': case 'd':
		throws(how);
		break;
	/* It is caught within; there is a fault in the handler, or behind it */
	case 'c': case 'h': case 'b':
		try {
			throws(how);
		} catch (const std::exception &e) {
			++done;
			if (*how == 'h')
				return e.what()[0] / zero;
		}
		return *how == 'b' ? 100 / zero : 2;
	/* It is caught, and thrown again */
	case 'a':
		try {
			throws(how);
		} catch (...) {
			++done;
			throw;
		}
		break;
	/* By the library */
	case 'm':
		delete[] new char[huge];
		break;
	/* std::terminate() */
	case 'n':
		must_not_throw();
		break;
	case 'j':
		--objects;
		std::longjmp(out, 1);
	case 'f':
		return 100 / zero;
	}
	return 1;
}

NOINLINE static long catches(const char *how)
{
	const Object object;

	try {
		return Shop::order(how);
	} catch (const std::bad_alloc &) {
		return 4;
	} catch (const std::exception &e) {
		return e.what()[0] == 'b' ? 3 : -3;
	}
}

NOINLINE static long takes_long()
{
	std::timespec from, now;

	std::timespec_get(&from, TIME_UTC);
	do
		std::timespec_get(&now, TIME_UTC);
	while ((now.tv_sec - from.tv_sec) * 1000 + (now.tv_nsec - from.tv_nsec) / 1000000 < 500);
	return 0;
}

/* What a program's own scope is to be in C++: it ends however its block is left */
class Scope {
	bool open = false;

public:
	bool enter(unsigned int ms)
	{
		open = !(perdure_rescue_deadline(EBADMSG, ms) && errno == EBADMSG);
		return open;
	}

	~Scope()
	{
		if (open)
			perdure_rescue_leave();
	}
};

NOINLINE static long guarded(const char *how)
{
	Scope scope;

	return scope.enter(200) ? Shop::order(how) : -8;
}

/* This one does not end when an exception passes by */
NOINLINE static long unguarded(const char *how)
{
	if (perdure_rescue(EBADMSG) && errno == EBADMSG)
		return -9;
	const long ret = Shop::order(how);

	perdure_rescue_leave();
	return ret;
}

/* The first letter says who calls Shop::order(), the next what becomes of it, a third what the caller does when it has been left */
static long run(const char *how)
{
	long ret;

	try {
		switch (*how) {
		case 'j':
			return setjmp(out) ? 5 : Shop::order(how);
		case 'g':
			ret = guarded(how + 1);
			break;
		case 'u':
			ret = unguarded(how + 1);
			break;
		/* Nobody catches it: see main() */
		default:
			ret = catches(how + 1);
		}
	} catch (const std::exception &) {
		ret = 6;
	}
	if (how[1] && how[2] == 'l')
		return ret + takes_long();
	return ret > 0 && how[1] && how[2] == 'f' ? ret / zero : ret;
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const long ret = *argv[i] == 'x' ? Shop::order(argv[i] + 1) : run(argv[i]);

		std::printf("%ld %d %d %d\n", ret, objects, done, std::uncaught_exceptions());
	}
	return 0;
}
