//! Tables of copies: latency by size, bandwidth by channel, and notes on their credibility.

use std::collections::HashSet;

use daqmeter_record::RunRecord;
use daqmeter_record::units::{show_bytes, show_ns, significant};
use daqmeter_stats::median;

use super::rows::{CopyRow, copy_rows};
use crate::aligned::{TextColumn, numbers_from, table};
use crate::faults::faults_and_ledgers;
use crate::rate::{self, shown_share};

fn operation_name(row: &CopyRow<'_>) -> String {
    let name = match row.direction {
        "from" => "copy_from_user",
        "to" if row.is_clearing() => "clear_user",
        "to" => "copy_to_user",
        _ => "copy_from_user + copy_to_user",
    };
    let cold = if row.cold { ", no cache" } else { "" };
    let load = if row.load == "heavy" { ", heavy load" } else { "" };
    format!("{name}{cold}{load}")
}

pub fn latency_text(records: &[RunRecord]) -> String {
    let rows = copy_rows(records);
    let tables = distinct(rows.iter().map(operation_name)).into_iter().map(|operation| {
        let of: Vec<&CopyRow<'_>> =
            rows.iter().filter(|row| operation_name(row) == operation).collect();
        latency_table(&operation, &of) + "\n"
    });
    tables.collect::<String>() + &footnotes(records, &rows)
}

fn distinct(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = HashSet::new();
    texts.filter(|text| seen.insert(text.clone())).collect()
}

