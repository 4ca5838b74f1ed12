//! Sequential reads of a block device or a file, past the page cache or out of it.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use daqmeter_harness::{
    Fault, Job, LimitSpec, Problem, Request, Session, StageSpec, Tally, is_default,
};
use daqmeter_record::Ledger;
use daqmeter_sys::host::{DIRECT, Files};
use daqmeter_sys::memory::{Buffer, Pages, buffer_bytes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const MAX_BLOCK_BYTES: usize = 64 << 20;
/// Longer than what a device caches.
const DIRECT_SPAN_BYTES: u64 = 8 << 30;
const CACHED_SPAN_BYTES: u64 = 64 << 20;
pub const SECTOR_BYTES: usize = 4096;

/// Reads in order, one block at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BlockRequest {
    /// Block device or file that is read
    pub path: String,
    /// Bytes of one read; a multiple of 4096 where reads are direct
    pub block_bytes: usize,
    /// True reads through the page cache, which is warm after the first round
    #[serde(default, skip_serializing_if = "is_default")]
    pub cached: bool,
    /// Bytes from the start that are read, in rounds; 64 MiB of a cached file and 8 GiB of another
    /// unless given
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span_bytes: Option<u64>,
}

impl Request for BlockRequest {
    const KIND: &'static str = "block";
    const DESCRIPTION: &'static str =
        "reads a block device or a file in order, past the page cache or out of it; never writes";

    fn example() -> BlockRequest {
        BlockRequest {
            path: "/proc/self/exe".to_owned(),
            block_bytes: 65_536,
            cached: true,
            span_bytes: None,
        }
    }

    fn job(&self) -> Result<Job, Fault> {
        let how = if self.cached { "page cache" } else { "direct" };
        let bytes = self.block_bytes as u64;
        Ok(Job {
            memory_bytes: Some(buffer_bytes(bytes).saturating_add(bytes)),
            ..Job::new(self, format!("{}, {how}", self.path), open)
        })
    }

    fn check(&self) -> Result<(), Problem> {
        Problem::unless_within("block_bytes", self.block_bytes, 1..=MAX_BLOCK_BYTES)?;
        if let Some(span) = self.span_bytes {
            Problem::unless_within("span_bytes", span, self.block_bytes as u64..=u64::MAX)?;
        }
        if self.cached || self.block_bytes.is_multiple_of(SECTOR_BYTES) {
            return Ok(());
        }
        Err(Problem::new(
            "block_bytes",
            format!(
                "is {}; multiples of {SECTOR_BYTES} are wanted unless cached",
                self.block_bytes
            ),
        ))
    }
}

struct BlockSession {
    request: BlockRequest,
    open: Option<(BlockReader, Buffer)>,
    ledger: Ledger,
}

#[derive(Debug)]
pub struct BlockReader {
    file: File,
    /// Length in whole blocks of what is read; then it begins again.
    pub span_bytes: u64,
    /// Place of the next block, within the span.
    pub at: u64,
}

