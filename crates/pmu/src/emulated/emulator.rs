//! An emulator of a mesh's counters: the hardware's side of the driver's registers.
//! Sources: CMN-600 TRM 5 "Debug trace and PMU" (por_dtm_pmu_config, por_dtm_pmevcnt,
//! por_dt_pmevcnt, por_dt_pmovsr); Linux drivers/perf/arm-cmn.c for their programming.

use daqmeter_record::Mesh;

use super::image::{Places, RegisterMemory, pmu_at};
use crate::mesh::nodes::{DTC, HNI, HNP, RND, RNI, XP};

const DTM_CONFIG: u64 = 0x210;
const DTM_COUNTERS: u64 = 0x220;
const DTM_STRIDE: u64 = 0x200;
const DTC_CONTROL: u64 = 0xA00;
const DTC_PMCR: u64 = 0x100;
const DTC_OVERFLOW: u64 = 0x118;
const DTC_OVERFLOW_CLEAR: u64 = 0x120;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Happening {
    /// Type of the node; RN-D counts as RN-I.
    pub type_code: u16,
    pub node_id: u16,
    pub event_id: u64,
    pub count: u64,
}

#[derive(Debug)]
pub struct Emulator<M> {
    mesh: Mesh,
    places: Places,
    controllers: Vec<u64>,
    memory: M,
}

impl<M: RegisterMemory> Emulator<M> {
    pub fn new(mesh: &Mesh, memory: M) -> Emulator<M> {
        let places = Places::of(mesh);
        let dtcs = mesh.nodes.iter().zip(&places.nodes).filter(|(node, _)| node.type_code == DTC);
        let controllers = dtcs.map(|(_, place)| *place).collect();
        Emulator { mesh: mesh.clone(), places, controllers, memory }
    }

    fn read(&self, at: u64) -> u64 {
        self.memory.read(at)
    }

    fn dtc_pmu(&self, dtc: usize) -> u64 {
        self.controllers.get(dtc).copied().unwrap_or(0) + pmu_at(&self.mesh, DTC)
    }

    /// Returns true while the driver lets the counters run: only the first controller starts and
    /// stops.
    pub fn runs(&self) -> bool {
        let control = self.controllers.first().map_or(0, |place| self.read(place + DTC_CONTROL));
        control & 1 == 1 && self.read(self.dtc_pmu(0) + DTC_PMCR) & 1 == 1
    }

    fn acknowledge(&mut self) {
        for dtc in 0..self.controllers.len() {
            let at = self.dtc_pmu(dtc);
            let clear = self.read(at + DTC_OVERFLOW_CLEAR) & 0xFFFF_FFFF;
            if clear != 0 {
                let status = self.read(at + DTC_OVERFLOW);
                self.memory.write(at + DTC_OVERFLOW, status & !clear);
                self.memory.write(at + DTC_OVERFLOW_CLEAR, 0);
            }
        }
    }

    /// Counts an occurrence, unless the counters are stopped. Returns the numbers of the
    /// controllers whose counters wrapped.
    pub fn happen(&mut self, what: Happening) -> Vec<usize> {
        self.acknowledge();
        let mut wraps = Vec::new();
        if !self.runs() {
            return wraps;
        }
        for at in 0..self.mesh.crosspoints.len() {
            let ports = self.mesh.crosspoints[at].ports.len();
            let monitors = if self.mesh.multi_dtm { ports.div_ceil(2).max(1) } else { 1 };
            for monitor in 0..monitors {
                self.count(at, monitor, what, &mut wraps);
            }
        }
        wraps.dedup();
        wraps
    }

    fn count(
        &mut self,
        crosspoint: usize,
        monitor: usize,
        what: Happening,
        wraps: &mut Vec<usize>,
    ) {
        let base = self.places.crosspoints[crosspoint]
            + pmu_at(&self.mesh, XP)
            + DTM_STRIDE * monitor as u64;
        let config = self.read(base + DTM_CONFIG);
        if config & 1 == 0 {
            return;
        }
        for counter in 0..4_u64 {
            let is_chained = config >> (4 + counter) & 1 == 1;
            let input = config >> (32 + 8 * counter) & 0x3F;
            if !is_chained
                || self.selected(crosspoint, monitor, input)
                    != Some((what.type_code, what.node_id, what.event_id))
            {
                continue;
            }
            let live = self.read(base + DTM_COUNTERS);
            let before = live >> (16 * counter) & 0xFFFF;
            let sum = before.wrapping_add(what.count);
            let carried = (u128::from(before) + u128::from(what.count)) >> 16;
            let field = 0xFFFF << (16 * counter);
            self.memory
                .write(base + DTM_COUNTERS, live & !field | (sum & 0xFFFF) << (16 * counter));
            let global = config >> (16 + 4 * counter) & 0x7;
            self.carry(crosspoint, global, u64::try_from(carried).unwrap_or(u64::MAX), wraps);
        }
    }

