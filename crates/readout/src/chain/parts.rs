//! The parts of a chain: each runs in a thread of its own, whoever starts it and wherever that runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::{SysError, affinity, cpu_time};

use super::done::{Load, ReaderDone};
use super::watched::{self, Bytes, Experiment, Times, Watch};
use crate::accounts::FinalAccount;
use crate::card::words::State;
use crate::card::{Card, channel_ids};
use crate::port::{Port, Pump, inline};
use crate::receive::{Receiver, Report};
use crate::scenario::{Parts, Publish, Scenario, ScenarioError};
use crate::tohost::ToHost;
use crate::transport::{self, Hello, Outlet, TransportError};

/// Why a chain could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The scenario.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// It needs more memory than there is.
    #[error(transparent)]
    TooLarge(ScenarioError),
    /// The network.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The kernel.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// Pinning, threads.
    #[error("{0}")]
    System(String),
}

impl From<ScenarioError> for Fault {
    fn from(error: ScenarioError) -> Self {
        Fault::new(error.to_string())
    }
}

impl From<ChainError> for Fault {
    fn from(error: ChainError) -> Self {
        match error {
            ChainError::TooLarge(_) => Fault::too_large(error.to_string()),
            _ => Fault::new(error.to_string()),
        }
    }
}

/// Pins the calling thread, and sees that it is.
///
/// # Errors
/// When the kernel does not do it.
pub fn pin(cpu: Option<u32>) -> Result<(), ChainError> {
    let Some(cpu) = cpu else { return Ok(()) };
    match affinity::pin_to(cpu) {
        Ok(allowed) if allowed == [cpu] => Ok(()),
        Ok(allowed) => Err(ChainError::System(format!(
            "pinned to CPU {cpu}, but the kernel allows {allowed:?}"
        ))),
        Err(error) => Err(ChainError::System(format!(
            "CPU {cpu} does not exist or is taken from us: {error}"
        ))),
    }
}

/// The CPU time of a piece of work in this thread.
fn loaded<T>(work: impl FnOnce() -> T) -> (T, Load) {
    let (cpu, wall) = (cpu_time::of_thread(), monotonic_ns());
    let done = work();
    let (cpu_after, wall_after) = (cpu_time::of_thread(), monotonic_ns());
    let ns = (cpu_after.user_ns + cpu_after.system_ns).saturating_sub(cpu.user_ns + cpu.system_ns);
    let cpu = ns as f64 / (wall_after - wall).max(1) as f64;
    (done, Load { cpu })
}

/// A card with its readers and receivers, before any of them runs.
pub struct Chain {
    /// The scenario, with the ring that there is.
    pub scenario: Scenario,
    /// The card.
    pub card: Arc<Mutex<Card>>,
    /// One for each channel.
    pub readers: Vec<Reader>,
    /// As many as were asked for.
    pub receivers: Vec<Receiving>,
}

impl Chain {
    /// What a chain of the scenario consists of: a reader, a subscriber and a connection for each channel.
    pub fn parts(scenario: &Scenario) -> Parts {
        let channels = channel_ids(scenario).len();
        Parts { channels, subscribers: channels, receptions: channels }
    }

    /// As [`Chain::open_watched`], with nothing added and nothing watched.
    ///
    /// # Errors
    /// As that.
    pub fn open(
        scenario: &Scenario,
        receivers: usize,
        duration: Duration,
        triggers: Option<u64>,
    ) -> Result<Chain, ChainError> {
        Chain::made(scenario, receivers, duration, triggers, None)
    }

    /// Makes the parts. Readers are dealt out to so many receivers in turn; triggers come for so long, or until there were so many.
    ///
    /// # Errors
    /// When there is not enough memory, or an address cannot be had.
    pub fn open_watched(
        scenario: &Scenario,
        receivers: usize,
        duration: Duration,
        triggers: Option<u64>,
        experiment: &Experiment,
    ) -> Result<Chain, ChainError> {
        Chain::made(scenario, receivers, duration, triggers, Some(experiment))
    }

