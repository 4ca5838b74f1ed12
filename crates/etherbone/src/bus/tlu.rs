//! The timestamp latch unit of GSI, 0x651:0x10051981 "GSI_TM_LATCH_V2".
//! Registers, refusals and the effects of reads are those of its core (bel_projects, `wr_tlu.vhd`).
//! Times are in cycles of 8 ns; a stamp adds a rest in ns. The inputs are never driven: stamps come
//! from test pulses. It sends no message-signalled interrupts.

use std::collections::VecDeque;

use daqmeter_wire::etherbone::Width;

use super::BusError;
use super::devices::{BusDevice, low32, whole};

/// Bits of the channels that hold a stamp (read).
pub(crate) const READY: u64 = 0x00;
/// Empties the channels of the written bits.
const CLEAR: u64 = 0x04;
const TEST_ALL: u64 = 0x08;
/// Bits of the active channels (read).
const ACTIVE: u64 = 0x0C;
pub(crate) const ACTIVE_SET: u64 = 0x10;
const ACTIVE_CLEAR: u64 = 0x14;
/// Bits of the channels that latch rising edges (read).
const EDGE: u64 = 0x18;
const EDGE_RISING: u64 = 0x1C;
const EDGE_FALLING: u64 = 0x20;
const INTERRUPT_ENABLE: u64 = 0x24;
const INTERRUPT_MASK: u64 = 0x28;
const INTERRUPT_MASK_SET: u64 = 0x2C;
const INTERRUPT_MASK_CLEAR: u64 = 0x30;
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
pub(crate) const TEST: u64 = 0x60;
const COUNT: u64 = 0x64;
/// High word of the oldest stamp, in cycles (read).
pub(crate) const STAMP_HI: u64 = 0x68;
pub(crate) const STAMP_LO: u64 = 0x6C;
/// Rest of the oldest stamp below a cycle, in ns (read).
const STAMP_SUB: u64 = 0x70;
/// Time in ns that an input must keep its level to make an edge.
const STABLE: u64 = 0x74;
const MESSAGE: u64 = 0x78;
const MESSAGE_TARGET: u64 = 0x7C;

/// Number of channels, chosen here: receivers differ.
const CHANNELS: usize = 4;
const MAX_STAMPS: usize = 256;
pub(crate) const CYCLE_NS: u64 = 8;

#[derive(Debug)]
pub(crate) struct Tlu {
    channels: [Channel; CHANNELS],
    active: u64,
    edge: u64,
    interrupt_enable: u64,
    interrupt_mask: u64,
    time_low: u64,
    selected: usize,
    stable_ns: u64,
}

#[derive(Debug, Default)]
struct Channel {
    stamps_ns: VecDeque<u64>,
    message: u64,
    message_target: u64,
}

impl Default for Tlu {
    fn default() -> Self {
        Tlu {
            channels: Default::default(),
            active: 0,
            edge: ALL,
            interrupt_enable: 0,
            interrupt_mask: 0,
            time_low: 0,
            selected: 0,
            stable_ns: 8,
        }
    }
}

const ALL: u64 = (1 << CHANNELS) - 1;

impl Tlu {
    fn selected(&mut self) -> &mut Channel {
        &mut self.channels[self.selected]
    }

    /// Applies a pulse: one bit for each level of 8 ns, the first in bit 0. The edge counts if the
    /// level after it lasts.
    fn pulse(&mut self, levels: u64, into: u64, tai_ns: u64) {
        if u64::from(levels.to_le_bytes()[0].trailing_ones()) < self.stable_ns {
            return;
        }
        let latching = into & self.active;
        for (at, channel) in self.channels.iter_mut().enumerate() {
            if latching >> at & 1 == 1 && channel.stamps_ns.len() < MAX_STAMPS {
                channel.stamps_ns.push_back(tai_ns);
            }
        }
    }
}

impl BusDevice for Tlu {
    fn read(&mut self, offset: u64, size: Width, tai_ns: u64) -> Result<u64, BusError> {
        whole(size)?;
        let stamps = &self.channels[self.selected].stamps_ns;
        let oldest_ns = stamps.front().copied().unwrap_or(0);
        Ok(match offset & 0xFC {
            READY => (0..CHANNELS)
                .map(|at| u64::from(!self.channels[at].stamps_ns.is_empty()) << at)
                .sum(),
            ACTIVE => self.active,
            EDGE => self.edge,
            INTERRUPT_ENABLE => self.interrupt_enable,
            INTERRUPT_MASK => self.interrupt_mask,
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
            STABLE => self.stable_ns,
            MESSAGE => self.selected().message,
            MESSAGE_TARGET => self.selected().message_target,
            _ => return Err(BusError::Refused),
        })
    }

