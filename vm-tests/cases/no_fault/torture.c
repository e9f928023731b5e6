// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A process that changes its memory at random while it is being loaded, with threads that look on and children that go their
 * own ways; every page is compared with a model.
 */
#include "nf.h"

#define ARENA	1024	/* pages */
#define STEPS	300

/* What a page must be: of the image, or zeros; and one word that was written, or 0 */
struct page {
	bool mapped;
	bool image;
	unsigned int index;
	uint64_t word;
};

static struct page model[ARENA];
static char *arena;
static uint64_t seed;
static atomic_bool stop;

static unsigned int pick(unsigned int n)
{
	return t_rand(&seed) % n;
}

static bool right(unsigned int n)
{
	const struct page *m = &model[n];
	const uint64_t *p = (const uint64_t *)(arena + n * PG);

	for (unsigned int i = 0; i < PG / 8; i++) {
		uint64_t want = i == 200 && m->word ? m->word : m->image ? nf_word(1, m->index, i) : 0;

		if (p[i] != want) {
			t_note("page %u word %u is %llx, not %llx: %s %u", n, i, (unsigned long long)p[i],
			       (unsigned long long)want, m->image ? "image" : "zeros", m->index);
			return false;
		}
	}
	return true;
}

static unsigned int wrong_pages(void)
{
	unsigned int wrong = 0;

	for (unsigned int i = 0; i < ARENA && wrong < 5; i++)
		wrong += model[i].mapped && !right(i);
	return wrong;
}

/* Faults from elsewhere: whatever is there, and nothing if nothing is */
static void *onlooker(void *arg)
{
	uint64_t rnd = (uintptr_t)arg;
	char buf[64];

	while (!stop) {
		struct iovec to = { buf, sizeof(buf) }, from = { arena + t_rand(&rnd) % ARENA * PG, sizeof(buf) };

		process_vm_readv(getpid(), &to, 1, &from, 1, 0);
		if (t_rand(&rnd) % 64 == 0)
			t_sleep_ms(1);
	}
	return NULL;
}

static void change(unsigned int from, unsigned int n, struct page to)
{
	for (unsigned int i = from; i < from + n; i++)
		if (to.mapped != model[i].mapped || to.mapped)
			model[i] = to;
}

static bool all_mapped(unsigned int at, unsigned int n)
{
	while (n--)
		if (!model[at + n].mapped)
			return false;
	return true;
}

static bool step(int uffd)
{
	const struct page none = { 0 }, zeros = { .mapped = true };
	unsigned int n = 1 + pick(pick(8) ? 16 : 200), at = pick(ARENA - n), to = pick(ARENA - n);
	char *p = arena + at * PG;

	switch (pick(12)) {
	case 0:
	case 1:
		return !model[at].mapped || right(at);
	case 2:
	case 3:
		if (model[at].mapped) {
			model[at].word = t_rand(&seed) | 1;
			((uint64_t *)p)[200] = model[at].word;
		}
		return true;
	case 4:
		if (!all_mapped(at, n))
			return true;
		change(at, n, zeros);
		return !madvise(p, n * PG, MADV_DONTNEED);
	case 5:
		n = 1 + n / 8;
		change(at, n, none);
		return !munmap(p, n * PG);
	case 6:
		change(at, n, zeros);
		for (unsigned int i = at; i < at + n; i++)
			model[i] = zeros;
		return mmap(p, n * PG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p;
	case 7:
	case 8:
		if (to < at + n && at < to + n)
			return true;
		/* If it fails, because the pages are not all of a kind, what was there has been unmapped all the same */
		if (mremap(p, n * PG, n * PG, MREMAP_MAYMOVE | MREMAP_FIXED, arena + to * PG) == MAP_FAILED) {
			for (unsigned int i = 0; i < n; i++)
				if (msync(arena + (to + i) * PG, PG, MS_ASYNC))
					model[to + i] = none;
			return errno == EFAULT || errno == ENOMEM || errno == EINVAL;
		}
		memcpy(&model[to], &model[at], n * sizeof(*model));
		memset(&model[at], 0, n * sizeof(*model));
		return true;
	case 9:
		if (!all_mapped(at, n))
			return true;
		if (mprotect(p, n * PG, PROT_READ) || !right(at))
			return false;
		return !mprotect(p, n * PG, PROT_READ | PROT_WRITE);
	case 10:
		if (uffd < 0)
			return true;
		if (!nf_load(uffd, p, n, pick(20) ? pick(4) ? 0 : UFFD_LAZY_FIRST : UFFD_LAZY_START, NULL) || errno == EBUSY)
			return true;
		t_note("load: %s", strerrorname_np(errno));
		return errno == EINVAL;
	default:
		return all_mapped(at, n) ? !mlock(p, n * PG) && !munlock(p, n * PG) : true;
	}
}

/* A child has what was there when it was born. */
static pid_t child(void)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	for (int i = 0; i < 30; i++)
		if (!step(-1))
			_exit(2);
	_exit(wrong_pages() ? 1 : 0);
}

