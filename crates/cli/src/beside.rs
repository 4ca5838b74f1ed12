//! Losses of this process's own sockets in the kernel, counted beside what a verb does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use daqmeter_harness::Observer;
use daqmeter_record::watched::Watched;
use daqmeter_record::{Counter, Sections};
use daqmeter_sys::host::Files;
use daqmeter_watch::{INTERVAL, Target, Watch};

/// A watch of this process in a thread, until it is ended or dropped.
pub(crate) struct OwnWatch {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Option<Watched>>>,
}

impl OwnWatch {
    /// Begins; it counts when this returns. A host that shows no counters is not watched.
    pub(crate) fn begin() -> OwnWatch {
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, (ready, is_ready)) = (Arc::clone(&is_over), sync_channel(1));
        let thread = Builder::new().name("watch".to_owned()).spawn(move || watch(&over, &ready));
        // A thread that ended has dropped its end.
        let _ = is_ready.recv();
        OwnWatch { is_over, thread: thread.ok() }
    }

    pub(crate) fn end(mut self) -> Option<Watched> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok().flatten()
    }
}

impl Drop for OwnWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn watch(is_over: &AtomicBool, ready: &SyncSender<()>) -> Option<Watched> {
    let target = Target { pid: Some(std::process::id()), port: None };
    let mut watch = Watch::open(&Files::default(), target, None).ok()?;
    let _ = ready.send(());
    while !is_over.load(Ordering::Relaxed) {
        watch.step(INTERVAL).ok()?;
    }
    watch.end().ok()?;
    Some(watch.so_far())
}

/// Adds the losses in the kernel to the record of what is measured.
#[derive(Default)]
pub(crate) struct KernelLosses {
    watch: Option<OwnWatch>,
    found: Option<Watched>,
}

impl Observer for KernelLosses {
    fn arm(&mut self) {
        self.watch = Some(OwnWatch::begin());
    }

    fn start(&mut self) {}

    fn stop(&mut self) -> Vec<Counter> {
        self.found = self.watch.take().and_then(OwnWatch::end);
        Vec::new()
    }

    fn sections(&mut self, _origin_ns: u64) -> Sections {
        Sections { watched: self.found.take().map(Box::new), ..Sections::default() }
    }
}
