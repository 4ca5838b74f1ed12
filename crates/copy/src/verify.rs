//! Every way to copy, checked byte by byte, without a clock.

use daqmeter_harness::{Availability, Engine, StopFlag};
use serde::Serialize;

use crate::engine::CopyEngine;
use crate::paths::{PATHS, Path};
use crate::request::{Completion, Context, Direction, Request};

/// What to check.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Only this path.
    pub only: Option<String>,
    /// Largest block.
    pub largest_bytes: usize,
    /// Copies at each size.
    pub times: u32,
}

/// One case: a path, a policy, a completion, a direction, over all sizes.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// The way.
    pub path: String,
    /// The policy.
    pub context: String,
    /// Polled or interrupt.
    pub completion: String,
    /// Which way.
    pub direction: String,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Every byte was right.
    Verified {
        /// Copies made.
        copies: u64,
        /// Bytes compared.
        bytes: u64,
    },
    /// Cannot be done here.
    Waived(String),
    /// The first fault.
    Failed(String),
}

/// Sizes around every border that something may be cut at: bytes, lines, pages, descriptors, huge pages.
const SIZES: [usize; 16] = [
    1,
    3,
    64,
    224,
    1448,
    4095,
    4096,
    4097,
    16_064,
    65_536,
    100_001,
    1 << 20,
    (1 << 20) + 5,
    2 << 20,
    5_000_011,
    8 << 20,
];

/// Runs all cases, until it is to stop: then those that were finished before.
pub fn all(plan: &Plan, stop: &StopFlag) -> Vec<Case> {
    let wanted = PATHS
        .iter()
        .filter(|path| plan.only.as_deref().is_none_or(|only| only == path.name));
    wanted.flat_map(|path| cases_of(path, plan, stop)).collect()
}

fn cases_of(path: &Path, plan: &Plan, stop: &StopFlag) -> Vec<Case> {
    let contexts: &[Context] = match path.name {
        "module" => &Context::ALL,
        _ if path.by_engine => &Context::ALL[1..],
        _ => &Context::ALL[..1],
    };
    let mut cases = Vec::new();
    for context in contexts {
        let completions: &[Completion] = match context {
            Context::Cpu => &[Completion::Polled],
            _ => &[Completion::Polled, Completion::Interrupt],
        };
        for completion in completions {
            for direction in [Direction::From, Direction::To] {
                let mut request = Request::new(path.name, direction, 1);
                (request.context, request.completion) = (*context, *completion);
                cases.extend(case(path, &request, plan, stop));
            }
        }
    }
    cases
}

/// None when it is to stop before the case is finished.
fn case(path: &Path, request: &Request, plan: &Plan, stop: &StopFlag) -> Option<Case> {
    let completion = match (request.context, request.completion) {
        (Context::Cpu, _) => "-",
        (_, Completion::Polled) => "polled",
        (_, Completion::Interrupt) => "interrupt",
    };
    let outcome = match path.probe() {
        Availability::Waived(reason) => Outcome::Waived(reason),
        Availability::Ready => sizes(request, plan, stop)?,
    };
    Some(Case {
        path: path.name.to_owned(),
        context: request.context.name().to_owned(),
        completion: completion.to_owned(),
        direction: request.direction.name().to_owned(),
        outcome,
    })
}

fn sizes(request: &Request, plan: &Plan, stop: &StopFlag) -> Option<Outcome> {
    let (mut copies, mut bytes) = (0, 0);
    for size in SIZES.into_iter().filter(|size| *size <= plan.largest_bytes) {
        let request = Request {
            block_bytes: size,
            ..request.clone()
        };
        let mut sessions = match CopyEngine.open(&request.workload()) {
            Ok(sessions) => sessions,
            // A pipe's size, hugetlbfs without write: as far as it goes is what there is.
            Err(_) if copies > 0 => break,
            Err(fault) => return Some(Outcome::Waived(fault.0)),
        };
        let lane = &mut sessions[0];
        let mut checked = lane.prepare();
        for _ in 0..plan.times.max(1) {
            if stop.is_set() {
                return None;
            }
            checked = checked.and_then(|()| lane.verify());
            copies += 1;
            bytes += size as u64;
        }
        if let Err(fault) = checked {
            return Some(Outcome::Failed(format!("{size} bytes: {}", fault.0)));
        }
    }
    Some(Outcome::Verified { copies, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_keeps_only_cases_that_were_finished() {
        let stop = StopFlag::default();
        stop.set();
        let cases = all(
            &Plan {
                only: None,
                largest_bytes: 5000,
                times: u32::MAX,
            },
            &stop,
        );
        assert!(
            cases
                .iter()
                .all(|case| matches!(case.outcome, Outcome::Waived(_))),
            "{cases:?}"
        );
    }

    #[test]
    fn every_case_of_this_host_verifies_or_says_why_not() {
        let cases = all(
            &Plan {
                only: None,
                largest_bytes: 5000,
                times: 1,
            },
            &StopFlag::default(),
        );
        assert!(
            cases
                .iter()
                .any(|case| case.path == "engine-thread" && case.context == "priority")
        );
        for case in cases {
            match &case.outcome {
                Outcome::Verified { copies, .. } => assert!(*copies >= 7, "{case:?}"),
                Outcome::Waived(reason) => assert!(reason.len() > 10, "{case:?}"),
                Outcome::Failed(_) => panic!("{case:?}"),
            }
        }
    }
}
