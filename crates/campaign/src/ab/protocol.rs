//! Protocol between the two ends of a side: JSON in the text of the shared page, steps and turns in
//! its words.
//!
//! The parent writes a [`SideRequest`] as the text, and the side answers with a [`Reply`]. Then the
//! parent writes steps to the page, each one slice of one stage by one side. The end with the turn
//! works its steps, and hands on to the side of the next step, or at last to the parent. The other
//! ends wait meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use daqmeter_harness::{Disturbed, Slice};
use daqmeter_record::{Param, SCHEMA_VERSION, Workload};
use daqmeter_sys::turns::{Page, WORDS};
use serde::{Deserialize, Serialize};

/// Protocol version. Two binaries are compared only if their versions are equal.
pub(super) const VERSION: u32 = 1;

/// Words for the turns, a cache line apart: A, B, and the writer of the steps.
pub(super) const TURN: [usize; 3] = [0, 16, 32];
pub(super) const WRITER: usize = TURN[2];
const TASK: usize = 48;
const STEPS: usize = 49;
const POSITION: usize = 50;
/// Word that is set when a side could not go on; its text has the reason.
const FAULT: usize = 51;
const FIRST_STEP: usize = 64;
const STEP_WORDS: usize = 4;
/// Microseconds of a slice. Disturbances every few milliseconds, as by the kernel's timer, meet few
/// groups of four such slices. The median of a block's groups passes over those. Slices of 1 ms had
/// ten times the noise (conversion of 20,000 samples, 0.13 % against 1 % from block to block).
const SLICE_US: u64 = 150;
pub(super) const MAX_STEPS: usize = (WORDS - FIRST_STEP) / STEP_WORDS;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SideRequest {
    pub version: u32,
    pub workload: Workload,
    pub cpu: Option<u32>,
    pub slice_us: u64,
    /// 0 for A, 1 for B.
    pub side: usize,
    /// Bytes by which the heap is shifted before anything is opened.
    pub shift_bytes: usize,
    /// Operations of a slice by the name of the stage. A side finds the number itself for other
    /// stages.
    pub operations: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    Ready {
        version: u32,
        schema: u32,
        /// Stages with the operations of their slices.
        stages: Vec<(String, u64)>,
    },
    Verified,
    Refused(String),
}

impl Reply {
    pub(super) fn ready(stages: Vec<(String, u64)>) -> Reply {
        let schema = SCHEMA_VERSION;
        Reply::Ready { version: VERSION, schema, stages }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Work,
    Verify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) side: usize,
    pub(super) stage: usize,
    pub(super) operations: u64,
}

pub(super) fn hand(page: &Page, side: usize, task: Task) {
    page.word(FAULT).store(0, Ordering::Release);
    page.word(TASK).store(task as u64, Ordering::Release);
    page.signal(TURN[side]);
}

pub(super) fn task(page: &Page) -> Option<Task> {
    let word = page.word(TASK).load(Ordering::Acquire);
    [Task::Work, Task::Verify].into_iter().find(|task| *task as u64 == word)
}

pub(super) fn write_steps(page: &Page, steps: &[Step]) {
    assert!(steps.len() <= MAX_STEPS, "{} steps", steps.len());
    for (at, step) in steps.iter().enumerate() {
        let values = [step.side as u64 | (step.stage as u64) << 8, step.operations, 0, 0];
        for (word, value) in values.into_iter().enumerate() {
            page.word(place(at) + word).store(value, Ordering::Relaxed);
        }
    }
    page.word(POSITION).store(0, Ordering::Relaxed);
    page.word(STEPS).store(steps.len() as u64, Ordering::Release);
}

fn place(step: usize) -> usize {
    FIRST_STEP + step * STEP_WORDS
}

fn number(page: &Page, word: usize) -> usize {
    usize::try_from(page.word(word).load(Ordering::Acquire)).unwrap_or(usize::MAX)
}

pub(super) fn position(page: &Page) -> usize {
    number(page, POSITION)
}

pub(super) fn next_step(page: &Page) -> Option<Step> {
    let at = position(page);
    if at >= number(page, STEPS).min(MAX_STEPS) {
        return None;
    }
    let who = page.word(place(at)).load(Ordering::Relaxed);
    Some(Step {
        side: usize::from(who & 1 == 1),
        stage: usize::try_from(who >> 8).unwrap_or(usize::MAX),
        operations: page.word(place(at) + 1).load(Ordering::Relaxed),
    })
}

pub(super) fn finish_step(page: &Page, slice: Slice) {
    let at = place(position(page).min(MAX_STEPS - 1));
    let Disturbed { preempted, migrated, stolen } = slice.disturbed;
    let flags = u64::from(preempted) | u64::from(migrated) << 1 | u64::from(stolen) << 2;
    page.word(at + 2).store(slice.ns, Ordering::Relaxed);
    page.word(at + 3).store(flags, Ordering::Relaxed);
    page.word(POSITION).fetch_add(1, Ordering::AcqRel);
}

