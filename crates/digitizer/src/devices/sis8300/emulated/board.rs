//! An emulated board: register file, card memory, acquisition, DMA at the crate's pace.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use daqmeter_harness::{Fault, StopFlag, locked};
use daqmeter_record::units::whole;
use daqmeter_sys::clock;
use daqmeter_sys::memory::{Buffer, DeviceMemory, Pages};
use daqmeter_sys::wait::IrqLine;
use serde::Deserialize;

use super::profile::Profile;
use super::trigger::{Phase, Trigger};
use super::uplink::Uplink;
use crate::devices::board::{
    Board, BoardCommands, Identity, TriggerAccount, pattern_sample, to_usize,
};
use crate::devices::sis8300::registers::BoardRegisters;
use crate::devices::sis8300::regs::{self, Model, READ_UNIT_BYTES, check_dma_write, is_dma_read};

/// Size of the real driver's DMA buffer: 2^(MAX_ORDER-1) pages, 4 MiB on kernels of the document's
/// time.
const DMA_BUFFER_BYTES: usize = 4 << 20;
/// Limit of polled transfers: they end sooner than a sleeping thread wakes (about 50 us).
const SMALL_TRANSFER_BYTES: usize = 4096;
const REGISTERS: usize = 0x400;
const CHANNELS: usize = regs::CHANNELS as usize;
/// Faults that a user or a test requests: `gone-after=5` (reads), `short-read-at=3`,
/// `write-error-at=2`, `no-interrupt-after=0` (acquisitions).
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
struct BoardFaults {
    gone_after: Option<u64>,
    short_read_at: Option<u64>,
    write_error_at: Option<u64>,
    no_interrupt_after: Option<u64>,
}

/// Limit of a sleep while bytes flow, so that a signal is seen.
const MAX_SLEEP_S: f64 = 0.1;

/// Shared parts of a crate's boards: the uplink and the epoch of the trigger.
#[derive(Debug)]
pub struct EmulatedCrate {
    profile: Profile,
    /// `None` when unpaced: boards then move data as fast as memory does.
    uplink: Option<Mutex<Uplink>>,
    epoch_ns: u64,
}

#[derive(Debug)]
pub struct EmulatedBoard {
    identity: Identity,
    own_bytes_per_s: f64,
    crate_: Arc<EmulatedCrate>,
    slot: Option<usize>,
    registers: Box<[u32; REGISTERS]>,
    /// Start blocks of the channels, as written. After an acquisition the registers show the ends.
    channel_blocks: [u32; CHANNELS],
    memory: DeviceMemory,
    /// End of the samples in card memory in bytes; memory beyond was never written.
    filled_bytes: u64,
    /// Number of the last acquisition whose data are in the memory.
    finished: u64,
    trigger: Trigger,
    irq: IrqLine,
    dma: Option<Buffer>,
    reads: u64,
    writes: u64,
    faults: BoardFaults,
    stop: StopFlag,
}

impl EmulatedCrate {
    pub fn new(profile: Profile, paced: bool) -> Arc<EmulatedCrate> {
        let uplink = paced.then(|| Mutex::new(Uplink::new(profile.uplink)));
        Arc::new(EmulatedCrate { profile, uplink, epoch_ns: clock::monotonic_ns() })
    }

