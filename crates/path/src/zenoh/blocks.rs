//! A publisher and a subscriber with a session each. A block is one publication; its number is
//! attached, so that blocks dropped by Zenoh are counted. The end is a publication that is never
//! dropped, behind all blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::time::{Duration, Instant};

use daqmeter_harness::Fault;
use daqmeter_readout::transport::zenoh::{SharedMemory, locator, session};
use daqmeter_sys::cpu_time::of_threads_named;
use daqmeter_sys::host::Files;
use zenoh::bytes::ZBytes;
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::CongestionControl;
use zenoh::sample::Sample;
use zenoh::{Session, Wait};

use super::settings::{WhenFull, ZenohWay};
use crate::cancel::Cuts;
use crate::element::{BlockReceiver, BlockSender, ConnectionStats, Helper, Work};
use crate::tcp::PATIENCE;

const LOST: &str = "dropped by Zenoh";
/// Both sessions are of this path alone: they see no other's publications.
const KEY: &str = "daqmeter/path";
/// Bytes that may wait for the thread that takes them out: they stay in the cache.
const QUEUE_BYTES: usize = 4 << 20;
const QUEUE_BLOCKS: std::ops::RangeInclusive<usize> = 2..=64;
const LOOK: Duration = Duration::from_millis(50);
const END: u64 = u64::MAX;
/// Threads that send and receive (zenoh-runtime 1.10, `ZRuntime`): their names begin so. A link is
/// one task of either, whichever of them runs it.
const THREADS: [&str; 2] = ["tx-", "rx-"];

#[derive(Default)]
struct Between {
    is_cut: AtomicBool,
    is_heard: AtomicBool,
    /// CPU time of Zenoh's threads before the run.
    before_ns: [AtomicU64; 2],
}

impl Between {
    fn check(&self) -> Result<(), Fault> {
        match self.is_cut.load(Ordering::Acquire) {
            true => Err(Fault::new("zenoh: the path was ended")),
            false => Ok(()),
        }
    }
}

fn failed(what: &str, error: impl std::fmt::Display) -> Fault {
    // Errors of Zenoh have their source lines behind them.
    let text = error.to_string();
    let first = text.split(" at ").next().unwrap_or("").trim();
    Fault::new(format!("zenoh: {what}: {first}"))
}

/// Connects both ends, with the subscription known to the publisher.
pub(crate) fn open(way: ZenohWay, block_bytes: usize, cuts: &Cuts) -> Result<Work, Fault> {
    let memory = match way.shared_memory {
        true => SharedMemory::Used,
        false => SharedMemory::NotUsed,
    };
    let wrong = |error: daqmeter_readout::transport::TransportError| Fault::new(error.to_string());
    let inner = session("127.0.0.1:0", true, memory).map_err(wrong)?;
    let outer = session(&locator(&inner, "127.0.0.1:0"), false, memory).map_err(wrong)?;
    let most = (QUEUE_BYTES / block_bytes.max(1)).clamp(*QUEUE_BLOCKS.start(), *QUEUE_BLOCKS.end());
    let (sender, came) = sync_channel::<Sample>(most);
    let subscriber = inner
        .declare_subscriber(KEY)
        // The receiver of blocks is gone: the path ends.
        .callback(move |sample| drop(sender.send(sample)))
        .wait()
        .map_err(|error| failed("subscribe", error))?;
    let between = Arc::new(Between::default());
    let (publisher, end) = (publisher(&outer, way.when_full)?, publisher(&outer, WhenFull::Block)?);
    wait_for_subscriber(&publisher, &between)?;
    let cut = between.clone();
    cuts.add(move || cut.is_cut.store(true, Ordering::Release));
    let out =
        ZenohOut { publisher, end: Some(end), number: 0, between: between.clone(), session: outer };
    let inward = ZenohIn {
        came,
        pending: None,
        number: 0,
        may_drop: way.when_full == WhenFull::Drop,
        between,
        _subscriber: subscriber,
        session: inner,
    };
    Ok(Work::Away(Box::new(out), Box::new(inward)))
}

fn publisher(session: &Session, when_full: WhenFull) -> Result<Publisher<'static>, Fault> {
    let congestion = match when_full {
        WhenFull::Block => CongestionControl::Block,
        WhenFull::Drop => CongestionControl::Drop,
    };
    session
        .declare_publisher(KEY)
        .congestion_control(congestion)
        .wait()
        .map_err(|error| failed("publish", error))
}

