//! Rows of threads of a path, as far as they are predicted. A part whose costs depend on a device
//! or on a program has none.

use daqmeter_record::path::{PathRun, PathThread};
use daqmeter_record::units::show_bytes;

use crate::definition::{Element, Path, cpu};
use crate::kinds::{SinkKind, SourceKind, StageKind};
use crate::layout::{Group, Layout};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathShape {
    pub line: String,
    pub layout: String,
    pub block_bytes: u64,
    pub buffers: u64,
    /// Blocks due per second and stream; `None` if the source goes as fast as it can.
    pub rate_hz: Option<f64>,
    pub streams: usize,
    /// Rows of threads that do the same, from source to sink.
    pub rows: Vec<ShapeRow>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShapeRow {
    pub name: String,
    /// What a thread does with a block, one after the other.
    pub works: Vec<Work>,
    pub threads: usize,
    /// CPUs that they are pinned to in turn; empty leaves them free.
    pub cpus: Vec<u32>,
    /// Work of each block that the path itself asks for, in nanoseconds.
    pub added_ns: f64,
    pub asleep_ns: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// Name under which a host's costs are found.
    pub name: String,
    pub bytes: u64,
    /// True if nothing of the block is handed over from or to another thread.
    pub is_fused: bool,
}

impl PathShape {
    pub fn total_hz(&self) -> Option<f64> {
        self.rate_hz.map(|hz| hz * self.streams as f64)
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
    /// Rows, rings and rates in the path's own layout, or as a pipeline if that is `auto`. The
    /// error names the part that cannot be predicted, and the reason.
    pub fn shape(&self) -> Result<PathShape, String> {
        self.shape_in(&self.layout, &[])
    }

    /// The same in each layout that is tried on a host with these CPUs; only the path's own one if
    /// it says which, or cannot be tried.
    pub fn shapes(&self, cpus: &[u32]) -> Result<Vec<PathShape>, String> {
        if self.layout != Layout::Auto || !self.may_be_tried() {
            return Ok(vec![self.shape()?]);
        }
        let candidates = self.candidates(cpus, cpus.len(), false).into_iter();
        candidates.map(|one| self.shape_in(&one.layout, &one.cpus)).collect()
    }

    fn shape_in(&self, layout: &Layout, cpus: &[u32]) -> Result<PathShape, String> {
        let layout = if *layout == Layout::Auto { &Layout::Pipeline } else { layout };
        let (mut rows, mut bytes) = (Vec::new(), self.block_bytes as u64);
        for Group { elements, workers } in self.groups(layout)? {
            let mut row = ShapeRow {
                name: self.part(&elements, None),
                threads: workers,
                cpus: elements
                    .clone()
                    .map(|at| self.cpus(at))
                    .find(|own| !own.is_empty())
                    .unwrap_or(cpus)
                    .to_vec(),
                ..ShapeRow::default()
            };
            for element in elements.clone() {
                let name = self.work_name(element)?;
                // A block comes from a ring to the first part, and goes to one from a source.
                let is_fused = elements.len() > 1 && (element > elements.start || element == 0);
                row.works.push(Work { name, bytes, is_fused });
                if let Some(stage) = self.stage(element) {
                    match stage.kind {
                        StageKind::Work { time } => row.added_ns += time.0 as f64,
                        StageKind::Wait { time } => row.asleep_ns += time.0 as f64,
                        _ => {}
                    }
                    bytes = stage.out_bytes as u64;
                }
            }
            match self
                .stage(elements.start)
                .filter(|stage| elements.len() == 1 && stage.kind.has_two_ends())
            {
                Some(_) => rows.extend(two_ends(&row)),
                None => rows.push(row),
            }
        }
        Ok(PathShape {
            line: self.line(),
            layout: layout.to_string(),
            block_bytes: self.block_bytes as u64,
            buffers: self.buffers as u64,
            rate_hz: self.rate_hz,
            streams: self.streams(),
            rows,
        })
    }

    /// Name of an element's work in a profile.
    fn work_name(&self, element: usize) -> Result<String, String> {
        match self.stage(element) {
            Some(stage) => stage_work(&stage.kind).map_err(|why| format!("{}: {why}", stage.name)),
            None if element == 0 => source_work(&self.source),
            None => sink_work(&self.sink.kind),
        }
    }
}

/// Rows for a thread at each end, as the chain places them.
fn two_ends(row: &ShapeRow) -> [ShapeRow; 2] {
    let end = |name: &str, at: usize| {
        let work = |work: &Work| Work { name: format!("{} {name}", work.name), ..work.clone() };
        ShapeRow {
            name: format!("{} {name}", row.name),
            works: row.works.iter().map(work).collect(),
            cpus: cpu(&row.cpus, at).into_iter().collect(),
            ..row.clone()
        }
    };
    [end("out", 0), end("in", 1)]
}

/// Reason for which there is no profile of a card that is read out live.
const LIVE: &str = "a card that is read out live is in no profile: measure it";

fn source_work(Element { kind, name, .. }: &Element<SourceKind>) -> Result<String, String> {
    let device =
        "its rate is that of a device, which no profile has: measure it with daqmeter path run";
    let span = match kind {
        SourceKind::Memory { span } | SourceKind::Felix { span, .. } => span.0,
        SourceKind::File { cached: true, .. } => return Ok("file".to_owned()),
        SourceKind::Card { .. } => return Err(format!("source {name}: {LIVE}")),
        SourceKind::File { .. } | SourceKind::Digitizer { .. } | SourceKind::Etherbone { .. } => {
            return Err(format!("source {name}: {device}"));
        }
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
        SinkKind::Receiver { .. } => Err(LIVE.to_owned()),
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
        let stages = "[[stage]]\nkind = \"convert\"\nfunction = 3\n[[stage]]\nkind = \"unix\"\n[[stage]]\nkind = \"work\"\ntime = \"5us\"\n";
        let shape = shape(&format!("{head}{stages}[sink]\nkind = \"read\"\n")).unwrap();
        let rows: Vec<(&str, usize, u64)> = shape
            .rows
            .iter()
            .map(|row| (row.works[0].name.as_str(), row.threads, row.works[0].bytes))
            .collect();
        let wanted = [
            ("memory", 1, 65_536),
            ("convert 3", 1, 65_536),
            ("unix out", 1, 131_072),
            ("unix in", 1, 131_072),
            ("work", 1, 131_072),
            ("read", 1, 131_072),
        ];
        assert_eq!(rows, wanted);
        assert_eq!(shape.rows[4].added_ns, 5000.0);
        assert_eq!((shape.threads(), shape.total_hz()), (6, Some(100.0)));
    }

    #[test]
    fn threads_of_several_parts_have_their_works_and_hand_over_at_their_ends_alone() {
        let head = "title = \"x\"\nblock = \"64KiB\"\nrate = \"100Hz\"\nlayout = \"[memory] [convert, tcp, read] x 2\"\n";
        let shape = shape(&format!(
            "{head}[source]\nkind = \"memory\"\n[[stage]]\nkind = \"convert\"\nfunction = 3\n[[stage]]\nkind = \"tcp\"\n[sink]\nkind = \"read\"\n"
        ))
        .unwrap();
        let row = &shape.rows[1];
        let works: Vec<(&str, u64, bool)> =
            row.works.iter().map(|work| (work.name.as_str(), work.bytes, work.is_fused)).collect();
        let wanted =
            [("convert 3", 65_536, false), ("tcp", 131_072, true), ("read", 131_072, true)];
        assert_eq!(
            (row.name.as_str(), row.threads, &works[..]),
            ("convert to read", 2, &wanted[..])
        );
        assert!(!shape.rows[0].works[0].is_fused && shape.total_hz() == Some(100.0));
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
