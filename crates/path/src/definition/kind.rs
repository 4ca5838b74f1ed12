//! Interfaces of the kinds of elements, and the reader of each kind's table.

use std::fmt::Debug;
use std::sync::Arc;

use daqmeter_harness::{Fault, LimitSpec, did_you_mean};
use daqmeter_record::path::PathLink;
use toml::Table;

use crate::cancel::Cuts;
use crate::definition::flow::{Flow, Place};
use crate::element::{Ends, Sink, Source, Work};
use crate::external::Connected;

/// An element with its properties, or what is wrong with it.
type Checked<T> = Result<(Arc<T>, Facts), Fault>;

/// Name of a kind of element, and its reader: the fields of its table, and the blocks that come to
/// it. The reader changes the blocks to those that it gives.
pub(crate) struct ElementType<T: ?Sized> {
    pub(crate) name: &'static str,
    pub(crate) read: fn(Table, &Place, &mut Flow) -> Checked<T>,
}

impl<T: ?Sized> ElementType<T> {
    /// Finds a kind by its name.
    pub(crate) fn find(types: &'static [Self], kind: &str) -> Result<&'static Self, Fault> {
        types.iter().find(|one| one.name == kind).ok_or_else(|| {
            let names: Vec<&str> = types.iter().map(|one| one.name).collect();
            let (expected, hint) = (names.join("`, `"), did_you_mean(kind, &names));
            let problem = format!("unknown variant `{kind}`, expected one of `{expected}`{hint}");
            Fault::new(format!("kind: {problem}"))
        })
    }
}

/// Fault of a part that is only made together with others.
pub(crate) fn alone(part: &str) -> Fault {
    Fault::new(format!("{part} by itself: a bug in daqmeter"))
}

/// Source by its name: boards have one each.
pub(crate) type Named = (String, Box<dyn Source>);

/// Properties of an element in its place, for layouts, links, limits and prose.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) text: String,
    /// Digest of the file that it names; empty without one, or if it ships.
    pub(crate) digest: String,
    pub(crate) is_emulated: bool,
    /// True if a short run before the measured one would be seen outside of this program.
    pub(crate) is_outside: bool,
    /// Devices, or files and folders on them, whose links the blocks cross.
    pub(crate) devices: Vec<String>,
    /// Boards of a source, each of which is a stream; empty if it has one stream.
    pub(crate) boards: Vec<String>,
    /// True if a source's blocks have times of their own.
    pub(crate) is_timed: bool,
    /// True if a source's blocks may be others in the next run.
    pub(crate) may_change: bool,
    /// Bytes of memory that a source makes blocks from.
    pub(crate) span_bytes: usize,
    /// Plain work on as many bytes, which is the limit of its work on a block.
    pub(crate) limit: Option<LimitSpec>,
    /// Link of an emulated crate that a source's blocks cross.
    pub(crate) uplink: Option<PathLink>,
    /// Seconds for which a source, or a sink that confirms, may wait at its end.
    pub(crate) last_wait_s: f64,
    /// True if bytes leave this program for a stage, so that it has a thread at each end.
    pub(crate) has_two_ends: bool,
    /// True if it sends to this program through the network.
    pub(crate) is_on_loopback: bool,
    /// True if the threads of a stage do nothing else.
    pub(crate) is_program: bool,
    /// True if a stage alone knows what it makes of a block.
    pub(crate) is_unknown: bool,
    /// Address of a sink's receiver on another host.
    pub(crate) to: Option<String>,
    /// True if a sink may lose blocks at any rate.
    pub(crate) may_lose: bool,
    /// Threads of receivers of a card, if the sink says how many.
    pub(crate) receivers: Option<usize>,
}

impl Facts {
    pub(crate) fn of(text: impl Into<String>) -> Facts {
        Facts { text: text.into(), ..Facts::default() }
    }

    pub(crate) fn is_networked(&self) -> bool {
        self.to.is_some() || self.is_on_loopback
    }

    /// Adds the limit of work that reads that many bytes, and for each `stride_bytes` of them
    /// writes `out_bytes`.
    pub(crate) fn beside_memory(self, bytes: usize, stride_bytes: u64, out_bytes: u64) -> Facts {
        let limit = Some(LimitSpec::memory(bytes as u64, stride_bytes, out_bytes));
        Facts { limit, ..self }
    }
}

/// An element is checked where it stands: its fields, and the blocks that come, which become those
/// that it gives.
pub(crate) trait SourceElement: Debug + Send + Sync {
    fn check(&mut self, place: &Place, flow: &mut Flow) -> Result<Facts, Fault>;

    /// Makes its sources. A card has none: its parts are made together (`readout/card.rs`).
    fn sources(&self, name: &str, _block_bytes: usize) -> Result<Vec<Named>, Fault> {
        Err(alone(name))
    }
}

pub(crate) trait StageElement: Debug + Send + Sync {
    fn check(&mut self, place: &Place, flow: &mut Flow) -> Result<Facts, Fault>;

    /// Makes its work on blocks of that many bytes in one thread.
    fn work(&self, _in_bytes: usize, _last_level_bytes: u64) -> Result<Work, Fault> {
        Err(alone("a stage without work"))
    }

    /// Makes both ends of a stage that has two.
    fn ends(&self, cuts: &Cuts) -> Result<Ends, Fault> {
        Ok(self.connection(cuts)?.in_two_threads())
    }

    /// Makes the connection of a stage that one thread can send and receive by.
    fn connection(&self, _cuts: &Cuts) -> Result<Connected, Fault> {
        Err(alone("a stage without a connection"))
    }
}

pub(crate) trait SinkElement: Debug + Send + Sync {
    fn check(&mut self, place: &Place, flow: &mut Flow) -> Result<Facts, Fault>;

    fn sink(&self, _block_bytes: usize, _cuts: &Cuts) -> Result<Box<dyn Sink>, Fault> {
        Err(alone("a card's receiver"))
    }

    /// Tests what must hold before a run, such as a name that is free.
    fn ready(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Returns it as one that leaves nothing behind; `None` if it leaves nothing anyway.
    fn trial(&self) -> Option<Arc<dyn SinkElement>> {
        None
    }
}