/// Waits for the subscriber: publications before it go nowhere.
fn wait_for_subscriber(
    publisher: &Publisher<'static>,
    between: &Arc<Between>,
) -> Result<(), Fault> {
    let (sender, changes) = channel();
    let heard = between.clone();
    publisher
        .matching_listener()
        .callback(move |status| {
            heard.is_heard.store(status.matching(), Ordering::Release);
            // Only the first change is waited for.
            let _ = sender.send(());
        })
        .background()
        .wait()
        .map_err(|error| failed("wait for the subscriber", error))?;
    let until = Instant::now() + PATIENCE;
    while !between.is_heard.load(Ordering::Acquire) {
        let status = publisher.matching_status().wait();
        if status.is_ok_and(|status| status.matching()) {
            between.is_heard.store(true, Ordering::Release);
        } else if Instant::now() > until {
            return Err(Fault::new("zenoh: the subscriber did not come on loopback"));
        } else {
            // The end of the time is noticed above.
            let _ = changes.recv_timeout(LOOK);
        }
    }
    Ok(())
}

struct ZenohOut {
    publisher: Publisher<'static>,
    end: Option<Publisher<'static>>,
    number: u64,
    between: Arc<Between>,
    session: Session,
}

impl BlockSender for ZenohOut {
    fn prepare(&mut self) -> Result<(), Fault> {
        for (before, name) in self.between.before_ns.iter().zip(THREADS) {
            before.store(of_threads_named(&Files::default(), name), Ordering::Relaxed);
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.between.check()?;
        if !self.between.is_heard.load(Ordering::Acquire) {
            return Err(Fault::new("zenoh: the subscriber went, or took nothing for too long"));
        }
        let number = self.number;
        self.number += 1;
        self.publisher
            .put(ZBytes::from(bytes))
            .attachment(number.to_le_bytes())
            .wait()
            .map_err(|error| failed("publish", error))
    }

    fn end(&mut self) {
        if let Some(end) = self.end.take() {
            // A session that was closed has no end to say.
            let _ = end.put(ZBytes::new()).attachment(END.to_le_bytes()).wait();
        }
    }

    /// Includes Zenoh's own threads, which work for this stage, too.
    fn remarks(&self) -> ConnectionStats {
        let names = ["zenoh send", "zenoh receive"];
        let before = self.between.before_ns.iter();
        let helper = |((name, threads), before): ((&str, &str), &AtomicU64)| {
            let now_ns = of_threads_named(&Files::default(), threads);
            Helper {
                part: name.to_owned(),
                cpu_ns: now_ns.saturating_sub(before.load(Ordering::Relaxed)),
            }
        };
        ConnectionStats {
            helpers: names.into_iter().zip(THREADS).zip(before).map(helper).collect(),
            ..ConnectionStats::default()
        }
    }
}

impl Drop for ZenohOut {
    fn drop(&mut self) {
        self.end();
        // Blocks on their way arrive before the session ends.
        let _ = self.session.close().wait();
    }
}

struct ZenohIn {
    came: Receiver<Sample>,
    /// Later block than the requested one, with its number.
    pending: Option<(u64, Sample)>,
    number: u64,
    may_drop: bool,
    between: Arc<Between>,
    _subscriber: Subscriber<()>,
    session: Session,
}

impl ZenohIn {
    fn next(&mut self) -> Result<(u64, Sample), Fault> {
        if let Some(pending) = self.pending.take() {
            return Ok(pending);
        }
        loop {
            match self.came.recv_timeout(LOOK) {
                Ok(sample) => {
                    let attached = sample.attachment().map(ZBytes::to_bytes);
                    let number = attached.and_then(|bytes| bytes.first_chunk::<8>().copied());
                    let number =
                        number.ok_or_else(|| Fault::new("zenoh: a block of another program"))?;
                    return Ok((u64::from_le_bytes(number), sample));
                }
                Err(RecvTimeoutError::Timeout) => self.between.check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Fault::new("zenoh: its session was closed"));
                }
            }
        }
    }
}

impl BlockReceiver for ZenohIn {
    fn read(&mut self, into: &mut [u8]) -> Result<bool, Fault> {
        let wanted = self.number;
        self.number += 1;
        let (number, sample) = self.next()?;
        if number > wanted {
            self.pending = Some((number, sample));
            return match self.may_drop {
                true => Ok(false),
                false => Err(Fault::new(format!("zenoh: block {wanted} did not come"))),
            };
        }
        let is_block = number == wanted && sample.payload().len() == into.len();
        if !is_block {
            return Err(Fault::new(format!(
                "zenoh: block {number} of {} bytes came where {wanted} of {} was next",
                sample.payload().len(),
                into.len()
            )));
        }
        let mut at = 0;
        for piece in sample.payload().slices() {
            into[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        Ok(true)
    }

    fn loses(&self) -> Option<&'static str> {
        self.may_drop.then_some(LOST)
    }
}

impl Drop for ZenohIn {
    fn drop(&mut self) {
        // The publisher sees at once that the subscriber is gone.
        let _ = self.session.close().wait();
    }
}
