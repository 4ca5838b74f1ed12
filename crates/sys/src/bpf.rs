//! Programs in the kernel: packets that it dropped, counted by reason.
//!
//! A counter for each reason and CPU (`perf_event_open` with a filter) would take thousands of
//! descriptors on a large host; one program of 48 instructions and one map take three. The crates
//! aya and libbpf-rs bring a compiler of programs or a C library; the programs here are tables of
//! instructions. Layouts from `include/uapi/linux/bpf.h`.

mod rings;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use socket2::{Domain, Protocol, Socket, Type};

use crate::btf::Btf;
use crate::host::{Files, parse_cpu_list};
use crate::symbols::KernelSymbols;
use crate::{SysError, failed};

pub use self::rings::RingDrops;

const MAP_CREATE: u32 = 0;
const MAP_LOOKUP: u32 = 1;
const MAP_NEXT_KEY: u32 = 4;
const PROGRAM_LOAD: u32 = 5;
const RAW_TRACEPOINT_OPEN: u32 = 17;
const MAP_PER_CPU_ARRAY: u32 = 6;
const PROGRAM_RAW_TRACEPOINT: u32 = 17;
/// Number of the function `bpf_probe_read_kernel`.
const PROBE_READ_KERNEL: i32 = 113;
/// Register with the address of the stack.
const STACK: u8 = 10;

/// An instruction: `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, immediate }
}

/// `union bpf_attr`, in words; the fields of a command follow each other.
#[repr(C, align(8))]
struct BpfAttributes([u32; 32]);

impl BpfAttributes {
    fn new(words: &[u32]) -> BpfAttributes {
        let mut attributes = [0; 32];
        attributes[..words.len()].copy_from_slice(words);
        BpfAttributes(attributes)
    }

    /// Puts an address into two words.
    fn with<T: ?Sized>(mut self, at: usize, pointer: *const T) -> BpfAttributes {
        let address = pointer.cast::<u8>().addr() as u64;
        let bytes = address.to_ne_bytes();
        for (word, half) in self.0[at..at + 2].iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes(half.try_into().expect("four bytes"));
        }
        self
    }
}

/// # Safety
/// Each address in the attributes is of memory that the command may read or write as
/// `union bpf_attr` says.
unsafe fn bpf(
    command: u32,
    attributes: &mut BpfAttributes,
    call: &str,
) -> Result<libc::c_long, SysError> {
    let bytes = size_of::<BpfAttributes>();
    // SAFETY: the attributes are valid for their size, the addresses in them are the caller's.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), bytes) };
    if done < 0 { Err(SysError::last(call)) } else { Ok(done) }
}

/// # Safety
/// As [`bpf`]; the command returns a descriptor.
unsafe fn bpf_open(
    command: u32,
    mut attributes: BpfAttributes,
    call: &str,
) -> Result<OwnedFd, SysError> {
    // SAFETY: the caller's.
    let fd = unsafe { bpf(command, &mut attributes, call) }?;
    // SAFETY: the kernel just made the descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).expect("a descriptor")) })
}

/// Numbers of reasons below which they are counted; those above are of subsystems (wireless, Open
/// vSwitch).
const REASONS: u32 = 256;
/// Reason of drops of which only the function that dropped tells more.
const UNSPECIFIED: &str = "NOT_SPECIFIED";

