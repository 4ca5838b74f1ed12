//! A whole chain in this process: card, readers, receivers, each in its own thread, and what came of every trigger.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daqmeter_record::Ledger;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::{affinity, cpu_time};

use crate::accounts::{Dead, ledger};
use crate::card::{Card, State, channel_ids};
use crate::port::InlinePort;
use crate::receive::{Receiver, Report};
use crate::scenario::{Parts, Publish, Scenario, ScenarioError};
use crate::tohost::{FinalAccount, Stats, ToHost};
use crate::transport::{self, Hello, TransportError};

/// Where a chain's threads run, and how long.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// CPUs of the readers, in turn; free where it is empty.
    pub reader_cpus: Vec<u32>,
    /// CPUs of the receivers, in turn.
    pub receiver_cpus: Vec<u32>,
    /// Receivers; readers are dealt out to them in turn. As many as readers where it is 0.
    pub receivers: usize,
}

/// Why a chain could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The scenario.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The network.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Pinning, threads.
    #[error("{0}")]
    System(String),
}

/// CPU time of a thread over its work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Share of one CPU, 0 to 1.
    pub cpu: f64,
    /// The CPU that it was pinned to, and the kernel confirmed.
    pub pinned: Option<u32>,
}

/// One reader's part.
#[derive(Clone, Debug)]
pub struct ReaderDone {
    /// What it counted.
    pub stats: Stats,
    /// Accounts, closed at the end.
    pub account: FinalAccount,
    /// Its CPU.
    pub load: Load,
    /// Trouble.
    pub notes: Vec<String>,
    /// Bytes of its ring.
    pub ring_bytes: usize,
    /// Dead time as the card saw it.
    pub dead: [Dead; 3],
    /// Time from start to end as the card saw it.
    pub card_ns: u64,
    /// Bytes in the ring, every 10 ms or so while triggers came: the card's time, the bytes.
    pub filling: Vec<(u64, u64)>,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Done {
    /// Each reader, in the order of the channels.
    pub readers: Vec<ReaderDone>,
    /// Each receiver.
    pub receivers: Vec<(Report, Load)>,
    /// Ledger of each E-link: the card's counts against the receivers'.
    pub ledgers: Vec<(u64, Ledger)>,
    /// Facts of the transport for the record.
    pub facts: Vec<(String, String)>,
}

impl Done {
    /// Triggers issued.
    pub fn issued(&self) -> u64 {
        self.readers
            .first()
            .map_or(0, |reader| reader.account.card.issued)
    }

    /// Issued per second, over the time that triggers came.
    pub fn trigger_rate_hz(&self) -> f64 {
        let ns = self.readers.first().map_or(0, |reader| reader.card_ns);
        self.issued() as f64 / (ns.max(1) as f64 * 1e-9)
    }

    /// Share of the time with BUSY.
    pub fn dead_share(&self) -> f64 {
        let Some(reader) = self.readers.first() else {
            return 0.0;
        };
        reader.dead[2].ns as f64 / reader.card_ns.max(1) as f64
    }

    /// Chunks that were issued and not delivered, for whatever reason but the emulators' own deficit.
    pub fn lost(&self) -> u64 {
        let of = |ledger: &Ledger| {
            ledger.lost() - ledger.losses.get("emulator deficit").copied().unwrap_or(0)
        };
        self.ledgers.iter().map(|(_, ledger)| of(ledger)).sum()
    }

    /// Whether every E-link's account closes, and that of every subscription.
    pub fn closes(&self) -> bool {
        self.ledgers.iter().all(|(_, ledger)| ledger.closes())
            && self.readers.iter().all(|one| one.account.closes())
    }

    /// The most that was in a ring, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.readers
            .iter()
            .map(|reader| reader.stats.peak_bytes)
            .max()
            .unwrap_or(0)
    }

