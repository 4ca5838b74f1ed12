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
mod file;
pub(crate) mod memory;
mod program;
mod read;
pub(crate) mod receiver;
mod remote;
mod stand_in;
mod tcp;
pub(crate) mod to_host;
mod unix;
mod written;

pub(crate) use tcp::Tcp;

use crate::definition::kind::{ElementType, SinkElement, SourceElement, StageElement};

pub(crate) const SOURCES: &[ElementType<dyn SourceElement>] = &[
    memory::Memory::TYPE,
    file::Replayed::TYPE,
    digitizer::Digitizer::TYPE,
    etherbone::Registers::TYPE,
    felix::Felix::TYPE,
    card::Card::TYPE,
];

pub(crate) const STAGES: &[ElementType<dyn StageElement>] = &[
    copy::Copied::TYPE,
    convert::Converted::TYPE,
    decode::Decoded::TYPE,
    checksum::Checksum::TYPE,
    stand_in::Worked::TYPE,
    stand_in::Waited::TYPE,
    drop::Dropped::TYPE,
    program::Program::TYPE,
    tcp::Tcp::TYPE,
    unix::Unix::TYPE,
    to_host::ToHostStage::TYPE,
];

pub(crate) const SINKS: &[ElementType<dyn SinkElement>] = &[
    read::ReadOnce::TYPE,
    written::Written::TYPE,
    receiver::CardReceiver::TYPE,
    remote::TcpReceiver::TYPE,
    remote::UdpReceiver::TYPE,
];
