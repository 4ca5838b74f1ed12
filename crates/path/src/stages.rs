//! Stages: each calls the function of the engine that measures it by itself.

use std::sync::mpsc::sync_channel;

use daqmeter_digitizer::conversion::convert;
use daqmeter_harness::Fault;
use daqmeter_kernels::convert::{Conversion, Converter, oracle};
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_readout::decode::decode;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::memory::Buffer;
use daqmeter_sys::wait::sleep_until;
use daqmeter_wire::felix::Subchunk;
use daqmeter_wire::felix::decoder::most_subchunks;

use crate::added_work::Spin;
use crate::cancel::Cuts;
use crate::element::{Transform, of_card};
use crate::external::{Connected, program, tcp, unix};
use crate::kinds::StageKind;
use crate::sum::sum;
use crate::worker::{Feed, Role};

/// Makes the work of a stage on blocks of that many bytes in one thread.
pub(crate) fn work(
    kind: &StageKind,
    in_bytes: usize,
    last_level_bytes: u64,
) -> Result<Role, Fault> {
    Ok(match kind {
        StageKind::Copy { by } => Role::Transform(Box::new(Copy(*by))),
        StageKind::Convert { function, request } => {
            let made = request.converter(*function, in_bytes / 2, last_level_bytes)?;
            let made = made.ok_or_else(|| Fault::new("this function converts nothing"))?;
            Role::Transform(Box::new(Convert(made)))
        }
        StageKind::Decode { format, .. } => {
            let format = format.ok_or_else(|| Fault::new("blocks without a format"))?;
            let mut room = vec![Subchunk::default(); most_subchunks(format)];
            Role::Inspect(Box::new(move |bytes| decode(format, bytes, &mut room)))
        }
        StageKind::Checksum {} => Role::Inspect(Box::new(|bytes| {
            std::hint::black_box(sum(bytes));
            Ok(0)
        })),
        StageKind::Work { time } => {
            let spin = Spin::of_ns(time.0 as f64);
            Role::Inspect(Box::new(move |_| {
                spin.work();
                Ok(0)
            }))
        }
        &StageKind::Wait { time } => Role::Inspect(Box::new(move |_| {
            sleep_until(monotonic_ns() + time.0);
            Ok(0)
        })),
        StageKind::Program { .. } | StageKind::Tcp { .. } | StageKind::Unix {} => {
            return Err(Fault::new("a stage with two ends in one thread: a bug in daqmeter"));
        }
        StageKind::ToHost {} | StageKind::Zenoh {} => return Err(of_card()),
    })
}

/// Makes a stage with two ends as a thread at each of them.
pub(crate) fn two_ends(kind: &StageKind, cuts: &Cuts) -> Result<(Role, Feed), Fault> {
    let (out, inward) = match kind {
        StageKind::Program { command, .. } => program(command, cuts)?,
        kind => connection(kind, cuts)?.in_two_threads(),
    };
    let (sender, labels) = sync_channel(LABELS);
    Ok((Role::Out(Some((out, sender))), Feed::Back(inward, labels)))
}

/// Makes both ends of a connection the work of one thread, which sends and receives by turns.
pub(crate) fn to_and_fro(kind: &StageKind, cuts: &Cuts) -> Result<Role, Fault> {
    Ok(Role::Transform(Box::new(connection(kind, cuts)?.in_one_thread()?)))
}

fn connection(kind: &StageKind, cuts: &Cuts) -> Result<Connected, Fault> {
    match kind {
        StageKind::Tcp { congestion } => tcp(congestion.as_deref(), cuts),
        _ => unix(cuts),
    }
}

/// Labels that wait while their blocks are away: more than a pipe or a socket holds in blocks of a
/// page.
const LABELS: usize = 1024;

struct Copy(CopyKernel);

impl Transform for Copy {
    fn transform(&mut self, from: &Buffer, bytes: usize, to: &mut Buffer) -> Result<usize, Fault> {
        self.0.copy(from.slice(bytes), to.slice_mut(bytes));
        Ok(bytes)
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
