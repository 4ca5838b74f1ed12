/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The border between daqmeter and its kernel modules. crates/sys/src/uapi.rs
 * mirrors it; cargo xtask copy-vm compiles a probe and compares every offset.
 *
 * All structures have the same layout on 32 and 64 bits: fields are naturally
 * aligned, and sizes are multiples of eight.
 */
#ifndef DAQMETER_UAPI_H
#define DAQMETER_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Raised whenever a structure or the meaning of a field changes. */
#define DAQMETER_ABI 2

#define DAQMETER_NAME_BYTES 32
#define DAQMETER_MAX_CHANNELS 64
#define DAQMETER_ANY_CHANNEL 0xffffffffu

/* Who copies. */
enum daqmeter_by {
	DAQMETER_BY_CPU = 0,
	DAQMETER_BY_DMA = 1,
};

/* Which way. Both is from, then to, under one clock. */
enum daqmeter_direction {
	DAQMETER_FROM_USER = 0,
	DAQMETER_TO_USER = 1,
	DAQMETER_BOTH = 2,
};

/* How the end of a DMA copy is noticed. */
enum daqmeter_completion {
	DAQMETER_POLLED = 0,
	DAQMETER_INTERRUPT = 1,
};

/*
 * Who gets which channel. NONE holds no channel.
 *
 * A policy belongs to the open file that set it, until that file sets NONE or
 * is closed. Meanwhile other files get EBUSY for a policy and for DMA copies.
 */
enum daqmeter_policy_kind {
	DAQMETER_POLICY_NONE = 0,
	DAQMETER_POLICY_EXCLUSIVE = 1,
	DAQMETER_POLICY_SHARED = 2,
	DAQMETER_POLICY_PRIORITY = 3,
};

/* daqmeter_copy.flags */
#define DAQMETER_COLD 1u	/* flush both buffers before the clock starts */

/* daqmeter_info.flags */
#define DAQMETER_REGION_HUGE 1u	/* the whole region lies on huge pages */
#define DAQMETER_CAN_FLUSH 2u	/* DAQMETER_COLD works on this machine */

/* In: abi. Out: everything else; EPROTO when the ABI differs (abi is set). */
struct daqmeter_info {
	__u32 abi;
	__u32 flags;
	__u32 policy;
	__u32 channels;
	__u64 region_bytes;
	__u64 high_channels;	/* bit mask, priority policy */
	__u64 quantum_ns;
	__u64 window_ns;
	/* Since the policy was started: what the gate really did. */
	__u64 gate_high_ns;
	__u64 gate_low_ns;
	__u64 gate_windows;
	__u64 in_flight;	/* DMA copies under way: the policy cannot change */
	__u64 pinned_pages;	/* user pages pinned at the moment */
	__u64 quarantined_pages; /* kept because an engine may still write them */
};

/* In: index. */
struct daqmeter_channel {
	__u32 index;
	__u32 flags;
	char name[DAQMETER_NAME_BYTES];		/* e.g. dma0chan1 */
	char driver[DAQMETER_NAME_BYTES];	/* e.g. ioatdma, softdma */
	__u64 copies;
	__u64 bytes;
	__u64 failures;
	__u64 timeouts;
	__u64 late;	/* completions after their copy had been given up */
};

/* daqmeter_channel.flags */
#define DAQMETER_CHANNEL_PAUSES 1u	/* the hardware can pause it */
#define DAQMETER_CHANNEL_UNORDERED 2u	/* completes out of order */
#define DAQMETER_CHANNEL_STUCK 4u	/* an engine that cannot be stopped is late */
#define DAQMETER_CHANNEL_SOFTWARE 8u	/* softdma: no hardware */

struct daqmeter_policy {
	__u32 policy;
	__u32 reserved;
	__u64 high_channels;
	__u64 quantum_ns;
	__u64 window_ns;
	__u64 number;		/* out: another one for each policy that was set */
};

struct daqmeter_copy {
	__u32 by;
	__u32 direction;
	__u32 completion;
	__u32 flags;
	__u64 user_address;
	__u64 bytes;
	__u64 region_offset;
	__u32 channel;		/* or DAQMETER_ANY_CHANNEL: the policy chooses */
	__u32 timeout_ms;	/* of a DMA copy, at most an hour; 0 is 10 s */
	/* Out. */
	__u32 channel_used;
	__u32 segments;		/* descriptors of a DMA copy, pieces of a CPU copy */
	__u32 cpu_before;
	__u32 cpu_after;
	/*
	 * CLOCK_MONOTONIC, around the copy alone. Both by DMA: the end, and the
	 * end less the time of both copies, without the mapping between them.
	 */
	__u64 before_ns;
	__u64 after_ns;
	__u64 pin_ns;
	__u64 map_ns;
	__u64 unmap_ns;
	__u64 unpin_ns;
	__u64 policy_number;	/* of a DMA copy: daqmeter_policy.number in force */
};

#define DAQMETER_IOC_MAGIC 0xDA
#define DAQMETER_IOC_INFO _IOWR(DAQMETER_IOC_MAGIC, 0x60, struct daqmeter_info)
#define DAQMETER_IOC_CHANNEL _IOWR(DAQMETER_IOC_MAGIC, 0x61, struct daqmeter_channel)
#define DAQMETER_IOC_POLICY _IOWR(DAQMETER_IOC_MAGIC, 0x62, struct daqmeter_policy)
#define DAQMETER_IOC_COPY _IOWR(DAQMETER_IOC_MAGIC, 0x63, struct daqmeter_copy)

/* The tracer. */
enum daqmeter_operation {
	DAQMETER_COPY_FROM_USER = 0,
	DAQMETER_COPY_TO_USER = 1,
	DAQMETER___COPY_FROM_USER = 2,
	DAQMETER___COPY_TO_USER = 3,
	DAQMETER_OPERATIONS = 4,
};

/* What read() on the tracer gives, whole records only. */
struct daqmeter_trace_record {
	__u64 counter;		/* event counter of the ring, from 0 */
	__u64 bytes;
	__u64 before_ns;
	__u64 after_ns;
	__u64 caller;		/* return address of the traced function */
	__u32 ring_cpu;		/* CPU whose ring took the record */
	__u32 begin_cpu;	/* CPU that began the copy */
	__u32 pid;
	__u16 operation;
	__u16 by;
	char comm[16];
};

/* In: abi. Out: the rest; one entry per operation. */
struct daqmeter_trace_info {
	__u32 abi;
	__u32 running;
	__u32 cpus;
	__u32 ring_records;	/* room of one ring */
	__u32 probed;		/* bit mask of operations that can be seen */
	__u32 reserved;
	__u64 recorded[DAQMETER_OPERATIONS];
	__u64 dropped[DAQMETER_OPERATIONS];
	/*
	 * Upper limit of calls that the probes did not see: no free instance,
	 * or another probe was at work on the CPU.
	 */
	__u64 missed;
};

#define DAQMETER_IOC_TRACE_INFO _IOWR(DAQMETER_IOC_MAGIC, 0x68, struct daqmeter_trace_info)
#define DAQMETER_IOC_TRACE_START _IO(DAQMETER_IOC_MAGIC, 0x69)
#define DAQMETER_IOC_TRACE_STOP _IO(DAQMETER_IOC_MAGIC, 0x6a)

#endif