/// Counts the packets that the kernel drops in a network namespace, by reason.
#[derive(Debug)]
pub struct DropReasons {
    /// Reasons that are asked for, and their places in the map.
    places: Vec<(&'static str, u32)>,
    map: Map<0>,
    /// Drops of other namespaces are left out.
    pub knows_namespaces: bool,
    /// Keep the program attached.
    _program: OwnedFd,
    _tracepoint: OwnedFd,
}

/// A function of the kernel whose drops without a reason are counted at a place of their own.
struct Function {
    addresses: Range<u64>,
    place: u32,
}

impl DropReasons {
    /// Starts counting for these reasons, with the kernel's names; `NOT_SPECIFIED` followed by a
    /// function is what that function drops without a reason.
    ///
    /// # Errors
    /// The process may not (CAP_BPF and CAP_PERFMON), tracefs is not there, or the kernel tells no
    /// reasons (before 5.17).
    pub fn open(
        files: &Files,
        symbols: &KernelSymbols,
        namespace: u64,
        reasons: impl Iterator<Item = &'static str>,
    ) -> Result<DropReasons, SysError> {
        let numbers = reason_numbers(files)?;
        let (mut places, mut functions) = (Vec::new(), Vec::new());
        for name in reasons {
            let function = name.strip_prefix(UNSPECIFIED).map(str::trim);
            let place = match function {
                None | Some("") => numbers.get(name).copied(),
                Some(function) => {
                    let place = REASONS - 1 - u32::try_from(functions.len()).unwrap_or(0);
                    symbols.range(function).map(|addresses| {
                        functions.push(Function { addresses, place });
                        place
                    })
                }
            };
            places.extend(place.map(|place| (name, place)));
        }
        let map = Map::open(MAP_PER_CPU_ARRAY, 1, possible_cpus()?, REASONS)?;
        let fields = Btf::of_kernel(files).and_then(|btf| {
            Some([
                btf.offset("sk_buff", &["dev"])?,
                btf.offset("net_device", &["nd_net"])?,
                btf.offset("net", &["ns", "inum"])?,
            ])
        });
        let here = fields.and_then(|fields| Some((fields, u32::try_from(namespace).ok()?)));
        let unspecified = numbers.get(UNSPECIFIED).copied().unwrap_or(REASONS);
        let program = counts_drops(map.fd.as_raw_fd(), here, unspecified, &functions);
        let program = load(PROGRAM_RAW_TRACEPOINT, &program)?;
        let attributes = BpfAttributes::new(&[0, 0, program.as_raw_fd().cast_unsigned()]);
        let attributes = attributes.with(0, c"kfree_skb".as_ptr());
        // SAFETY: the name ends with a zero byte.
        let tracepoint =
            unsafe { bpf_open(RAW_TRACEPOINT_OPEN, attributes, "watch skb:kfree_skb") }?;
        Ok(DropReasons {
            places,
            map,
            knows_namespaces: here.is_some(),
            _program: program,
            _tracepoint: tracepoint,
        })
    }