pub(super) fn slice_of(page: &Page, step: usize) -> Option<Slice> {
    let [ns, flags] = [2, 3].map(|word| page.word(place(step) + word).load(Ordering::Relaxed));
    let disturbed =
        Disturbed { preempted: flags & 1 != 0, migrated: flags & 2 != 0, stolen: flags & 4 != 0 };
    (ns > 0 && flags < 8).then_some(Slice { ns, disturbed })
}

pub(super) fn set_fault(page: &Page) {
    page.word(FAULT).store(1, Ordering::Release);
}

pub(super) fn has_fault(page: &Page) -> bool {
    page.word(FAULT).load(Ordering::Acquire) != 0
}

impl SideRequest {
    /// Parses a request such as `convert function=3 samples=3000000 isa=avx2`; `cpu=1` sets its
    /// CPU.
    pub fn parse(text: &str) -> Result<SideRequest, String> {
        let mut words = text.split_whitespace();
        let kind = words.next().ok_or("a point begins with the name of an engine")?;
        let mut workload = Workload::new(kind);
        let mut cpu = None;
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| {
                format!("`{word}` is not a parameter: ENGINE NAME=VALUE ... is wanted")
            })?;
            if name == "cpu" {
                cpu = Some(value.parse().map_err(|_| format!("cpu={value}: no CPU number"))?);
            } else {
                workload.params.insert(name.to_owned(), param(name, value)?);
            }
        }
        Ok(SideRequest::new(workload, cpu))
    }

    pub fn new(workload: Workload, cpu: Option<u32>) -> SideRequest {
        SideRequest {
            version: VERSION,
            workload,
            cpu,
            slice_us: SLICE_US,
            side: 0,
            shift_bytes: 0,
            operations: BTreeMap::new(),
        }
    }
}

/// Reads a value as in plans: sizes may have a unit.
fn param(name: &str, text: &str) -> Result<Param, String> {
    if let Ok(flag) = text.parse() {
        return Ok(Param::Flag(flag));
    }
    if let Ok(whole) = text.parse() {
        return Ok(Param::Int(whole));
    }
    if let Ok(float) = text.parse::<f64>() {
        let is_number = float.is_finite().then_some(Param::Float(float));
        return is_number.ok_or_else(|| format!("{name}={text} is not a finite number"));
    }
    if name.ends_with("_bytes") {
        let bytes = daqmeter_record::units::parse_bytes(text);
        return bytes.map(Param::Int).map_err(|error| format!("{name}: {error}"));
    }
    Ok(Param::Text(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_worked_in_their_order_and_keep_what_they_took() {
        let page = Page::create().unwrap();
        assert_eq!(next_step(&page), None);
        let step = |side, stage| Step { side, stage, operations: 7 };
        let steps = [step(1, 3), step(0, 3)];
        write_steps(&page, &steps);
        let disturbed = Disturbed { migrated: true, ..Disturbed::default() };
        for (ns, step) in [(5, steps[0]), (6, steps[1])] {
            assert_eq!(next_step(&page), Some(step));
            finish_step(&page, Slice { ns, disturbed });
        }
        assert_eq!((next_step(&page), position(&page)), (None, 2));
        assert_eq!(slice_of(&page, 1), Some(Slice { ns: 6, disturbed }));
    }

    /// No content of the page makes a side reach beyond it.
    #[test]
    fn nonsense_in_the_page_is_no_step_and_no_time() {
        let page = Page::create().unwrap();
        for at in 0..WORDS {
            page.word(at).store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!((next_step(&page), task(&page)), (None, None));
        assert_eq!(slice_of(&page, MAX_STEPS - 1), None);
        finish_step(&page, Slice::default());
        page.word(POSITION).store(3, Ordering::Relaxed);
        assert!(next_step(&page).is_some());
        write_steps(&page, &[]);
        assert_eq!(slice_of(&page, 0), None);
    }

    #[test]
    fn points_are_read_as_they_are_written() {
        let found = SideRequest::parse("copy block_bytes=4KiB path=pread cold=true rate=1.5 cpu=1")
            .unwrap();
        assert_eq!(
            found.workload.to_string(),
            "copy block_bytes=4096 cold=true path=pread rate=1.5"
        );
        assert_eq!(found.cpu, Some(1));
        for (text, wanted) in [
            ("", "name of an engine"),
            ("copy block", "`block` is not a parameter"),
            ("copy cpu=x", "no CPU number"),
            ("copy block_bytes=4Kx", "block_bytes: "),
            ("copy rate=NaN", "rate=NaN is not a finite number"),
        ] {
            assert!(SideRequest::parse(text).unwrap_err().contains(wanted), "{text}");
        }
    }
}
