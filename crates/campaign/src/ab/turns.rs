//! Two prepared processes that work slices in turns on one page.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use daqmeter_harness::Slice;
use daqmeter_sys::turns::Page;

use super::process::{Process, wait};
use super::protocol::{
    MAX_STEPS, Reply, SideRequest, Step, Task, WRITER, hand, slice_of, write_steps,
};
use super::question::{AbSide, Question, letter};

pub(super) type Operations = BTreeMap<String, u64>;

pub(super) struct Turns {
    page: Page,
    sides: [Process; 2],
    stages: Vec<(String, u64)>,
    patience: Duration,
}

impl Turns {
    /// Starts both in this order, with heap and stack of each shifted by its number of bytes.
    pub(super) fn start(
        question: &Question,
        first: usize,
        shifts: [usize; 4],
        operations: &Operations,
    ) -> Result<Turns, String> {
        let page = Page::create().map_err(|error| error.to_string())?;
        let start = |side: usize| {
            let of = &question.sides[side];
            let AbSide::Point { request, .. } = of else {
                return Err(format!("side {}: a command takes no turns", letter(side)));
            };
            let (operations, shift_bytes) = (operations.clone(), shifts[side]);
            let request = SideRequest { side, operations, shift_bytes, ..request.clone() };
            if let Some(switch) = &question.switch {
                switch.set(side)?;
            }
            Process::start(of, &page, &request, shifts[2 + side], question.patience)
        };
        // The first one gets the memory that is free first.
        let (one, other) = (start(first)?, start(1 - first)?);
        let sides = if first == 0 { [one, other] } else { [other, one] };
        let stages = common_stages(&sides)?;
        let patience = question.patience;
        Ok(Turns { page, sides, stages, patience })
    }

    pub(super) fn stages(&self) -> &[(String, u64)] {
        &self.stages
    }

    pub(super) fn schemas(&self) -> [u32; 2] {
        [self.sides[0].schema, self.sides[1].schema]
    }

    pub(super) fn work(&mut self, wanted: &[(usize, usize)]) -> Result<Vec<Slice>, String> {
        let mut slices = Vec::with_capacity(wanted.len());
        for wanted in wanted.chunks(MAX_STEPS) {
            let step = |&(side, stage): &(usize, usize)| Step {
                side,
                stage,
                operations: self.stages[stage].1,
            };
            let steps: Vec<Step> = wanted.iter().map(step).collect();
            write_steps(&self.page, &steps);
            self.turn(steps[0].side, Task::Work)?;
            for (at, step) in steps.iter().enumerate() {
                slices.push(slice_of(&self.page, at).ok_or_else(|| {
                    format!("side {}: says that a slice took no time", letter(step.side))
                })?);
            }
        }
        Ok(slices)
    }

    fn turn(&mut self, side: usize, task: Task) -> Result<(), String> {
        let seen = self.page.word(WRITER).load(Ordering::Acquire);
        hand(&self.page, side, task);
        let [a, b] = &mut self.sides;
        wait(&self.page, seen, self.patience, side, &mut [a, b])
    }

    pub(super) fn verify(&mut self) -> Result<(), String> {
        for side in [0, 1] {
            self.turn(side, Task::Verify)?;
            match self.sides[side].reply(&self.page)? {
                Reply::Verified => {}
                other => {
                    return Err(self.sides[side].wrong(format!("{other:?} is not a verification")));
                }
            }
        }
        Ok(())
    }
}

/// Returns the stages of both with the smaller number of operations, so that both do equal work.
fn common_stages(sides: &[Process; 2]) -> Result<Vec<(String, u64)>, String> {
    let [a, b] = sides;
    let names = |process: &Process| {
        let names: Vec<&str> = process.stages.iter().map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    };
    if names(a) != names(b) {
        return Err(format!("A has the stages {}, B has {}", names(a), names(b)));
    }
    let both = a.stages.iter().zip(&b.stages);
    Ok(both.map(|((name, a), (_, b))| (name.clone(), (*a).min(*b).max(1))).collect())
}