    /// Plugs a board in: `l0`, `l2-1`, `ku0`, with faults behind a colon (`l0:gone-after=5`).
    ///
    /// # Errors
    /// An unknown name, or a model that the profile lacks.
    pub fn board(self: &Arc<Self>, device: &str, name: &str) -> Result<EmulatedBoard, Fault> {
        let refuse = |why: String| Fault::new(format!("`{device}`{why}"));
        let (name, faults) = name.split_once(':').unwrap_or((name, ""));
        let (model, slot) = parse_name(name).ok_or_else(|| {
            let names = "emu:l0, emu:l2-0 or emu:ku0 (any number), or a range emu:l0..4";
            refuse(format!(" is not an emulated board; write {names}"))
        })?;
        let faults: BoardFaults = toml::from_str(&faults.replace(',', "\n"))
            .map_err(|error| refuse(format!(": fault: {}", error.message())))?;
        let own_bytes_per_s = self.profile.own_bytes_per_s(model).ok_or_else(|| {
            refuse(format!(
                ": profile {} has no rate of a {}; add a [[board]] with its `model` and `own_bytes_per_s`",
                self.profile.file,
                model.name
            ))
        })?;
        let memory_bytes = model.memory_bytes(0);
        let mut registers = Box::new([0; REGISTERS]);
        const FIRMWARE: u32 = 0x1801;
        registers[regs::ID as usize] = model.code << 16 | FIRMWARE;
        registers[regs::SERIAL as usize] = slot;
        registers[regs::SAMPLE_LENGTH as usize] = 0xFFF;
        Ok(EmulatedBoard {
            identity: Identity {
                device: device.to_owned(),
                model: model.name,
                memory_bytes: Some(memory_bytes),
                emulated: true,
            },
            own_bytes_per_s,
            crate_: Arc::clone(self),
            slot: self.uplink.as_ref().map(|uplink| locked(uplink).plug(own_bytes_per_s)),
            registers,
            channel_blocks: [0; CHANNELS],
            memory: DeviceMemory::sparse(to_usize(memory_bytes))?,
            filled_bytes: 0,
            finished: 0,
            trigger: Trigger::new(self.epoch_ns, self.profile.acquisition.trigger_rate_hz),
            irq: IrqLine::timer()?,
            dma: None,
            reads: 0,
            writes: 0,
            faults,
            stop: StopFlag::default(),
        })
    }

    /// Returns the time of the uplink.
    fn now_s(&self) -> f64 {
        clock::monotonic_ns().saturating_sub(self.epoch_ns) as f64 * 1e-9
    }
}

impl EmulatedBoard {
    fn register(&self, offset: u32) -> u32 {
        self.registers.get(offset as usize).copied().unwrap_or(0)
    }

    fn check_there(&self) -> Result<(), Fault> {
        match self.faults.gone_after {
            Some(after) if self.reads >= after => Err(Fault::new(format!(
                "{}: the board is gone (all registers read 0xFFFFFFFF)",
                self.identity.device
            ))),
            _ => Ok(()),
        }
    }

    fn channel_samples(&self) -> u64 {
        (u64::from(self.register(regs::SAMPLE_LENGTH)) + 1) * regs::BLOCK_SAMPLES
    }

    /// Duration of an acquisition's sampling; zero when unpaced.
    fn acquisition_ns(&self) -> u64 {
        let sample_ns = 1e9 / self.crate_.profile.acquisition.sample_rate_hz;
        self.slot.map_or(0, |_| whole(self.channel_samples() as f64 * sample_ns))
    }

    fn control_acquisition(&mut self, value: u32) {
        let now = clock::monotonic_ns();
        let acquisition_ns = self.acquisition_ns();
        self.irq.clear();
        if value & regs::ACQUISITION_RESET != 0 {
            self.trigger.reset(now);
        } else if value & regs::ACQUISITION_START != 0 {
            let done = self.trigger.start(now, acquisition_ns);
            self.irq.fire_at(done);
        } else if value & regs::ACQUISITION_ARM != 0
            && self.register(regs::SAMPLE_CONTROL) & regs::EXTERNAL_TRIGGER != 0
        {
            let done = self.trigger.arm(now, acquisition_ns);
            self.irq.fire_at(done);
        }
    }

    fn status(&mut self) -> u32 {
        let phase = match self.trigger.phase(clock::monotonic_ns()) {
            Phase::Idle => 0,
            Phase::Armed => regs::STATUS_ARMED,
            Phase::Sampling => regs::STATUS_SAMPLING | regs::STATUS_BUSY,
        };
        if phase == 0 {
            self.finish_acquisition();
        }
        phase | regs::STATUS_MEMORY_READY
    }

    /// Writes the data of the enabled channels, the acquisition's number at the start of each, and
    /// their end addresses.
    fn finish_acquisition(&mut self) {
        let number = self.trigger.acquisitions;
        if std::mem::replace(&mut self.finished, number) == number {
            return;
        }
        let disabled = self.register(regs::SAMPLE_CONTROL);
        for channel in (0..CHANNELS).filter(|channel| disabled >> channel & 1 == 0) {
            let first = u64::from(self.channel_blocks[channel]) * regs::BLOCK_SAMPLES;
            let end = first + self.channel_samples();
            if end * 2 <= self.memory.bytes() as u64 {
                self.fill(end * 2);
                self.memory.write(to_usize(first * 2), &number.to_le_bytes());
                let end_block = u32::try_from(end / regs::BLOCK_SAMPLES).expect("within 2 GiB");
                self.registers[regs::CHANNEL_ADDRESS as usize + channel] = end_block;
            }
        }
    }

