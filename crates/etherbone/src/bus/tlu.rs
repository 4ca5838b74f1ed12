//! The timestamp latch unit of GSI, 0x651:0x10051981 "GSI_TM_LATCH_V2".
//! Registers, refusals and the effects of reads are those of its core (bel_projects, `wr_tlu.vhd`).
//! Times are in cycles of 8 ns. The inputs are never driven: stamps come from test pulses. Edges,
//! stability times and interrupts are left out.

use std::collections::VecDeque;

use super::{BusError, low32};

/// Bits of the channels that hold a stamp (read).
pub(crate) const READY: u64 = 0x00;
/// Empties the channels of the written bits.
const CLEAR: u64 = 0x04;
/// Bits of the active channels (read).
const ACTIVE: u64 = 0x0C;
pub(crate) const ACTIVE_SET: u64 = 0x10;
const ACTIVE_CLEAR: u64 = 0x14;
pub(crate) const CHANNEL_COUNT: u64 = 0x34;
/// Most stamps that a channel can hold (read).
const DEPTH: u64 = 0x38;
/// High word of the time in cycles; reading it latches the low word.
pub(crate) const TIME_HI: u64 = 0x50;
pub(crate) const TIME_LO: u64 = 0x54;
/// Selects the channel of the registers from 0x5C on.
pub(crate) const SELECT: u64 = 0x58;
/// Drops the oldest stamp; refused if there is none.
pub(crate) const POP: u64 = 0x5C;
/// Pulses the selected input: one bit for each level of 8 ns, the first in bit 0.
pub(crate) const TEST: u64 = 0x60;
const COUNT: u64 = 0x64;
/// High word of the oldest stamp, in cycles (read).
pub(crate) const STAMP_HI: u64 = 0x68;
pub(crate) const STAMP_LO: u64 = 0x6C;
/// Rest of the oldest stamp below a cycle, in ns (read).
const STAMP_SUB: u64 = 0x70;

/// Number of channels, chosen here: receivers differ.
const CHANNELS: usize = 4;
const MAX_STAMPS: usize = 256;
const CYCLE_NS: u64 = 8;

#[derive(Debug, Default)]
pub(super) struct Tlu {
    stamps_ns: [VecDeque<u64>; CHANNELS],
    active: u64,
    time_low: u64,
    selected: usize,
}

impl Tlu {
    pub(super) fn read(&mut self, offset: u64, tai_ns: u64) -> Result<u64, BusError> {
        let stamps = &self.stamps_ns[self.selected];
        let oldest_ns = stamps.front().copied().unwrap_or(0);
        let is_ready = |at: usize| u64::from(!self.stamps_ns[at].is_empty()) << at;
        Ok(match offset & 0xFC {
            READY => (0..CHANNELS).map(is_ready).sum(),
            ACTIVE => self.active,
            CHANNEL_COUNT => CHANNELS as u64,
            DEPTH => MAX_STAMPS as u64,
            TIME_HI => {
                self.time_low = low32(tai_ns / CYCLE_NS);
                (tai_ns / CYCLE_NS) >> 32
            }
            TIME_LO => self.time_low,
            SELECT => self.selected as u64,
            COUNT => stamps.len() as u64,
            STAMP_HI => (oldest_ns / CYCLE_NS) >> 32,
            STAMP_LO => low32(oldest_ns / CYCLE_NS),
            STAMP_SUB => oldest_ns % CYCLE_NS,
            _ => return Err(BusError::Refused),
        })
    }

    pub(super) fn write(&mut self, offset: u64, value: u64, tai_ns: u64) -> Result<(), BusError> {
        let bits = value & ((1 << CHANNELS) - 1);
        let (active, selected) = (self.active >> self.selected & 1 == 1, self.selected);
        let stamps = &mut self.stamps_ns[selected];
        match offset & 0xFC {
            CLEAR => {
                let cleared = |(at, _): &(usize, _)| bits >> at & 1 == 1;
                let channels = self.stamps_ns.iter_mut().enumerate();
                channels.filter(cleared).for_each(|(_, stamps)| stamps.clear());
            }
            ACTIVE_SET => self.active |= bits,
            ACTIVE_CLEAR => self.active &= !bits,
            SELECT if value < CHANNELS as u64 => {
                self.selected = usize::try_from(value).expect("a channel");
            }
            POP => return stamps.pop_front().map(drop).ok_or(BusError::Refused),
            // An edge counts if the level lasts for 8 bits.
            TEST if value & 0xFF == 0xFF && active && stamps.len() < MAX_STAMPS => {
                stamps.push_back(tai_ns);
            }
            TEST => {}
            _ => return Err(BusError::Refused),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Repeats GSI's `eb_tlu_demo` with the test pulse that it has commented out.
    #[test]
    fn the_conversation_of_eb_tlu_demo_gives_the_time_and_the_stamps() {
        let (mut tlu, tai_ns) = (Tlu::default(), 0x1234_5678_9abc_def5_u64);
        let cycles = tai_ns / 8;
        let split = |cycles: u64| [cycles >> 32, cycles & 0xffff_ffff];
        let time = [TIME_HI, TIME_LO].map(|offset| tlu.read(offset, tai_ns).unwrap());
        assert_eq!(time, split(cycles));
        tlu.write(SELECT, 2, tai_ns).unwrap();
        assert_eq!(tlu.write(POP, 0xF, tai_ns), Err(BusError::Refused), "no stamp");
        tlu.write(TEST, 0xFF, tai_ns).unwrap();
        tlu.write(ACTIVE_SET, 0b100, tai_ns).unwrap();
        tlu.write(TEST, 0x0F, tai_ns).unwrap();
        assert_eq!(tlu.read(READY, 0), Ok(0), "not active, too short");
        tlu.write(TEST, 0xFF, tai_ns + 6000).unwrap();
        let stamp = split((tai_ns + 6000) / 8);
        for (offset, wanted) in [
            (CHANNEL_COUNT, 4),
            (DEPTH, 256),
            (READY, 0b100),
            (COUNT, 1),
            (STAMP_HI, stamp[0]),
            (STAMP_LO, stamp[1]),
            (STAMP_SUB, (tai_ns + 6000) % 8),
        ] {
            assert_eq!(tlu.read(offset, 0), Ok(wanted), "{offset:#x}");
        }
        tlu.write(POP, 0xF, 0).unwrap();
        assert_eq!(tlu.read(COUNT, 0), Ok(0));
    }

    #[test]
    fn the_latch_refuses_what_its_core_refuses_and_keeps_the_oldest_stamps() {
        let mut tlu = Tlu::default();
        assert_eq!(tlu.write(SELECT, 4, 0), Err(BusError::Refused));
        assert_eq!(tlu.write(READY, 1, 0), Err(BusError::Refused));
        for offset in [CLEAR, ACTIVE_SET, POP, 0x3C, 0x90] {
            assert_eq!(tlu.read(offset, 0), Err(BusError::Refused), "{offset:#x}");
        }
        tlu.write(ACTIVE_SET, 1, 0).unwrap();
        (0..300).for_each(|time| tlu.write(TEST, 0xFF, 8 * time).unwrap());
        assert_eq!((tlu.read(COUNT, 0), tlu.read(STAMP_LO, 0)), (Ok(256), Ok(0)));
        tlu.write(CLEAR, 1, 0).unwrap();
        assert_eq!(tlu.read(READY, 0), Ok(0));
    }
}
