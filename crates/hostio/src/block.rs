//! Sequential reads of a block device or a file, past the page cache or out of it.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use daqmeter_harness::{
    Availability, Engine, Fault, LimitSpec, Parameter, Session, StageSpec, Tally, parameters,
};
use daqmeter_record::{Ledger, Workload};
use daqmeter_sys::host::{DIRECT, Files};
use daqmeter_sys::memory::{Buffer, Pages, buffer_bytes};

/// Largest block.
const MOST_BYTES: u64 = 64 << 20;
/// Reads stay within so many bytes from the start, and begin again there: enough to leave a device's own cache.
const SPAN_BYTES: u64 = 8 << 30;
/// Blocks of direct reads are multiples of this.
const SECTOR_BYTES: u64 = SECTOR as u64;
const SECTOR: usize = 4096;

/// Reads in order, one block at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockEngine;

struct BlockSession {
    path: String,
    cached: bool,
    bytes: usize,
    open: Option<Open>,
    ledger: Ledger,
}

struct Open {
    file: File,
    span: u64,
    at: u64,
    buffer: Buffer,
}

/// The first block device that is a disk, as `/dev/vda`; none where there is none.
pub fn system_disk(files: &Files) -> Option<String> {
    let sectors = |name: &String| {
        files
            .text(&format!("sys/block/{name}/size"))?
            .parse::<u64>()
            .ok()
    };
    let is_disk = |name: &String| {
        !["loop", "ram", "zram", "sr", "fd", "dm-", "md"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
            && sectors(name).is_some_and(|sectors| sectors > 0)
    };
    let disk = files.names("sys/block").into_iter().find(is_disk)?;
    Some(files.root().join("dev").join(disk).display().to_string())
}

/// Whether this process may read the device or file past the page cache; `Err` says why not.
///
/// # Errors
/// Those of opening it.
pub fn reads_directly(path: &str) -> std::io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(DIRECT)
        .open(path)?;
    let mut buffer = Buffer::new(SECTOR, Pages::Base).map_err(std::io::Error::other)?;
    file.read_at(buffer.slice_mut::<u8>(SECTOR), 0).map(drop)
}

impl Engine for BlockEngine {
    fn name(&self) -> &'static str {
        "block"
    }

    fn description(&self) -> &'static str {
        "reads a block device or a file in order, past the page cache or out of it; never writes"
    }

    fn probe(&self) -> Availability {
        Availability::Ready
    }

    fn target(&self, workload: &Workload) -> String {
        let how = if workload.flag("cached") {
            "page cache"
        } else {
            "direct"
        };
        format!("{}, {how}", workload.text("path").unwrap_or("none"))
    }

    fn parameters(&self) -> Vec<Parameter> {
        parameters![
            "path": "block device or file that is read",
            "block_bytes": "bytes of one read; a multiple of 4096 where reads are direct",
            "cached": "true reads through the page cache, which is warm after the first round",
        ]
    }

    fn memory_bytes(&self, workload: &Workload) -> Option<u64> {
        let bytes = workload.int("block_bytes").ok()?;
        // A second one while blocks are compared.
        Some(buffer_bytes(bytes).saturating_add(bytes))
    }

    fn example(&self) -> Workload {
        Workload::new("block")
            .with("path", "/proc/self/exe")
            .with("block_bytes", 65_536_u64)
            .with("cached", true)
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let (bytes, cached) = (workload.int("block_bytes")?, workload.flag("cached"));
        if bytes == 0 || bytes > MOST_BYTES || (!cached && !bytes.is_multiple_of(SECTOR_BYTES)) {
            let problem = format!(
                "is {bytes}; 1 to {MOST_BYTES} is wanted, in multiples of {SECTOR_BYTES} unless cached"
            );
            return Err(workload.error("block_bytes", problem).into());
        }
        let session = BlockSession {
            path: workload.text("path")?.to_owned(),
            cached,
            bytes: usize::try_from(bytes).map_err(|_| Fault::new("beyond this machine"))?,
            open: None,
            ledger: Ledger::new("bytes"),
        };
        Ok(vec![Box::new(session)])
    }
}

