//! The configuration space of a mesh after reset, as the driver finds it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use daqmeter_record::Mesh;

use crate::mesh::nodes::{self, CFG, MeshPart, XP};

// Registers of nodes, and of the root alone: CMN-600 TRM 2.5 "Discovery".
const NODE_INFO: u64 = 0x0;
const CHILD_INFO: u64 = 0x80;
const CHILD_POINTERS: u64 = 0x100;
const PERIPH_ID_01: u64 = 0x8;
const PERIPH_ID_23: u64 = 0x10;
const INFO_GLOBAL: u64 = 0x900;
const MULTIPLE_DTM: u64 = 1 << 63;
/// Bit of a pointer to a node that is not part of the mesh: RN-SAM, CXLA.
const EXTERNAL: u64 = 1 << 31;

pub trait RegisterMemory {
    fn read(&self, offset: u64) -> u64;

    fn write(&mut self, offset: u64, value: u64);
}

/// Returns the register of the device at a port, if the part has so many.
fn connect_info(part: &MeshPart, port: usize) -> Option<u64> {
    let at = 0x8 + 8 * port as u64;
    match (&*part.name, port) {
        ("CMN-600" | "CMN-650", 2..) => None,
        // CI-700 has the registers of the mesh ports in between.
        ("CI-700", 2..) => Some(at + 0x10),
        _ => Some(at),
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    root: u64,
    pub(super) crosspoints: Vec<u64>,
    pub(super) nodes: Vec<u64>,
}

/// Offset of the root of CMN-600 on the N1SDP (Linux
/// Documentation/devicetree/bindings/perf/arm,cmn.yaml, `arm,root-node`).
const ROOT_600: u64 = 0xD0_0000;

#[derive(Clone, Debug, Default)]
pub struct Image {
    values: BTreeMap<u64, u64>,
    places: Places,
}

/// Returns the part of a mesh; CMN-600 is the default.
fn part_of(mesh: &Mesh) -> &'static MeshPart {
    nodes::part_of_name(&mesh.part).unwrap_or(&nodes::parts()[0])
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
    pub(super) fn of(mesh: &Mesh) -> Places {
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
        let mut image = Image { places: places.clone(), ..Image::default() };
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

    pub fn write_to(&self, file: &File, bytes: u64, at: u64) -> io::Result<()> {
        // A truncated and grown file is all holes.
        if file.metadata()?.len() < at + bytes {
            file.set_len(at + bytes)?;
        }
        let write =
            |(offset, value): (&u64, &u64)| file.write_all_at(&value.to_le_bytes(), at + offset);
        self.values.iter().try_for_each(write)
    }
}

impl RegisterMemory for Image {
    fn read(&self, offset: u64) -> u64 {
        self.values.get(&offset).copied().unwrap_or(0)
    }

    fn write(&mut self, offset: u64, value: u64) {
        self.values.insert(offset, value);
    }
}