    fn selected(&self, crosspoint: usize, monitor: usize, input: u64) -> Option<(u16, u16, u64)> {
        let wide = matches!(self.mesh.part.as_str(), "CMN-700" | "CMN-S3");
        if (4..8).contains(&input) {
            let xp = &self.mesh.crosspoints[crosspoint];
            let select = self.read(self.places.crosspoints[crosspoint] + pmu_at(&self.mesh, XP));
            let slot = input - 4;
            let event =
                if wide { select >> (16 * slot) & 0xFFFF } else { select >> (8 * slot) & 0xFF };
            return Some((XP, xp.node_id, event));
        }
        let device = input.checked_sub(0x10)?;
        let (slot, number, port) = (device & 3, device >> 2 & 3, device >> 4);
        let port = port + if self.mesh.multi_dtm { 2 * monitor as u64 } else { 0 };
        let here = self.mesh.nodes.iter().zip(&self.places.nodes).filter(|(node, _)| {
            let is_here = node.crosspoint as usize == crosspoint;
            // A controller has counters where other nodes have their selects.
            is_here
                && u64::from(node.port) == port
                && u64::from(node.device) == number
                && node.type_code != DTC
        });
        // Several nodes may share a place (HN-D): the one with its select set is meant.
        here.flat_map(|(node, place)| {
            let at = place + pmu_at(&self.mesh, node.type_code);
            let selects = match node.type_code {
                // HN-P has the selects of both its halves; HN-P's own are behind HN-I's.
                HNP => vec![(HNI, at), (HNP, at + 8)],
                RND => vec![(RNI, at)],
                code => vec![(code, at)],
            };
            selects.into_iter().map(|(code, at)| (code, node.node_id, at))
        })
        .map(|(code, node_id, at)| (code, node_id, self.read(at) >> (8 * slot) & 0xFF))
        .find(|(.., event)| *event != 0)
    }

