//! A card that is read out in a run. Each reader works in a lane, so that it has the run's
//! placement and profile; receivers have threads of the path. `path` and `readout` run cards in
//! this way and differ in their reports.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daqmeter_harness::{Fault, Session, StageSpec, StopFlag, Tally};
use daqmeter_sys::host::Files;
use daqmeter_sys::scheduler::MigrationCost;

use crate::chain::Chain;
use crate::definition::Path;
use crate::live::{self, Came, Live};
use crate::shared::{How, Shared};
use crate::worker::Worker;

pub(crate) struct Says {
    pub(crate) device: fn(&ReadOut, usize) -> String,
    pub(crate) stage: StageSpec,
    pub(crate) tally: fn(&ReadOut, &Came, usize) -> Tally,
}

pub(crate) struct ReadOut {
    pub(crate) path: Path,
    pub(crate) live: Live,
    pub(crate) lanes: usize,
    shared: Arc<Shared>,
    says: Says,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    chain: Option<Chain>,
    receivers: Vec<Worker>,
    came: Came,
    /// Scheduler setting, if another was asked for: put back at the end.
    migration_cost: Option<MigrationCost>,
}

impl ReadOut {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }

    fn start_receivers(&self, stop: &StopFlag) -> Result<(), Fault> {
        let mut state = self.state();
        let receivers = std::mem::take(&mut state.receivers);
        let chain = state.chain.as_mut();
        chain.map_or(Ok(()), |chain| chain.spawn(receivers, stop))
    }

    fn ended(&self, stop: &StopFlag) -> MutexGuard<'_, State> {
        let mut state = self.state();
        // Receivers without threads do not come.
        state.receivers.clear();
        if let Some(mut chain) = state.chain.take() {
            let (all, fault) = chain.wait(stop);
            state.came = Came::of(all, self.lanes, fault);
        }
        state
    }
}

impl Drop for ReadOut {
    fn drop(&mut self) {
        self.fail();
    }
}

struct Lane {
    at: usize,
    reader: Option<Worker>,
    read_out: Arc<ReadOut>,
    has_worked: bool,
    stop: StopFlag,
}

/// Opens the card of a path: a lane for each of its DMA channels.
pub(crate) fn open(path: Path, how: How, says: Says) -> Result<Vec<Box<dyn Session>>, Fault> {
    let (live, readers, receivers) = live::open(&path, &how)?;
    let lanes = readers.len();
    let (chain, mut readers) = Chain::live(&path, &how, readers, receivers);
    let shared = chain.shared.clone();
    let state =
        State { chain: Some(chain), receivers: readers.split_off(lanes), ..State::default() };
    let state = Mutex::new(state);
    let read_out = Arc::new(ReadOut { path, live, lanes, shared, says, state });
    let lane = |(at, reader)| -> Box<dyn Session> {
        Box::new(Lane {
            at,
            reader: Some(reader),
            read_out: read_out.clone(),
            has_worked: false,
            stop: StopFlag::default(),
        })
    };
    Ok(readers.into_iter().enumerate().map(lane).collect())
}

impl Lane {
    fn prepare_all(&self) -> Result<(), Fault> {
        if self.at > 0 {
            return Ok(());
        }
        if let Some(ns) = self.read_out.shared.how.migration_cost_ns {
            let set = MigrationCost::set(&Files::default(), ns);
            let set = set.map_err(|error| Fault::new(error.to_string()))?;
            self.read_out.state().migration_cost = Some(set);
        }
        self.read_out.start_receivers(&self.stop)
    }
}

impl Session for Lane {
    fn device(&self) -> String {
        (self.read_out.says.device)(&self.read_out, self.at)
    }

    fn stages(&self) -> Vec<StageSpec> {
        vec![self.read_out.says.stage.clone()]
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let reader = self.reader.as_mut().map(|worker| worker.prepare(&self.stop));
        let prepared = reader.unwrap_or(Ok(())).and_then(|()| self.prepare_all());
        // Without this reader its receiver would wait for seconds.
        prepared.inspect_err(|_| self.read_out.fail())
    }

    fn begin(&mut self) {
        if let (0, Some(chain)) = (self.at, &self.read_out.state().chain) {
            chain.release();
        }
    }

    fn step(&mut self, _stage: usize, _operations: u64) -> Result<(), Fault> {
        // A plan by time calls again: by then the card has ended, and no work is left.
        if let Some(reader) = self.reader.take() {
            reader.work();
            self.has_worked = true;
        }
        // The data read until then is accounted for in the record.
        match self.stop.is_set() {
            true => Err(Fault::interrupted()),
            false => Ok(()),
        }
    }

    fn verify(&mut self) -> Result<(), Fault> {
        if !self.has_worked {
            return Ok(());
        }
        let state = self.read_out.ended(&self.stop);
        let came = &state.came;
        came.fault.clone().map_or(Ok(()), Err)?;
        let reader = came.readers[self.at].as_ref();
        reader.map_or(Ok(()), |reader| self.read_out.live.check(came, reader))
    }

    fn tally(&mut self) -> Tally {
        if self.reader.take().is_some() {
            // The reader did not run: receivers may wait for it.
            self.read_out.fail();
        }
        let state = self.read_out.ended(&self.stop);
        (self.read_out.says.tally)(&self.read_out, &state.came, self.at)
    }
}
