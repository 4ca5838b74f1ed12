//! An emulated channel behind a file with reads of any offset and length, and without commands.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use daqmeter_harness::Fault;
use fuser::Errno;

use super::emulated::EmulatedChannel;
use crate::devices::board::Board;
use crate::serve::{DriverFile, ServedBoard, ServedTraffic};

/// Size of the file: a card with 1 GiB of memory.
const SIZE_BYTES: u64 = 1 << 30;

struct ChannelFile {
    channel: Mutex<EmulatedChannel>,
    traffic: Arc<ServedTraffic>,
}

pub(super) fn serve(channel: EmulatedChannel, path: &Path) -> Result<ServedBoard, Fault> {
    let traffic = Arc::<ServedTraffic>::default();
    let file = ChannelFile { channel: Mutex::new(channel), traffic: Arc::clone(&traffic) };
    crate::serve::serve(file, path, traffic)
}

impl DriverFile for ChannelFile {
    fn driver(&self) -> &'static str {
        "xdma"
    }

    fn size_bytes(&self) -> u64 {
        SIZE_BYTES
    }

    fn read(&self, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        let left = SIZE_BYTES.saturating_sub(offset).min(size as u64);
        let mut bytes = vec![0; usize::try_from(left).expect("at most what is asked for")];
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        channel.read(offset, &mut bytes).map_err(|_| Errno::EIO)?;
        self.traffic.read_bytes.fetch_add(left, Ordering::Relaxed);
        Ok(bytes)
    }
}
