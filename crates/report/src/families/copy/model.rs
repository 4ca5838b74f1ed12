//! Model of a DMA engine, for the size from which one would pay: few hosts have one.

use daqmeter_record::RunRecord;

use super::rows::{CopyRow, copy_rows};

/// Model of an engine from stated figures: a fixed time for each copy, and a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineModel {
    pub source: &'static str,
    pub fixed_ns: f64,
    /// Bytes per nanosecond (GB/s).
    pub bytes_per_ns: f64,
}

/// Intel DSA, memory move, one call at a time: 36 GB/s and 0.91 us. The line passes the outer
/// points of the mean times per call in DTO's README (8 to 12 KiB in 1.19 us, about 1 MB in 28.42
/// us). The README does not name the machine.
pub const DSA: EngineModel = EngineModel {
    source: "Intel DSA by the figures in DTO's README",
    fixed_ns: 908.0,
    bytes_per_ns: 36.3,
};

impl EngineModel {
    pub fn ns(&self, bytes: u64) -> f64 {
        self.fixed_ns + bytes as f64 / self.bytes_per_ns
    }
}

/// Returns the smallest size from which on the CPU takes longer than the other for every row: an
/// engine pays from there.
pub fn pays_from(cpu: &[(u64, f64)], other: impl Fn(u64) -> Option<f64>) -> Option<u64> {
    let mut from = None;
    for (bytes, cpu_ns) in cpu {
        match other(*bytes) {
            Some(ns) if ns < *cpu_ns => {
                from.get_or_insert(*bytes);
            }
            Some(_) => from = None,
            None => {}
        }
    }
    from
}

/// Returns copies of one context and direction by one CPU or channel, without other load, through
/// the kernel.
pub fn points_of<'a>(
    rows: &'a [CopyRow],
    context: &'a str,
    direction: &'a str,
    cold: bool,
) -> impl Iterator<Item = &'a CopyRow> {
    rows.iter().filter(move |row| {
        row.context == context
            && row.direction == direction
            && row.cold == cold
            && row.load == "light"
            && row.lanes_bytes_per_s.len() == 1
            && !row.is_clearing()
            && !["memcpy", "rep-movsb", "avx2", "avx512", "avx2-nt", "avx512-nt"]
                .contains(&row.path.as_str())
    })
}

pub fn times(rows: &[CopyRow], context: &str, direction: &str, cold: bool) -> Vec<(u64, f64)> {
    points_of(rows, context, direction, cold).map(|row| (row.block_bytes, row.median_ns)).collect()
}

/// Returns the size from which an engine would pay here, by the CPU's measured times and a model of
/// an engine. `None` without CPU times.
pub(crate) fn modelled_crossover(
    records: &[RunRecord],
    model: EngineModel,
    direction: &str,
    cold: bool,
) -> Option<Option<u64>> {
    let cpu = times(&copy_rows(records), "cpu", direction, cold);
    (cpu.len() > 1).then(|| pays_from(&cpu, |bytes| Some(model.ns(bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_pays_from_where_it_stays_faster() {
        let cpu = [(1, 10.0), (64, 10.0), (4096, 100.0), (65_536, 1000.0)];
        let engine = |times: [f64; 4]| {
            move |bytes: u64| cpu.iter().position(|(size, _)| *size == bytes).map(|at| times[at])
        };
        assert_eq!(pays_from(&cpu, engine([50.0, 50.0, 60.0, 500.0])), Some(4096));
        assert_eq!(pays_from(&cpu, engine([5.0, 50.0, 60.0, 500.0])), Some(4096));
        assert_eq!(pays_from(&cpu, engine([50.0, 50.0, 60.0, 5000.0])), None);
    }

    #[test]
    fn the_model_gives_the_figures_it_was_made_from() {
        assert!((DSA.ns(10 << 10) / 1190.0 - 1.0).abs() < 0.01);
        assert!((DSA.ns(1_000_000) / 28_420.0 - 1.0).abs() < 0.01);
        // By the same source, about 100 KB take 3.76 us.
        assert!((DSA.ns(100_000) / 3760.0 - 1.0).abs() < 0.05);
    }
}