impl Session for BlockSession {
    fn device(&self) -> String {
        self.path.clone()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let bytes = self.bytes as u64;
        let name = if self.cached {
            "read, page cache"
        } else {
            "read, direct"
        };
        let mut stage = StageSpec::new(name, bytes, bytes);
        // Out of the page cache a read is a copy; what a device can do, nobody but the device knows.
        stage.limit = self.cached.then(|| LimitSpec::memory(bytes, 1, 1));
        vec![stage]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let refused = |what: &str, error: std::io::Error| {
            Fault::new(format!("{what} {}: {error}", self.path))
        };
        let mut options = OpenOptions::new();
        options.read(true);
        if !self.cached {
            options.custom_flags(DIRECT);
        }
        let mut file = options
            .open(&self.path)
            .map_err(|error| refused("open", error))?;
        let size = file
            .seek(SeekFrom::End(0))
            .map_err(|error| refused("find the size of", error))?;
        let bytes = self.bytes as u64;
        // The cache is warm after a round; a device is read over a long way.
        let most = if self.cached {
            (64 << 20).max(bytes)
        } else {
            SPAN_BYTES
        };
        let span = size.min(most) / bytes * bytes;
        if span == 0 {
            return Err(Fault::new(format!(
                "{} is shorter than one block of {bytes} B",
                self.path
            )));
        }
        let buffer = Buffer::new(self.bytes.max(4096), Pages::Transparent)?;
        let mut open = Open {
            file,
            span,
            at: 0,
            buffer,
        };
        if self.cached {
            for _ in 0..span / bytes {
                open.read(self.bytes)?;
            }
        }
        self.open = Some(open);
        Ok(())
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        let open = self.open.as_mut().expect("prepared before the first step");
        for _ in 0..operations {
            self.ledger.issued += self.bytes as u64;
            open.read(self.bytes)?;
            self.ledger.delivered += self.bytes as u64;
        }
        Ok(())
    }

    /// A block read twice is the same both times; what else writes to a mounted device may be between them, so three tries are made.
    fn verify(&mut self) -> Result<(), Fault> {
        const TRIES: usize = 3;
        let open = self.open.as_mut().expect("prepared before verification");
        let at = open.span / 2 / self.bytes as u64 * self.bytes as u64 % open.span;
        for _ in 0..TRIES {
            open.at = at;
            open.read(self.bytes)?;
            let first = open.buffer.slice::<u8>(self.bytes).to_vec();
            open.buffer.slice_mut::<u8>(self.bytes).fill(0xA5);
            open.at = at;
            open.read(self.bytes)?;
            if open.buffer.slice::<u8>(self.bytes) == first {
                return Ok(());
            }
        }
        Err(Fault::new(format!(
            "{}: the block at {at} is another each time it is read",
            self.path
        )))
    }

    fn tally(&mut self) -> Tally {
        Tally {
            ledgers: vec![self.ledger.clone()],
            ..Tally::default()
        }
    }
}

impl Open {
    fn read(&mut self, bytes: usize) -> Result<(), Fault> {
        self.file
            .read_exact_at(self.buffer.slice_mut::<u8>(bytes), self.at)
            .map_err(|error| Fault::new(format!("read {bytes} B at {}: {error}", self.at)))?;
        self.at += bytes as u64;
        if self.at >= self.span {
            self.at = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_harness::{Context, Settings, StepPlan, conformance, measure};

    #[test]
    fn it_keeps_the_contract() {
        conformance::run(&BlockEngine);
    }

    fn run(workload: &Workload) -> daqmeter_record::RunRecord {
        measure(
            &BlockEngine,
            workload,
            &Settings::new(StepPlan::ByStage(8), "test"),
            &Context::default(),
            &[],
            &mut [],
        )
        .unwrap()
    }

    #[test]
    fn every_byte_is_in_the_ledger_and_a_short_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blocks");
        std::fs::write(&path, vec![7; 3 * 8192 + 5]).unwrap();
        let workload = BlockEngine
            .example()
            .with("path", path.display().to_string())
            .with("block_bytes", 8192_u64);
        let record = run(&workload);
        assert!(record.outcome.is_ok(), "{:?}", record.outcome);
        assert!(
            record.ledgers[0].issued == record.ledgers[0].delivered
                && record.ledgers[0].issued >= 8 * 8192
        );
        let long = run(&workload.clone().with("block_bytes", 32_768_u64));
        assert!(
            long.lanes[0]
                .outcome
                .reason()
                .unwrap()
                .contains("shorter than one block")
        );
        let nowhere = run(&workload.with("path", "/nonexistent"));
        assert!(
            nowhere.lanes[0]
                .outcome
                .reason()
                .unwrap()
                .contains("No such file")
        );
    }

    #[test]
    fn blocks_that_no_device_takes_are_refused_and_the_disk_is_found() {
        let odd = BlockEngine
            .example()
            .with("cached", false)
            .with("block_bytes", 100_u64);
        assert!(
            BlockEngine
                .open(&odd)
                .err()
                .unwrap()
                .0
                .contains("multiples of 4096")
        );
        let root = tempfile::tempdir().unwrap();
        for (name, size) in [("loop0", "8"), ("nvme0n1", "1000"), ("sda", "0")] {
            let folder = root.path().join("sys/block").join(name);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("size"), size).unwrap();
        }
        assert!(
            system_disk(&Files::below(root.path()))
                .unwrap()
                .ends_with("dev/nvme0n1")
        );
    }
}
