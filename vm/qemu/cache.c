/*
 * A cache model as a QEMU TCG plugin: misses without a counter, user and kernel together.
 *
 * Each CPU has an L1D of 32 KiB, 8 ways; all share an L2 of 4 MiB, 16 ways, lines of 64 bytes, LRU: the shape of the study's Xeon
 * 5150. One CPU may be an engine: what it does goes past the caches, as a DMA engine's copies do (without DCA). Segments are opened
 * and closed by marked no-operations (crates/kernels/src/copy.rs, mark); of each, the references to L2 (misses of L1D) and the misses
 * of L2 of the CPU that opened it are written. Instruction fetches, prefetchers, and the translation of addresses are not modelled.
 *
 * Debian's QEMU 7.2 loads plugins and ships no header; these are the declarations of its plugin interface, version 1
 * (include/qemu/qemu-plugin.h of that release). CPUs must share one host thread: the model has no locks.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
					   void (*call)(qemu_plugin_id_t, struct qemu_plugin_tb *));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t at);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *instruction);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *instruction);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *instruction,
				      void (*call)(unsigned int, uint32_t, uint64_t, void *),
				      int flags, int reads_writes, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *instruction,
					    void (*call)(unsigned int, void *), int flags, void *data);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(uint32_t info, uint64_t address);
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *address);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *address);

#define LINE_SHIFT 6
#define MOST_CPUS 8
#define L1_SETS 64
#define L1_WAYS 8
#define L2_SETS 4096
#define L2_WAYS 16

/* Lines of a set, the last used first; 0 is none, since line 0 of physical memory is nobody's. */
static uint64_t l1[MOST_CPUS][L1_SETS][L1_WAYS];
static uint64_t l2[L2_SETS][L2_WAYS];

static int engine = -1;
static FILE *out;
static int opener = -1;
static uint64_t references, misses, segments;

/* True when it was there; it is the first afterwards, and the last is dropped for it. */
static bool touch(uint64_t *set, int ways, uint64_t line)
{
	int at = 0;
	bool hit;

	while (at < ways - 1 && set[at] != line)
		at++;
	hit = set[at] == line;
	memmove(set + 1, set, at * sizeof(*set));
	set[0] = line;
	return hit;
}

static void access_line(unsigned int cpu, uint64_t line)
{
	bool hit;

	if (cpu >= MOST_CPUS || (int)cpu == engine)
		return;
	if (touch(l1[cpu][line % L1_SETS], L1_WAYS, line))
		return;
	hit = touch(l2[line % L2_SETS], L2_WAYS, line);
	if ((int)cpu == opener) {
		references++;
		misses += !hit;
	}
}

static void memory(unsigned int cpu, uint32_t info, uint64_t address, void *data)
{
	struct qemu_plugin_hwaddr *place = qemu_plugin_get_hwaddr(info, address);
	unsigned int bytes = 1u << (info & 0xf);
	uint64_t physical, line;

	if (!place || qemu_plugin_hwaddr_is_io(place))
		return;
	physical = qemu_plugin_hwaddr_phys_addr(place);
	for (line = physical >> LINE_SHIFT; line <= (physical + bytes - 1) >> LINE_SHIFT; line++)
		access_line(cpu, line);
}

static void open_segment(unsigned int cpu, void *data)
{
	opener = cpu;
	references = 0;
	misses = 0;
}

static void close_segment(unsigned int cpu, void *data)
{
	if ((int)cpu != opener)
		return;
	fprintf(out, "%llu %d %llu %llu\n", (unsigned long long)segments++, opener,
		(unsigned long long)references, (unsigned long long)misses);
	fflush(out);
	opener = -1;
}

static const uint8_t mark[] = { 0x0f, 0x1f, 0x80, 0x00, 0x4d, 0x51, 0x44 };

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
	size_t count = qemu_plugin_tb_n_insns(block);

	for (size_t at = 0; at < count; at++) {
		struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, at);
		const uint8_t *bytes = qemu_plugin_insn_data(instruction);

		if (qemu_plugin_insn_size(instruction) == sizeof(mark) &&
		    !memcmp(bytes, mark, 3) && !memcmp(bytes + 4, mark + 4, 3) && bytes[3] < 2)
			qemu_plugin_register_vcpu_insn_exec_cb(instruction,
							       bytes[3] ? open_segment : close_segment,
							       0, NULL);
		qemu_plugin_register_vcpu_mem_cb(instruction, memory, 0, 3, NULL);
	}
}

/* Arguments: engine=CPU, out=FILE. */
__attribute__((visibility("default"))) int
qemu_plugin_install(qemu_plugin_id_t id, const void *info, int count, char **arguments)
{
	for (int at = 0; at < count; at++) {
		if (!strncmp(arguments[at], "engine=", 7))
			engine = atoi(arguments[at] + 7);
		else if (!strncmp(arguments[at], "out=", 4))
			out = fopen(arguments[at] + 4, "w");
		else
			return -1;
	}
	if (!out)
		return -1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