    fn made(
        scenario: &Scenario,
        receivers: usize,
        duration: Duration,
        triggers: Option<u64>,
        experiment: Option<&Experiment>,
    ) -> Result<Chain, ChainError> {
        scenario.check_memory(Chain::parts(scenario)).map_err(ChainError::TooLarge)?;
        let (mut card, consumers) = Card::new(scenario)?;
        card.source().end_at(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX - 1));
        if let Some(triggers) = triggers {
            card.source().end_after(triggers);
        }
        let scenario = card.scenario().clone();
        let card = Arc::new(Mutex::new(card));
        let bytes = Bytes::new(scenario.card.block.0);
        let mut readers = Vec::new();
        for (at, consumer) in consumers.into_iter().enumerate() {
            let (port, pump) = inline(card.clone(), consumer)?;
            let parts = ReaderParts {
                port: Box::new(port),
                pump: Box::new(pump),
                outlet: outlet_of(&scenario, at, &scenario.publish)?,
                times: None,
            };
            let parts = match experiment {
                Some(experiment) => parts.watched(&Watch::new(experiment, &bytes)),
                None => parts,
            };
            readers.push(parts.reader(&scenario, at, &scenario.publish)?);
        }
        let experiment = experiment.map(|experiment| (experiment.clone(), bytes));
        Ok(Chain {
            receivers: dealt_out(&scenario, receivers, &readers, experiment.as_ref()),
            scenario,
            card,
            readers,
        })
    }
}

/// A reader, and what makes its card go on.
pub struct Reader {
    /// The reader.
    pub tohost: ToHost,
    pump: Box<dyn Pump>,
    /// Of what else works in its thread, where that is watched.
    times: Option<Arc<Times>>,
}

impl Reader {
    /// As [`ToHost::turn`].
    pub fn turn(&mut self) -> bool {
        self.tohost.turn(self.pump.as_mut())
    }

    /// As [`ToHost::run`].
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        wait: bool,
        each: impl FnMut(&mut ToHost),
    ) -> FinalAccount {
        self.tohost.run(self.pump.as_mut(), stop, wait, each)
    }

    /// Runs it in this thread to its end, or until `quit` says so.
    pub fn read(&mut self, quit: &(impl Fn() -> bool + Sync)) -> ReaderDone {
        let stop = AtomicBool::new(false);
        let mut filling = Vec::with_capacity(1 << 14);
        let mut backlog = Vec::with_capacity(1 << 14);
        let (account, load) = loaded(|| {
            self.run(&stop, true, |reader| {
                let (state, start_ns) = reader.card_clock();
                if state == State::Running && filling.len() < filling.capacity() {
                    let now_ns = monotonic_ns().saturating_sub(start_ns);
                    filling.push((now_ns, reader.filled_bytes() as u64));
                    backlog.push((now_ns, reader.backlog_bytes()));
                }
                if quit() {
                    stop.store(true, Ordering::Relaxed);
                }
            })
        });
        let view = self.tohost.card();
        ReaderDone {
            stats: self.tohost.stats(),
            account,
            load,
            within: self.times.as_ref().map(|times| {
                let ns = |of: &AtomicU64| of.load(Ordering::Relaxed);
                (ns(&times.card_ns), ns(&times.publisher_ns))
            }),
            notes: self.tohost.take_notes(),
            ring_bytes: self.tohost.ring_bytes(),
            dead: view.dead,
            card_ns: view.now_ns,
            filling,
            backlog,
        }
    }
}

/// A reader of whatever port, with its publisher, and facts of the transport.
///
/// # Errors
/// When the publisher's address cannot be had.
pub fn reader_of(
    scenario: &Scenario,
    port: Box<dyn Port>,
    pump: Box<dyn Pump>,
    at: usize,
    publish: &Publish,
) -> Result<(Reader, Vec<(String, String)>), ChainError> {
    let outlet = outlet_of(scenario, at, publish)?;
    let facts = outlet.facts();
    let parts = ReaderParts { port, pump, outlet, times: None };
    Ok((parts.reader(scenario, at, publish)?, facts))
}

