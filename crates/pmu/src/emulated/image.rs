//! The configuration space of a mesh after reset, as the driver finds it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use daqmeter_record::Mesh;

use crate::mesh::nodes::{self, CFG, MeshPart, XP};
use crate::mesh::registers::{
    CHILD_INFO, CHILD_POINTERS, EXTERNAL, INFO_GLOBAL, MULTIPLE_DTM, MeshRegisters, NODE_INFO,
    PERIPH_ID_01, PERIPH_ID_23, connect_info,
};

pub trait RegisterMemory: MeshRegisters {
    fn write(&mut self, offset: u64, value: u64);
}

#[derive(Clone, Debug, Default)]
pub struct Places {
    pub root: u64,
    pub crosspoints: Vec<u64>,
    pub nodes: Vec<u64>,
}

/// Offset of the root of CMN-600 on the N1SDP (Linux
/// Documentation/devicetree/bindings/perf/arm,cmn.yaml, `arm,root-node`).
const ROOT_600: u64 = 0xD0_0000;

#[derive(Clone, Debug, Default)]
pub struct Image {
    values: BTreeMap<u64, u64>,
    places: Places,
    base: u64,
}

/// Returns the part of a mesh; CMN-600 is the default.
pub(super) fn part_of(mesh: &Mesh) -> &'static MeshPart {
    nodes::part_of_name(&mesh.part).unwrap_or(&nodes::PARTS[0])
}

pub(super) fn pmu_at(mesh: &Mesh, type_code: u16) -> u64 {
    let part = part_of(mesh);
    if part.name == "CMN-S3" && type_code == XP && mesh.revision.as_str() >= "r1" {
        0xA000
    } else {
        part.pmu_at
    }
}

impl Places {
    pub fn of(mesh: &Mesh) -> Places {
        let part = part_of(mesh);
        let root = if part.name == "CMN-600" { ROOT_600 } else { 0 };
        let mut next = root;
        let mut place = || {
            next += part.node_bytes;
            next
        };
        let crosspoints = mesh.crosspoints.iter().map(|_| place()).collect();
        let nodes = mesh.nodes.iter().map(|_| place()).collect();
        Places { root, crosspoints, nodes }
    }
}

impl Image {
    pub fn of(mesh: &Mesh) -> Image {
        let places = Places::of(mesh);
        let mut image =
            Image { base: mesh.base.unwrap_or(0), places: places.clone(), ..Image::default() };
        image.write_root(mesh);
        for (number, place) in places.crosspoints.iter().enumerate() {
            image.write_crosspoint(mesh, number, *place);
        }
        for (node, place) in mesh.nodes.iter().zip(&places.nodes) {
            image.write_info(*place, node.type_code, node.node_id, node.logical_id);
            image.write(place + CHILD_INFO, 0);
        }
        image
    }

    fn write_info(&mut self, place: u64, code: u16, node: u16, logical: u16) {
        let info = u64::from(code) | u64::from(node) << 16 | u64::from(logical) << 32;
        self.write(place + NODE_INFO, info);
    }

    fn write_root(&mut self, mesh: &Mesh) {
        let (part, root) = (part_of(mesh), self.places.root);
        let dtc = mesh.nodes.iter().find(|node| node.kind == "DTC");
        self.write_info(root, CFG, dtc.map_or(0, |node| node.node_id), 0);
        let id = u64::from(part.code & 0xFF) | u64::from(part.code >> 8) << 32;
        self.write(root + PERIPH_ID_01, id);
        let mut revisions = part.revisions.iter();
        let revision = revisions.position(|revision| *revision == mesh.revision).unwrap_or(0);
        self.write(root + PERIPH_ID_23, (revision as u64) << 4);
        let multi_dtm = if mesh.multi_dtm { MULTIPLE_DTM } else { 0 };
        self.write(root + INFO_GLOBAL, multi_dtm | 1 << 52 | 1 << 50);
        self.write(root + INFO_GLOBAL + 8, 1 << 2 | 1);
        self.children(root, &self.places.crosspoints.clone());
    }

    fn write_crosspoint(&mut self, mesh: &Mesh, number: usize, place: u64) {
        let (part, xp) = (part_of(mesh), &mesh.crosspoints[number]);
        self.write_info(place, XP, xp.node_id, xp.logical_id);
        for (port, name) in xp.ports.iter().enumerate() {
            let code = nodes::device_of_name(name).map_or(0, |(code, _)| code);
            if let Some(offset) = connect_info(part, port) {
                self.write(place + offset, u64::from(code));
            }
        }
        if let Some(offset) = part.domain_at {
            self.write(place + offset, u64::from(xp.dtc.unwrap_or(0)));
        }
        let here = mesh.nodes.iter().zip(&self.places.nodes);
        let here = here.filter(|(node, _)| node.crosspoint as usize == number);
        let mut children: Vec<u64> = here.map(|(_, place)| *place).collect();
        // Each requester has its address map in a node of its own, which is external, behind the
        // others and ignored.
        let last = self.places.nodes.last().or(self.places.crosspoints.last());
        let beyond = last.copied().unwrap_or(0) + part.node_bytes;
        let requesters = xp.ports.iter().filter(|name| name.starts_with("RN-F"));
        children.extend(requesters.map(|_| EXTERNAL | beyond));
        self.children(place, &children);
    }

    fn children(&mut self, of: u64, children: &[u64]) {
        self.write(of + CHILD_INFO, children.len() as u64 | CHILD_POINTERS << 16);
        for (at, child) in children.iter().enumerate() {
            self.write(of + CHILD_POINTERS + 8 * at as u64, *child);
        }
    }

    pub fn root(&self) -> u64 {
        self.places.root
    }

    /// Returns the offsets of all registers that are not zero after reset.
    pub fn places(&self) -> impl Iterator<Item = u64> {
        self.values.keys().copied()
    }

    /// Returns the dump that cmn-tools would make of it.
    pub fn dump(&self) -> String {
        let mut out = String::new();
        for (offset, value) in &self.values {
            out.push_str(&format!("R {:#x} {value:#x}\n", self.base + offset));
        }
        out
    }

    pub fn write_to(&self, file: &File, bytes: u64, at: u64) -> io::Result<()> {
        // A truncated and grown file is all holes.
        if file.metadata()?.len() < at + bytes {
            file.set_len(at + bytes)?;
        }
        for (offset, value) in &self.values {
            file.write_all_at(&value.to_le_bytes(), at + offset)?;
        }
        Ok(())
    }
}

impl MeshRegisters for Image {
    fn read(&self, offset: u64) -> Option<u64> {
        self.values.get(&offset).copied()
    }
}

impl RegisterMemory for Image {
    fn write(&mut self, offset: u64, value: u64) {
        self.values.insert(offset, value);
    }
}