    /// All E-links' ledgers added up.
    pub fn ledger(&self) -> Ledger {
        let mut all = Ledger::new("triggers");
        for (_, ledger) in &self.ledgers {
            all.add(ledger);
        }
        all.unit = "triggers x E-links".to_owned();
        all
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

fn turn_of(cpus: &[u32], at: usize) -> Option<u32> {
    cpus.get(at % cpus.len().max(1)).copied()
}

/// The CPU time of a piece of work in this thread.
fn loaded<T>(pinned: Option<u32>, work: impl FnOnce() -> T) -> (T, Load) {
    let (cpu, wall) = (cpu_time::of_thread(), monotonic_ns());
    let done = work();
    let (cpu_after, wall_after) = (cpu_time::of_thread(), monotonic_ns());
    let ns = (cpu_after.user_ns + cpu_after.system_ns).saturating_sub(cpu.user_ns + cpu.system_ns);
    (
        done,
        Load {
            cpu: ns as f64 / (wall_after - wall).max(1) as f64,
            pinned,
        },
    )
}

/// A reader of a channel of a card in this process, with its publisher.
///
/// # Errors
/// When the publisher's address cannot be had.
pub fn reader(
    scenario: &Scenario,
    card: &Arc<Mutex<Card>>,
    consumer: daqmeter_sys::ring::Consumer,
    at: usize,
    publish: &Publish,
) -> Result<(ToHost, Vec<(String, String)>), ChainError> {
    let port = InlinePort::new(card.clone(), consumer)?;
    reader_of(scenario, Box::new(port), at, publish)
}

/// A reader of whatever port.
///
/// # Errors
/// When the publisher's address cannot be had.
pub fn reader_of(
    scenario: &Scenario,
    port: Box<dyn crate::port::Port>,
    at: usize,
    publish: &Publish,
) -> Result<(ToHost, Vec<(String, String)>), ChainError> {
    let id = channel_ids(scenario)[at];
    let elinks = scenario.elinks(id.device, id.channel);
    let format = scenario
        .format()
        .ok_or_else(|| ChainError::System("no format".to_owned()))?;
    let hello = hello(scenario, at);
    let outlet = transport::named(&publish.transport)?.publish(publish, &hello)?;
    let facts = outlet.facts();
    Ok((
        ToHost::new(port, outlet, scenario.reader, publish, format, &elinks),
        facts,
    ))
}

/// What a channel's publisher offers.
pub fn hello(scenario: &Scenario, at: usize) -> Hello {
    let id = channel_ids(scenario)[at];
    let format = scenario.format().expect("the scenario was checked");
    Hello {
        stream: monotonic_ns() ^ u64::from(std::process::id()) << 40 ^ (at as u64) << 32,
        scenario: scenario.name.clone(),
        tags: scenario
            .elinks(id.device, id.channel)
            .iter()
            .map(|elink| elink.tag)
            .collect(),
        magic: format.magic,
        block_bytes: u32::try_from(format.block_bytes).expect("at most 16 KiB"),
    }
}

/// Sets the flag when its thread panics: the others then end, too.
struct Watch<'a>(&'a AtomicBool);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

type Started<'scope, T> =
    Result<std::thread::ScopedJoinHandle<'scope, Result<T, ChainError>>, ChainError>;

/// Starts a thread of the chain. One that cannot be started, or that panics, sets the flag.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    failed: &'scope AtomicBool,
    work: impl FnOnce() -> Result<T, ChainError> + Send + 'scope,
) -> Started<'scope, T> {
    let watched = move || {
        let _watch = Watch(failed);
        work()
    };
    std::thread::Builder::new()
        .spawn_scoped(scope, watched)
        .map_err(|error| {
            failed.store(true, Ordering::Relaxed);
            ChainError::System(format!("cannot start a thread: {error}"))
        })
}

fn joined_thread<T>(started: Started<'_, T>) -> Result<T, ChainError> {
    let panicked =
        |_| ChainError::System("a thread panicked: a bug in daqmeter, please report it".to_owned());
    started?.join().map_err(panicked)?
}

/// Runs a chain for so long, or for so many triggers.
///
/// # Errors
/// When it cannot be set up. What goes wrong later is in the ledgers.
pub fn run(
    scenario: &Scenario,
    placement: &Placement,
    duration: Duration,
    triggers: Option<u64>,
    stop: &AtomicBool,
) -> Result<Done, ChainError> {
    let channels = channel_ids(scenario).len();
    scenario.check_memory(Parts {
        channels,
        subscribers: channels,
        receptions: channels,
    })?;
    let (mut card, consumers) = Card::new(scenario)?;
    card.source()
        .end_at(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX - 1));
    if let Some(triggers) = triggers {
        card.source().end_after(triggers);
    }
    let scenario = card.scenario().clone();
    let card = Arc::new(Mutex::new(card));
    let mut readers = Vec::new();
    let mut facts = Vec::new();
    for (at, consumer) in consumers.into_iter().enumerate() {
        let (reader, said) = reader(&scenario, &card, consumer, at, &scenario.publish)?;
        facts = said;
        readers.push(reader);
    }
    let addresses: Vec<Publish> = readers
        .iter()
        .map(|reader| Publish {
            address: reader.address(),
            ..scenario.publish.clone()
        })
        .collect();
    let receivers = if placement.receivers == 0 {
        readers.len()
    } else {
        placement.receivers.min(readers.len())
    };
    let failed = AtomicBool::new(false);
    let quit = || stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed);
    let (read, received) = std::thread::scope(|scope| {
        let mut reading = Vec::new();
        for (at, reader) in readers.into_iter().enumerate() {
            let cpu = turn_of(&placement.reader_cpus, at);
            let (failed, quit) = (&failed, &quit);
            reading.push(spawn(scope, failed, move || {
                read(reader, cpu, failed, quit)
            }));
        }
        let mut receiving = Vec::new();
        for at in 0..receivers {
            let own: Vec<(Publish, Vec<u64>)> = addresses
                .iter()
                .skip(at)
                .step_by(receivers)
                .map(|publish| (publish.clone(), Vec::new()))
                .collect();
            let cpu = turn_of(&placement.receiver_cpus, at);
            let (failed, quit, name) = (&failed, &quit, scenario.publish.transport.as_str());
            receiving.push(spawn(scope, failed, move || {
                receive(name, &own, cpu, failed, quit)
            }));
        }
        // All are waited for before the first fault is reported.
        let read: Vec<_> = reading.into_iter().map(joined_thread).collect();
        let received: Vec<_> = receiving.into_iter().map(joined_thread).collect();
        (read, received)
    });
    let readers = read.into_iter().collect::<Result<Vec<_>, _>>()?;
    let receivers = received.into_iter().collect::<Result<Vec<_>, _>>()?;
    drop(card.lock().unwrap_or_else(PoisonError::into_inner));
    let ledgers = joined(&readers, &receivers);
    Ok(Done {
        readers,
        receivers,
        ledgers,
        facts,
    })
}

