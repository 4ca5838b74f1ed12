//! Times of the parts of a thread.

use daqmeter_record::path::{PathThread, PathWithin};
use daqmeter_sys::clock::monotonic_ns;

use crate::chain::account::{Account, halve, middle};

/// Times of each part of a thread that has several, for some of its blocks.
#[derive(Default)]
pub(crate) struct Parts {
    /// Elements and names: what gives the blocks, then the steps.
    pub(crate) names: Vec<(usize, String)>,
    ns: Vec<Vec<u32>>,
    /// Blocks until the next one that is timed, and from one such to the next.
    left: u32,
    stride: u32,
}

/// Time of the beginning of a part, without the waits of the thread.
pub(crate) type Timer = Option<u64>;

impl Parts {
    const MAX: usize = 256;

    pub(crate) fn new(names: Vec<(usize, String)>) -> Parts {
        let ns = names.iter().map(|_| Vec::with_capacity(Parts::MAX)).collect();
        Parts { names, ns, left: 0, stride: 1 }
    }

    /// Begins the times of a block, if it is one that is timed.
    pub(crate) fn timer(&mut self, account: &Account) -> Timer {
        let is_due = self.left == 0 && !self.ns.is_empty();
        let timer = is_due.then(|| monotonic_ns() - account.waited_ns());
        self.left = self.left.checked_sub(1).unwrap_or(self.stride.saturating_sub(1));
        timer
    }

    #[inline]
    pub(crate) fn add(&mut self, timer: &mut Timer, part: usize, account: &Account) {
        let Some(before_ns) = timer else { return };
        let now_ns = monotonic_ns() - account.waited_ns();
        let ns = &mut self.ns[part];
        ns.push(u32::try_from(now_ns.saturating_sub(*before_ns)).unwrap_or(u32::MAX));
        *before_ns = now_ns;
        if ns.len() == Parts::MAX && part + 1 == self.names.len() {
            self.stride = self.stride.saturating_mul(2);
            self.ns.iter_mut().for_each(halve);
        }
    }

    /// Books the time of each part but that of the thread's own element.
    pub(crate) fn tell(self, thread: &mut PathThread) {
        for ((element, name), ns) in self.names.into_iter().zip(self.ns) {
            let ns = thread.blocks * u64::from(middle(ns));
            match thread.within.last_mut() {
                // Work that is added to an element has a step of its own.
                Some(last) if last.element == element => last.ns += ns,
                _ if element == thread.element => {}
                _ => thread.within.push(PathWithin { name, element, ns }),
            }
        }
    }
}