    /// Returns the packets dropped since `open` for each reason that this kernel has.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn read(&mut self) -> Result<Vec<(&'static str, u64)>, SysError> {
        let map = &mut self.map;
        let count = |(name, place): &(&'static str, u32)| Ok((*name, map.sum(*place)?));
        self.places.iter().map(count).collect()
    }
}

/// Counts the third argument of the tracepoint, the reason, in the map, if the packet (the first)
/// belongs to a namespace: `packet->dev->nd_net->ns.inum`. A packet without a device counts, too.
fn counts_drops(
    map: i32,
    here: Option<([u32; 3], u32)>,
    unspecified: u32,
    functions: &[Function],
) -> Vec<Instruction> {
    let mut program = vec![
        instruction(0xBF, 6, 1, 0, 0),  // r6 = arguments
        instruction(0x79, 7, 6, 16, 0), // r7 = reason
        instruction(0x79, 8, 6, 8, 0),  // r8 = address of the code
    ];
    if let Some((fields, namespace)) = here {
        program.extend([
            instruction(0xB7, 2, 0, 0, 0), // number = 0
            instruction(0x7B, STACK, 2, -8, 0),
            instruction(0x79, 3, 6, 0, 0), // r3 = packet
        ]);
        let [device, net, number] = fields.map(u32::cast_signed);
        for (offset, bytes, to, skip) in
            [(device, 8, -16, 13), (net, 8, -16, 6), (number, 4, -8, 0)]
        {
            program.extend([
                instruction(0x07, 3, 0, 0, offset), // r3 += offset
                instruction(0xBF, 1, STACK, 0, 0),  // r1 = a place on the stack
                instruction(0x07, 1, 0, 0, to),
                instruction(0xB7, 2, 0, 0, bytes), // r2 = bytes
                instruction(0x85, 0, 0, 0, PROBE_READ_KERNEL), // r0 = bpf_probe_read_kernel(r1, r2, r3)
            ]);
            if skip > 0 {
                program.push(instruction(0x55, 0, 0, skip, 0)); // if r0 != 0: number stays 0
                program.push(instruction(0x79, 3, STACK, -16, 0)); // r3 = what was read
            }
        }
        program.extend([
            instruction(0x79, 2, STACK, -8, 0), // r2 = number
            instruction(0x15, 2, 0, 1, 0),
            instruction(0x56, 2, 0, TO_END, namespace.cast_signed()), // 32 bits of r2
        ]);
    }
    for Function { addresses, place } in functions {
        program.push(instruction(0x55, 7, 0, 7, unspecified.cast_signed()));
        for (code, skip, address) in [(0xAD, 4, addresses.start), (0x3D, 1, addresses.end)] {
            program.extend(constant(1, address));
            program.push(instruction(code, 8, 1, skip, 0)); // r8 below or not below r1: skip
        }
        program.push(instruction(0xB7, 7, 0, 0, place.cast_signed())); // r7 = place
    }
    program.push(instruction(0x35, 7, 0, TO_END, REASONS.cast_signed()));
    program.push(instruction(0x63, STACK, 7, -4, 0)); // key = r7
    program.extend(lookup(map, -4));
    program.extend([
        instruction(0x15, 0, 0, TO_END, 0),
        instruction(0xB7, 1, 0, 0, 1), // r1 = 1
        instruction(0xDB, 0, 1, 0, 0), // *r0 += r1, atomically
    ]);
    finished(program)
}

/// Offset of a jump to the end of a program, until [`finished`].
const TO_END: i16 = -1;

/// Ends a program with 0.
fn finished(program: Vec<Instruction>) -> Vec<Instruction> {
    ended(program, &[instruction(0xB7, 0, 0, 0, 0)])
}

/// Ends a program, in any case after these instructions.
fn ended(mut program: Vec<Instruction>, last: &[Instruction]) -> Vec<Instruction> {
    let end = program.len();
    for (at, one) in program.iter_mut().enumerate() {
        let is_jump = matches!(one.code & 0x07, 0x05 | 0x06) && one.code != 0x85;
        if is_jump && one.offset == TO_END {
            one.offset = i16::try_from(end - at - 1).expect("a short program");
        }
    }
    program.extend(last);
    program.push(instruction(0x95, 0, 0, 0, 0));
    program
}

/// Register = constant of 64 bits.
fn constant(register: u8, value: u64) -> [Instruction; 2] {
    let half = |shift: u32| ((value >> shift & 0xFFFF_FFFF) as u32).cast_signed();
    [instruction(0x18, register, 0, 0, half(0)), instruction(0, 0, 0, 0, half(32))]
}

/// r0 = bpf_map_lookup_elem(map, key on the stack), with r1 and r2.
fn lookup(map: i32, key: i32) -> [Instruction; 5] {
    [
        instruction(0x18, 1, 1, 0, map),
        instruction(0, 0, 0, 0, 0),
        instruction(0xBF, 2, 10, 0, 0),
        instruction(0x07, 2, 0, 0, key),
        instruction(0x85, 0, 0, 0, 1),
    ]
}

fn load(kind: u32, program: &[Instruction]) -> Result<OwnedFd, SysError> {
    let license = CString::new("Dual MIT/GPL").expect("no zero byte");
    let count = u32::try_from(program.len()).expect("a short program");
    let attributes =
        BpfAttributes::new(&[kind, count]).with(2, program.as_ptr()).with(4, license.as_ptr());
    // SAFETY: instructions and license outlive the call.
    unsafe { bpf_open(PROGRAM_LOAD, attributes, "load a program into the kernel (root)") }
}

/// A map of the kernel from keys of `K` words of 64 bits, or an array for 0, to values of such
/// words.
#[derive(Debug)]
struct Map<const K: usize> {
    fd: OwnedFd,
    /// Words of a value; for a map by CPU one for each possible CPU.
    value: Vec<u64>,
}

impl<const K: usize> Map<K> {
    fn open(kind: u32, value_words: u32, words: usize, entries: u32) -> Result<Map<K>, SysError> {
        let key_bytes = u32::try_from(8 * K).expect("a short key").max(4);
        let attributes = BpfAttributes::new(&[kind, key_bytes, 8 * value_words, entries]);
        // SAFETY: the command takes numbers only.
        let fd = unsafe { bpf_open(MAP_CREATE, attributes, "make a map in the kernel (root)") }?;
        Ok(Map { fd, value: vec![0; words] })
    }

