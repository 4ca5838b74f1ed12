//! Byte-by-byte checks of every way to copy, without a clock.

use clap::ValueEnum;
use daqmeter_harness::{Session, StopFlag};
use serde::Serialize;

use crate::engine::open;
use crate::request::{CopyCompletion, CopyContext, CopyPath, CopyRequest, Direction};

#[derive(Clone, Debug)]
pub struct VerifyPlan {
    pub only: Option<CopyPath>,
    pub largest_bytes: usize,
    pub times: u32,
}

#[derive(Clone, Debug, Serialize)]
pub struct Case {
    pub path: CopyPath,
    pub context: CopyContext,
    /// Completion of an engine's copy; `None` for the CPU.
    pub completion: Option<CopyCompletion>,
    pub direction: Direction,
    pub outcome: CaseOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CaseOutcome {
    Verified {
        /// Sum over all sizes.
        copies: u64,
        bytes: u64,
        /// Larger ones are refused by a pipe, and by hugetlbfs without write.
        largest_bytes: usize,
    },
    Waived(String),
    Failed(String),
}

/// Sizes around every border at which a copy may be split: bytes, lines, pages, descriptors, huge
/// pages.
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

/// Runs all cases, and calls `done` with their number after each. After a stop, returns the
/// finished ones.
pub fn all(plan: &VerifyPlan, stop: &StopFlag, mut done: impl FnMut(usize)) -> Vec<Case> {
    let paths = CopyPath::value_variants().iter().copied();
    let paths = paths.filter(|path| plan.only.is_none_or(|only| only == *path));
    let requests: Vec<CopyRequest> = paths.flat_map(cases_of).collect();
    let cases = requests.iter().map_while(|request| case(request, plan, stop));
    cases.inspect(|_| done(requests.len())).collect()
}

fn cases_of(path: CopyPath) -> Vec<CopyRequest> {
    let contexts: &[CopyContext] = match path {
        CopyPath::Module => CopyContext::value_variants(),
        _ if path.has_channels() => &CopyContext::value_variants()[1..],
        _ => &[CopyContext::Cpu],
    };
    let mut cases = Vec::new();
    for &context in contexts {
        let completions: &[CopyCompletion] = match context {
            CopyContext::Cpu => &[CopyCompletion::Poll],
            _ => CopyCompletion::value_variants(),
        };
        for &completion in completions {
            for direction in [Direction::From, Direction::To] {
                cases.push(CopyRequest {
                    context,
                    completion,
                    ..CopyRequest::new(path, direction, 1)
                });
            }
        }
    }
    cases
}

fn case(request: &CopyRequest, plan: &VerifyPlan, stop: &StopFlag) -> Option<Case> {
    let outcome = match request.path.waiver() {
        Some(reason) => CaseOutcome::Waived(reason),
        None => sizes(request, plan, stop)?,
    };
    Some(Case {
        path: request.path,
        context: request.context,
        completion: (request.context != CopyContext::Cpu).then_some(request.completion),
        direction: request.direction,
        outcome,
    })
}

fn sizes(request: &CopyRequest, plan: &VerifyPlan, stop: &StopFlag) -> Option<CaseOutcome> {
    let (mut copies, mut bytes, mut largest_bytes) = (0, 0, 0);
    let smaller = SIZES.into_iter().filter(|size| *size < plan.largest_bytes);
    for size in smaller.chain([plan.largest_bytes]) {
        let request = CopyRequest { block_bytes: size, ..request.clone() };
        let mut sessions = match open(&request) {
            Ok(sessions) => sessions,
            Err(_) if copies > 0 => break,
            Err(fault) => return Some(CaseOutcome::Waived(fault.0)),
        };
        let checked = check(sessions[0].as_mut(), plan.times, stop)?;
        if let Err(reason) = checked {
            return Some(CaseOutcome::Failed(format!("{size} bytes: {reason}")));
        }
        copies += u64::from(plan.times);
        bytes += size as u64 * u64::from(plan.times);
        largest_bytes = size;
    }
    Some(CaseOutcome::Verified { copies, bytes, largest_bytes })
}

fn check(lane: &mut dyn Session, times: u32, stop: &StopFlag) -> Option<Result<(), String>> {
    let mut checked = lane.prepare();
    for _ in 0..times {
        if stop.is_set() {
            return None;
        }
        checked = checked.and_then(|()| lane.verify());
    }
    Some(checked.map_err(|fault| fault.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_keeps_only_cases_that_were_finished() {
        let stop = StopFlag::default();
        stop.set();
        let cases =
            all(&VerifyPlan { only: None, largest_bytes: 5000, times: u32::MAX }, &stop, |_| {});
        assert!(
            cases.iter().all(|case| matches!(case.outcome, CaseOutcome::Waived(_))),
            "{cases:?}"
        );
    }

    #[test]
    fn every_case_of_this_host_verifies_or_says_why_not() {
        // Engines copy the largest size in several pieces.
        let plan = VerifyPlan { only: None, largest_bytes: 100_001, times: 1 };
        let mut counted = Vec::new();
        let cases = all(&plan, &StopFlag::default(), |of| counted.push(of));
        assert_eq!(counted, vec![cases.len(); cases.len()]);
        assert!(cases.iter().any(
            |case| case.path == CopyPath::EngineThread && case.context == CopyContext::Priority
        ));
        for case in cases {
            match &case.outcome {
                CaseOutcome::Verified { copies, .. } => assert!(*copies >= 7, "{case:?}"),
                CaseOutcome::Waived(reason) => assert!(reason.len() > 10, "{case:?}"),
                CaseOutcome::Failed(_) => panic!("{case:?}"),
            }
        }
    }
}