/// The card's and the readers' counts with what the receivers had.
pub fn joined(readers: &[ReaderDone], receivers: &[(Report, Load)]) -> Vec<(u64, Ledger)> {
    let mut ledgers = Vec::new();
    for reader in readers {
        for (at, counts) in reader
            .account
            .card
            .elinks
            .iter()
            .zip(&reader.account.readers)
        {
            let mut ledger = ledger(&reader.account.card, at, counts);
            let streams = receivers.iter().flat_map(|(report, _)| &report.streams);
            let had = streams.filter(|stream| stream.tag == at.tag);
            ledger.delivered = had
                .map(|stream| stream.chunks - stream.truncated - stream.flagged)
                .sum();
            ledgers.push((at.tag, ledger));
        }
    }
    ledgers
}

fn read(
    mut reader: ToHost,
    cpu: Option<u32>,
    failed: &AtomicBool,
    quit: &(impl Fn() -> bool + Sync),
) -> Result<ReaderDone, ChainError> {
    if let Err(error) = pin(cpu) {
        failed.store(true, Ordering::Relaxed);
        return Err(error);
    }
    Ok(read_here(&mut reader, cpu, quit))
}

/// Runs a reader in this thread to its end.
pub fn read_here(
    reader: &mut ToHost,
    cpu: Option<u32>,
    quit: &(impl Fn() -> bool + Sync),
) -> ReaderDone {
    let stop = AtomicBool::new(false);
    let mut filling = Vec::with_capacity(1 << 14);
    let (account, load) = loaded(cpu, || {
        reader.run(&stop, true, |reader| {
            let (state, start_ns) = reader.card_clock();
            if state == State::Running && filling.len() < filling.capacity() {
                filling.push((
                    monotonic_ns().saturating_sub(start_ns),
                    reader.filled_bytes() as u64,
                ));
            }
            if quit() {
                stop.store(true, Ordering::Relaxed);
            }
        })
    });
    let view = reader.card();
    ReaderDone {
        stats: reader.stats(),
        account,
        load,
        notes: reader.take_notes(),
        ring_bytes: reader.ring_bytes(),
        dead: view.dead,
        card_ns: view.now_ns,
        filling,
    }
}

/// Connects a receiver and runs it in this thread to the end of its publishers.
///
/// # Errors
/// When it cannot be pinned or connected; then the flag is set, too.
pub fn receive(
    transport: &str,
    publishers: &[(Publish, Vec<u64>)],
    cpu: Option<u32>,
    failed: &AtomicBool,
    quit: &(impl Fn() -> bool + Sync),
) -> Result<(Report, Load), ChainError> {
    let give_up = || quit() || failed.load(Ordering::Relaxed);
    let connected = pin(cpu).and_then(|()| {
        Ok(Receiver::connect_unless(
            transport::named(transport)?,
            publishers,
            &give_up,
        )?)
    });
    let mut receiver = match connected {
        Ok(receiver) => receiver,
        Err(error) => {
            failed.store(true, Ordering::Relaxed);
            return Err(error);
        }
    };
    let stop = AtomicBool::new(false);
    Ok(loaded(cpu, || {
        receiver.run(&stop, Duration::from_secs(2), |_| {
            if quit() {
                stop.store(true, Ordering::Relaxed);
            }
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 14: the other threads of a chain waited for one that had panicked.
    #[test]
    fn a_thread_that_panics_ends_the_others_and_is_reported() {
        let failed = AtomicBool::new(false);
        let (broken, waiting) = std::thread::scope(|scope| {
            let broken = spawn(scope, &failed, || -> Result<(), ChainError> {
                panic!("as a test wants it")
            });
            let waiting = spawn(scope, &failed, || {
                while !failed.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                Ok(())
            });
            (joined_thread(broken), joined_thread(waiting))
        });
        assert!(broken.unwrap_err().to_string().contains("panicked"));
        waiting.unwrap();
    }
}
