//! The border to daqmeter's own kernel modules, `kmod/daqmeter_uapi.h`, mirrored.
//!
//! [`LAYOUT`] holds the offset of every field; `cargo xtask copy-vm` compiles the C header and
//! compares all of it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::memory::Buffer;
use crate::{SysError, failed, ioctl, ioctl_command};

pub const ABI: u32 = 2;
pub const COPY_DEVICE: &str = "/dev/daqmeter-copy";
pub const TRACE_DEVICE: &str = "/dev/daqmeter-trace";
/// Lets the policy choose the channel.
pub const ANY_CHANNEL: u32 = u32::MAX;
/// Flushes both buffers before the clock starts ([`Copy::flags`]).
pub const COLD: u32 = 1;
/// An engine in software ([`Channel::flags`]).
pub const CHANNEL_SOFTWARE: u32 = 8;

macro_rules! mirrored {
    ($($(#[$meta:meta])* $name:ident = $c:literal { $($(#[$field_meta:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $name { $($(#[$field_meta])* pub $field: $kind,)* }
        )*
        /// Structure, field (empty for the size of the whole), offset or size in bytes.
        pub const LAYOUT: &[(&str, &str, usize)] = &[
            $( ($c, "", size_of::<$name>()), $( ($c, stringify!($field), std::mem::offset_of!($name, $field)), )* )*
        ];
    };
}

mirrored! {
    Info = "daqmeter_info" {
        abi: u32,
        flags: u32,
        policy: u32,
        channels: u32,
        region_bytes: u64,
        high_channels: u64,
        quantum_ns: u64,
        window_ns: u64,
        gate_high_ns: u64,
        gate_low_ns: u64,
        gate_windows: u64,
        in_flight: u64,
        pinned_pages: u64,
        /// Pages kept because an engine may still write them.
        quarantined_pages: u64,
    }
    Channel = "daqmeter_channel" {
        index: u32,
        /// `CHANNEL_*`.
        flags: u32,
        name: [u8; 32],
        driver: [u8; 32],
        copies: u64,
        bytes: u64,
        failures: u64,
        timeouts: u64,
        /// Completions of copies that had been given up.
        late: u64,
    }
    Policy = "daqmeter_policy" {
        policy: u32,
        reserved: u32,
        /// Bit mask of high channels.
        high_channels: u64,
        quantum_ns: u64,
        window_ns: u64,
        /// Out: serial number of the policy.
        number: u64,
    }
    Copy = "daqmeter_copy" {
        /// 0 CPU, 1 DMA.
        by: u32,
        /// 0 from user, 1 to user, 2 from and then to.
        direction: u32,
        /// 0 polled, 1 interrupt.
        completion: u32,
        flags: u32,
        user_address: u64,
        bytes: u64,
        region_offset: u64,
        channel: u32,
        /// Limit of a DMA copy; 0 is 10 s.
        timeout_ms: u32,
        channel_used: u32,
        /// Out: descriptors, or pieces of a CPU copy.
        segments: u32,
        cpu_before: u32,
        cpu_after: u32,
        /// Out: `CLOCK_MONOTONIC` before the bare copy.
        before_ns: u64,
        after_ns: u64,
        pin_ns: u64,
        /// Out: mapping both sides for the engine.
        map_ns: u64,
        unmap_ns: u64,
        unpin_ns: u64,
        /// Out: [`Policy::number`] in force; 0 for the CPU.
        policy_number: u64,
    }
    TraceRecord = "daqmeter_trace_record" {
        /// Event counter of the ring; includes dropped events.
        counter: u64,
        bytes: u64,
        before_ns: u64,
        after_ns: u64,
        /// Return address of the traced function.
        caller: u64,
        ring_cpu: u32,
        begin_cpu: u32,
        pid: u32,
        /// 0 `copy_from_user`, 1 `copy_to_user`, 2 `__copy_from_user`, 3 `__copy_to_user`.
        operation: u16,
        /// 0 CPU, 1 DMA.
        by: u16,
        comm: [u8; 16],
    }
    TraceInfo = "daqmeter_trace_info" {
        abi: u32,
        running: u32,
        cpus: u32,
        ring_records: u32,
        /// Bit mask of operations with a probe.
        probed: u32,
        reserved: u32,
        recorded: [u64; 4],
        /// Events that found a full ring, by operation.
        dropped: [u64; 4],
        /// Upper limit of calls that the probes did not see: no free instance, or another probe at
        /// work.
        missed: u64,
    }
}

const fn request(direction: u32, number: u32, bytes: usize) -> u32 {
    ioctl_command(direction, 0xDA, number, bytes)
}

const READ_WRITE: u32 = 3;
const INFO: u32 = request(READ_WRITE, 0x60, size_of::<Info>());
const CHANNEL: u32 = request(READ_WRITE, 0x61, size_of::<Channel>());
const POLICY: u32 = request(READ_WRITE, 0x62, size_of::<Policy>());
const COPY: u32 = request(READ_WRITE, 0x63, size_of::<Copy>());
const TRACE_INFO: u32 = request(READ_WRITE, 0x68, size_of::<TraceInfo>());
const TRACE_START: u32 = request(0, 0x69, 0);
const TRACE_STOP: u32 = request(0, 0x6A, 0);

/// Names and values of the commands, compared with the C header like [`LAYOUT`].
pub const COMMANDS: &[(&str, u32)] = &[
    ("DAQMETER_IOC_INFO", INFO),
    ("DAQMETER_IOC_CHANNEL", CHANNEL),
    ("DAQMETER_IOC_POLICY", POLICY),
    ("DAQMETER_IOC_COPY", COPY),
    ("DAQMETER_IOC_TRACE_INFO", TRACE_INFO),
    ("DAQMETER_IOC_TRACE_START", TRACE_START),
    ("DAQMETER_IOC_TRACE_STOP", TRACE_STOP),
];

pub fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn open(path: &Path) -> Result<File, SysError> {
    let opened = File::options().read(true).write(true).open(path);
    opened.map_err(failed(format!("open {}", path.display())))
}

fn versioned<T>(
    file: &File,
    number: u32,
    mut info: T,
    abi: impl Fn(&T) -> u32,
) -> Result<T, SysError> {
    match ioctl(file, number, &raw mut info, "ask the module for its version") {
        Ok(()) => Ok(info),
        Err(error) if error.errno() == Some(libc::EPROTO) => {
            let call = format!(
                "the kernel module speaks ABI {}, this program {ABI}: build and load the modules of this version (kmod/)",
                abi(&info)
            );
            Err(SysError { call, ..error })
        }
        Err(error) => Err(error),
    }
}

#[derive(Debug)]
pub struct CopyDevice(File);

impl CopyDevice {
    /// Opens the device and compares versions.
    ///
    /// # Errors
    /// ENOENT without the module, EACCES, or another version.
    pub fn open(path: &Path) -> Result<CopyDevice, SysError> {
        CopyDevice::inherited(open(path)?)
    }

    pub fn inherited(file: File) -> Result<CopyDevice, SysError> {
        let device = CopyDevice(file);
        device.info()?;
        Ok(device)
    }

    /// # Errors
    /// EPROTO for a module of another version.
    pub fn info(&self) -> Result<Info, SysError> {
        versioned(&self.0, INFO, Info { abi: ABI, ..Info::default() }, |info| info.abi)
    }

    /// Reads one of the held channels.
    ///
    /// # Errors
    /// ECHRNG beyond the last.
    pub fn channel(&self, index: u32) -> Result<Channel, SysError> {
        let mut channel = Channel { index, ..Channel::default() };
        ioctl(&self.0, CHANNEL, &raw mut channel, "ask for a DMA channel")?;
        Ok(channel)
    }

    /// Changes the policy, which then belongs to this open file; returns its number.
    ///
    /// # Errors
    /// EBUSY while copies are under way or another file has a policy, ENODEV without a
    /// memory-to-memory channel, EINVAL for invalid times or channels. The policy before stays in
    /// force then.
    pub fn set_policy(&self, mut policy: Policy) -> Result<u64, SysError> {
        ioctl(&self.0, POLICY, &raw mut policy, "set the channel policy")?;
        Ok(policy.number)
    }

    /// Does one copy at `offset` of the buffer; fills the outputs of the request.
    ///
    /// # Errors
    /// ETIMEDOUT, EIO and other engine faults; EFAULT, ERANGE for invalid ranges; EBUSY for a DMA
    /// copy while another file has a policy.
    ///
    /// # Panics
    /// The range leaves the buffer.
    pub fn copy(
        &self,
        request: &mut Copy,
        buffer: &mut Buffer,
        offset: usize,
    ) -> Result<(), SysError> {
        let bytes = usize::try_from(request.bytes).expect("a byte count of this process");
        let range = &mut buffer.slice_mut::<u8>(offset + bytes)[offset..];
        request.user_address = range.as_mut_ptr().addr() as u64;
        self.copy_at(request)
    }

    /// Copies at any address: the module checks that the range may be read or written. Safe only
    /// because the kernel checks; tests of refusals use it with unmapped ranges.
    fn copy_at(&self, request: &mut Copy) -> Result<(), SysError> {
        ioctl(&self.0, COPY, std::ptr::from_mut(request), "copy through the module")
    }

    /// Requests a copy at page zero, or to a page of the program's own constants; the module must
    /// refuse it.
    pub fn copy_outside(&self, request: &mut Copy, read_only: bool) -> Result<(), SysError> {
        static CONSTANT: [u8; 64] = [7; 64];
        request.user_address = if read_only { CONSTANT.as_ptr().addr() as u64 } else { 0 };
        request.bytes = request.bytes.min(64);
        // The page of constants is read-only, so a faulty module cannot write it.
        self.copy_at(request)
    }
}

#[derive(Debug)]
pub struct TraceDevice(File);

impl TraceDevice {
    /// Opens the tracer and compares versions.
    ///
    /// # Errors
    /// As [`CopyDevice::open`]; EBUSY when another program has it.
    pub fn open(path: &Path) -> Result<TraceDevice, SysError> {
        let device = TraceDevice(open(path)?);
        device.info()?;
        Ok(device)
    }

    pub fn info(&self) -> Result<TraceInfo, SysError> {
        let asked = TraceInfo { abi: ABI, ..TraceInfo::default() };
        versioned(&self.0, TRACE_INFO, asked, |info| info.abi)
    }

    /// Sets the probes; this process is not traced.
    pub fn start(&self) -> Result<(), SysError> {
        ioctl(&self.0, TRACE_START, std::ptr::null_mut::<u8>(), "set the probes")
    }

    pub fn stop(&self) -> Result<(), SysError> {
        ioctl(&self.0, TRACE_STOP, std::ptr::null_mut::<u8>(), "take the probes away")
    }

    pub fn read(&mut self, into: &mut Vec<TraceRecord>) -> Result<usize, SysError> {
        const EACH: usize = size_of::<TraceRecord>();
        let mut bytes = vec![0; 4096 * EACH];
        let mut count = 0;
        loop {
            let got = self.0.read(&mut bytes).map_err(failed("read the trace"))?;
            into.extend(bytes[..got].chunks_exact(EACH).map(TraceRecord::parse));
            count += got / EACH;
            if got == 0 {
                return Ok(count);
            }
        }
    }
}

impl TraceRecord {
    /// Parses one record in the machine's byte order.
    ///
    /// # Panics
    /// Fewer than 72 bytes.
    pub fn parse(bytes: &[u8]) -> TraceRecord {
        assert!(bytes.len() >= size_of::<TraceRecord>(), "{} bytes of a record", bytes.len());
        // SAFETY: that many bytes are there; a record has no padding, and any bytes are valid.
        unsafe { bytes.as_ptr().cast::<TraceRecord>().read_unaligned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_no_hidden_padding() {
        let mut ends: Vec<(&str, usize)> = Vec::new();
        for (name, field, at) in LAYOUT {
            if field.is_empty() {
                assert_eq!(at % 8, 0, "{name} is a multiple of eight");
                ends.push((name, *at));
            }
        }
        assert_eq!(ends.len(), 6);
        assert_eq!(size_of::<TraceRecord>(), 72);
        assert_eq!(size_of::<Copy>(), 120);
    }

    #[test]
    fn a_trace_record_is_read_field_by_field() {
        let mut bytes = vec![0; 72];
        bytes[0] = 5;
        bytes[8] = 16;
        bytes[48] = 9;
        bytes[52] = 3;
        bytes[56..60].copy_from_slice(b"cat\0");
        let record = TraceRecord::parse(&bytes);
        assert_eq!((record.counter, record.bytes, record.pid, record.operation), (5, 16, 9, 3));
        assert_eq!(text(&record.comm), "cat");
    }

    #[test]
    fn a_file_that_is_no_module_is_refused() {
        assert_eq!(
            CopyDevice::open(Path::new("/dev/null")).unwrap_err().errno(),
            Some(libc::ENOTTY)
        );
        assert!(CopyDevice::open(Path::new("/nowhere/daqmeter-copy")).is_err());
    }
}