    /// Reads the value of a key; false when it is not there any more.
    fn look_up<T>(&mut self, key: &T) -> Result<bool, SysError> {
        assert_eq!(size_of::<T>(), (8 * K).max(4));
        let mut attributes = BpfAttributes::new(&[self.fd.as_raw_fd().cast_unsigned()])
            .with(2, std::ptr::from_ref(key))
            .with(4, self.value.as_mut_ptr().cast_const());
        // SAFETY: the key has the map's size, and there is room for a value of each CPU.
        match unsafe { bpf(MAP_LOOKUP, &mut attributes, "read a map of the kernel") } {
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
            done => done.map(|_| true),
        }
    }
}

impl Map<0> {
    fn sum(&mut self, place: u32) -> Result<u64, SysError> {
        self.look_up(&place)?;
        Ok(self.value.iter().sum())
    }
}

impl Map<1> {
    /// Passes each entry on.
    fn read(&mut self, mut each: impl FnMut(u64, &[u64])) -> Result<(), SysError> {
        let mut key: u64;
        let mut next = 0_u64;
        let mut before: *const u64 = std::ptr::null();
        loop {
            let mut attributes = BpfAttributes::new(&[self.fd.as_raw_fd().cast_unsigned()])
                .with(2, before)
                .with(4, (&raw mut next).cast_const());
            // SAFETY: both keys have the map's size; without one, the kernel gives the first.
            match unsafe { bpf(MAP_NEXT_KEY, &mut attributes, "read a map of the kernel") } {
                Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(()),
                done => done?,
            };
            key = next;
            before = &raw const key;
            if self.look_up(&key)? {
                each(key, &self.value);
            }
        }
    }
}

/// Numbers of reasons by name, from the format of the tracepoint: they differ between kernels.
fn reason_numbers(files: &Files) -> Result<BTreeMap<String, u32>, SysError> {
    let tracefs = files.tracefs().unwrap_or_else(|| "sys/kernel/tracing".to_owned());
    let path = files.root().join(tracefs).join("events/skb/kfree_skb/format");
    let text = fs::read_to_string(&path).map_err(failed(path.display().to_string()))?;
    let list = text.split_once("REC->reason").map_or("", |(_, list)| list);
    let pair = |text: &str| {
        let (number, name) = text.split('}').next()?.split_once(',')?;
        let number = number.trim().parse().ok().filter(|number| *number < REASONS)?;
        Some((name.trim().trim_matches('"').to_owned(), number))
    };
    let numbers: BTreeMap<String, u32> = list.split('{').skip(1).filter_map(pair).collect();
    let missing = std::io::Error::other("this kernel tells no reasons (Linux 5.17 does)");
    if numbers.is_empty() { Err(failed("skb:kfree_skb")(missing)) } else { Ok(numbers) }
}

/// Place of a number in the payload of UDP datagrams to a port, which the sender counts up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub port: u16,
    /// Bytes before the number in the payload.
    pub offset: u16,
    /// Width of the number in bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    pub is_big_endian: bool,
}

/// Datagrams of one sender, as they came to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub from: SocketAddrV4,
    pub seen: u64,
    /// Numbers that were left out.
    pub missing: u64,
    /// Datagrams with a number below that before: late ones, which fill a gap, or doubled ones.
    pub late: u64,
}

/// Sees the numbers of datagrams before IP does, in a filter of a packet socket, which passes
/// nothing on: IPv4, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct SequenceTap {
    map: Map<1>,
    _socket: Socket,
}