fn outlet_of(
    scenario: &Scenario,
    at: usize,
    publish: &Publish,
) -> Result<Box<dyn Outlet>, TransportError> {
    transport::named(&publish.transport)?.publish(publish, &hello(scenario, at))
}

/// What a reader is made of.
struct ReaderParts {
    port: Box<dyn Port>,
    pump: Box<dyn Pump>,
    outlet: Box<dyn Outlet>,
    times: Option<Arc<Times>>,
}

impl ReaderParts {
    fn watched(self, watch: &Watch) -> ReaderParts {
        ReaderParts {
            port: watch.port(self.port),
            pump: watch.pump(self.pump),
            outlet: watch.outlet(self.outlet),
            times: Some(watch.times.clone()),
        }
    }

    fn reader(
        self,
        scenario: &Scenario,
        at: usize,
        publish: &Publish,
    ) -> Result<Reader, ChainError> {
        let id = channel_ids(scenario)[at];
        let elinks = scenario.elinks(id.device, id.channel);
        let format = scenario.format().ok_or_else(|| ChainError::System("no format".to_owned()))?;
        let (port, outlet) = (self.port, self.outlet);
        Ok(Reader {
            tohost: ToHost::new(port, outlet, scenario.reader, publish, format, &elinks),
            pump: self.pump,
            times: self.times,
        })
    }
}

/// What a channel's publisher offers.
pub fn hello(scenario: &Scenario, at: usize) -> Hello {
    let id = channel_ids(scenario)[at];
    let format = scenario.format().expect("the scenario was checked");
    Hello {
        stream: monotonic_ns() ^ u64::from(std::process::id()) << 40 ^ (at as u64) << 32,
        scenario: scenario.name.clone(),
        tags: scenario.elinks(id.device, id.channel).iter().map(|elink| elink.tag).collect(),
        magic: format.magic,
        block_bytes: u32::try_from(format.block_bytes).expect("at most 16 KiB"),
    }
}

/// A receiver before it runs: the publishers of its readers.
#[derive(Clone)]
pub struct Receiving {
    transport: String,
    experiment: Option<(Experiment, Arc<Bytes>)>,
    publishers: Vec<(Publish, Vec<u64>)>,
}

/// Readers are dealt out to receivers in turn.
fn dealt_out(
    scenario: &Scenario,
    receivers: usize,
    readers: &[Reader],
    experiment: Option<&(Experiment, Arc<Bytes>)>,
) -> Vec<Receiving> {
    let count = receivers.clamp(1, readers.len().max(1));
    let publisher = |reader: &Reader| {
        let publish = Publish { address: reader.tohost.address(), ..scenario.publish.clone() };
        (publish, Vec::new())
    };
    let receiving = |at| Receiving {
        transport: scenario.publish.transport.clone(),
        experiment: experiment.cloned(),
        publishers: readers.iter().skip(at).step_by(count).map(publisher).collect(),
    };
    (0..count).map(receiving).collect()
}

impl Receiving {
    /// Connects and runs in this thread to the end of its publishers.
    ///
    /// # Errors
    /// When it cannot be connected; then the flag is set, too.
    pub fn receive(
        &self,
        failed: &AtomicBool,
        quit: &(impl Fn() -> bool + Sync),
    ) -> Result<(Report, Load), ChainError> {
        let give_up = || quit() || failed.load(Ordering::Relaxed);
        let connected = transport::named(&self.transport)
            .map(|own| match &self.experiment {
                Some((experiment, bytes)) => watched::transport(own, experiment, bytes),
                None => own,
            })
            .and_then(|transport| Receiver::connect_unless(transport, &self.publishers, &give_up));
        let mut receiver = connected.inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
        let stop = AtomicBool::new(false);
        Ok(loaded(|| {
            receiver.run(&stop, Duration::from_secs(2), |_| {
                if quit() {
                    stop.store(true, Ordering::Relaxed);
                }
            })
        }))
    }
}
