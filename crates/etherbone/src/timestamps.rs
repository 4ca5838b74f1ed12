//! Timestamps of 64 bits out of two 32-bit reads that nothing latches.

/// Combines the words of timestamps and keeps the times in order. The high word is read before the
/// low word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unroller {
    pub(crate) last_ns: Option<u64>,
    pub(crate) rollovers: u64,
}

const ROLLOVER_NS: u64 = 1 << 32;

impl Unroller {
    pub(crate) fn time_ns(&mut self, high: u64, low: u64) -> u64 {
        let raw_ns = high << 32 | low;
        let time_ns = match self.last_ns {
            Some(last_ns) if raw_ns < last_ns && last_ns - raw_ns > ROLLOVER_NS / 2 => {
                self.rollovers += 1;
                raw_ns.saturating_add(ROLLOVER_NS)
            }
            _ => raw_ns,
        };
        self.last_ns = Some(time_ns);
        time_ns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rollover_between_the_reads_is_mended() {
        let mut unroller = Unroller::default();
        assert_eq!(unroller.time_ns(5, 0xFFFF_FF00), 0x5_FFFF_FF00);
        assert_eq!(unroller.time_ns(5, 0x10), 0x6_0000_0010);
        assert_eq!(unroller.time_ns(6, 0x20), 0x6_0000_0020);
        assert_eq!(unroller.rollovers, 1);
    }

    proptest! {
        #[test]
        fn times_read_in_two_words_come_out_right(start_ns in 0..u64::MAX / 2, steps in prop::collection::vec((1..1_000_000_u64, 1..10_000_u64), 1..200)) {
            let mut unroller = Unroller::default();
            let mut now_ns = start_ns;
            unroller.time_ns(now_ns >> 32, now_ns & 0xFFFF_FFFF);
            for (gap_ns, access_ns) in steps {
                now_ns += gap_ns;
                let high = now_ns >> 32;
                now_ns += access_ns;
                prop_assert_eq!(unroller.time_ns(high, now_ns & 0xFFFF_FFFF), now_ns);
            }
        }
    }
}
