//! Events of boards that share a trigger: which board took which.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use daqmeter_harness::locked;
use daqmeter_record::Ledger;
use daqmeter_record::units::{plural, whole};

/// Triggers that a board took.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) device: String,
    /// Time of the trigger with number 0, and the period; `None` for the numbers of a source.
    pub(crate) first: Option<(u64, Duration)>,
    pub(crate) numbers: Vec<u64>,
}

/// Triggers of the boards of a run, each added when its account has ended; `None` for a board
/// whose triggers have no numbers.
#[derive(Debug)]
pub(crate) struct Events {
    boards: usize,
    taken: Mutex<Vec<Option<Taken>>>,
}

/// Maximum of the events that are listed.
const MAX_LISTED: usize = 10;

impl Events {
    pub(crate) fn of(boards: usize) -> Events {
        Events { boards, taken: Mutex::default() }
    }

    /// Adds a board's triggers. Returns the account of the events with the last of several boards.
    pub(crate) fn add(&self, taken: Option<Taken>) -> Option<(Ledger, String)> {
        let mut all = locked(&self.taken);
        all.push(taken);
        if all.len() < self.boards.max(2) {
            return None;
        }
        account(&all.drain(..).collect::<Option<Vec<_>>>()?)
    }
}

/// Accounts for the events from the first to the last one for which all boards ran. Returns `None`
/// if the boards have no common numbers, or no common event.
fn account(boards: &[Taken]) -> Option<(Ledger, String)> {
    let origin_ns = boards.iter().map(|board| board.first.map(|(ns, _)| ns)).min()?;
    let mut took = BTreeMap::<u64, Vec<&str>>::new();
    let (mut first, mut last) = (0, u64::MAX);
    for Taken { device, first: own, numbers } in boards {
        let shift = match (own, origin_ns) {
            (Some((ns, period)), Some(origin_ns)) => {
                whole(((ns - origin_ns) as f64 / period.as_nanos() as f64).round())
            }
            (Some(_), None) => return None,
            (None, _) => 0,
        };
        (first, last) = (first.max(shift + numbers.first()?), last.min(shift + numbers.last()?));
        numbers.iter().for_each(|number| took.entry(shift + number).or_default().push(device));
    }
    took.retain(|number, _| (first..=last).contains(number));
    let issued = (last + 1).checked_sub(first).filter(|issued| *issued > 0)?;
    let mut ledger = Ledger { issued, ..Ledger::new("events for all boards") };
    ledger.lose("missed by all", issued - took.len() as u64);
    let devices = || boards.iter().map(|board| board.device.as_str());
    let partial = took.iter().filter(|(_, who)| who.len() < boards.len());
    let partial = partial.map(|(number, who)| {
        let missing: Vec<&str> = devices().filter(|device| !who.contains(device)).collect();
        format!("{} ({})", number - first + 1, missing.join(", "))
    });
    let mut partial: Vec<String> = partial.collect();
    ledger.lose("missed by some", partial.len() as u64);
    ledger.delivered = issued - ledger.lost();
    let mut note = format!("all boards took {} of {}", ledger.delivered, plural(issued, "event"));
    if let left @ 1.. = partial.len().saturating_sub(MAX_LISTED) {
        partial.truncate(MAX_LISTED);
        partial.push(format!("and {left} more"));
    }
    if !partial.is_empty() {
        note += &format!("; missed by some: {}", partial.join(", "));
    }
    Some((ledger, note))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_those_of_the_time_in_which_all_boards_ran() {
        let period = Duration::from_millis(100);
        let taken = |device: &str, first_ms: Option<u64>, numbers: &[u64]| Taken {
            device: device.to_owned(),
            first: first_ms.map(|ms| (ms * 1_000_000, period)),
            numbers: numbers.to_vec(),
        };
        let said = |boards: &[Taken]| {
            let events = Events::of(boards.len());
            let mut said: Vec<_> = boards.iter().map(|one| events.add(Some(one.clone()))).collect();
            let last = said.pop().unwrap();
            assert!(said.iter().all(Option::is_none));
            last.map(|(ledger, note)| {
                assert!(ledger.closes(), "{ledger}");
                note
            })
        };
        let whole = [taken("a", None, &[7, 8, 9]), taken("b", None, &[8, 9, 10])];
        assert_eq!(said(&whole).unwrap(), "all boards took 2 of 2 events");
        // By time, b's first trigger is the third of a.
        let timed = [taken("a", Some(10), &[0, 1, 2, 4, 6]), taken("b", Some(220), &[0, 3, 4, 9])];
        let wanted = "all boards took 2 of 5 events; missed by some: 3 (b), 4 (a)";
        assert_eq!(said(&timed).unwrap(), wanted);
        let other_clock = [whole[0].clone(), timed[1].clone()];
        assert_eq!(said(&other_clock), None);
        assert_eq!(said(&[whole[0].clone(), taken("b", None, &[11])]), None);
        assert_eq!(said(&whole[..1]), None, "one board alone");
        let even: Vec<u64> = (0..100).step_by(2).collect();
        let all: Vec<u64> = (0..=98).collect();
        let long = said(&[taken("a", None, &even), taken("b", None, &all)]).unwrap();
        assert!(long.ends_with("20 (a), and 39 more"), "{long}");
    }
}
