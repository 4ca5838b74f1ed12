//! Drops of packet sockets with a ring (`PACKET_RX_RING`). The kernel tells them to the socket's
//! program alone, and begins again at zero then (`PACKET_STATISTICS`): they are read from its
//! memory.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::sockopt::socket_cookie;

use super::{BpfAttributes, Instruction, PROGRAM_RAW_TRACEPOINT, bpf, ended, instruction, load};
use super::{PROBE_READ_KERNEL, STACK, TO_END};
use crate::btf::Btf;
use crate::fds::copied;
use crate::host::Files;

const PROGRAM_TEST_RUN: u32 = 10;
/// Result of the program after a read that failed.
const FAILED: i32 = -1;

/// Reads the drops of rings.
#[derive(Debug)]
pub struct RingDrops(OwnedFd);

impl RingDrops {
    /// Returns `None` where the process may not (CAP_BPF and CAP_PERFMON), the kernel does not
    /// describe its types, or it is older than Linux 5.10.
    pub fn open(files: &Files) -> Option<RingDrops> {
        let btf = Btf::of_kernel(files)?;
        let way = [
            btf.offset("task_struct", &["files"])?,
            btf.offset("files_struct", &["fdt"])?,
            btf.offset("fdtable", &["fd"])?,
            // Of the pointer to the file, which follows from the descriptor.
            0,
            btf.offset("file", &["private_data"])?,
            btf.offset("socket", &["sk"])?,
            btf.offset("packet_sock", &["tp_drops"])?,
        ];
        Some(RingDrops(load(PROGRAM_RAW_TRACEPOINT, &reads_drops(way)).ok()?))
    }

    /// Packets that the ring of a process' socket dropped since the socket was opened, or since its
    /// program last asked; `None` if it is another socket now.
    pub fn of(&self, pid: u32, fd: u64, cookie: u64) -> Option<u32> {
        let copy = copied(pid, fd).ok().filter(|fd| socket_cookie(fd.as_fd()) == Ok(cookie))?;
        let argument = u64::try_from(copy.as_raw_fd()).ok()?;
        let bytes = u32::try_from(size_of_val(&argument)).expect("8");
        let mut words = [0; 11];
        (words[0], words[10]) = (self.0.as_raw_fd().cast_unsigned(), bytes);
        let mut attributes = BpfAttributes::new(&words).with(12, &raw const argument);
        // SAFETY: the argument outlives the call, which reads its 8 bytes.
        unsafe { bpf(PROGRAM_TEST_RUN, &mut attributes, "read the drops of a ring") }.ok()?;
        let returned = attributes.0[1];
        (returned != FAILED.cast_unsigned()).then_some(returned)
    }
}

/// Follows the descriptor in its first argument, one of the calling process:
/// `current->files->fdt->fd[argument]->private_data->sk`, there a `struct packet_sock`.
fn reads_drops(way: [u32; 7]) -> Vec<Instruction> {
    const GET_CURRENT_TASK: i32 = 35;
    const OF_FILE: usize = 3;
    let mut program = vec![
        instruction(0x79, 6, 1, 0, 0), // r6 = argument
        instruction(0x67, 6, 0, 0, 3), // times the size of a pointer
        instruction(0x85, 0, 0, 0, GET_CURRENT_TASK),
        instruction(0xBF, 3, 0, 0, 0), // r3 = task
    ];
    for (at, offset) in way.into_iter().enumerate() {
        let is_last = at + 1 == way.len();
        if at == OF_FILE {
            program.push(instruction(0x0F, 3, 6, 0, 0)); // r3 += r6
        }
        program.extend([
            instruction(0x07, 3, 0, 0, offset.cast_signed()), // r3 += offset
            instruction(0xBF, 1, STACK, 0, 0),                // r1 = a place on the stack
            instruction(0x07, 1, 0, 0, -8),
            instruction(0xB7, 2, 0, 0, if is_last { 4 } else { 8 }), // r2 = bytes
            instruction(0x85, 0, 0, 0, PROBE_READ_KERNEL),
            instruction(0xBF, 1, 0, 0, 0), // r1 = its result
            instruction(0xB7, 0, 0, 0, FAILED),
            instruction(0x55, 1, 0, TO_END, 0),
            instruction(0x79, 3, STACK, -8, 0), // r3 = what was read
        ]);
    }
    program.push(instruction(0xBC, 0, 3, 0, 0)); // r0 = 32 bits of r3
    ended(program, &[])
}