    fn fill(&mut self, bytes: u64) {
        const CHUNK_SAMPLES: u64 = 1 << 16;
        let mut chunk = Vec::new();
        while self.filled_bytes < bytes {
            let first = self.filled_bytes / 2;
            let last = (first + CHUNK_SAMPLES).min(self.memory.bytes() as u64 / 2);
            chunk.clear();
            chunk.extend((first..last).flat_map(|index| pattern_sample(index).to_le_bytes()));
            self.memory.write(to_usize(self.filled_bytes), &chunk);
            self.filled_bytes = last * 2;
        }
    }

    /// Checks a transfer and brings the memory into the state that a host must see.
    fn begin_read(&mut self, card_offset: u64, bytes: usize) -> Result<usize, Fault> {
        self.check_there()?;
        self.check_range(card_offset, bytes)?;
        if !is_dma_read(card_offset, bytes) {
            return Err(Fault::new(format!(
                "{bytes} bytes from {card_offset:#x}: the driver reads multiples of {READ_UNIT_BYTES} bytes from such"
            )));
        }
        self.reads += 1;
        self.fill(card_offset + bytes as u64);
        let short = self.faults.short_read_at == Some(self.reads);
        Ok(if short { bytes / 2 } else { bytes })
    }

    fn check_range(&self, card_offset: u64, bytes: usize) -> Result<(), Fault> {
        let (end, size) = (card_offset.checked_add(bytes as u64), self.memory.bytes());
        if end.is_none_or(|end| end > size as u64) {
            return Err(Fault::new(format!(
                "{bytes} bytes at {card_offset:#x} leave the card's memory of {size} bytes"
            )));
        }
        Ok(())
    }

