//! Records of several hosts: each figure and answer is of one host, and names it.

use daqmeter_record::RunRecord;

/// Labels of the hosts, in the order in which they come.
pub(crate) fn hosts(records: &[RunRecord]) -> Vec<String> {
    let mut labels: Vec<String> = Vec::new();
    // Records of one run share their host.
    for run in records.chunk_by(|a, b| a.host == b.host) {
        let label = run[0].host.label();
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