/// Words of a flow: next number, seen, missing, late.
const FLOW_WORDS: u32 = 4;
const MAX_FLOWS: u32 = 1024;

impl SequenceTap {
    /// # Errors
    /// The process may not (CAP_NET_RAW and CAP_BPF).
    pub fn open(sequence: Sequence) -> Result<SequenceTap, SysError> {
        const MAP_HASH: u32 = 1;
        const PROGRAM_SOCKET_FILTER: u32 = 1;
        const FAMILY: u16 = 17;
        const ALL_PROTOCOLS: u16 = 3;
        let map = Map::open(MAP_HASH, FLOW_WORDS, FLOW_WORDS as usize, MAX_FLOWS)?;
        let program = load(PROGRAM_SOCKET_FILTER, &counts_numbers(map.fd.as_raw_fd(), sequence))?;
        let call = "open a packet socket for --sequence (root)";
        let nothing = Protocol::from(0);
        let socket =
            Socket::new(Domain::PACKET, Type::DGRAM, Some(nothing)).map_err(failed(call))?;
        let filter = program.as_raw_fd();
        let (value, bytes) = ((&raw const filter).cast(), size_of_val(&filter));
        let bytes = libc::socklen_t::try_from(bytes).expect("4");
        let fd = socket.as_raw_fd();
        // SAFETY: the pointer is to an int that outlives the call, the length is its own.
        let set =
            unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, value, bytes) };
        if set < 0 {
            return Err(SysError::last(call));
        }
        // SAFETY: an all-zero address of the family is valid; the fields set are its own.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = FAMILY;
        address.sll_protocol = ALL_PROTOCOLS.to_be();
        let bytes = libc::socklen_t::try_from(size_of_val(&address)).expect("20");
        // SAFETY: pointer and length are those of the address.
        if unsafe { libc::bind(fd, (&raw const address).cast(), bytes) } < 0 {
            return Err(SysError::last(call));
        }
        Ok(SequenceTap { map, _socket: socket })
    }

    /// # Errors
    /// The map cannot be read.
    pub fn read(&mut self) -> Result<Vec<Flow>, SysError> {
        let mut flows = Vec::new();
        self.map.read(|from, value| {
            let address = Ipv4Addr::from_bits((from >> 16 & 0xFFFF_FFFF) as u32);
            flows.push(Flow {
                from: SocketAddrV4::new(address, (from & 0xFFFF) as u16),
                seen: value[1],
                missing: value[2],
                late: value[3],
            });
        })?;
        Ok(flows)
    }
}

