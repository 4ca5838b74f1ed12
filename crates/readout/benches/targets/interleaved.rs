//! Sides that are sampled in turn, and their comparison.

use daqmeter_stats::{median, quantile_ratio};
use daqmeter_sys::clock;

/// One side: its name, and a piece of its work, which returns nanoseconds per chunk.
pub(crate) struct Side<'a> {
    pub(crate) name: String,
    work: Box<dyn FnMut() -> f64 + 'a>,
}

impl<'a> Side<'a> {
    pub(crate) fn measured(name: impl Into<String>, work: impl FnMut() -> f64 + 'a) -> Side<'a> {
        Side { name: name.into(), work: Box::new(work) }
    }

    pub(crate) fn timed(
        name: impl Into<String>,
        chunks: f64,
        mut work: impl FnMut() + 'a,
    ) -> Side<'a> {
        Side::measured(name, move || {
            let begin = clock::monotonic_ns();
            work();
            (clock::monotonic_ns() - begin) as f64 / chunks
        })
    }
}

/// Samples of one side in each turn, in nanoseconds per chunk.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) ns: Vec<f64>,
}

impl Row {
    pub(crate) fn median(&self) -> f64 {
        median(&self.ns)
    }

    pub(crate) fn sum(name: &str, rows: &[&Row]) -> Row {
        let turns = rows.iter().map(|row| row.ns.len()).min().unwrap_or(0);
        let ns = (0..turns).map(|turn| rows.iter().map(|row| row.ns[turn]).sum());
        Row { name: name.to_owned(), ns: ns.collect() }
    }
}

pub(crate) fn in_turn(turns: usize, sides: Vec<Side<'_>>) -> Vec<Row> {
    let row = |side: &Side<'_>| Row { name: side.name.clone(), ns: Vec::with_capacity(turns) };
    let mut rows: Vec<Row> = sides.iter().map(row).collect();
    let mut sides = sides;
    let warm_up = turns / 10 + 1;
    for turn in 0..turns + warm_up {
        for (side, row) in sides.iter_mut().zip(&mut rows) {
            let ns = (side.work)();
            if turn >= warm_up {
                row.ns.push(ns);
            }
        }
    }
    rows
}

/// `a` over `b` at the median, with its 95 % interval.
pub(crate) fn over(a: &Row, b: &Row) -> String {
    quantile_ratio(&a.ns, &b.ns, 0.5).map_or("-".to_owned(), |found| {
        format!("{:.2} ({:.2} - {:.2})", found.ratio, found.low, found.high)
    })
}
