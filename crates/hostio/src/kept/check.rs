//! Compares a kept run with its index, and the index with itself.

use std::fs;
use std::io::Read;
use std::path::Path;

use daqmeter_harness::Fault;
use daqmeter_record::units::plural;
use daqmeter_sys::host::open_regular;

use crate::kept::{KeptBlock, KeptReader, KeptRun};
use crate::sum::sum;

/// Faults and gaps that are listed.
const MAX_LISTED: usize = 20;

/// Blocks of one stream.
#[derive(Clone, Debug, Default)]
pub struct StreamChecked {
    pub blocks: u64,
    pub bytes: u64,
    /// Numbers of the first and the last block; `None` without blocks.
    pub numbers: Option<(u64, u64)>,
    /// Times of both, in nanoseconds since 1970.
    pub times_ns: (u64, u64),
    /// Numbers that are missing between them, and the first ranges of them.
    pub missing: u64,
    pub gaps: Vec<(u64, u64)>,
    /// Number of the last block up to which all are there and as they were written.
    pub intact: Option<u64>,
    is_broken: bool,
    harmed: Option<Harmed>,
    /// File of the last block, its end there, and the number of blocks in it.
    last: (u32, u64, u64),
}

/// Blocks in a row that have the same fault.
#[derive(Clone, Debug)]
struct Harmed {
    what: String,
    first: KeptBlock,
    last: KeptBlock,
    /// Place of its sentence in the list of faults.
    at: usize,
}

/// Result of a check.
#[derive(Clone, Debug, Default)]
pub struct KeptChecked {
    /// Blocks whose bytes were compared.
    pub blocks: u64,
    pub streams: Vec<StreamChecked>,
    /// Places of what is wrong, and the number of those that are not listed.
    pub faults: Vec<String>,
    pub more_faults: u64,
    /// True if the user ended it.
    pub is_cut: bool,
}

#[derive(Debug)]
pub struct KeptCheck {
    pub reader: KeptReader,
    found: KeptChecked,
    bytes: Vec<u8>,
    /// Blocks that were compared before.
    known: u64,
}

impl KeptChecked {
    fn fault(&mut self, fault: impl Into<String>) {
        if self.faults.len() < MAX_LISTED {
            self.faults.push(fault.into());
        } else {
            self.more_faults += 1;
        }
    }

    /// True if each block is as it was written and none is missing.
    pub fn is_complete(&self) -> bool {
        !self.is_cut && self.faults.is_empty() && self.streams.iter().all(|one| one.missing == 0)
    }
}

impl KeptCheck {
    /// Opens a folder.
    ///
    /// # Errors
    /// When it holds no kept run.
    pub fn open(folder: &Path) -> Result<KeptCheck, Fault> {
        KeptCheck::of(folder, &KeptRun::read(folder)?)
    }

    pub(super) fn of(folder: &Path, run: &KeptRun) -> Result<KeptCheck, Fault> {
        let reader = KeptReader::of(folder, run)?;
        let bytes = vec![0; run.block_bytes];
        let streams = run.streams.iter().map(|_| StreamChecked::default()).collect();
        let found = KeptChecked { streams, ..KeptChecked::default() };
        Ok(KeptCheck { reader, found, bytes, known: 0 })
    }

    /// Does not read the first blocks, which were compared before.
    pub fn skip(&mut self, blocks: u64) {
        self.known = blocks;
    }

    /// Compares blocks up to the entry with that number. Returns how many it compared.
    ///
    /// # Errors
    /// The first fault.
    pub fn until(&mut self, entry: u64) -> Result<u64, Fault> {
        self.reader.close();
        let before = self.found.blocks;
        while self.reader.at < entry && self.one() {}
        let first = self.found.faults.first();
        first.map_or(Ok(self.found.blocks - before), |fault| Err(Fault::new(fault.clone())))
    }

    /// Compares all that is left, until `stop` says so. Then the ends of the files are compared,
    /// and what the recorder said.
    ///
    /// # Errors
    /// The index is gone.
    pub fn all(mut self, stop: &dyn Fn() -> bool) -> Result<KeptChecked, Fault> {
        while !stop() {
            if !self.one() {
                self.ends()?;
                return Ok(self.found);
            }
        }
        self.found.is_cut = true;
        Ok(self.found)
    }

    /// Compares the next block; false at the end.
    fn one(&mut self) -> bool {
        let block = match self.reader.next_block() {
            Ok(Some(block)) => block,
            Ok(None) => return false,
            Err(fault) => {
                self.found.fault(fault.0);
                return false;
            }
        };
        self.place(&block);
        if self.reader.at <= self.known {
            return true;
        }
        let bytes = &mut self.bytes[..block.bytes as usize];
        let read = self.reader.bytes_of(&block, bytes);
        let is_same = |()| match sum(bytes) == block.sum {
            true => Ok(()),
            false => Err("is not as it was written".to_owned()),
        };
        match read.and_then(is_same) {
            Err(what) => self.harm(block, what),
            Ok(()) => {
                let own = &mut self.found.streams[block.stream as usize];
                own.intact = if own.is_broken { own.intact } else { Some(block.number) };
            }
        }
        self.found.blocks += 1;
        true
    }