/// Filter of a packet socket: finds the number of a datagram, compares it with the next one of its
/// sender, and passes nothing on. A load beyond the packet ends the program with 0.
fn counts_numbers(map: i32, sequence: Sequence) -> Vec<Instruction> {
    const OUTGOING: i32 = 4;
    const UDP: i32 = 17;
    const BYTE: u8 = 0x10;
    const HALF: u8 = 0x08;
    const WORD: u8 = 0x00;
    // Loads of packet bytes, from a place or from r7 on, give r0 in the host's order.
    let at = |width: u8, place: i32| instruction(0x20 | width, 0, 0, 0, place);
    let behind = |width: u8, place: i32| instruction(0x40 | width, 0, 7, 0, place);
    let mut program = vec![
        instruction(0xBF, 6, 1, 0, 0), // r6 = packet, where loads expect it
        instruction(0x61, 0, 6, 4, 0), // r0 = its type
        instruction(0x15, 0, 0, TO_END, OUTGOING),
        instruction(0x61, 0, 6, 16, 0), // r0 = protocol, in the order of the network
        instruction(0x55, 0, 0, TO_END, i32::from(0x0800_u16.to_be())),
        at(BYTE, 9), // r0 = protocol of IP
        instruction(0x55, 0, 0, TO_END, UDP),
        at(HALF, 6), // r0 = fragment
        instruction(0x57, 0, 0, 0, 0x1FFF),
        instruction(0x55, 0, 0, TO_END, 0),
        at(WORD, 12), // r9 = sender: address << 16 | port
        instruction(0xBF, 9, 0, 0, 0),
        instruction(0x67, 9, 0, 0, 16),
        at(BYTE, 0), // r7 = bytes of the header
        instruction(0x57, 0, 0, 0, 0x0F),
        instruction(0x67, 0, 0, 0, 2),
        instruction(0xBF, 7, 0, 0, 0),
        behind(HALF, 2), // r0 = port
        instruction(0x55, 0, 0, TO_END, i32::from(sequence.port)),
        behind(HALF, 0),
        instruction(0x4F, 9, 0, 0, 0),
        instruction(0x7B, STACK, 9, -8, 0), // key = r9
    ];
    let place = 8 + i32::from(sequence.offset);
    let bits = 8 * i32::from(sequence.bytes);
    program.extend(match sequence.bytes {
        1 => vec![behind(BYTE, place), instruction(0xBF, 8, 0, 0, 0)],
        2 => vec![behind(HALF, place), instruction(0xBF, 8, 0, 0, 0)],
        4 => vec![behind(WORD, place), instruction(0xBF, 8, 0, 0, 0)],
        _ => vec![
            behind(WORD, place),
            instruction(0xBF, 8, 0, 0, 0),
            instruction(0x67, 8, 0, 0, 32),
            behind(WORD, place + 4),
            instruction(0x4F, 8, 0, 0, 0),
        ],
    });
    if !sequence.is_big_endian && bits > 8 {
        program.push(instruction(0xDC, 8, 0, 0, bits)); // swap the bytes of r8
    }
    program.extend(lookup(map, -8));
    let known = program.len();
    program.extend([
        instruction(0x15, 0, 0, 0, 0), // to a new sender
        instruction(0x79, 2, 0, 0, 0), // r1 = number - next, in the width of the number, signed
        instruction(0xBF, 1, 8, 0, 0),
        instruction(0x1F, 1, 2, 0, 0),
        instruction(0x67, 1, 0, 0, 64 - bits),
        instruction(0x65, 1, 0, 4, -1), // if r1 > -1: skip what counts a late one
        instruction(0x79, 3, 0, 24, 0),
        instruction(0x07, 3, 0, 0, 1),
        instruction(0x7B, 0, 3, 24, 0),
        instruction(0x05, 0, 0, 7, 0),
        instruction(0x77, 1, 0, 0, 64 - bits), // missing += r1
        instruction(0x79, 3, 0, 16, 0),
        instruction(0x0F, 3, 1, 0, 0),
        instruction(0x7B, 0, 3, 16, 0),
        instruction(0xBF, 1, 8, 0, 0), // next = number + 1
        instruction(0x07, 1, 0, 0, 1),
        instruction(0x7B, 0, 1, 0, 0),
        instruction(0x79, 3, 0, 8, 0), // seen += 1
        instruction(0x07, 3, 0, 0, 1),
        instruction(0x7B, 0, 3, 8, 0),
        instruction(0x05, 0, 0, TO_END, 0),
    ]);
    let new = program.len() - known - 1;
    program[known].offset = i16::try_from(new).expect("a short program");
    program.extend([
        instruction(0x07, 8, 0, 0, 1), // value = number + 1, 1, 0, 0
        instruction(0x7B, STACK, 8, -40, 0),
        instruction(0xB7, 1, 0, 0, 1),
        instruction(0x7B, STACK, 1, -32, 0),
        instruction(0xB7, 1, 0, 0, 0),
        instruction(0x7B, STACK, 1, -24, 0),
        instruction(0x7B, STACK, 1, -16, 0),
        instruction(0x18, 1, 1, 0, map), // update(map, key, value, 0)
        instruction(0, 0, 0, 0, 0),
        instruction(0xBF, 2, STACK, 0, 0),
        instruction(0x07, 2, 0, 0, -8),
        instruction(0xBF, 3, STACK, 0, 0),
        instruction(0x07, 3, 0, 0, -40),
        instruction(0xB7, 4, 0, 0, 0),
        instruction(0x85, 0, 0, 0, 2),
    ]);
    finished(program)
}

