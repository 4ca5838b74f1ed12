//! BUSY: its causes, and the dead time that it makes, measured at the trigger source.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Dma = 0,
    Fifo = 1,
    /// Other detectors.
    Outside = 2,
}

/// Number of causes, of which the last is not of the card.
const COUNT: usize = 3;
/// Causes of the card.
pub(crate) const CAUSES: [Cause; 2] = [Cause::Dma, Cause::Fifo];
const ALL: [Cause; COUNT] = [Cause::Dma, Cause::Fifo, Cause::Outside];

/// A level with hysteresis: above the high mark it is on, below the low mark it is off, between
/// them it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hysteresis {
    pub(crate) high: usize,
    pub(crate) low: usize,
}

impl Hysteresis {
    pub(crate) fn state(self, was: bool, level: usize) -> bool {
        level > self.high || was && level >= self.low
    }
}

/// Dead time of one cause, or of all without overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dead {
    pub ns: u64,
    pub count: u64,
    pub longest_ns: u64,
    /// Triggers that it stopped, each booked to one cause.
    pub vetoed: u64,
}

/// BUSY of one channel. It is latched once it was asserted, as a flag in the card's registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChannelBusy {
    /// Place of the channel on its card.
    pub channel: usize,
    pub ns: u64,
    pub intervals: u64,
    /// True while it is asserted.
    pub is_live: bool,
}

/// Dead time, and the begin of the interval that goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeadTime {
    dead: Dead,
    since: Option<u64>,
}

impl DeadTime {
    pub(crate) fn set(&mut self, now_ns: u64, on: bool) {
        if on != self.since.is_some() {
            self.dead = self.at(now_ns);
            self.dead.count += u64::from(on);
            self.since = on.then_some(now_ns);
        }
    }

    fn at(&self, now_ns: u64) -> Dead {
        let ns = self.since.map_or(0, |since| now_ns.saturating_sub(since));
        let Dead { ns: ended_ns, longest_ns, .. } = self.dead;
        Dead { ns: ended_ns + ns, longest_ns: longest_ns.max(ns), ..self.dead }
    }

    /// BUSY of a channel with this dead time; `None` if it never asserted it.
    pub(crate) fn of_channel(&self, channel: usize, now_ns: u64) -> Option<ChannelBusy> {
        let (Dead { ns, count: intervals, .. }, is_live) = (self.at(now_ns), self.since.is_some());
        (intervals > 0).then_some(ChannelBusy { channel, ns, intervals, is_live })
    }
}

/// BUSY output. A cause that is not enabled stops nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BusyLine {
    enabled: [bool; COUNT],
    live: [bool; COUNT],
    dead: [DeadTime; COUNT],
    all: DeadTime,
}

impl BusyLine {
    /// Makes a line to which some of the card's causes are connected.
    pub(crate) fn new([dma, fifo]: [bool; 2]) -> BusyLine {
        BusyLine { enabled: [dma, fifo, true], ..BusyLine::default() }
    }

    /// Sets a cause: the OR over all channels.
    pub(crate) fn set(&mut self, now_ns: u64, cause: Cause, on: bool) {
        let at = cause as usize;
        if self.live[at] == on {
            return;
        }
        self.live[at] = on;
        if self.enabled[at] {
            self.dead[at].set(now_ns, on);
            self.all.set(now_ns, self.asserted().is_some());
        }
    }

    pub fn is_live(&self, cause: Cause) -> bool {
        self.live[cause as usize]
    }

    /// Tests if one of these causes of a channel stops triggers.
    pub(crate) fn stops(&self, channel: [bool; 2]) -> bool {
        self.enabled.into_iter().zip(channel).any(|(enabled, on)| enabled && on)
    }

    /// Cause for which triggers are stopped.
    pub fn asserted(&self) -> Option<Cause> {
        ALL.into_iter().find(|cause| self.enabled[*cause as usize] && self.is_live(*cause))
    }

    pub(crate) fn veto(&mut self, cause: Cause, triggers: u64) {
        self.dead[cause as usize].dead.vetoed += triggers;
        self.all.dead.vetoed += triggers;
    }

    pub fn dead(&self, cause: Cause, now_ns: u64) -> Dead {
        self.dead[cause as usize].at(now_ns)
    }

    /// Dead time of all causes at a time: overlaps count once.
    pub fn all(&self, now_ns: u64) -> Dead {
        self.all.at(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_time_is_split_by_cause_and_overlaps_count_once() {
        let mut line = BusyLine::new([true, true]);
        line.set(10, Cause::Dma, true);
        line.set(20, Cause::Fifo, true);
        assert_eq!(line.asserted(), Some(Cause::Dma));
        line.veto(Cause::Dma, 3);
        line.set(40, Cause::Dma, false);
        assert_eq!(line.asserted(), Some(Cause::Fifo));
        line.set(50, Cause::Fifo, false);
        line.set(90, Cause::Dma, true);
        let (dma, fifo, all) =
            (line.dead(Cause::Dma, 100), line.dead(Cause::Fifo, 100), line.all(100));
        assert_eq!((dma.ns, dma.count, dma.longest_ns, dma.vetoed), (40, 2, 30, 3));
        assert_eq!((fifo.ns, fifo.count), (30, 1));
        assert_eq!((all.ns, all.count, all.longest_ns, all.vetoed), (50, 2, 40, 3));
    }

    #[test]
    fn a_cause_that_is_not_enabled_stops_nothing() {
        let mut line = BusyLine::new([true, false]);
        line.set(10, Cause::Fifo, true);
        assert!(line.asserted().is_none() && line.is_live(Cause::Fifo));
        assert_eq!((line.all(50), line.dead(Cause::Fifo, 50)), (Dead::default(), Dead::default()));
    }
}