    /// Adds the fault of a block: blocks in a row have one sentence.
    fn harm(&mut self, block: KeptBlock, what: String) {
        let own = &mut self.found.streams[block.stream as usize];
        own.is_broken = true;
        let follows = |before: &Harmed| {
            let KeptBlock { number, file, .. } = before.last;
            before.what == what && file == block.file && number.checked_add(1) == Some(block.number)
        };
        let (is_new, at) = (!own.harmed.as_ref().is_some_and(follows), self.found.faults.len());
        let harmed = match own.harmed.take().filter(|_| !is_new) {
            Some(before) => Harmed { last: block, ..before },
            None => Harmed { what, first: block, last: block, at },
        };
        let (first, offset, last) = (harmed.first.number, harmed.first.offset, block.number);
        let (path, what) = (self.reader.path(&block), &harmed.what);
        let path = path.display();
        let text = match first == last {
            true => format!("{path}: block {first} at byte {offset} {what}"),
            false => format!("{path}: block {first} at byte {offset} {what}, and all up to {last}"),
        };
        let at = harmed.at;
        self.found.streams[block.stream as usize].harmed = Some(harmed);
        match self.found.faults.get_mut(at) {
            Some(fault) => *fault = text,
            None if is_new => self.found.fault(text),
            None => {}
        }
    }

    /// Compares the place and the number of a block with those of the one before it.
    fn place(&mut self, block: &KeptBlock) {
        let header = self.reader.run.streams[block.stream as usize].header_bytes();
        let own = &mut self.found.streams[block.stream as usize];
        let KeptBlock { number, offset, file, time_ns, .. } = *block;
        let (last_file, end, blocks) = own.last;
        let is_next = own.numbers.is_none()
            || (file == last_file && offset == end)
            || (Some(file) == last_file.checked_add(1) && offset == header);
        let before = own.numbers.map_or(number.checked_sub(1), |(_, last)| Some(last));
        let gap = before.map_or(0..0, |before| before + 1..number);
        let is_later = own.numbers.is_none_or(|(_, last)| number > last);
        own.is_broken |= !is_next || !is_later || !gap.is_empty();
        if !gap.is_empty() {
            own.missing = own.missing.saturating_add(gap.end - gap.start);
            if own.gaps.len() < MAX_LISTED {
                own.gaps.push((gap.start, gap.end - 1));
            }
        }
        own.times_ns.0 = own.numbers.map_or(time_ns, |_| own.times_ns.0);
        own.times_ns.1 = time_ns;
        own.numbers = Some((own.numbers.map_or(number, |(first, _)| first), number));
        own.last =
            (file, offset + u64::from(block.bytes), if file == last_file { blocks + 1 } else { 1 });
        own.blocks += 1;
        own.bytes += u64::from(block.bytes);
        if file != last_file && before.is_some() {
            self.file_end(block.stream as usize, (last_file, end, blocks));
        }
        let path = self.reader.path(block);
        if !is_next {
            self.found.fault(format!(
                "{}: block {number} does not follow the one before it",
                path.display()
            ));
        }
        if !is_later {
            self.found.fault(format!("{}: block {number} came after a later one", path.display()));
        }
    }

    /// Compares the length and the header of a file that has ended with its blocks.
    fn file_end(&mut self, stream: usize, (file, end, blocks): (u32, u64, u64)) {
        let stream = &self.reader.run.streams[stream];
        let (path, header) = (stream.path(self.reader.folder(), file), stream.header(blocks));
        let (shown, mut found) = (path.display(), vec![0; header.len()]);
        let bytes = fs::metadata(&path).map_or(0, |file| file.len());
        if bytes != end {
            let fault = format!("{shown}: has {bytes} bytes, and its last block ends at {end}");
            self.found.fault(fault);
        }
        let has_header = open_regular(&path)
            .is_ok_and(|mut file| file.read_exact(&mut found).is_ok() && found == header);
        if !has_header {
            let blocks = plural(blocks, "block");
            self.found.fault(format!("{shown}: its header does not say {blocks}"));
        }
    }

    /// Compares what lies behind the last blocks.
    fn ends(&mut self) -> Result<(), Fault> {
        let (_, cut) = self.reader.entries()?;
        let mut faults = Vec::new();
        if cut > 0 {
            faults.push(format!("the index ends within an entry, of which {cut} bytes are there"));
        }
        let end = &self.reader.run.end;
        match end {
            None => {
                faults.push("the recorder did not end: it was killed, or still runs".to_owned())
            }
            Some(end) => {
                let has = self.reader.at;
                faults.extend(end.fault.clone());
                if end.blocks != has {
                    let (said, has) = (plural(end.blocks, "block"), plural(has, "block"));
                    faults.push(format!("the recorder wrote {said}, and the index has {has}"));
                }
            }
        }
        let ended = end.is_some() && cut == 0;
        faults.into_iter().for_each(|fault| self.found.fault(fault));
        // Of one that still grows, or was cut, the length is not known.
        for stream in 0..if ended { self.found.streams.len() } else { 0 } {
            let own = &self.found.streams[stream];
            if own.numbers.is_some() {
                self.file_end(stream, own.last);
            }
        }
        Ok(())
    }
}
