//! Counters that a network driver keeps for itself (`include/uapi/linux/ethtool.h`).

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use crate::{SysError, failed};

const DRIVER_COUNTERS: u32 = 1;
const GET_STRING_SET_INFO: u32 = 0x37;
const GET_STRINGS: u32 = 0x1B;
const GET_COUNTERS: u32 = 0x1D;
const NAME_BYTES: usize = 32;
/// More than any driver has (mlx5: 1,500 with 64 queues); bounds what a driver makes us take.
const MAX_COUNTERS: usize = 1 << 16;

/// A way to ask drivers, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Ethtool(UdpSocket);

/// A device's counters by name; the names are read once.
#[derive(Clone, Debug)]
pub struct DriverCounters {
    device: String,
    pub names: Vec<String>,
}

impl Ethtool {
    /// # Errors
    /// No descriptor left.
    pub fn open() -> Result<Ethtool, SysError> {
        UdpSocket::bind(("0.0.0.0", 0)).map(Ethtool).map_err(failed("socket for ethtool"))
    }

    /// Names of a device's counters; an empty list if the driver has no counters.
    ///
    /// # Errors
    /// The device is gone.
    pub fn counters(&self, device: &str) -> Result<DriverCounters, SysError> {
        let mut info = Words::new(24);
        info.set(0, GET_STRING_SET_INFO);
        info.set(2, 1 << DRIVER_COUNTERS);
        let names = match self.ask(device, &mut info) {
            Ok(()) if info.get(2) != 0 => self.names(device, info.get(4) as usize)?,
            Ok(()) => Vec::new(),
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(DriverCounters { device: device.to_owned(), names })
    }

    fn names(&self, device: &str, count: usize) -> Result<Vec<String>, SysError> {
        let count = count.min(MAX_COUNTERS);
        let mut strings = Words::new(12 + room(count) * NAME_BYTES);
        strings.set(0, GET_STRINGS);
        strings.set(1, DRIVER_COUNTERS);
        self.ask(device, &mut strings)?;
        let bytes = strings.bytes();
        let names = bytes[12..].chunks_exact(NAME_BYTES).take(count);
        Ok(names.map(crate::netlink::text).collect())
    }

    /// Values of a device's counters, in the order of their names.
    ///
    /// # Errors
    /// The device is gone.
    pub fn read(&self, of: &DriverCounters) -> Result<Vec<u64>, SysError> {
        let count = of.names.len();
        let mut values = Words::new(8 + room(count) * 8);
        values.set(0, GET_COUNTERS);
        self.ask(&of.device, &mut values)?;
        let values = values.0.into_iter().skip(1);
        Ok(values.take(count).collect())
    }

    fn ask(&self, device: &str, words: &mut Words) -> Result<(), SysError> {
        // SAFETY: an all-zero ifreq is a valid empty one.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let name = device.bytes().take(request.ifr_name.len() - 1);
        for (to, from) in request.ifr_name.iter_mut().zip(name) {
            *to = from.cast_signed() as libc::c_char;
        }
        request.ifr_ifru.ifru_data = words.0.as_mut_ptr().cast();
        // SAFETY: the request points to words that outlive the call; there is `room` for what the
        // driver writes, and the other commands write a fixed size.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCETHTOOL as _, &request) };
        if done < 0 { Err(SysError::last(format!("ethtool of {device}"))) } else { Ok(()) }
    }
}

/// Counters that fit: the kernel asks the driver for its count anew and writes that many, so a
/// driver that added queues since must find room.
fn room(count: usize) -> usize {
    2 * count + 4096
}

/// Memory of a request, aligned for counters of 64 bits.
struct Words(Vec<u64>);

impl Words {
    fn new(bytes: usize) -> Words {
        Words(vec![0; bytes.div_ceil(8)])
    }

    /// Word of 32 bits by its place.
    fn get(&self, at: usize) -> u32 {
        let bytes = self.0[at / 2].to_ne_bytes();
        let half = (at % 2) * 4;
        u32::from_ne_bytes(bytes[half..half + 4].try_into().expect("four bytes"))
    }

    fn set(&mut self, at: usize, value: u32) {
        let mut bytes = self.0[at / 2].to_ne_bytes();
        let half = (at % 2) * 4;
        bytes[half..half + 4].copy_from_slice(&value.to_ne_bytes());
        self.0[at / 2] = u64::from_ne_bytes(bytes);
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_named() {
        let error = Ethtool::open().unwrap().counters("dqm-none0").unwrap_err().to_string();
        assert!(error.contains("dqm-none0"), "{error}");
    }

    #[test]
    fn loopback_has_no_counters_of_a_driver() {
        let ethtool = Ethtool::open().unwrap();
        assert!(ethtool.counters("lo").unwrap().names.is_empty());
    }
}
