//! Source `file`: a block device or a file, read in order, or a kept run, at its own times.

use std::path::Path;

use daqmeter_harness::{Fault, Request};
use daqmeter_hostio::kept::{KeptBlock, KeptReader, KeptRun, KeptStream};
use daqmeter_hostio::{BlockReader, BlockRequest};
use serde::Deserialize;
use toml::Table;

use crate::definition::flow::{Flow, Numbers, Place, SAMPLES, unless, wrong};
use crate::definition::kind::{Facts, Named, SourceElement};
use crate::definition::layout::MAX_THREADS;
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

/// Type of raw samples of a kept run.
const RAW: &str = "<u2";

impl Replayed {
    /// Checks the blocks of a kept run. Its streams are those of the path.
    fn check_kept(&self, flow: &mut Flow) -> Result<Facts, Fault> {
        let reader = KeptReader::open(Path::new(&self.path))?;
        let KeptRun { block_bytes, streams, .. } = &reader.run;
        let problem = format_args!(
            "the blocks of {} have {block_bytes} bytes: write block = {block_bytes}",
            self.path
        );
        unless(*block_bytes == flow.bytes, "path", problem)?;
        unless(streams.len() <= MAX_THREADS, "path", "has too many streams")?;
        if let Some(first) = streams.first().filter(|one| one.dtype.as_deref() == Some(RAW)) {
            flow.unit = SAMPLES;
            flow.numbers = Some(Numbers { dtype: RAW, shape: first.shape.clone() });
        }
        Ok(Facts {
            is_outside: true,
            is_timed: true,
            may_change: true,
            boards: streams.iter().map(|stream| stream.name.clone()).collect(),
            ..Facts::of(format!("kept run {}", self.path))
        })
    }

    fn is_kept(&self) -> bool {
        Path::new(&self.path).is_dir()
    }
}

/// Bytes of a block of the kept run that the table of a source names; `None` if it names none.
pub(crate) fn kept_block_bytes(source: &Table) -> Option<usize> {
    let (kind, path) = (source.get("kind")?.as_str()?, source.get("path")?.as_str()?);
    let run = KeptRun::read(Path::new(path));
    run.ok().filter(|_| kind == "file").map(|run| run.block_bytes)
}

impl SourceElement for Replayed {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        if self.is_kept() {
            return self.check_kept(flow);
        }
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
        if !self.is_kept() {
            return Ok(vec![(name.to_owned(), Box::new(Replay::new(self.request(block_bytes))?))]);
        }
        let folder = Path::new(&self.path);
        let streams = KeptReader::open(folder)?.run.streams;
        // All streams have one begin.
        let begin_ns = KeptReader::open(folder)?.next_block()?.map_or(0, |block| block.time_ns);
        let source = |(at, stream): (usize, KeptStream)| -> Result<Named, Fault> {
            let source = KeptStreamSource::new(folder, at, begin_ns)?;
            Ok((stream.name, Box::new(source)))
        };
        streams.into_iter().enumerate().map(source).collect()
    }
}

/// Blocks of one stream of a kept run.
#[repr(align(128))]
struct KeptStreamSource {
    reader: KeptReader,
    stream: usize,
    /// Time of the first block of the run.
    begin_ns: u64,
    /// The block to come; `None` at the end.
    next: Option<KeptBlock>,
    given: usize,
}

impl KeptStreamSource {
    fn new(folder: &Path, stream: usize, begin_ns: u64) -> Result<KeptStreamSource, Fault> {
        let reader = KeptReader::open(folder)?;
        let mut source = KeptStreamSource { reader, stream, begin_ns, next: None, given: 0 };
        source.advance()?;
        Ok(source)
    }

    fn advance(&mut self) -> Result<(), Fault> {
        self.next = self.reader.next_block()?;
        while self.next.is_some_and(|block| block.stream as usize != self.stream) {
            self.next = self.reader.next_block()?;
        }
        Ok(())
    }
}

impl Source for KeptStreamSource {
    fn is_over(&self) -> bool {
        self.next.is_none()
    }

    fn due_after_ns(&self) -> Option<u64> {
        Some(self.next?.time_ns.saturating_sub(self.begin_ns))
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<Filled, Fault> {
        let block = self.next.ok_or_else(|| Fault::new("the kept run is over"))?;
        let path = self.reader.path(&block);
        if block.bytes as usize != into.len() {
            let (path, bytes) = (path.display(), block.bytes);
            return Err(Fault::new(format!(
                "{path}: block {} has {bytes} bytes: a run of unequal blocks cannot be a source",
                block.number
            )));
        }
        self.reader.read(&block, into)?;
        self.advance()?;
        self.given += 1;
        let key = Some(self.given - 1).filter(|key| *key < most_keys(into.len()));
        let (events, number) = (u64::from(block.events), Some(block.number));
        Ok(Filled { events, key, number, ..Filled::default() })
    }

    fn contents(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        let mut blocks = Vec::new();
        let mut reader = KeptReader::open(self.reader.folder())?;
        while let Some(block) =
            reader.next_block()?.filter(|_| blocks.len() < most_keys(self.reader.run.block_bytes))
        {
            if block.stream as usize == self.stream {
                let mut bytes = vec![0; block.bytes as usize];
                reader.read(&block, &mut bytes)?;
                blocks.push(bytes);
            }
        }
        Ok(blocks)
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
