//! Elements of paths. Each kind has a file: fields of its table, rules, text, what its work needs,
//! and what makes it. A new one is its file, and a line in [`SOURCES`], [`STAGES`] or [`SINKS`].

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
mod tcp;
mod tcp_sink;
pub(crate) mod to_host;
mod udp_sink;
mod unix;
mod wait;
mod work;
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
    work::Worked::TYPE,
    wait::Waited::TYPE,
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
    tcp_sink::TcpReceiver::TYPE,
    udp_sink::UdpReceiver::TYPE,
];