fn latency_table(operation: &str, rows: &[&CopyRow<'_>]) -> String {
    let whos = distinct(rows.iter().map(|row| row.who()));
    let mut headings = vec!["block".to_owned()];
    for who in &whos {
        let own = rows.iter().filter(|row| row.who() == *who).copied();
        let median = format!("{who} median");
        headings.extend([median, "p99".into(), "max".into(), held_against(own).into()]);
    }
    let mut sizes: Vec<u64> = rows.iter().map(|row| row.block_bytes).collect();
    sizes.dedup();
    let line = |bytes: u64| {
        let mut cells = vec![show_bytes(bytes)];
        for who in &whos {
            let row = rows.iter().find(|row| row.block_bytes == bytes && row.who() == *who);
            cells.extend(row.map_or(["-"; 4].map(str::to_owned), |row| {
                let p99 = row.p99_ns().map_or("-".to_owned(), show_ns);
                [show_ns(row.times.median), p99, show_ns(row.times.max), share_cell(row)]
            }));
        }
        cells
    };
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let n = rows.iter().map(|row| row.n).max().unwrap_or(0);
    let table = numbers_from(0, &headings, sizes.into_iter().map(line));
    let means = match rows.iter().map(|row| row.ops_per_sample).max() {
        Some(copies) if copies > 1 => format!(", each the mean of up to {copies} copies"),
        _ => String::new(),
    };
    format!("{operation}: time of one copy, {n} repetitions{means}\n{table}")
}

/// Returns the heading of the shares: a clear is compared with a fill.
fn held_against<'a>(rows: impl Iterator<Item = &'a CopyRow<'a>>) -> &'static str {
    let (clears, copies): (Vec<_>, Vec<_>) = rows.partition(|row| row.is_clearing());
    match (clears.is_empty(), copies.is_empty()) {
        (true, _) => "of memcpy",
        (false, true) => "of memset",
        (false, false) => "of limit",
    }
}

fn share_cell(row: &CopyRow<'_>) -> String {
    rate::undone_word(row.record).map_or_else(|| shown_share(row.share), str::to_uppercase)
}

fn mib(rate: f64) -> String {
    significant(rate / 1_048_576.0, 4)
}

/// Writes bandwidth: one line for each point; MB are of 2^20 bytes, as in the document.
pub fn bandwidth_text(records: &[RunRecord]) -> String {
    let rows = copy_rows(records);
    let columns: [TextColumn<CopyRow<'_>>; 9] = [
        ("operation", operation_name),
        ("context", CopyRow::who),
        ("block", |row| show_bytes(row.block_bytes)),
        ("channels", |row| row.lanes_bytes_per_s.len().to_string()),
        ("slowest MiB/s", |row| {
            mib(row.lanes_bytes_per_s.iter().copied().fold(f64::INFINITY, f64::min))
        }),
        ("fastest MiB/s", |row| mib(row.lanes_bytes_per_s.iter().copied().fold(0.0, f64::max))),
        ("sum MiB/s", |row| mib(row.total_bytes_per_s())),
        ("together MiB/s", |row| mib(row.union_bytes_per_s())),
        (held_against(rows.iter()), share_cell),
    ];
    let about = "sum: rates of the channels added up (the document's total); together: all bytes over the time of all\n";
    table(2, &columns, &rows) + about + &footnotes(records, &rows)
}

pub(super) fn footnotes(records: &[RunRecord], rows: &[CopyRow<'_>]) -> String {
    let mut out = String::new();
    let nulls: Vec<f64> = rows.iter().filter_map(|row| row.null_ns).collect();
    if !nulls.is_empty() {
        out.push_str(&format!(
            "a system call without work takes {} here (median), which is in the times above\n",
            show_ns(median(&nulls))
        ));
    }
    if rows.iter().any(|row| row.path == "engine-thread") {
        out.push_str("engine-thread is a thread that copies for its channels: no hardware, and its times say nothing about any\n");
    }
    if rows.iter().any(CopyRow::is_clearing) {
        out.push_str("clear_user writes zeros (/dev/zero) and copies nothing: it is held against a fill of as many bytes (memset)\n");
    }
    let lines = records.iter().flat_map(|record| {
        let warnings = rate::warnings(record)
            .into_iter()
            .filter(|warning| !warning.contains("third of the run"));
        warnings.chain(faults_and_ledgers(record).into_iter().filter(|_| !record.outcome.is_ok()))
    });
    let lines = distinct(lines).into_iter();
    out.extend(lines.map(|line| line + "\n"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::copy::classic;
    use crate::families::copy::rows::tests::example;

    #[test]
    fn both_tables_hold_one_quantity_against_the_limit() {
        // Most copies of 100 B take 100 ns, one of ten 9,100 ns: 1 GB/s at the median, 0.1 GB/s
        // over all the time.
        let samples: Vec<u64> = (0..300).map(|at| if at % 10 == 9 { 9_100 } else { 100 }).collect();
        let mut record = example("cpu", "to", 100, &samples);
        let row = &copy_rows(std::slice::from_ref(&record))[0];
        assert!((row.share.unwrap().fraction - 0.1).abs() < 1e-9, "{row:?}");
        assert!(row.p99_ns().is_some_and(|p99| p99 > 9_000.0));
        for table in [
            latency_text(std::slice::from_ref(&record)),
            bandwidth_text(std::slice::from_ref(&record)),
        ] {
            assert!(table.contains("0.10"), "{table}");
        }
        record.lanes[0].stages[0].ops_per_sample = 10;
        assert_eq!(
            copy_rows(&[record])[0].p99_ns(),
            None,
            "means of ten copies have no percentiles of one"
        );
    }

    #[test]
    fn a_copy_whose_bytes_differ_is_marked_and_used_for_nothing() {
        let mut failed = example("cpu", "to", 4096, &[100, 100]);
        failed.outcome = daqmeter_record::Outcome::Failed("byte 3 differs".into());
        assert!(classic::latency(std::slice::from_ref(&failed)).is_empty());
        for table in [latency_text(std::slice::from_ref(&failed)), bandwidth_text(&[failed])] {
            assert!(table.contains("FAILED") && table.contains("byte 3 differs"), "{table}");
        }
    }

    #[test]
    fn what_the_kernel_clears_is_called_no_copy() {
        let mut cleared = example("cpu", "to", 4096, &[150, 160, 170]);
        cleared.set_param("path", "dev-zero");
        let copied = example("cpu", "to", 4096, &[200, 210, 230]);
        let alone = latency_text(std::slice::from_ref(&cleared));
        assert!(alone.starts_with("clear_user: time of one copy"), "{alone}");
        assert!(alone.contains("of memset") && alone.contains("copies nothing"));
        assert!(!alone.contains("copy_to_user") && !alone.contains("of memcpy"));
        let records = [cleared, copied];
        let both = latency_text(&records);
        assert!(both.contains("of memset") && both.contains("of memcpy"), "{both}");
        assert!(bandwidth_text(&records).contains("of limit"));
        let drawn = crate::figures::copy_study::study(&records[..1]);
        assert!(drawn.iter().all(|drawn| drawn.figure.is_none()));
    }

    #[test]
    fn tables_read_well() {
        let records = [
            example("cpu", "to", 1, &[170, 171, 190]),
            example("cpu", "to", 4096, &[200, 210, 230]),
            example("shared", "to", 4096, &[900, 950, 2000]),
        ];
        insta::assert_snapshot!("copy_latency", latency_text(&records));
        insta::assert_snapshot!("copy_bandwidth", bandwidth_text(&records));
    }
}
