//! The threads of a path. Each takes, works and hands on until the ring before it or behind it
//! ends. A failure is one fault; its ends close, so that the others end, too.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_record::path::{PathQueue, PathThread};
use daqmeter_sys::affinity;
use daqmeter_sys::wait::without_timer_slack;

use crate::chain::account::{Account, Side};
use crate::chain::carry::{Carried, Line, Role, Step};
use crate::chain::pace::Sources;
use crate::chain::ring::Inlet;
use crate::chain::shared::Shared;
use crate::element::{BlockReceiver, Label};

/// Work of a reader or a receiver of a card in its thread, to its end.
pub(crate) type CardWork =
    Box<dyn FnMut(&StopFlag, &Shared, &mut Account) -> Result<(), Fault> + Send>;

/// Source of a thread's blocks.
pub(crate) enum Feed {
    Sources(Sources),
    /// The rings before it.
    Ring(Inlet),
    /// The far end of a stage, with the labels of the blocks that went in.
    Back(BlockReceiver, Receiver<Label>),
    /// A reader or receiver of a card, which has no blocks of the path.
    Card(CardWork, StopFlag),
    /// It has ended.
    Over,
}

pub(crate) struct Worker {
    /// Its place among all threads.
    pub(crate) at: usize,
    pub(crate) thread: PathThread,
    pub(crate) feed: Feed,
    pub(crate) line: Line,
    pub(crate) shared: Arc<Shared>,
    pub(crate) done: Sender<Done>,
}

/// Result of a thread: its feed and its steps have what they did.
pub(crate) struct Done {
    pub(crate) at: usize,
    pub(crate) feed: Feed,
    pub(crate) steps: Vec<Step>,
    /// Rings before it.
    pub(crate) queues: Vec<PathQueue>,
    pub(crate) thread: PathThread,
    pub(crate) note: Option<String>,
    pub(crate) fault: Option<Fault>,
}

impl Worker {
    /// Works in a thread of its own, once it is released.
    pub(crate) fn live(mut self, ready: &Sender<Result<(), Fault>>, stop: &StopFlag) {
        // The receiver is gone if another thread was not ready.
        let _ = ready.send(self.place().and_then(|()| self.prepare(stop)));
        let shared = self.shared.clone();
        if shared.begin_ns.wait().is_some() {
            self.work();
            shared.may_end.wait();
        }
    }

    pub(crate) fn work(mut self) {
        let mut account = Account::begin(self.thread.clone());
        let fault = match catch_unwind(AssertUnwindSafe(|| self.run(&mut account))) {
            Ok(Ok(())) => None,
            Ok(Err(fault)) => Some(fault.context(&self.thread.name)),
            Err(_) => Some(Fault::new(format!(
                "{}: a bug in daqmeter: its thread panicked",
                self.thread.name
            ))),
        };
        self.finish(account.end(), fault);
    }

    /// Reports the fault before the ends close: the neighbours' faults are its consequences.
    fn finish(self, mut thread: PathThread, fault: Option<Fault>) {
        let Worker { at, feed, line: Line { steps, outlet, parts }, shared, done, .. } = self;
        if fault.is_some() {
            shared.is_over.store(true, Ordering::Relaxed);
        }
        parts.tell(&mut thread);
        let note = thread.cpu.and_then(|cpu| moved(&thread.name, cpu));
        thread.cpu = thread.cpu.filter(|_| note.is_none());
        let (feed, inlet) = match feed {
            Feed::Ring(inlet) => (Feed::Over, Some(inlet)),
            feed => (feed, None),
        };
        let queues = inlet.iter().flat_map(Inlet::queues).cloned().collect();
        // The run waits for all threads, and so for this one.
        let _ = done.send(Done { at, feed, steps, queues, thread, note, fault });
        drop((inlet, outlet));
    }

    pub(crate) fn prepare(&mut self, stop: &StopFlag) -> Result<(), Fault> {
        if let Some(outlet) = &mut self.line.outlet {
            outlet.prepare()?;
        }
        match &mut self.feed {
            Feed::Card(_, own) => *own = stop.clone(),
            feed => {
                without_timer_slack();
                if let Feed::Sources(sources) = feed {
                    sources.prepare(stop)?;
                }
            }
        }
        for step in &mut self.line.steps {
            step.room.prepare()?;
            if let Role::Sink(into) = &mut step.role {
                into.sink.prepare()?;
            }
        }
        Ok(())
    }

    fn place(&self) -> Result<(), Fault> {
        match self.thread.cpu {
            Some(cpu) => drop(affinity::pin_to(cpu)?),
            // Threads inherit the mask of the thread that made them.
            None => affinity::unpin(),
        }
        Ok(())
    }

    fn run(&mut self, account: &mut Account) -> Result<(), Fault> {
        let Worker { feed, line, shared, .. } = self;
        let ran = match feed {
            Feed::Sources(sources) => sources.run(line, shared, account),
            Feed::Ring(inlet) => take_all(inlet, line, shared, account),
            Feed::Back(inward, labels) => {
                let received = receive(inward, labels, line, shared, account);
                // Its other end stops at once, also after a fault.
                *labels = channel().1;
                received
            }
            Feed::Card(work, stop) => work(stop, shared, account),
            Feed::Over => Ok(()),
        };
        match line.steps.last_mut().map(|step| &mut step.role) {
            Some(Role::Out(out)) => *out = None,
            Some(Role::Sink(into)) => return into.end(ran, shared),
            _ => {}
        }
        ran
    }
}

/// Says that this thread is no longer on its CPU: the kernel moves the threads of one that goes
/// offline, and does not put them back.
fn moved(thread: &str, cpu: u32) -> Option<String> {
    let allowed = affinity::allowed_cpus().ok()?;
    (allowed != [cpu]).then(|| {
        format!("{thread} was moved away from CPU {cpu}, which went offline: run the path again")
    })
}

/// Carries the blocks of the rings before, one by one, until the thread on one side has ended.
fn take_all(
    inlet: &mut Inlet,
    line: &mut Line,
    shared: &Shared,
    account: &mut Account,
) -> Result<(), Fault> {
    while let Some((at, block)) = inlet.next(account) {
        let Carried::Back(back) = line.carry(block, false, shared, account)? else { break };
        inlet.give_back(at, back);
        account.done_block();
    }
    Ok(())
}

fn receive(
    inward: &mut BlockReceiver,
    labels: &Receiver<Label>,
    line: &mut Line,
    shared: &Shared,
    account: &mut Account,
) -> Result<(), Fault> {
    let next = |account: &mut Account| match labels.try_recv() {
        Ok(label) => Some(label),
        Err(TryRecvError::Disconnected) => None,
        Err(TryRecvError::Empty) => account.wait(Side::Input, || labels.recv().ok()),
    };
    while let Some(label) = next(account) {
        let empty = line.outlet.as_mut().and_then(|outlet| outlet.empty(account));
        let Some(mut block) = empty else { break };
        inward(block.buffer.slice_mut(label.bytes))?;
        block.label = label;
        account.done_block();
        let Carried::Sent = line.carry(block, true, shared, account)? else { break };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use daqmeter_sys::affinity::{pin_to, process_cpus, unpin};

    use super::*;

    #[test]
    fn a_thread_that_may_run_on_other_cpus_was_moved_away_from_its_own() {
        let cpu = process_cpus()[0];
        let is_moved = std::thread::spawn(move || {
            pin_to(cpu).unwrap();
            let before = moved("copy", cpu);
            unpin();
            (before, moved("copy", cpu).is_some())
        });
        assert_eq!(is_moved.join().unwrap(), (None, process_cpus().len() > 1));
    }
}
