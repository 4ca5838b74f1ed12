//! Rows of threads of a path, as far as they are predicted. A part whose costs depend on a device
//! or on a program has none.

use daqmeter_record::path::{PathRun, PathThread};
use daqmeter_record::units::show_bytes;

use crate::definition::{Element, Path, cpu};
use crate::kinds::{SinkKind, SourceKind, StageKind};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathShape {
    pub line: String,
    pub block_bytes: u64,
    pub buffers: u64,
    /// Blocks due per second and stream; `None` if the source goes as fast as it can.
    pub rate_hz: Option<f64>,
    /// Rows from source to sink; the threads of the first are the streams.
    pub rows: Vec<ShapeRow>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShapeRow {
    pub name: String,
    /// Kind of work: the name under which a host's costs are found.
    pub work: String,
    pub threads: usize,
    /// CPUs that they are pinned to in turn; empty leaves them free.
    pub cpus: Vec<u32>,
    pub bytes: u64,
    /// Work of each block that the path itself asks for, in nanoseconds.
    pub added_ns: f64,
    pub asleep_ns: f64,
}

impl PathShape {
    pub fn total_hz(&self) -> Option<f64> {
        let streams = self.rows.first().map_or(1, |source| source.threads);
        self.rate_hz.map(|hz| hz * streams as f64)
    }

    pub fn threads(&self) -> usize {
        self.rows.iter().map(|row| row.threads).sum()
    }

    pub fn is_pinned(&self) -> bool {
        self.rows.iter().any(|row| !row.cpus.is_empty())
    }

    /// Share of a row's blocks that come from another CPU, or for the source go to one; `None` if
    /// that is left to the scheduler.
    pub(crate) fn apart(&self, at: usize) -> Option<f64> {
        let other = if at > 0 { at - 1 } else { 1 };
        let cpus = |row: &ShapeRow| -> Vec<u32> {
            (0..row.threads).filter_map(|at| cpu(&row.cpus, at)).collect()
        };
        let (own, other) = (cpus(&self.rows[at]), cpus(self.rows.get(other)?));
        let all = own.iter().flat_map(|cpu| other.iter().map(move |other| cpu != other));
        let (apart, all) = all.fold((0, 0), |(n, of), is| (n + u32::from(is), of + 1));
        (all > 0).then(|| f64::from(apart) / f64::from(all))
    }

    pub fn threads_of<'a>(&self, run: &'a PathRun) -> Vec<&'a [PathThread]> {
        let mut rest = &run.threads[..];
        let own = self.rows.iter().map(|row| {
            let (own, others) = rest.split_at(row.threads.min(rest.len()));
            rest = others;
            own
        });
        own.collect()
    }
}

/// Largest span of a source in memory that has the costs of the usual one: beyond it caches and
/// pages differ.
const MAX_SPAN_BYTES: usize = 64 << 20;

impl Path {
    /// Rows, rings and rates. The error names the part that cannot be predicted, and the reason.
    pub fn shape(&self) -> Result<PathShape, String> {
        let mut rows = vec![row(&self.source, source_work(&self.source.kind)?, self.block_bytes)];
        let mut bytes = self.source.out_bytes;
        for stage in &self.stages {
            let work = stage_work(&stage.kind).map_err(|why| format!("{}: {why}", stage.name))?;
            let own = row(stage, work, bytes);
            match &stage.kind {
                StageKind::Work { time } => rows.push(ShapeRow { added_ns: time.0 as f64, ..own }),
                StageKind::Wait { time } => rows.push(ShapeRow { asleep_ns: time.0 as f64, ..own }),
                kind if kind.has_two_ends() => rows.extend(two_ends(own, &stage.cpus)),
                _ => rows.push(own),
            }
            bytes = stage.out_bytes;
        }
        let work = sink_work(&self.sink.kind)?;
        rows.push(row(&self.sink, work, bytes));
        Ok(PathShape {
            line: self.line(),
            block_bytes: self.block_bytes as u64,
            buffers: self.buffers as u64,
            rate_hz: self.rate_hz,
            rows,
        })
    }
}

fn row<K>(element: &Element<K>, work: String, bytes: usize) -> ShapeRow {
    ShapeRow {
        name: element.name.clone(),
        work,
        threads: element.threads,
        cpus: element.cpus.clone(),
        bytes: bytes as u64,
        ..ShapeRow::default()
    }
}

/// Rows for a thread at each end, as the chain places them.
fn two_ends(row: ShapeRow, cpus: &[u32]) -> [ShapeRow; 2] {
    let end = |name: &str, at: usize| ShapeRow {
        name: format!("{} {name}", row.name),
        work: format!("{} {name}", row.work),
        cpus: cpu(cpus, at).into_iter().collect(),
        ..row.clone()
    };
    [end("out", 0), end("in", 1)]
}