/// Returns the first block device that is a disk, like `/dev/vda`.
pub fn system_disk(files: &Files) -> Option<String> {
    let sectors =
        |name: &String| files.text(&format!("sys/block/{name}/size"))?.parse::<u64>().ok();
    let is_disk = |name: &String| {
        !["loop", "ram", "zram", "sr", "fd", "dm-", "md"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
            && sectors(name).is_some_and(|sectors| sectors > 0)
    };
    let disk = files.names("sys/block").into_iter().find(is_disk)?;
    Some(files.root().join("dev").join(disk).display().to_string())
}

/// Checks that this process may read the device or file past the page cache.
///
/// # Errors
/// Those of opening it.
pub fn reads_directly(path: &str) -> std::io::Result<()> {
    let file = OpenOptions::new().read(true).custom_flags(DIRECT).open(path)?;
    let mut buffer = Buffer::new(SECTOR_BYTES, Pages::Base).map_err(std::io::Error::other)?;
    file.read_at(buffer.slice_mut::<u8>(SECTOR_BYTES), 0).map(drop)
}

fn open(request: &BlockRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
    Ok(vec![Box::new(BlockSession {
        request: request.clone(),
        open: None,
        ledger: Ledger::new("bytes"),
    })])
}

impl BlockSession {
    /// Reads the next block.
    fn read(&mut self) -> Result<&mut [u8], Fault> {
        let (reader, buffer) = self.open.as_mut().expect("prepared before the first block");
        let into = buffer.slice_mut(self.request.block_bytes);
        reader.read(into)?;
        Ok(into)
    }

    fn read_at(&mut self, at: u64) -> Result<&mut [u8], Fault> {
        if let Some((reader, _)) = &mut self.open {
            reader.at = at;
        }
        self.read()
    }
}

impl Session for BlockSession {
    fn device(&self) -> String {
        self.request.path.clone()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let bytes = self.request.block_bytes as u64;
        let name = if self.request.cached { "read, page cache" } else { "read, direct" };
        let mut stage = StageSpec::new(name, bytes, bytes);
        // A read out of the page cache is a copy; the speed of a device is unknown.
        stage.limit = self.request.cached.then(|| LimitSpec::memory(bytes, 1, 1));
        vec![stage]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let bytes = self.request.block_bytes;
        let reader = BlockReader::open(&self.request)?;
        let blocks = if self.request.cached { reader.span_bytes / bytes as u64 } else { 0 };
        self.open = Some((reader, Buffer::new(bytes.max(SECTOR_BYTES), Pages::Transparent)?));
        (0..blocks).try_for_each(|_| self.read().map(drop))
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        for _ in 0..operations {
            self.ledger.issued += self.request.block_bytes as u64;
            self.read()?;
            self.ledger.delivered += self.request.block_bytes as u64;
        }
        Ok(())
    }

    /// Compares two reads of a block. Other programs may write to a mounted device between them, so
    /// three tries are made.
    fn verify(&mut self) -> Result<(), Fault> {
        const TRIES: usize = 3;
        let span = self.open.as_ref().map_or(0, |(reader, _)| reader.span_bytes);
        let bytes = self.request.block_bytes as u64;
        let at = span / 2 / bytes * bytes % span;
        for _ in 0..TRIES {
            let block = self.read_at(at)?;
            let first = block.to_vec();
            block.fill(0xA5);
            if *self.read_at(at)? == first {
                return Ok(());
            }
        }
        let path = &self.request.path;
        Err(Fault::new(format!("{path}: the block at {at} is another each time it is read")))
    }

    fn tally(&mut self) -> Tally {
        Tally { ledgers: vec![self.ledger.clone()], ..Tally::default() }
    }
}

impl BlockReader {
    /// Opens the file and computes its span in whole blocks.
    ///
    /// # Errors
    /// When it cannot be opened, or is shorter than one block.
    pub fn open(request: &BlockRequest) -> Result<BlockReader, Fault> {
        let BlockRequest { path, cached, span_bytes, .. } = request;
        let refused =
            |what: &str, error: std::io::Error| Fault::new(format!("{what} {path}: {error}"));
        let mut options = OpenOptions::new();
        options.read(true);
        if !cached {
            options.custom_flags(DIRECT);
        }
        let mut file = options.open(path).map_err(|error| refused("open", error))?;
        let size =
            file.seek(SeekFrom::End(0)).map_err(|error| refused("find the size of", error))?;
        let bytes = request.block_bytes as u64;
        let usual = if *cached { CACHED_SPAN_BYTES.max(bytes) } else { DIRECT_SPAN_BYTES };
        let span_bytes = size.min(span_bytes.unwrap_or(usual)) / bytes * bytes;
        if span_bytes == 0 {
            return Err(Fault::new(format!("{path} is shorter than one block of {bytes} B")));
        }
        Ok(BlockReader { file, span_bytes, at: 0 })
    }

    /// Reads the next block, of the length given at the opening; for direct reads `into` is
    /// page-aligned.
    ///
    /// # Errors
    /// When the device or the file fails, or became shorter.
    pub fn read(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        let bytes = into.len();
        self.file
            .read_exact_at(into, self.at)
            .map_err(|error| Fault::new(format!("read {bytes} B at {}: {error}", self.at)))?;
        self.skip(1, bytes);
        Ok(())
    }

    /// Leaves out a number of blocks of that many bytes.
    pub fn skip(&mut self, blocks: u64, bytes: usize) {
        self.at += blocks * bytes as u64;
        if self.at >= self.span_bytes {
            self.at %= self.span_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_harness::{Context, Settings, StepPlan, conformance, measure};
    use daqmeter_record::Workload;

    fn example() -> Workload {
        BlockRequest::example().workload()
    }

    #[test]
    fn it_keeps_the_contract() {
        conformance::run(&BlockRequest::example().job().unwrap());
    }

    fn run(workload: &Workload) -> daqmeter_record::RunRecord {
        measure(
            &BlockRequest::of(workload).unwrap().job().unwrap(),
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
        let workload =
            example().with("path", path.display().to_string()).with("block_bytes", 8192_u64);
        let record = run(&workload);
        assert!(record.outcome.is_ok(), "{:?}", record.outcome);
        assert!(
            record.ledgers[0].issued == record.ledgers[0].delivered
                && record.ledgers[0].issued >= 8 * 8192
        );
        let part = BlockRequest::of(&workload.clone().with("span_bytes", 10_000_u64)).unwrap();
        assert_eq!(BlockReader::open(&part).unwrap().span_bytes, 8192);
        let long = run(&workload.clone().with("block_bytes", 32_768_u64));
        assert!(long.lanes[0].outcome.reason().unwrap().contains("shorter than one block"));
        let nowhere = run(&workload.with("path", "/nonexistent"));
        assert!(nowhere.lanes[0].outcome.reason().unwrap().contains("No such file"));
    }

    #[test]
    fn blocks_that_no_device_takes_are_refused_and_the_disk_is_found() {
        let none = BlockRequest::of(&example().with("span_bytes", 4096_u64)).unwrap_err();
        assert!(none.to_string().contains("65536 to"), "{none}");
        let odd = example().with("cached", false).with("block_bytes", 100_u64);
        assert!(
            BlockRequest::of(&odd)
                .unwrap_err()
                .0
                .contains("multiples of 4096 are wanted unless cached")
        );
        let root = tempfile::tempdir().unwrap();
        for (name, size) in [("loop0", "8"), ("nvme0n1", "1000"), ("sda", "0")] {
            let folder = root.path().join("sys/block").join(name);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("size"), size).unwrap();
        }
        assert!(system_disk(&Files::below(root.path())).unwrap().ends_with("dev/nvme0n1"));
    }
}
