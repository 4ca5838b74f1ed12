//! BUSY: its causes, and the dead time that it makes, measured at the trigger source.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Dma = 0,
    Fifo = 1,
    /// Another detector holds the trigger.
    External = 2,
}

pub(crate) const CAUSES: [Cause; 2] = [Cause::Dma, Cause::Fifo];

impl Cause {
    pub fn name(self) -> &'static str {
        match self {
            Cause::Dma => "BUSY-by-DMA",
            Cause::Fifo => "BUSY-by-FIFO",
            Cause::External => "external BUSY",
        }
    }
}

/// A level with hysteresis: above the high mark it is on, below the low mark it is off, between
/// them it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hysteresis {
    pub high: usize,
    pub low: usize,
}

impl Hysteresis {
    pub fn state(self, was: bool, level: usize) -> bool {
        level > self.high || was && level >= self.low
    }
}

/// Dead time of one cause, or of all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadTime {
    pub ns: u64,
    pub count: u64,
    pub longest_ns: u64,
    /// Triggers that it stopped, each booked to one cause.
    pub vetoed: u64,
    since: Option<u64>,
}

impl DeadTime {
    fn set(&mut self, now_ns: u64, on: bool) {
        match (on, self.since) {
            (true, None) => {
                self.since = Some(now_ns);
                self.count += 1;
            }
            (false, Some(since)) => {
                self.add(now_ns.saturating_sub(since));
                self.since = None;
            }
            _ => {}
        }
    }

    fn add(&mut self, ns: u64) {
        self.ns += ns;
        self.longest_ns = self.longest_ns.max(ns);
    }

    #[must_use]
    pub fn at(mut self, now_ns: u64) -> DeadTime {
        if let Some(since) = self.since {
            self.add(now_ns.saturating_sub(since));
            self.since = Some(now_ns);
        }
        self
    }
}

/// BUSY output with its flags, and BUSY from outside, which also stops triggers and has its own
/// account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BusyLine {
    enabled: [bool; 2],
    inhibited: bool,
    live: [bool; 2],
    latched: [bool; 2],
    dead: [DeadTime; 2],
    all: DeadTime,
    is_external: bool,
    external: DeadTime,
}

impl BusyLine {
    /// Makes a line with the enable bits of both causes. An inhibited line sets flags and asserts
    /// nothing.
    pub fn new(enabled: [bool; 2], inhibited: bool) -> BusyLine {
        BusyLine { enabled, inhibited, ..BusyLine::default() }
    }

    /// Sets BUSY from outside, which the card's inhibition does not reach.
    pub(crate) fn set_external(&mut self, now_ns: u64, on: bool) {
        self.is_external = on;
        self.external.set(now_ns, on);
    }

    /// Sets a cause of the card: the OR over all channels.
    pub fn set(&mut self, now_ns: u64, cause: Cause, on: bool) {
        let at = cause as usize;
        debug_assert!(cause != Cause::External, "that is set_external");
        if self.live[at] == on {
            return;
        }
        self.live[at] = on;
        self.latched[at] |= on;
        if self.enabled[at] && !self.inhibited {
            self.dead[at].set(now_ns, on);
            self.all.set(now_ns, self.own().is_some());
        }
    }

    pub fn is_live(&self, cause: Cause) -> bool {
        match cause {
            Cause::External => self.is_external,
            own => self.live[own as usize],
        }
    }

    pub fn is_latched(&self, cause: Cause) -> bool {
        match cause {
            Cause::External => self.external.count > 0,
            own => self.latched[own as usize],
        }
    }

    /// Reason for which triggers are stopped. The card's own reasons come first.
    pub fn asserted(&self) -> Option<Cause> {
        let external = self.is_external.then_some(Cause::External);
        self.own().or(external)
    }

    fn own(&self) -> Option<Cause> {
        if self.inhibited {
            return None;
        }
        CAUSES.into_iter().find(|cause| self.enabled[*cause as usize] && self.live[*cause as usize])
    }

    pub(crate) fn veto(&mut self, cause: Cause, triggers: u64) {
        match cause {
            Cause::External => self.external.vetoed += triggers,
            own => {
                self.dead[own as usize].vetoed += triggers;
                self.all.vetoed += triggers;
            }
        }
    }

    pub fn dead(&self, cause: Cause, now_ns: u64) -> DeadTime {
        match cause {
            Cause::External => self.external.at(now_ns),
            own => self.dead[own as usize].at(now_ns),
        }
    }

    /// Dead time of the card's causes at a time: overlaps count once.
    pub fn all(&self, now_ns: u64) -> DeadTime {
        self.all.at(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_the_marks_it_stays_as_it_was() {
        let marks = Hysteresis { high: 100, low: 50 };
        let mut on = false;
        let states: Vec<bool> = [0, 99, 100, 101, 70, 50, 49, 70, 101]
            .map(|level| {
                on = marks.state(on, level);
                on
            })
            .to_vec();
        assert_eq!(states, [false, false, false, true, true, true, false, false, true]);
    }

    #[test]
    fn dead_time_is_split_by_cause_and_overlaps_count_once() {
        let mut line = BusyLine::new([true, true], false);
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
    fn what_comes_from_outside_is_apart_and_yields_to_the_cards_own() {
        let mut line = BusyLine::new([true, false], true);
        line.set_external(10, true);
        assert_eq!(line.asserted(), Some(Cause::External), "no inhibition reaches it");
        let mut line = BusyLine::new([true, false], false);
        line.set_external(10, true);
        line.veto(Cause::External, 2);
        line.set(20, Cause::Dma, true);
        assert_eq!(line.asserted(), Some(Cause::Dma));
        line.veto(Cause::Dma, 5);
        line.set(30, Cause::Dma, false);
        line.set_external(40, false);
        assert_eq!(line.asserted(), None);
        let (external, own) = (line.dead(Cause::External, 50), line.all(50));
        assert_eq!((external.ns, external.vetoed), (30, 2));
        assert_eq!((own.ns, own.vetoed, own.count), (10, 5, 1));
        assert!(line.is_latched(Cause::External) && !line.is_live(Cause::External));
    }

    #[test]
    fn flags_latch_and_an_inhibited_line_stops_nothing() {
        let mut line = BusyLine::new([true, true], true);
        line.set(10, Cause::Dma, true);
        assert!(line.asserted().is_none() && line.is_live(Cause::Dma));
        line.set(20, Cause::Dma, false);
        assert!(
            line.is_latched(Cause::Dma)
                && !line.is_live(Cause::Dma)
                && !line.is_latched(Cause::Fifo)
        );
        assert_eq!(line.all(100), DeadTime::default());
    }

    #[test]
    fn a_cause_that_is_not_enabled_latches_only() {
        let mut line = BusyLine::new([true, false], false);
        line.set(10, Cause::Fifo, true);
        assert!(line.asserted().is_none() && line.is_latched(Cause::Fifo));
        assert_eq!(line.all(50).ns, 0);
    }
}
