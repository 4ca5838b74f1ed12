/* The peers of crates/copy/benches/targets.rs, as C has them: a bare loop of pread, and STREAM's copy kernel. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

/* One slice for each line with a number of calls: ns of a call, after a tenth as many that are not timed. */
static int pread_slices(void)
{
	char byte, line[32];
	int fd = memfd_create("peer", 0);

	if (fd < 0 || pwrite(fd, "x", 1, 0) != 1)
		return 1;
	while (fgets(line, sizeof(line), stdin)) {
		long calls = atol(line);

		for (long i = 0; i < calls / 10; i++)
			if (pread(fd, &byte, 1, 0) != 1)
				return 1;
		double begin = now();

		for (long i = 0; i < calls; i++)
			if (pread(fd, &byte, 1, 0) != 1)
				return 1;
		printf("%.3f\n", (now() - begin) / calls);
		fflush(stdout);
	}
	return 0;
}

struct job {
	size_t bytes;
	int cpu;
	double seconds, best;
	pthread_barrier_t *barrier;
};

/* STREAM's copy: c[j] = a[j] over doubles, arrays apart, best of all passes (McCalpin). */
static void *stream(void *argument)
{
	struct job *job = argument;
	size_t n = job->bytes / sizeof(double), room = (job->bytes + (4 << 20)) & ~((2UL << 20) - 1);
	char *memory = mmap(NULL, 2 * room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(job->cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
	madvise(memory, 2 * room, MADV_HUGEPAGE);
	double *restrict a = (double *)memory, *restrict c = (double *)(memory + room);
	long passes = job->bytes < (1 << 20) ? (1 << 20) / job->bytes : 1;

	for (size_t j = 0; j < n; j++)
		a[j] = j, c[j] = 0;
	pthread_barrier_wait(job->barrier);
	double end = now() + job->seconds * 1e9;

	while (now() < end) {
		double begin = now();

		for (long pass = 0; pass < passes; pass++) {
			for (size_t j = 0; j < n; j++)
				c[j] = a[j];
			__asm__ volatile("" ::: "memory");
		}
		double rate = (double)job->bytes * passes / (now() - begin);

		if (rate > job->best)
			job->best = rate;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "pread"))
		return pread_slices();
	if (argc < 5)
		return 2;
	int threads = argc - 4;
	pthread_barrier_t barrier;
	pthread_t ids[64];
	struct job jobs[64];
	double sum = 0;

	pthread_barrier_init(&barrier, NULL, threads);
	for (int i = 0; i < threads; i++) {
		jobs[i] = (struct job){ strtoul(argv[2], NULL, 10), atoi(argv[4 + i]), atof(argv[3]), 0, &barrier };
		pthread_create(&ids[i], NULL, stream, &jobs[i]);
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(ids[i], NULL);
		sum += jobs[i].best;
	}
	printf("%.3f\n", sum);
	return 0;
}
