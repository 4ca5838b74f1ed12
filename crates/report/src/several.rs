//! Records of several hosts: each figure and answer is of one host, and names it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use daqmeter_record::{Host, RunRecord};

/// Labels of the hosts, in the order in which they come.
pub(crate) fn hosts(records: &[RunRecord]) -> Vec<String> {
    let mut labels: Vec<String> = Vec::new();
    let mut last: Option<&Arc<Host>> = None;
    for host in records.iter().map(|record| &record.host) {
        // Records of one run share their host.
        if last.is_some_and(|last| Arc::ptr_eq(last, host)) {
            continue;
        }
        last = Some(host);
        let label = host.label();
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    labels
}

/// Calls `of_host` with the records of each host; its label is given only where there are several.
pub(crate) fn each<T>(
    records: &[RunRecord],
    mut of_host: impl FnMut(Option<&str>, &[RunRecord]) -> Vec<T>,
) -> Vec<T> {
    let hosts = hosts(records);
    if hosts.len() < 2 {
        return of_host(None, records);
    }
    let own = |label: &String| -> Vec<RunRecord> {
        let own = records.iter().filter(|record| record.host.label() == *label);
        own.cloned().collect()
    };
    hosts.iter().flat_map(|label| of_host(Some(label), &own(label))).collect()
}

/// Anchor of a page that is not taken yet: the first figure of that kind keeps its name.
pub(crate) fn anchor(id: &'static str, taken: &mut BTreeSet<&'static str>) -> &'static str {
    let mut number = 1;
    let mut free = id;
    while !taken.insert(free) {
        number += 1;
        free = kept(format!("{id}-{number}"));
    }
    free
}

/// Keeps a text, once, for as long as the program runs.
fn kept(text: String) -> &'static str {
    static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = kept.get(text.as_str()) {
        return known;
    }
    let text: &'static str = text.leak();
    kept.insert(text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::example;
    use crate::{answers, figures, page};

    fn of(name: &str) -> RunRecord {
        let mut record = example();
        let host = Arc::make_mut(&mut record.host);
        name.clone_into(&mut host.name);
        record
    }

    #[test]
    fn every_figure_and_answer_of_several_hosts_says_whose_it_is() {
        let alone = [of("lab7"), of("lab7")];
        let both = [of("lab7"), of("lab8")];
        let (one, two) = (figures(&alone), figures(&both));
        assert!(!one.is_empty() && two.len() == 2 * one.len());
        assert!(one.iter().all(|figure| !figure.title.contains("lab7")));
        for (at, figure) in two.iter().enumerate() {
            let name = ["lab7", "lab8"][at / one.len()];
            assert!(figure.title.ends_with(name), "{}", figure.title);
        }
        let ids: BTreeSet<&str> = two.iter().map(|figure| figure.id).collect();
        assert_eq!(ids.len(), two.len());
        let said = answers(&both);
        assert!(said.len() >= 2);
        for name in ["lab7: ", "lab8: "] {
            assert!(said.iter().any(|one| one.answer.starts_with(name)), "{name}");
        }
        let page = page(&both).unwrap();
        assert!(page.contains("<h1>lab7 and lab8</h1>"));
    }

    #[test]
    fn an_older_record_is_named_by_its_cpus() {
        assert_eq!(hosts(&[of(""), of("lab7"), of("")]).len(), 2);
        assert!(hosts(&[of("")])[0].ends_with(" CPUs"));
    }
}
