//! A chain by hand, with a thread for each part, and its accounts. The program runs chains as
//! paths; tests look at their parts, and benches compare paths with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_readout::Scenario;
use daqmeter_readout::chain::{Chain, ReaderDone, joined, pin};
use daqmeter_readout::receive::Report;
use daqmeter_record::Ledger;

#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    /// CPUs of the readers, in turn; empty leaves them free.
    pub(crate) reader_cpus: Vec<u32>,
    pub(crate) receiver_cpus: Vec<u32>,
    pub(crate) receivers: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) readers: Vec<ReaderDone>,
    pub(crate) receivers: Vec<Report>,
    /// Ledger of each E-link: the card's counts against the receivers'.
    pub(crate) ledgers: Vec<(u64, Ledger)>,
}

impl Done {
    pub(crate) fn issued(&self) -> u64 {
        self.readers.first().map_or(0, |reader| reader.account.card.issued)
    }

    pub(crate) fn trigger_rate_hz(&self) -> f64 {
        let ns = self.readers.first().map_or(0, |reader| reader.view.now_ns);
        self.issued() as f64 / (ns.max(1) as f64 * 1e-9)
    }

    pub(crate) fn dead_share(&self) -> f64 {
        let Some(reader) = self.readers.first() else {
            return 0.0;
        };
        reader.view.dead[2].ns as f64 / reader.view.now_ns.max(1) as f64
    }

    /// Chunks that were issued and not delivered, for any reason but a deficit of the source.
    pub(crate) fn lost(&self) -> u64 {
        let of = |ledger: &Ledger| ledger.lost() - ledger.not_given();
        self.ledgers.iter().map(|(_, ledger)| of(ledger)).sum()
    }

    /// True if every E-link's account closes, and that of every subscription.
    pub(crate) fn closes(&self) -> bool {
        self.ledgers.iter().all(|(_, ledger)| ledger.closes())
            && self.readers.iter().all(|one| one.account.closes())
    }

    pub(crate) fn peak_bytes(&self) -> u64 {
        self.readers.iter().flat_map(|reader| &reader.filling).map(|at| at.1[0]).max().unwrap_or(0)
    }

    pub(crate) fn ledger(&self) -> Ledger {
        let mut all = Ledger::new("triggers");
        for (_, ledger) in &self.ledgers {
            all.add(ledger);
        }
        all.unit = "triggers x E-links".into();
        all
    }
}

fn turn_of(cpus: &[u32], at: usize) -> Option<u32> {
    cpus.get(at % cpus.len().max(1)).copied()
}

fn joined_thread<T>(thread: ScopedJoinHandle<'_, Result<T, Fault>>) -> Result<T, Fault> {
    thread.join().expect("no thread panics")
}

/// Runs a chain for a time, or for a number of triggers. Faults after the setup are in the ledgers.
pub(crate) fn run(
    scenario: &Scenario,
    placement: &Placement,
    duration: Duration,
    triggers: Option<u64>,
    stop: &AtomicBool,
) -> Result<Done, Fault> {
    let receivers = match placement.receivers {
        0 => usize::MAX,
        some => some,
    };
    let chain = Chain::open(scenario, receivers, duration, triggers, None)?;
    let failed = &AtomicBool::new(false);
    let pinned = |cpu| pin(cpu).inspect_err(|_| failed.store(true, Ordering::Relaxed));
    let quit = &|| stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed);
    let (read, received) = std::thread::scope(|scope| {
        let read = |(at, mut reader): (usize, daqmeter_readout::ToHost)| {
            let cpu = turn_of(&placement.reader_cpus, at);
            scope.spawn(move || pinned(cpu).map(|()| reader.read(quit)))
        };
        let receive = |(at, receiving): (usize, daqmeter_readout::chain::Receiving)| {
            let cpu = turn_of(&placement.receiver_cpus, at);
            scope.spawn(move || pinned(cpu).and_then(|()| receiving.receive(failed, quit)))
        };
        let reading: Vec<_> = chain.readers.into_iter().enumerate().map(read).collect();
        let receiving: Vec<_> = chain.receivers.into_iter().enumerate().map(receive).collect();
        // All are waited for before the first fault is reported.
        let read: Vec<_> = reading.into_iter().map(joined_thread).collect();
        let received: Vec<_> = receiving.into_iter().map(joined_thread).collect();
        (read, received)
    });
    let readers = read.into_iter().collect::<Result<Vec<_>, _>>()?;
    let receivers = received.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(Done { ledgers: joined(&readers, &receivers), readers, receivers })
}