    /// Requests bytes from the crate's uplink and waits until they have flowed; `copy` moves them
    /// meanwhile. Fails on a stop.
    fn at_the_uplinks_pace(
        &mut self,
        bytes: usize,
        copy: impl FnOnce(&mut DeviceMemory),
    ) -> Result<(), Fault> {
        let (Some(slot), Some(uplink)) = (self.slot, &self.crate_.uplink) else {
            copy(&mut self.memory);
            return Ok(());
        };
        locked(uplink).submit(self.crate_.now_s(), slot, bytes as f64);
        copy(&mut self.memory);
        loop {
            let now = self.crate_.now_s();
            let Some(left_s) = locked(uplink).left_s(now, slot) else {
                return Ok(());
            };
            if self.stop.is_set() {
                locked(uplink).leave(now, slot);
                return Err(Fault::interrupted());
            }
            if bytes > SMALL_TRANSFER_BYTES {
                let sleep_s = left_s.clamp(1e-6, MAX_SLEEP_S);
                std::thread::sleep(Duration::from_secs_f64(sleep_s));
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// Tries `l2-1` before `l2`: the first is board 1 of model L2, the second board 2 of model L.
pub(crate) fn parse_name(name: &str) -> Option<(Model, u32)> {
    let stems = [("l2-", Model::L2), ("ku", Model::KU), ("l", Model::L)];
    stems
        .into_iter()
        .find_map(|(stem, model)| Some((model, name.strip_prefix(stem)?.parse().ok()?)))
}

impl BoardRegisters for EmulatedBoard {
    fn read_register(&mut self, offset: u32) -> Result<u32, Fault> {
        self.check_there()?;
        if self.slot.is_some() {
            // The processor waits for the register on the bus and can run nothing else.
            let until = clock::monotonic_ns() + self.crate_.profile.acquisition.register_read_ns;
            while clock::monotonic_ns() < until {
                std::hint::spin_loop();
            }
        }
        Ok(if offset == regs::ACQUISITION { self.status() } else { self.register(offset) })
    }

    fn write_register(&mut self, offset: u32, value: u32) -> Result<(), Fault> {
        self.check_there()?;
        match offset {
            regs::ID | regs::SERIAL | regs::OPTIONS => {}
            regs::ACQUISITION => self.control_acquisition(value),
            _ => {
                let channel = offset.wrapping_sub(regs::CHANNEL_ADDRESS) as usize;
                if let Some(first) = self.channel_blocks.get_mut(channel) {
                    *first = value;
                }
                if let Some(register) = self.registers.get_mut(offset as usize) {
                    *register = value;
                }
            }
        }
        Ok(())
    }

    fn stop_flag(&self) -> &StopFlag {
        &self.stop
    }

    fn dma_write(&mut self, card_offset: u64, from: &[u8]) -> Result<usize, Fault> {
        self.check_there()?;
        self.check_range(card_offset, from.len())?;
        if self.register(regs::MEMORY_WRITE_ENABLE) & 1 == 0 {
            return Err(Fault::new(
                "card memory is write-protected: set register 0x230 bit 0 first",
            ));
        }
        check_dma_write(card_offset, from.len())?;
        self.writes += 1;
        if self.faults.write_error_at == Some(self.writes) {
            return Err(Fault::new(format!(
                "{}: DMA write {} failed",
                self.identity.device, self.writes
            )));
        }
        self.fill(card_offset + from.len() as u64);
        self.at_the_uplinks_pace(from.len(), |memory| memory.write(to_usize(card_offset), from))?;
        Ok(from.len())
    }
}

impl Board for EmulatedBoard {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn commands(&mut self) -> Result<&mut dyn BoardCommands, Fault> {
        Ok(self)
    }

    fn read(&mut self, card_offset: u64, into: &mut [u8]) -> Result<usize, Fault> {
        let delivered = self.begin_read(card_offset, into.len())?;
        let into = &mut into[..delivered];
        self.at_the_uplinks_pace(delivered, |memory| memory.read(to_usize(card_offset), into))?;
        Ok(delivered)
    }

    fn map(&mut self, bytes: usize) -> Result<(), Fault> {
        if bytes > DMA_BUFFER_BYTES {
            return Err(Fault::new(format!(
                "access mode 1 (mmap) needs one contiguous DMA buffer of {bytes} bytes; the driver has {DMA_BUFFER_BYTES} \
                 ({} samples): lower -S or use -B 0",
                DMA_BUFFER_BYTES / 2
            )));
        }
        self.dma = Some(Buffer::new(bytes, Pages::Transparent)?);
        Ok(())
    }

    fn read_mapped(&mut self, card_offset: u64, bytes: usize) -> Result<usize, Fault> {
        let delivered = self.begin_read(card_offset, bytes)?;
        let mut dma = self.dma.take().expect("mapped before the first read");
        let into = dma.slice_mut::<u8>(delivered);
        let done =
            self.at_the_uplinks_pace(delivered, |memory| memory.read(to_usize(card_offset), into));
        self.dma = Some(dma);
        done.map(|()| delivered)
    }

    fn mapped(&self, samples: usize) -> &[u16] {
        self.dma.as_ref().expect("mapped before the first read").slice(samples)
    }

    fn wait(&mut self, timeout: Duration) -> Result<bool, Fault> {
        self.check_there()?;
        let after = self.faults.no_interrupt_after;
        if after.is_some_and(|after| self.trigger.asked_for() > after) {
            std::thread::sleep(timeout);
            return Ok(false);
        }
        Ok(self.irq.wait(timeout)?)
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    fn set_trigger_rate(&mut self, rate_hz: f64) {
        self.trigger.set_rate(rate_hz, clock::monotonic_ns());
    }

    fn begin_account(&mut self) {
        if let (Some(slot), Some(uplink)) = (self.slot, &self.crate_.uplink) {
            locked(uplink).leave(self.crate_.now_s(), slot);
        }
        self.trigger.begin_account(clock::monotonic_ns());
    }

    fn trigger_account(&mut self) -> Option<TriggerAccount> {
        Some(self.trigger.account(clock::monotonic_ns()))
    }

    fn expected_sample(&self, index: u64) -> Option<u16> {
        if index * 2 >= self.filled_bytes {
            return Some(pattern_sample(index));
        }
        let mut bytes = [0; 2];
        self.memory.read(to_usize(index * 2), &mut bytes);
        Some(u16::from_le_bytes(bytes))
    }

    fn known_limit(&self) -> Option<(f64, String)> {
        self.slot?;
        let (model, profile) = (self.identity.model, &self.crate_.profile.name);
        Some((self.own_bytes_per_s, format!("{model} alone in profile {profile} (emulated)")))
    }
}

#[cfg(test)]
mod tests;