    fn carry(&mut self, crosspoint: usize, global: u64, carried: u64, wraps: &mut Vec<usize>) {
        if carried == 0 {
            return;
        }
        let dtc = self.mesh.crosspoints[crosspoint].dtc.map_or(0, usize::from);
        // Two 32-bit counters in each 64-bit register, on a stride of 16.
        let at = self.dtc_pmu(dtc) + global / 2 * 16;
        let shift = 32 * (global % 2);
        let pair = self.read(at);
        let sum = (pair >> shift & 0xFFFF_FFFF) + carried;
        self.memory.write(at, pair & !(0xFFFF_FFFF << shift) | (sum & 0xFFFF_FFFF) << shift);
        if sum >> 32 != 0 {
            let overflow = self.dtc_pmu(dtc) + DTC_OVERFLOW;
            self.memory.write(overflow, self.read(overflow) | 1 << global);
            wraps.push(dtc);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::Image;
    use crate::mesh::topology::shipped;

    /// Programs an event as the driver does: counter 1 of the monitor, chained to counter 3 of the
    /// controller.
    fn programmed(mesh: &str, kind: &str, node_id: u16, event: u64) -> Emulator<Image> {
        let mesh = shipped(mesh).unwrap();
        let mut emulator = Emulator::new(&mesh, Image::of(&mesh));
        let places = Places::of(&mesh);
        let (number, node) = mesh
            .nodes
            .iter()
            .enumerate()
            .find(|(_, node)| node.kind == kind && node.node_id == node_id)
            .unwrap();
        let port = u64::from(node.port);
        let (monitor, port) = if mesh.multi_dtm { (port / 2, port % 2) } else { (0, port) };
        let dtm =
            places.crosspoints[node.crosspoint as usize] + pmu_at(&mesh, XP) + DTM_STRIDE * monitor;
        let input = 0x10 + 1 + (port << 4) + (u64::from(node.device) << 2);
        let memory = &mut emulator.memory;
        memory.write(dtm + DTM_CONFIG, 1 | 1 << 5 | 3 << 20 | input << 40);
        memory.write(places.nodes[number] + pmu_at(&mesh, node.type_code), event << 8);
        let dtcs: Vec<u64> = emulator.controllers.clone();
        for dtc in 0..dtcs.len() {
            let pmu = emulator.dtc_pmu(dtc);
            emulator.memory.write(pmu + 16, 0x8000_0000 << 32);
        }
        let pmu = emulator.dtc_pmu(0);
        emulator.memory.write(dtcs[0] + DTC_CONTROL, 1);
        emulator.memory.write(pmu + DTC_PMCR, 0x41);
        emulator
    }

    fn happening(type_code: u16, node_id: u16, event_id: u64, count: u64) -> Happening {
        Happening { type_code, node_id, event_id, count }
    }

    fn counted(emulator: &Emulator<Image>, dtm: u64, dtc: usize) -> u64 {
        let low = emulator.read(dtm + DTM_COUNTERS) >> 16 & 0xFFFF;
        let high = emulator.read(emulator.dtc_pmu(dtc) + 16) >> 32;
        low + ((high - 0x8000_0000) << 16)
    }

    #[test]
    fn what_happens_is_counted_to_the_last_one_across_wraps() {
        let mut emulator = programmed("n1sdp", "HN-F", 0x24, 0xd);
        let mesh = emulator.mesh.clone();
        let dtm = Places::of(&mesh).crosspoints[1] + 0x2000;
        let mut sum = 0;
        for count in [1, 65_534, 1, 1, 3_000_000_000, 65_536, 12_345] {
            assert!(emulator.happen(happening(0x5, 0x24, 0xd, count)).is_empty());
            sum += count;
        }
        assert_eq!(counted(&emulator, dtm, 0), sum);
        for (code, node, event) in [(0x5, 0x28, 0xd), (0x5, 0x24, 0xc), (0xa, 0x24, 0xd)] {
            emulator.happen(happening(code, node, event, 99));
        }
        assert_eq!(counted(&emulator, dtm, 0), sum, "other nodes and other events are not counted");
    }

    #[test]
    fn a_second_monitor_and_a_second_domain_are_found() {
        // Port 2 of a crosspoint with four ports: the second monitor.
        let mut emulator = programmed("cmn700", "RN-I", 0x2c, 4);
        let mesh = emulator.mesh.clone();
        let number =
            mesh.nodes.iter().find(|node| node.kind == "RN-I").unwrap().crosspoint as usize;
        let dtm = Places::of(&mesh).crosspoints[number] + 0x2000 + DTM_STRIDE;
        emulator.happen(happening(RNI, 0x2c, 4, 70_000));
        assert_eq!(counted(&emulator, dtm, 0), 70_000);
        let right = mesh
            .nodes
            .iter()
            .find(|node| node.kind == "HN-F" && mesh.crosspoint_of(node).unwrap().dtc == Some(1))
            .unwrap();
        let mut emulator = programmed("cmn700", "HN-F", right.node_id, 1);
        emulator.happen(happening(0x5, right.node_id, 1, 200_000));
        let dtm = Places::of(&mesh).crosspoints[right.crosspoint as usize]
            + 0x2000
            + DTM_STRIDE * u64::from(right.port / 2);
        assert_eq!(counted(&emulator, dtm, 1), 200_000);
    }

    #[test]
    fn nodes_that_share_a_place_with_a_controller_are_told_apart() {
        let mut emulator = programmed("n1sdp", "HN-I", 0x68, 3);
        let mesh = emulator.mesh.clone();
        let dtm = Places::of(&mesh).crosspoints[7] + 0x2000;
        // The controller's counters stand where a select would be.
        let counters = emulator.dtc_pmu(0);
        emulator.memory.write(counters, 0x8000_0707);
        emulator.happen(happening(0x4, 0x68, 3, 12));
        assert_eq!(counted(&emulator, dtm, 0), 12);
    }

    #[test]
    fn a_wrap_of_the_controller_asks_for_an_interrupt_until_it_is_cleared() {
        let mut emulator = programmed("n1sdp", "HN-F", 0x24, 0xd);
        let event = happening(0x5, 0x24, 0xd, 1 << 47);
        assert_eq!(emulator.happen(event), [0]);
        let status = emulator.dtc_pmu(0) + DTC_OVERFLOW;
        assert_eq!(emulator.read(status), 1 << 3);
        emulator.memory.write(status + 8, 1 << 3);
        assert!(emulator.happen(happening(0x5, 0x28, 0xd, 1)).is_empty());
        assert_eq!((emulator.read(status), emulator.read(status + 8)), (0, 0));
    }

    #[test]
    fn nothing_counts_while_the_driver_has_stopped_it() {
        let mut emulator = programmed("n1sdp", "HN-F", 0x24, 0xd);
        let control = emulator.dtc_pmu(0) + DTC_PMCR;
        emulator.memory.write(control, 0x40);
        emulator.happen(happening(0x5, 0x24, 0xd, 5));
        let dtm = emulator.places.crosspoints[1] + 0x2000;
        assert_eq!(emulator.memory.read(dtm + DTM_COUNTERS), 0);
    }
}
