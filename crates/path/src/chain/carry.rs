//! Way of a block through the steps of a thread and into the ring behind.

use std::mem::swap;
use std::sync::mpsc::{SyncSender, TrySendError};

use daqmeter_harness::Fault;

use crate::chain::account::{Account, Side};
use crate::chain::delivery::IntoSink;
use crate::chain::ring::{Blocks, Outlet};
use crate::chain::shared::Shared;
use crate::chain::timing::Parts;
use crate::element::{Block, BlockSender, Label, Work};

/// Work of a thread on each block that it is given.
#[derive(Default)]
pub(crate) struct Line {
    pub(crate) steps: Vec<Step>,
    pub(crate) outlet: Option<Outlet>,
    pub(crate) parts: Parts,
}

/// One part of a thread's work on a block.
pub(crate) struct Step {
    pub(crate) element: usize,
    pub(crate) role: Role,
    pub(crate) room: Room,
}

pub(crate) enum Role {
    Work(Work),
    /// Sends blocks away, and their labels to the thread that receives them, until it ends.
    Out(Option<Away>),
    Sink(Box<IntoSink>),
}

/// Where blocks go, and their labels.
pub(crate) type Away = (BlockSender, SyncSender<Label>);

/// The block in which a source or a step makes its own, if that does not go into a ring.
#[derive(Default)]
pub(crate) struct Room {
    pub(crate) wanted: Option<Blocks>,
    pub(crate) block: Option<Box<Block>>,
}

impl Room {
    pub(crate) fn of(wanted: Blocks) -> Room {
        Room { wanted: Some(wanted), block: None }
    }

    /// Allocates it, in the thread that uses it.
    pub(crate) fn prepare(&mut self) -> Result<(), Fault> {
        if let Some(wanted) = self.wanted {
            self.block = wanted.made()?.pop();
        }
        Ok(())
    }
}

/// Fate of a block that a line carried.
pub(crate) enum Carried {
    /// The block, or another one for it, is free again.
    Back(Box<Block>),
    /// It went into the ring behind, whose block it was.
    Sent,
    /// The thread behind has ended.
    Over,
}

impl Line {
    /// Time at which it was done with the last block, if it goes as far as the sink.
    pub(crate) fn free_ns(&self) -> Option<u64> {
        match &self.steps.last()?.role {
            Role::Sink(into) => Some(into.last_ns).filter(|&last_ns| last_ns > 0),
            _ => None,
        }
    }

    /// Carries a block through the steps and into the ring behind. `is_of_ring` says that it is one
    /// of that ring; any other comes back.
    ///
    /// A step that makes a block keeps the one that it was made of in its room, until all go back.
    /// The last one makes a block of the ring behind, if there is one, and has no room.
    pub(crate) fn carry(
        &mut self,
        mut block: Box<Block>,
        is_of_ring: bool,
        shared: &Shared,
        account: &mut Account,
    ) -> Result<Carried, Fault> {
        let Line { steps, outlet, parts } = self;
        let mut timer = parts.timer(account);
        for (part, step) in (1..).zip(steps.iter_mut()) {
            if !step.take(&mut block, outlet.as_mut(), shared, account)? {
                return Ok(Carried::Over);
            }
            parts.add(&mut timer, part, account);
        }
        let Some(outlet) = outlet else { return Ok(Carried::Back(back(steps, block))) };
        let mut without_room = steps.iter_mut().filter(|step| step.room.wanted.is_none());
        let free = match without_room.find_map(|step| step.room.block.take()) {
            Some(used) => Some(back(steps, used)),
            None if is_of_ring => None,
            None => match outlet.empty(account) {
                None => return Ok(Carried::Over),
                empty => empty,
            },
        };
        Ok(match (outlet.send(block), free) {
            (false, _) => Carried::Over,
            (true, Some(free)) => Carried::Back(free),
            (true, None) => Carried::Sent,
        })
    }
}

/// Puts the blocks that were made of one another into their rooms, and returns the first one.
fn back(steps: &mut [Step], mut block: Box<Block>) -> Box<Block> {
    let rooms = steps.iter_mut().rev().filter_map(|step| step.room.block.as_mut());
    rooms.for_each(|room| swap(room, &mut block));
    block
}

impl Step {
    pub(crate) fn new(element: usize, role: Role) -> Step {
        Step { element, role, room: Room::default() }
    }

    /// Works on a block, which may become another one; false if the thread behind has ended. A lost
    /// block keeps its place in the order, and no work is done on it.
    fn take(
        &mut self,
        block: &mut Box<Block>,
        outlet: Option<&mut Outlet>,
        shared: &Shared,
        account: &mut Account,
    ) -> Result<bool, Fault> {
        let Label { bytes, lost_in, .. } = block.label;
        match &mut self.role {
            Role::Work(Work::Inspect(inspect)) => {
                if lost_in.is_none() {
                    block.label.events += inspect(block.bytes())?;
                }
            }
            Role::Work(Work::Lose(loses)) => {
                if lost_in.is_none() && loses(&block.label) {
                    (block.label.bytes, block.label.lost_in) = (0, Some(self.element));
                }
            }
            Role::Work(Work::Transform(transform)) => {
                if let (None, Some(outlet)) = (&self.room.wanted, outlet) {
                    self.room.block = outlet.empty(account);
                }
                let Some(made) = &mut self.room.block else { return Ok(false) };
                made.label = block.label;
                if lost_in.is_none() {
                    made.label.bytes =
                        transform.transform(&block.buffer, bytes, &mut made.buffer)?;
                }
                swap(made, block);
            }
            Role::Out(Some((out, labels))) => {
                let is_known = match labels.try_send(block.label) {
                    Ok(()) => true,
                    Err(TrySendError::Full(label)) => {
                        account.wait(Side::Output, || labels.send(label).is_ok())
                    }
                    Err(TrySendError::Disconnected(_)) => false,
                };
                if !is_known {
                    return Ok(false);
                }
                out(block.bytes())?;
            }
            Role::Out(None) => return Ok(false),
            Role::Sink(into) => into.take(block, shared)?,
        }
        Ok(true)
    }
}
