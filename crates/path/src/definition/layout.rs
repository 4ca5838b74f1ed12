//! Layouts: the threads of a path, and the parts that each of them works through.
//!
//! ```text
//! pipeline                   [source] -> ring -> [stage] -> ring -> [sink]
//! fused x 2                  [source, stage, sink]    [source, stage, sink]
//! [source] [stage, sink] x 2 [source] -> ring -> [stage, sink]
//!                                     -> ring -> [stage, sink]
//! ```
//!
//! A part of a group hands its blocks to the next one in the same thread. Rings lie between groups.

use std::fmt::{self, Display};
use std::ops::Range;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) const MAX_THREADS: usize = 64;

/// Which thread of a path does what; written as in a path's file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Layout {
    /// The fastest one of several is found before the run.
    #[default]
    Auto,
    /// A thread for each part, and one for each stream of the source.
    Pipeline,
    /// All parts of a block in one thread, and a number of such threads.
    Fused(usize),
    /// Names of the parts of each group, and its number of threads.
    Groups(Vec<(Vec<String>, usize)>),
}

/// Neighbouring elements that a thread works through, and the number of such threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) elements: Range<usize>,
    pub(crate) workers: usize,
}

const WANTED: &str = "auto, pipeline, fused, fused x 2, or groups such as \"[source] [stage, sink] x 2\" with the names of the parts";

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Layout, String> {
        let wrong = || format!("is `{text}`; {WANTED} is wanted");
        let (head, workers) = match text.rsplit_once(']') {
            Some(_) => return groups(text).map(Layout::Groups).ok_or_else(wrong),
            None => match text.split_once(" x ") {
                Some((head, workers)) => (head, Some(workers.trim().parse().map_err(|_| wrong())?)),
                None => (text, None),
            },
        };
        match (head.trim(), workers) {
            ("auto", None) => Ok(Layout::Auto),
            ("pipeline", None) => Ok(Layout::Pipeline),
            ("fused", workers) => Ok(Layout::Fused(workers.unwrap_or(1))),
            _ => Err(wrong()),
        }
    }
}

daqmeter_harness::by_text!(Layout);

fn groups(text: &str) -> Option<Vec<(Vec<String>, usize)>> {
    let mut all = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (names, behind) = rest.strip_prefix('[')?.split_once(']')?;
        let names = names.split(',').map(|name| name.trim().to_owned()).collect();
        let (times, next) = behind.split_at(behind.find('[').unwrap_or(behind.len()));
        let workers = match times.trim() {
            "" => 1,
            times => times.strip_prefix('x')?.trim().parse().ok()?,
        };
        all.push((names, workers));
        rest = next;
    }
    Some(all)
}

impl Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Auto => write!(f, "auto"),
            Layout::Pipeline => write!(f, "pipeline"),
            Layout::Fused(1) => write!(f, "fused"),
            Layout::Fused(workers) => write!(f, "fused x {workers}"),
            Layout::Groups(groups) => {
                for (at, (names, workers)) in groups.iter().enumerate() {
                    let space = if at > 0 { " " } else { "" };
                    write!(f, "{space}[{}]", names.join(", "))?;
                    if *workers > 1 {
                        write!(f, " x {workers}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layouts() -> impl Strategy<Value = Layout> {
        let group = (proptest::collection::vec("[a-z]{1,6}( [2-9])?", 1..4), 1_usize..70);
        prop_oneof![
            Just(Layout::Auto),
            Just(Layout::Pipeline),
            (1_usize..70).prop_map(Layout::Fused),
            proptest::collection::vec(group, 1..5).prop_map(Layout::Groups),
        ]
    }

    proptest! {
        #[test]
        fn a_layout_is_read_as_it_is_written(layout in layouts()) {
            prop_assert_eq!(layout.to_string().parse(), Ok(layout));
        }

        #[test]
        fn any_other_text_is_refused_with_what_is_wanted(text in "[a-z x0-9,\\[\\]]{0,30}") {
            match text.parse::<Layout>() {
                Ok(layout) => prop_assert_eq!(layout.to_string().parse(), Ok(layout)),
                Err(problem) => prop_assert!(problem.contains("groups such as"), "{}", problem),
            }
        }
    }
}
