//! The document's figures beside arithmetic, a model of its rings, and this host. Where nothing is published for a row, the row says
//! so and gets no verdict.

use daqmeter_record::RunRecord;
use daqmeter_record::study::{Comparison, Derived, Measured, Published};

use super::records::{find, reader_percent};
use super::{Document, arithmetic, idle, rings};

/// Every row, with what the records have.
pub(super) fn compare(published: &Document, records: &[RunRecord]) -> Vec<Comparison> {
    let mut rows = arithmetic::rows(published);
    rows.extend(rings::rows(published));
    rows.extend(loads(published, records));
    rows.extend(idle::rows(published, records));
    rows.extend(costs(published, records));
    rows
}

/// CPU time per chunk of reader and receiver, in ns.
fn ns_per_chunk(record: &RunRecord) -> Option<(f64, f64)> {
    let chunks = record.counter("chunks")?;
    let seconds = record.counter("triggers")? / record.counter("trigger-rate")?;
    let ns = |cpu: f64| cpu * seconds * 1e9 / chunks;
    Some((ns(record.counter("reader-cpu-ppm")? * 1e-6), ns(record.counter("receiver-cpu")?)))
}

/// CPU use as published. It is of the study's server; of one here it is this host's own.
fn loads(published: &Document, records: &[RunRecord]) -> Vec<Comparison> {
    let (output, input) = (&published.output, &published.input);
    let full = find(records, "full", input.full_poll_us, false);
    let receiver = full
        .and_then(|record| Measured::of_processor(record, record.counter("receiver-cpu")? * 100.0));
    let of = |name: &str, published: &Published| {
        Comparison::new("CPU of one core", name, published.clone(), "%").of_this_host()
    };
    vec![
        of("reader, GBT, 20 B at 800 kHz, 10 us polling", &output.reader_800_percent)
            .measured(find(records, "gbt", 10.0, false).and_then(reader_percent)),
        of("reader of 3 links, FULL, 1050 kHz", &output.full_reader_percent)
            .measured(full.and_then(reader_percent)),
        of("receiver of 6 links (here 3), FULL, 1050 kHz", &output.full_receiver_percent)
            .measured(receiver),
    ]
}

/// CPU time per chunk, which is not published: it follows from a load and a rate.
fn costs(published: &Document, records: &[RunRecord]) -> Vec<Comparison> {
    let (output, input) = (&published.output, &published.input);
    let elinks = (input.links_per_channel * input.elinks_per_link) as f64;
    let at_800 = find(records, "gbt", 10.0, false);
    let at_1000 = find(records, "gbt", 100.0, false);
    let ns = |record: Option<&RunRecord>, of: fn((f64, f64)) -> f64| {
        record.and_then(|record| Measured::of_processor(record, of(ns_per_chunk(record)?)))
    };
    let row = |name: &str, derived: Derived| {
        Comparison::new("CPU of one core, per chunk", name, None, "ns")
            .derived(derived)
            .of_this_host()
    };
    let receiver = |load: &Published| {
        let how = format!("{load} % of a core / 48 E-links / 800 kHz");
        load.derived(how, |percent| percent / 100.0 * 1e9 / (2.0 * elinks * 800e3))
    };
    let full_core = |khz: f64, how: &str| Derived::computed(1e6 / (elinks * khz), how);
    vec![
        row(
            "reader, 20 B at 800 kHz, 10 us polling",
            full_core(800.0, "a full core / 24 E-links / 800 kHz"),
        )
        .measured(ns(at_800, |(reader, _)| reader)),
        row(
            "reader, 24 B at 1 MHz",
            full_core(1000.0, "at most a full core / 24 E-links / 1 MHz (\"just possible\")"),
        )
        .measured(ns(at_1000, |(reader, _)| reader)),
        row("receiver, turano", receiver(&output.receiver_turano_percent))
            .measured(ns(at_800, |(_, receiver)| receiver)),
        row("receiver, agogna", receiver(&output.receiver_agogna_percent))
            .measured(ns(at_800, |(_, receiver)| receiver)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_modelled_row_is_within_its_band() {
        let rows = compare(&Document::default(), &[]);
        let check = |row: &str, low: f64, high: f64| {
            let line =
                rows.iter().find(|line| line.row.starts_with(row)).expect("a row of that name");
            let value = line.model.expect("a model").value();
            assert!((low..=high).contains(&value), "{row}: {value}");
        };
        check("5 s", 3_458_957.0, 3_458_957.0);
        check("50 s", 34_262_333.0, 34_262_333.0);
        check("agogna", 54.0, 56.0);
        check("turano", 15.0, 17.0);
        check("1050 kHz: mean", 0.3e6, 1.6e6);
        check("1050 kHz: fullest", 0.3e6, 2.0e6);
        check("1050 kHz: time with BUSY", 0.0, 0.0);
        check("1100 kHz: fullest ring", 830e6, 847e6);
        check("1100 kHz: emptiest ring", 797e6, 830e6);
        check("1100 kHz: mean", 797e6, 847e6);
        check("1100 kHz: time until BUSY", 13.0, 17.0);
        check("1100 kHz: time with BUSY", 3.5, 5.5);
        let differs = rows
            .iter()
            .find(|line| line.verdict().grade().is_some_and(|grade| grade.contradicts()));
        assert_eq!(differs, None);
    }

    #[test]
    fn what_no_document_states_is_derived_and_gets_no_verdict() {
        let rows = compare(&Document::default(), &[]);
        let computed = rows.iter().find(|line| line.row == "DMA, 16 B, 800 kHz").unwrap();
        assert_eq!(computed.published, None, "385.5 MB/s stands in no document");
        assert_eq!(computed.derived.as_ref().unwrap().to_string(), "385.5");
        assert_eq!(computed.verdict().to_string(), "nothing published");
        for line in &rows {
            assert!(line.published.is_some() || line.derived.is_some(), "{line:?}");
        }
    }

    #[test]
    fn the_costs_of_a_chunk_follow_from_the_published_loads() {
        let rows = compare(&Document::default(), &[]);
        let of = |name: &str| {
            rows.iter().find(|line| line.row == name).unwrap().derived.as_ref().unwrap().to_string()
        };
        assert_eq!(of("reader, 20 B at 800 kHz, 10 us polling"), "52.08");
        assert_eq!(of("receiver, turano"), "25.63 to 25.99");
        assert_eq!(of("receiver, agogna"), "22.6 to 23.28");
    }
}
