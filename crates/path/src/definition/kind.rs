//! Interfaces of the kinds of elements, and the reader of each kind's table.

use std::fmt::Debug;
use std::sync::Arc;

use daqmeter_harness::{Fault, did_you_mean};
use daqmeter_record::path::PathLink;
use toml::Table;

use crate::cancel::Cuts;
use crate::definition::flow::{Flow, Place};
use crate::element::{Ends, Sink, Source, Work};
use crate::external::Connected;

/// Name of a kind of element, and its reader: the fields of its table, and the blocks that come to
/// it. The reader changes the blocks to those that it gives.
pub(crate) struct ElementType<T: ?Sized> {
    pub(crate) name: &'static str,
    pub(crate) read: fn(Table, &Place, &mut Flow) -> Result<Arc<T>, Fault>,
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

/// Makes the type of elements of a kind.
macro_rules! element_type {
    ($kind:ident, $name:literal, $element:ident) => {
        impl $kind {
            /// Checks it where it stands.
            pub(crate) fn checked(
                mut self,
                place: &crate::definition::flow::Place,
                flow: &mut crate::definition::flow::Flow,
            ) -> Result<
                std::sync::Arc<dyn crate::definition::kind::$element>,
                daqmeter_harness::Fault,
            > {
                crate::definition::kind::$element::check(&mut self, place, flow)?;
                Ok(std::sync::Arc::new(self))
            }

            pub(crate) const TYPE: crate::definition::kind::ElementType<
                dyn crate::definition::kind::$element,
            > = crate::definition::kind::ElementType {
                name: $name,
                read: |table, place, flow| {
                    crate::definition::flow::fields::<$kind>(table.into())?.checked(place, flow)
                },
            };
        }
    };
}
pub(crate) use element_type;

/// Fault of a part that is only made together with others.
pub(crate) fn alone(part: &str) -> Fault {
    Fault::new(format!("{part} by itself: a bug in daqmeter"))
}

/// Source by its name: boards have one each.
pub(crate) type Named = (String, Box<dyn Source>);

pub(crate) trait SourceElement: Debug + Send + Sync {
    /// Checks its fields, and says which blocks it gives. Those that come are of the path's size.
    fn check(&mut self, place: &Place, flow: &mut Flow) -> Result<(), Fault>;

    fn text(&self) -> String;

    /// Makes its sources. A card has none: its parts are made together (`readout/card.rs`).
    fn sources(&self, _name: &str, _block_bytes: usize) -> Result<Vec<Named>, Fault> {
        Err(alone(&self.text()))
    }

    /// Digest of the file that it names; empty without one, or if it ships.
    fn digest(&self) -> &str {
        ""
    }

    /// Boards, each of which is a stream; empty for a source of one stream.
    fn boards(&self) -> &[String] {
        &[]
    }

    fn is_emulated(&self) -> bool {
        false
    }

    /// True if a short run before the measured one is seen by nobody.
    fn may_be_tried(&self) -> bool {
        true
    }

    /// True if its blocks may be others in the next run.
    fn may_change(&self) -> bool {
        false
    }

    /// Bytes of memory that it makes blocks from.
    fn span_bytes(&self) -> usize {
        0
    }

    /// Devices, or a file on one, whose link the blocks cross.
    fn devices(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Link of an emulated crate that its blocks cross.
    fn uplink(&self, _block_bytes: f64) -> Option<PathLink> {
        None
    }

    /// Seconds for which it may wait at its end.
    fn last_wait_s(&self) -> f64 {
        0.0
    }
}

pub(crate) trait StageElement: Debug + Send + Sync {
    /// Checks its fields and the blocks that come, and says which it gives.
    fn check(&mut self, place: &Place, flow: &mut Flow) -> Result<(), Fault>;

    fn text(&self) -> String;

    /// Makes its work on blocks of that many bytes in one thread.
    fn work(&self, _in_bytes: usize, _last_level_bytes: u64) -> Result<Work, Fault> {
        Err(alone(&self.text()))
    }

    /// Digest of the file that it names; empty without one, or if it ships.
    fn digest(&self) -> &str {
        ""
    }

    /// True if bytes leave this program for it, so that it has a thread at each end.
    fn has_two_ends(&self) -> bool {
        false
    }

    /// Makes both ends of a stage that has two.
    fn ends(&self, cuts: &Cuts) -> Result<Ends, Fault> {
        Ok(self.connection(cuts)?.in_two_threads())
    }

    /// Makes the connection of a stage that one thread can send and receive by.
    fn connection(&self, _cuts: &Cuts) -> Result<Connected, Fault> {
        Err(alone(&self.text()))
    }

    /// True if its threads do nothing else, and if no short run before the measured one is made.
    fn is_program(&self) -> bool {
        false
    }

    /// True if it alone knows what it makes of a block.
    fn is_unknown(&self) -> bool {
        false
    }

    /// True if it works in threads that are not the path's.
    fn has_own_threads(&self) -> bool {
        false
    }
}

pub(crate) trait SinkElement: Debug + Send + Sync {
    /// Checks its fields and the blocks that come.
    fn check(&mut self, place: &Place, flow: &mut Flow) -> Result<(), Fault>;

    fn text(&self) -> String;

    fn sink(&self, _block_bytes: usize, _cuts: &Cuts) -> Result<Box<dyn Sink>, Fault> {
        Err(alone(&self.text()))
    }

    /// Address of a receiver on another host.
    fn to(&self) -> Option<&str> {
        None
    }

    /// True if it may lose blocks at any rate.
    fn may_lose(&self) -> bool {
        false
    }

    /// True if blocks end in it unseen, so that several threads may have one each.
    fn is_inside(&self) -> bool {
        false
    }

    /// Folder or device whose link the blocks cross.
    fn device(&self) -> Option<&str> {
        None
    }

    /// Threads of receivers of a card, if it says how many.
    fn receivers(&self) -> Option<usize> {
        None
    }
}
