//! Sections of a record: results of one kind of work. A new kind is a field here.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::watched::Watched;
use crate::{Observations, PathRun};

/// Results of one kind of work; those of other kinds are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sections {
    /// Threads, queues and latencies of a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Box<PathRun>>,
    /// Counters of the machine over time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<Box<Observations>>,
    /// Events that are missing in a file of blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<Box<LossMap>>,
    /// Packets of receivers that were watched from outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watched: Option<Box<Watched>>,
}

/// Map of missing events by E-links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LossMap {
    /// Events of the longest E-link, with those missing.
    pub events: u64,
    /// Gaps of all E-links.
    pub gaps: Vec<Lost>,
}

/// Events of an E-link that are missing: the first by their count, the fewest, and the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lost {
    pub elink: u16,
    pub from: u64,
    pub least: u64,
    pub most: u64,
}

impl LossMap {
    /// E-links with gaps, each with letters for parts of the run: `#` missing, `?` may be missing,
    /// `.` whole.
    pub fn rows(&self, letters: u32) -> impl ExactSizeIterator<Item = (u16, String)> {
        let mut elinks = BTreeMap::<u16, Vec<&Lost>>::new();
        self.gaps.iter().for_each(|gap| elinks.entry(gap.elink).or_default().push(gap));
        elinks.into_iter().map(move |(elink, gaps)| (elink, self.line(&gaps, letters)))
    }

    fn line(&self, gaps: &[&Lost], letters: u32) -> String {
        let place =
            |letter: u32| u128::from(self.events) * u128::from(letter) / u128::from(letters);
        let letter = |at: u32| {
            let [from, to] = [place(at), place(at + 1).max(place(at) + 1)];
            let is_in = |count: u64, gap: &Lost| {
                let begin = u128::from(gap.from);
                begin < to && begin + u128::from(count) > from
            };
            let any = |of: fn(&Lost) -> u64| gaps.iter().any(|gap| is_in(of(gap), gap));
            match (any(|gap| gap.least), any(|gap| gap.most)) {
                (true, _) => '#',
                (_, true) => '?',
                _ => '.',
            }
        };
        (0..letters).map(letter).collect()
    }
}

impl Sections {
    /// Adds the sections of another that are absent here.
    pub fn add(&mut self, Sections { path, observed, missing, watched }: Sections) {
        self.path = self.path.take().or(path);
        self.observed = self.observed.take().or(observed);
        self.missing = self.missing.take().or(missing);
        self.watched = self.watched.take().or(watched);
    }
}