static void round_of(uint64_t round_seed, int image, bool cold)
{
	int uffd = nf_uffd(), status, children = 0;
	struct uffdio_lazy_extent e[3];
	struct uffdio_lazy_attach a;
	pthread_t th[2];

	seed = round_seed;
	stop = false;
	arena = nf_map(ARENA);
	for (unsigned int i = 0; i < ARENA; i++)
		model[i] = (struct page){ .mapped = true, .image = i % 400 < 380, .index = i };
	for (unsigned int i = 0; i < 3; i++) {
		unsigned int n = i < 2 ? 380 : ARENA - 800;

		e[i] = nf_extent(arena + i * 400 * PG, n, i * 400);
	}
	nf_register(uffd, arena, ARENA);
	if (cold)
		posix_fadvise(image, 0, 0, POSIX_FADV_DONTNEED);
	a = nf_args(image, e, 3, 1 + pick(pick(2) ? 8 : 100));
	T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
	for (int i = 0; i < 2; i++)
		T_OK(-pthread_create(&th[i], NULL, onlooker, (void *)(uintptr_t)t_rand(&seed)));
	for (int i = 0; i < STEPS; i++) {
		if (!step(uffd)) {
			T_EXPECT(!"a step went wrong");
			t_note("step %d: %s", i, strerrorname_np(errno));
			break;
		}
		if (i == STEPS / 2 && pick(2))
			nf_load(uffd, NULL, 0, UFFD_LAZY_START, NULL);
		if (uffd >= 0 && i > STEPS / 4 && !pick(STEPS)) {
			close(uffd);
			uffd = -1;
		}
		if (!pick(60)) {
			pid_t pid = child();

			T_ASSERT(pid > 0);
			children++;
		}
		while (children && waitpid(-1, &status, children > 3 ? 0 : WNOHANG) > 0) {
			T_EXITED(status, 0);
			children--;
		}
	}
	if (uffd >= 0 && pick(2))
		nf_load(uffd, NULL, 0, UFFD_LAZY_START, NULL);
	T_EQ(wrong_pages(), 0);
	while (children-- && wait(&status) > 0)
		T_EXITED(status, 0);
	stop = true;
	for (int i = 0; i < 2; i++)
		pthread_join(th[i], NULL);
	T_EQ(wrong_pages(), 0);
	munmap(arena, ARENA * PG);
	if (uffd >= 0)
		close(uffd);
}

static void torture(int image, bool cold)
{
	uint64_t rnd = t_seed();
	int rounds = t_rounds(16);

	for (int i = 0; i < rounds; i++) {
		uint64_t s = t_rand(&rnd);

		T_CHILD {
			round_of(s, image, cold);
		}
		if (t_shared->failed) {
			t_note("round %d", i);
			return;
		}
	}
}

T_LIMIT(in_memory, 120)
{
	torture(nf_image(1, ARENA), false);
}

T_LIMIT(on_disk, 120)
{
	T_ASSERT(!access("/mnt/nf", F_OK)); /* disk.sh */
	torture(nf_image_at("/mnt/nf/image", 1, ARENA), true);
}
