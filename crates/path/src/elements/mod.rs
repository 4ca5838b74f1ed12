//! Elements of paths. Each kind has a file, or shares one with its like: fields of its table,
//! rules, text, what its work needs, and what makes it. A new one is its file, and a line in
//! [`SOURCES`], [`STAGES`] or [`SINKS`].

pub(crate) mod card;
mod checksum;
mod convert;
mod copy;
mod decode;
mod digitizer;
mod drop;
mod etherbone;
mod felix;
pub(crate) mod file;
pub(crate) mod memory;
mod program;
mod read;
pub(crate) mod receiver;
mod remote;
mod stand_in;
mod tcp;
pub(crate) mod to_host;
mod unix;
pub(crate) mod written;

use std::sync::Arc;

pub(crate) use tcp::Tcp;

use crate::definition::flow::fields;
use crate::definition::kind::{ElementType, SinkElement, SourceElement, StageElement};

/// Makes a list of kinds: each name, and the type that its table is read as and checked.
macro_rules! kinds {
    ($list:ident: $element:ident, $($name:literal => $kind:ty,)*) => {
        pub(crate) const $list: &[ElementType<dyn $element>] = &[$(ElementType {
            name: $name,
            read: |table, place, flow| {
                let mut own: $kind = fields(table.into())?;
                flow.takes_kind($name)?;
                let facts = own.check(place, flow)?;
                Ok((Arc::new(own), facts))
            },
        }),*];
    };
}

kinds! {
    SOURCES: SourceElement,
    "memory" => memory::Memory,
    "file" => file::Replayed,
    "digitizer" => digitizer::Digitizer,
    "etherbone" => etherbone::Registers,
    "felix" => felix::Felix,
    "card" => card::Card,
}

kinds! {
    STAGES: StageElement,
    "copy" => copy::Copied,
    "convert" => convert::Converted,
    "decode" => decode::Decoded,
    "checksum" => checksum::Checksum,
    "work" => stand_in::StandIn<false>,
    "wait" => stand_in::StandIn<true>,
    "drop" => drop::Dropped,
    "program" => program::Program,
    "tcp" => tcp::Tcp,
    "unix" => unix::Unix,
    "to-host" => to_host::ToHostStage,
}

kinds! {
    SINKS: SinkElement,
    "read" => read::ReadOnce,
    "file" => written::Written,
    "receiver" => receiver::CardReceiver,
    "tcp" => remote::TcpReceiver,
    "udp" => remote::UdpReceiver,
}
