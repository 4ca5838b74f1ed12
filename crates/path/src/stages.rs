//! Stages: each calls the function of the engine that measures it by itself.

use daqmeter_digitizer::conversion::{ConversionRequest, convert};
use daqmeter_digitizer::function::Function;
use daqmeter_harness::Fault;
use daqmeter_kernels::convert::{Conversion, Converter, oracle};
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_readout::decode::decode;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::memory::Buffer;
use daqmeter_sys::wait::{sleep_until, without_timer_slack};
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::{BlockFormat, Subchunk};

use crate::added_work::Spin;
use crate::cancel::Cuts;
use crate::definition::StageKind;
use crate::element::{Inspect, StageWork, Transform, Work};
use crate::external;
use crate::sum::sum;
use crate::udp;
use crate::zenoh::zenoh;

/// Makes the work of one thread of a stage, for blocks of `bytes` bytes before it.
pub(crate) fn work(
    kind: &StageKind,
    in_bytes: usize,
    last_level_bytes: u64,
    cuts: &Cuts,
) -> Result<Work, Fault> {
    let transform = |work| Work::Stage(StageWork::Transform(work));
    let inspect = |work| Work::Stage(StageWork::Inspect(work));
    Ok(match kind {
        StageKind::Copy(kernel) => transform(Box::new(Copy(*kernel))),
        StageKind::Convert(function, request) => {
            let converter = converter(*function, request, in_bytes, last_level_bytes)?;
            transform(Box::new(Convert(converter)))
        }
        StageKind::Decode(format) => inspect(Box::new(Decode {
            format: *format,
            room: vec![Subchunk::default(); most_subchunks(*format)],
        })),
        StageKind::Checksum => inspect(Box::new(Checksum)),
        StageKind::Work { ns } => inspect(Box::new(Spin::of_ns(*ns))),
        StageKind::Wait { ns } => inspect(Box::new(Wait(*ns))),
        StageKind::Program { command, .. } => external::program(command, cuts)?,
        StageKind::Tcp { congestion, send } => external::tcp(congestion.as_deref(), *send, cuts)?,
        StageKind::Udp(way) => udp::udp(*way, cuts)?,
        StageKind::Unix => external::unix(cuts)?,
        StageKind::Zenoh(way) => zenoh(*way, in_bytes, cuts)?,
        StageKind::ToHost | StageKind::Publish(_) => return Err(of_card()),
    })
}

/// Parts of a card that is read out are made together: see `live.rs`.
pub(crate) fn of_card() -> Fault {
    Fault::new("a part of a card's read-out by itself: a bug in daqmeter")
}

fn converter(
    function: Function,
    request: &ConversionRequest,
    in_bytes: usize,
    last_level_bytes: u64,
) -> Result<Converter, Fault> {
    let made = request.converter(function, in_bytes / 2, last_level_bytes)?;
    made.ok_or_else(|| Fault::new("this function converts nothing"))
}

struct Copy(CopyKernel);

impl Transform for Copy {
    fn transform(&mut self, from: &Buffer, bytes: usize, to: &mut Buffer) -> Result<usize, Fault> {
        self.0.copy(from.slice(bytes), to.slice_mut(bytes));
        Ok(bytes)
    }

    fn reference(&self, from: &[u8]) -> Vec<u8> {
        from.to_vec()
    }
}

struct Convert(Converter);

impl Transform for Convert {
    fn transform(&mut self, from: &Buffer, bytes: usize, to: &mut Buffer) -> Result<usize, Fault> {
        Ok(convert(&self.0, from.slice::<u16>(bytes / 2), to))
    }

    /// By the oracle, one sample at a time.
    fn reference(&self, from: &[u8]) -> Vec<u8> {
        let pairs = from.as_chunks::<2>().0.iter();
        let raw: Vec<u16> = pairs.map(|pair| u16::from_le_bytes(*pair)).collect();
        let conversion = self.0.conversion();
        let width = match conversion {
            Conversion::QmnF64(_) => 8,
            _ => 4,
        };
        let bits = oracle::bits(conversion, self.0.decimation(), &raw);
        bits.flat_map(|bits| bits.to_le_bytes().into_iter().take(width)).collect()
    }
}

struct Decode {
    format: BlockFormat,
    room: Vec<Subchunk>,
}

impl Inspect for Decode {
    fn inspect(&mut self, bytes: &[u8]) -> Result<u64, Fault> {
        decode(self.format, bytes, &mut self.room)
    }
}

struct Checksum;

impl Inspect for Checksum {
    fn inspect(&mut self, bytes: &[u8]) -> Result<u64, Fault> {
        std::hint::black_box(sum(bytes));
        Ok(0)
    }
}

impl Inspect for Spin {
    fn inspect(&mut self, _bytes: &[u8]) -> Result<u64, Fault> {
        self.work();
        Ok(0)
    }
}

struct Wait(u64);

impl Inspect for Wait {
    fn prepare(&mut self) {
        without_timer_slack();
    }

    fn inspect(&mut self, _bytes: &[u8]) -> Result<u64, Fault> {
        sleep_until(monotonic_ns() + self.0);
        Ok(0)
    }
}
