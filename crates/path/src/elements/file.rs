//! Source `file`: a block device or a file, read in order.

use daqmeter_harness::{Fault, Request};
use daqmeter_hostio::{BlockReader, BlockRequest};
use serde::Deserialize;

use crate::definition::flow::{Flow, Place, wrong};
use crate::definition::kind::{Facts, Named, SourceElement};
use crate::element::{Filled, Source, most_keys};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Replayed {
    path: String,
    #[serde(default)]
    cached: bool,
}

impl Replayed {
    fn request(&self, block_bytes: usize) -> BlockRequest {
        let Replayed { path, cached } = self;
        BlockRequest { path: path.clone(), block_bytes, cached: *cached, span_bytes: None }
    }
}

impl SourceElement for Replayed {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        let checked = self.request(flow.bytes).check();
        checked.or_else(|problem| wrong("kind", format!("block {}", problem.text)))?;
        let Replayed { path, cached } = &*self;
        let (how, devices) = match cached {
            true => ("page cache", Vec::new()),
            false => ("direct", vec![path.clone()]),
        };
        Ok(Facts { devices, may_change: true, ..Facts::of(format!("file {path}, {how}")) })
    }

    fn sources(&self, name: &str, block_bytes: usize) -> Result<Vec<Named>, Fault> {
        Ok(vec![(name.to_owned(), Box::new(Replay::new(self.request(block_bytes))?))])
    }
}

#[repr(align(128))]
struct Replay {
    request: BlockRequest,
    reader: BlockReader,
    /// Blocks of a run, those of others after it, and those that are left of it.
    run: u64,
    others: u64,
    left: u64,
}

impl Replay {
    fn new(request: BlockRequest) -> Result<Replay, Fault> {
        let reader = BlockReader::open(&request)?;
        Ok(Replay { request, reader, run: 1, others: 0, left: 1 })
    }
}

impl Source for Replay {
    fn fill(&mut self, into: &mut [u8]) -> Result<Filled, Fault> {
        let key = self.reader.at / self.request.block_bytes as u64;
        self.reader.read(into)?;
        self.left -= 1;
        if self.left == 0 {
            self.left = self.run;
            self.reader.skip(self.others, into.len());
        }
        let key = usize::try_from(key).ok().filter(|key| *key < most_keys(into.len()));
        Ok(Filled { key, ..Filled::default() })
    }

    /// Read through the page cache, by another way than the run's where that is direct.
    fn contents(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        let request = BlockRequest { cached: true, ..self.request.clone() };
        let mut reader = BlockReader::open(&request)?;
        let bytes = self.request.block_bytes as u64;
        let span = reader.span_bytes.min(self.reader.span_bytes);
        let most = most_keys(self.request.block_bytes) as u64;
        let blocks = (span / bytes).min(most);
        let block = |_| {
            let mut block = vec![0; self.request.block_bytes];
            reader.read(&mut block)?;
            Ok(block)
        };
        (0..blocks).map(block).collect()
    }

    fn divided(&self, workers: usize, run: usize) -> Result<Option<Vec<Box<dyn Source>>>, Fault> {
        let part = |at| -> Result<Box<dyn Source>, Fault> {
            let mut part = Replay::new(self.request.clone())?;
            (part.run, part.left) = (run as u64, run as u64);
            part.others = (workers as u64 - 1) * part.run;
            part.reader.skip(at * part.run, self.request.block_bytes);
            Ok(Box::new(part))
        };
        (0..workers as u64).map(part).collect::<Result<_, Fault>>().map(Some)
    }
}