/// Upper bound of the kernel's possible CPUs: it writes a value for each of them.
fn possible_cpus() -> Result<usize, SysError> {
    let path = "/sys/devices/system/cpu/possible";
    let text = fs::read_to_string(path).map_err(failed(path))?;
    let last = parse_cpu_list(&text).into_iter().max();
    let missing = || failed(path)(std::io::Error::other("no list of CPUs"));
    Ok(last.ok_or_else(missing)? as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: kfree_skb\nprint fmt: \"skbaddr=%p reason: %s\", REC->skbaddr, \
        __print_symbolic(REC->reason, { 2, \"NOT_SPECIFIED\" }, { 6, \"SOCKET_RCVBUFF\" }, { 70000, \"MAX\" })\n";

    #[test]
    fn reasons_are_named_by_the_kernel() {
        let path = "sys/kernel/tracing/events/skb/kfree_skb/format";
        let (_root, files) = crate::host::root_with(&[(path, FORMAT)]);
        let numbers = reason_numbers(&files).unwrap();
        assert_eq!(numbers.get("SOCKET_RCVBUFF"), Some(&6));
        assert_eq!(numbers.len(), 2);
    }

    #[test]
    fn a_kernel_without_reasons_and_a_host_without_tracefs_are_told_apart() {
        let path = "sys/kernel/debug/tracing/events/skb/kfree_skb/format";
        let (_root, files) = crate::host::root_with(&[(path, "print fmt: \"skbaddr=%p\"")]);
        assert!(reason_numbers(&files).unwrap_err().to_string().contains("5.17"));
        let (_root, files) = crate::host::root_with(&[]);
        assert!(reason_numbers(&files).unwrap_err().to_string().contains("kfree_skb/format"));
    }

    #[test]
    fn drops_are_counted_by_reason_and_namespace_where_the_kernel_allows_it() {
        let files = Files::default();
        let here = crate::namespace::network_of(&files, std::process::id()).unwrap();
        let names = ["NO_SOCKET", "NOT_SPECIFIED do_xdp_generic"];
        let symbols = KernelSymbols::of_kernel();
        let opened =
            [here, here + 1].map(|of| DropReasons::open(&files, &symbols, of, names.into_iter()));
        let [Ok(mut ours), Ok(mut others)] = opened else {
            return eprintln!("no drop reasons here: {opened:?}");
        };
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for _ in 0..10 {
            sender.send_to(b"to a closed port", closed).unwrap();
        }
        let count = |reasons: &mut DropReasons| reasons.read().unwrap()[0].1;
        assert!(count(&mut ours) >= 10);
        assert_eq!(count(&mut others) > 0, !others.knows_namespaces);
    }

    #[test]
    fn numbers_that_are_left_out_are_counted_before_ip() {
        for (bytes, is_big_endian) in [(1, true), (2, false), (4, true), (8, false), (8, true)] {
            let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let to = receiver.local_addr().unwrap();
            let sequence = Sequence { port: to.port(), offset: 3, bytes, is_big_endian };
            let mut tap = match SequenceTap::open(sequence) {
                Ok(tap) => tap,
                Err(error) => return eprintln!("no tap here: {error}"),
            };
            let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            // 300 numbers wrap one byte; each tenth is left out, and one comes late.
            let numbers = (0..300_u64).filter(|number| number % 10 != 5);
            for number in numbers.chain([5, 300]) {
                let mut datagram = vec![0xEE; 3];
                let width = usize::from(bytes);
                match is_big_endian {
                    true => datagram.extend(&number.to_be_bytes()[8 - width..]),
                    false => datagram.extend(&number.to_le_bytes()[..width]),
                }
                sender.send_to(&datagram, to).unwrap();
            }
            sender.send_to(b"no", to).unwrap();
            let flows = tap.read().unwrap();
            let flow =
                flows.iter().find(|flow| flow.from.port() == sender.local_addr().unwrap().port());
            let flow = flow.unwrap();
            assert_eq!((flow.seen, flow.missing, flow.late), (272, 30, 1), "{bytes} bytes");
        }
    }
}