/// Reason for which there is no profile of a card that is read out live.
const LIVE: &str = "a card that is read out live is in no profile: measure it";

fn source_work(kind: &SourceKind) -> Result<String, String> {
    let device =
        "its rate is that of a device, which no profile has: measure it with daqmeter path run";
    let span = match kind {
        SourceKind::Memory { span } | SourceKind::Felix { span, .. } => span.0,
        SourceKind::File { cached: true, .. } => return Ok("file".to_owned()),
        SourceKind::File { .. } => return Err(format!("source file: {device}")),
        SourceKind::Digitizer { .. } => return Err(format!("source digitizer: {device}")),
        SourceKind::Etherbone { .. } => return Err(format!("source etherbone: {device}")),
        SourceKind::Card { .. } => return Err(format!("source card: {LIVE}")),
    };
    match span <= MAX_SPAN_BYTES {
        true => Ok("memory".to_owned()),
        false => Err(format!(
            "source: its span is {}; up to {} is calibrated",
            show_bytes(span as u64),
            show_bytes(MAX_SPAN_BYTES as u64)
        )),
    }
}

fn stage_work(kind: &StageKind) -> Result<String, String> {
    Ok(match kind {
        StageKind::Copy { by } => format!("copy {}", by.name()),
        StageKind::Convert { function, request } => {
            let (_, decimation) = request.of(*function).expect("a conversion");
            if decimation.kept(1 << 20) != 1 << 20 {
                return Err("samples are left out, which is not calibrated".to_owned());
            }
            format!("convert {}", function.number())
        }
        StageKind::Decode { .. } => "decode".to_owned(),
        StageKind::Checksum {} => "checksum".to_owned(),
        StageKind::Work { .. } | StageKind::Wait { .. } => "work".to_owned(),
        StageKind::Tcp { .. } => "tcp".to_owned(),
        StageKind::Unix {} => "unix".to_owned(),
        StageKind::ToHost {} | StageKind::Zenoh {} => return Err(LIVE.to_owned()),
        StageKind::Program { .. } => {
            return Err("what a program costs is in no profile".to_owned());
        }
    })
}

fn sink_work(kind: &SinkKind) -> Result<String, String> {
    match kind {
        SinkKind::Read {} => Ok("read".to_owned()),
        SinkKind::Receiver {} => Err(LIVE.to_owned()),
        SinkKind::Tcp { to, .. } | SinkKind::Udp { to, .. } => Err(format!(
            "what the network to {to} carries is in no profile: measure it with daqmeter path run"
        )),
        SinkKind::File { direct: false, .. } => Ok("write".to_owned()),
        SinkKind::File { .. } => {
            Err("sink file: past the page cache its rate is that of a device, which no profile has"
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Result<PathShape, String> {
        Path::parse(text, "x.toml").unwrap().shape()
    }

    #[test]
    fn a_path_is_rows_of_threads_with_the_bytes_that_come_to_them() {
        let head =
            "title = \"x\"\nblock = \"64KiB\"\nrate = \"100Hz\"\n[source]\nkind = \"memory\"\n";
        let stages = "[[stage]]\nkind = \"convert\"\nfunction = 3\nthreads = 2\n[[stage]]\nkind = \"unix\"\n[[stage]]\nkind = \"work\"\ntime = \"5us\"\n";
        let shape = shape(&format!("{head}{stages}[sink]\nkind = \"read\"\n")).unwrap();
        let rows: Vec<(&str, usize, u64)> =
            shape.rows.iter().map(|row| (row.work.as_str(), row.threads, row.bytes)).collect();
        let wanted = [
            ("memory", 1, 65_536),
            ("convert 3", 2, 65_536),
            ("unix out", 1, 131_072),
            ("unix in", 1, 131_072),
            ("work", 1, 131_072),
            ("read", 1, 131_072),
        ];
        assert_eq!(rows, wanted);
        assert_eq!(shape.rows[4].added_ns, 5000.0);
        assert_eq!((shape.threads(), shape.total_hz()), (7, Some(100.0)));
    }

    #[test]
    fn parts_whose_cost_depends_on_a_device_or_program_are_refused() {
        let sources =
            ["kind = \"digitizer\"\ndevices = [\"emu:l0\"]", "kind = \"memory\"\nspan = \"1GiB\""];
        let program = "[[stage]]\nkind = \"program\"\ncommand = [\"cat\"]\n";
        let cases = [
            (sources[0], "", "device"),
            (sources[1], "", "span is 1 GiB"),
            ("kind = \"memory\"", program, "program"),
        ];
        for (source, stage, wanted) in cases {
            let text = format!(
                "title = \"x\"\nblock = \"64KiB\"\n[source]\n{source}\n{stage}[sink]\nkind = \"read\"\n"
            );
            let error = shape(&text).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
