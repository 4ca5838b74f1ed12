//! Streaming character devices without commands, such as a DMA channel from card to host of
//! Xilinx's XDMA driver. Programs only read `/dev/xdma0_c2h_0` at an offset (dma_ip_drivers,
//! XDMA/linux-kernel, cdev_sgdma.c). Any such device is named with a prefix:
//! `stream:/dev/mydevice`.
//!
//! It has no trigger, no mapping and no writes; only the emulated member has known samples.

mod channel;
mod emulated;

use std::sync::Arc;

use daqmeter_harness::{CardFamily, Fault};

use crate::devices::board::{Board, EMULATED_PREFIX};
use crate::devices::family::BoardFamily;
use crate::devices::sis8300::emulated::EmulatedCrate;
use channel::Channel;
use emulated::EmulatedChannel;

const STREAM_PREFIX: &str = "stream:";

pub(super) const FAMILY: BoardFamily = BoardFamily {
    name: "XDMA channels",
    cards: CardFamily {
        kind: "digitizer",
        maker: "Xilinx",
        // Xilinx Corporation (pci.ids).
        vendor: "0x10ee",
        is_node,
    },
    remedy: "load Xilinx's xdma driver; emulated channels (emu:xdma0) need nothing",
    claims,
    open,
    describe: |node| {
        let found = Channel::open(node, node);
        let about = found.map_or_else(|fault| fault.0, |_| "can be read".to_owned());
        ("xdma".to_owned(), about)
    },
    emulated: || {
        let about = "reads of any length, as fast as memory".to_owned();
        vec![("emu:xdma0, emu:xdma1, ...".to_owned(), about)]
    },
};

fn claims(device: &str) -> bool {
    let node = device.rsplit('/').next().unwrap_or(device);
    device.starts_with(STREAM_PREFIX) || is_node(node) || emulated_name(device).is_some()
}

fn open(device: &str, _: &Arc<EmulatedCrate>) -> Result<Box<dyn Board>, Fault> {
    match emulated_name(device) {
        Some(name) => Ok(Box::new(EmulatedChannel::open(device, name)?)),
        None => {
            let path = device.strip_prefix(STREAM_PREFIX).unwrap_or(device);
            Ok(Box::new(Channel::open(device, path)?))
        }
    }
}

fn emulated_name(device: &str) -> Option<&str> {
    let name = device.strip_prefix(EMULATED_PREFIX)?;
    name.starts_with("xdma").then_some(name)
}

fn is_node(name: &str) -> bool {
    let numbers = name.strip_prefix("xdma").and_then(|rest| rest.split_once("_c2h_"));
    let is_number = |text: &str| text.parse::<u8>().is_ok();
    numbers.is_some_and(|(card, channel)| is_number(card) && is_number(channel))
}

#[cfg(test)]
mod tests;