    fn write(&mut self, offset: u64, size: Width, value: u64, tai_ns: u64) -> Result<(), BusError> {
        whole(size)?;
        let value = low32(value);
        let bits = value & ALL;
        match offset & 0xFC {
            CLEAR => {
                for (at, channel) in self.channels.iter_mut().enumerate() {
                    if bits >> at & 1 == 1 {
                        channel.stamps_ns.clear();
                    }
                }
            }
            TEST_ALL => self.pulse(value, ALL, tai_ns),
            ACTIVE_SET => self.active |= bits,
            ACTIVE_CLEAR => self.active &= !bits,
            EDGE_RISING => self.edge |= bits,
            EDGE_FALLING => self.edge &= !bits,
            INTERRUPT_ENABLE => self.interrupt_enable = value & 1,
            INTERRUPT_MASK_SET => self.interrupt_mask |= bits,
            INTERRUPT_MASK_CLEAR => self.interrupt_mask &= !bits,
            SELECT => {
                let channel = usize::try_from(value).unwrap_or(usize::MAX);
                if channel >= CHANNELS {
                    return Err(BusError::Refused);
                }
                self.selected = channel;
            }
            POP => {
                let popped = self.selected().stamps_ns.pop_front();
                return popped.map(drop).ok_or(BusError::Refused);
            }
            TEST => self.pulse(value, 1 << self.selected, tai_ns),
            STABLE => self.stable_ns = value,
            MESSAGE => self.selected().message = value,
            MESSAGE_TARGET => self.selected().message_target = value,
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
        let mut tlu = Tlu::default();
        let mut tai_ns = 0x1234_5678_9abc_def5;
        let read = |tlu: &mut Tlu, offset| tlu.read(offset, Width::W32, tai_ns);
        let time = (read(&mut tlu, TIME_HI), read(&mut tlu, TIME_LO));
        let cycles: u64 = tai_ns / 8;
        assert_eq!(time, (Ok(cycles >> 32), Ok(cycles & 0xffff_ffff)));
        assert_eq!((read(&mut tlu, 0x34), read(&mut tlu, 0x38)), (Ok(4), Ok(256)));
        let mut write = |tlu: &mut Tlu, offset, value| {
            tai_ns += 1000;
            tlu.write(offset, Width::W32, value, tai_ns)
        };
        write(&mut tlu, SELECT, 2).unwrap();
        assert_eq!(write(&mut tlu, POP, 0xF), Err(BusError::Refused), "no stamp");
        write(&mut tlu, TEST, 0xFF).unwrap();
        write(&mut tlu, ACTIVE_SET, 0b100).unwrap();
        write(&mut tlu, TEST, 0x0F).unwrap();
        assert_eq!(tlu.read(READY, Width::W32, 0), Ok(0), "not active, too short");
        write(&mut tlu, TEST_ALL, 0xFF).unwrap();
        let stamp_ns = 0x1234_5678_9abc_def5 + 6000;
        for (offset, wanted) in [
            (READY, 0b100),
            (COUNT, 1),
            (STAMP_HI, (stamp_ns / 8) >> 32),
            (STAMP_LO, (stamp_ns / 8) & 0xffff_ffff),
            (STAMP_SUB, stamp_ns % 8),
        ] {
            assert_eq!(tlu.read(offset, Width::W32, 0), Ok(wanted), "{offset:#x}");
        }
        tlu.write(POP, Width::W32, 0xF, 0).unwrap();
        assert_eq!(tlu.read(COUNT, Width::W32, 0), Ok(0));
    }

    #[test]
    fn the_latch_refuses_what_its_core_refuses_and_keeps_the_oldest_stamps() {
        let mut tlu = Tlu::default();
        assert_eq!(tlu.write(SELECT, Width::W32, 4, 0), Err(BusError::Refused));
        for offset in [CLEAR, ACTIVE_SET, POP, 0x3C, 0x90] {
            let refused = tlu.read(offset, Width::W32, 0);
            assert_eq!(refused, Err(BusError::Refused), "{offset:#x}");
        }
        assert_eq!(tlu.write(READY, Width::W32, 1, 0), Err(BusError::Refused));
        tlu.write(ACTIVE_SET, Width::W32, 1, 0).unwrap();
        for tai_ns in 0..300 {
            tlu.write(TEST, Width::W32, 0xFF, 8 * tai_ns).unwrap();
        }
        assert_eq!(tlu.read(COUNT, Width::W32, 0), Ok(256));
        assert_eq!(tlu.read(STAMP_LO, Width::W32, 0), Ok(0));
        tlu.write(CLEAR, Width::W32, 1, 0).unwrap();
        assert_eq!(tlu.read(READY, Width::W32, 0), Ok(0));
    }
}
