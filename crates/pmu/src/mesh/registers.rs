//! Discovery from registers: the tree of node information that every part of the family has.
//! The registers come from a dump or from an emulated configuration space. Every value is checked:
//! a corrupt dump ends in an error, never in a loop.
//! Sources: CMN-600 TRM 2.5 "Discovery" (node_info, child_info, child pointers); cmn-tools for the
//! format of dumps.

use std::collections::{BTreeMap, BTreeSet};

use daqmeter_record::Mesh;
use daqmeter_record::mesh::{Crosspoint, Node};

use super::error::MeshError;
use super::nodes::{self, MeshPart};
use super::topology::{MAX_DIMENSION, MAX_PORTS, Place, fill_domain, port_and_device_bits};

pub(crate) const NODE_INFO: u64 = 0x0;
pub(crate) const CHILD_INFO: u64 = 0x80;
pub(crate) const CHILD_POINTERS: u64 = 0x100;
/// Part number, in the root.
pub(crate) const PERIPH_ID_01: u64 = 0x8;
/// Revision, in the root.
pub(crate) const PERIPH_ID_23: u64 = 0x10;
/// Configuration of the mesh, in the root.
pub(crate) const INFO_GLOBAL: u64 = 0x900;
pub(crate) const MULTIPLE_DTM: u64 = 1 << 63;
/// Bit of a pointer to a node that is not part of the mesh: RN-SAM, CXLA.
pub(crate) const EXTERNAL: u64 = 1 << 31;
/// Bit of a pointer to an isolated device, in S3 r2 and later.
const ISOLATED: u64 = 1 << 30;
pub(crate) fn connect_info(part: &MeshPart, port: usize) -> Option<u64> {
    let at = 0x8 + 8 * port as u64;
    match (part.name, port) {
        ("CMN-600" | "CMN-650", 2..) => None,
        // CI-700 has the registers of the mesh ports in between.
        ("CI-700", 2..) => Some(at + 0x10),
        _ => Some(at),
    }
}

pub trait MeshRegisters {
    fn read(&self, offset: u64) -> Option<u64>;

    fn has_failed(&self, _offset: u64) -> bool {
        false
    }
}

/// Most children of one node: twelve ports' devices with several node types each stay below.
const MAX_CHILDREN: u64 = 64;

/// Finds the mesh below the root at `root`; all offsets are relative to the periphery's base.
pub fn discover(registers: &dyn MeshRegisters, root: u64, name: &str) -> Result<Mesh, MeshError> {
    let mut walk = Walk { registers, seen: BTreeSet::new() };
    walk.mesh(root, name)
}

struct Walk<'a> {
    registers: &'a dyn MeshRegisters,
    seen: BTreeSet<u64>,
}

struct Found {
    offset: u64,
    type_code: u16,
    node_id: u16,
    logical_id: u16,
}

fn wrong<T>(at: u64, problem: impl Into<String>) -> Result<T, MeshError> {
    Err(MeshError(format!("register {at:#x}: {}", problem.into())))
}

fn bits(value: u64, first: u32, last: u32) -> u64 {
    value >> first & (u64::MAX >> (63 - (last - first)))
}

fn narrow(value: u64) -> u16 {
    u16::try_from(value & 0xFFFF).expect("masked to 16 bits")
}

impl Walk<'_> {
    fn read(&self, at: u64) -> Result<u64, MeshError> {
        match self.registers.read(at) {
            Some(value) => Ok(value),
            None => wrong(at, "it is not in the dump, or lies outside of the configuration space"),
        }
    }

    fn node(&mut self, offset: u64) -> Result<Found, MeshError> {
        if !self.seen.insert(offset) {
            return wrong(offset, "the node is reached twice: the tree has a loop");
        }
        let info = self.read(offset + NODE_INFO)?;
        Ok(Found {
            offset,
            type_code: narrow(bits(info, 0, 15)),
            node_id: narrow(bits(info, 16, 31)),
            logical_id: narrow(bits(info, 32, 47)),
        })
    }

    fn children(&self, of: u64, part: &MeshPart, max: u64) -> Result<Vec<u64>, MeshError> {
        let info = self.read(of + CHILD_INFO)?;
        let (count, pointers) = (bits(info, 0, 15), bits(info, 16, 31));
        if count > max {
            return wrong(of + CHILD_INFO, format!("{count} children; {max} at most are possible"));
        }
        let mut offsets = Vec::new();
        for at in 0..count {
            let place = of + pointers + 8 * at;
            if self.registers.has_failed(place) {
                continue;
            }
            let pointer = self.read(place)?;
            let is_external = pointer & EXTERNAL != 0;
            let is_isolated = part.name == "CMN-S3" && pointer & ISOLATED != 0;
            // Some meshes announce more children than they have; only on CMN-600 is offset 0 a
            // possible place.
            if is_external || is_isolated || (pointer == 0 && part.name != "CMN-600") {
                continue;
            }
            let offset = pointer & (u64::MAX >> (64 - part.pointer_bits));
            if !self.registers.has_failed(offset + NODE_INFO) {
                offsets.push(offset);
            }
        }
        Ok(offsets)
    }

    fn mesh(&mut self, root: u64, name: &str) -> Result<Mesh, MeshError> {
        let config = self.node(root)?;
        if config.type_code != nodes::CFG {
            let code = config.type_code;
            return wrong(root, format!("a node of type {code:#x}; the root is of type 0x2"));
        }
        let code = part_code(self.read(root + PERIPH_ID_01)?);
        let Some(part) = nodes::part_of_code(code) else {
            let problem = format!("part {code:#x}, which is none of the family");
            return wrong(root + PERIPH_ID_01, problem);
        };
        let revision = bits(self.read(root + PERIPH_ID_23)?, 4, 7);
        let revision = usize::try_from(revision).ok().and_then(|at| part.revisions.get(at));
        let global = self.registers.read(root + INFO_GLOBAL).unwrap_or(0);
        let mut mesh = Mesh {
            name: name.to_owned(),
            part: part.name.to_owned(),
            revision: revision.copied().unwrap_or("").to_owned(),
            multi_dtm: global & MULTIPLE_DTM != 0,
            ..Mesh::default()
        };
        let mut xps = self.crosspoints(root, part)?;
        self.place(&mut mesh, &mut xps, root)?;
        for (number, xp) in xps.iter().enumerate() {
            self.ports(&mut mesh, number, xp, part);
            self.devices(&mut mesh, number, xp, part)?;
        }
        fill_domain(&mut mesh);
        Ok(mesh)
    }

    fn crosspoints(&mut self, root: u64, part: &MeshPart) -> Result<Vec<Found>, MeshError> {
        let mut xps = Vec::new();
        for offset in self.children(root, part, u64::from(MAX_DIMENSION * MAX_DIMENSION))? {
            let xp = self.node(offset)?;
            if xp.type_code != nodes::XP {
                let code = xp.type_code;
                return wrong(offset, format!("a node of type {code:#x} where crosspoints are"));
            }
            xps.push(xp);
        }
        Ok(xps)
    }

    /// Finds width and height: the crosspoint with NodeID 8 is (0,1), and its logical number is the
    /// width.
    fn place(&self, mesh: &mut Mesh, xps: &mut [Found], root: u64) -> Result<(), MeshError> {
        let count = u32::try_from(xps.len()).unwrap_or(u32::MAX);
        let width =
            xps.iter().find(|xp| xp.node_id == 8).map_or(count, |xp| u32::from(xp.logical_id));
        if count == 0 || width == 0 || !count.is_multiple_of(width) {
            return wrong(root, format!("{count} crosspoints in rows of {width}"));
        }
        let height = count / width;
        if width > MAX_DIMENSION || height > MAX_DIMENSION {
            return wrong(
                root,
                format!("a mesh of {width} x {height}; {MAX_DIMENSION} each are possible"),
            );
        }
        xps.sort_by_key(|xp| xp.logical_id);
        (mesh.width, mesh.height) = (width, height);
        for (number, xp) in xps.iter().enumerate() {
            if usize::from(xp.logical_id) != number {
                return wrong(
                    xp.offset,
                    format!("logical number {} where {number} is expected", xp.logical_id),
                );
            }
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            mesh.crosspoints.push(Crosspoint {
                x: number % width,
                y: number / width,
                node_id: xp.node_id,
                logical_id: xp.logical_id,
                dtc: None,
                ports: Vec::new(),
            });
        }
        Ok(())
    }

    fn ports(&self, mesh: &mut Mesh, number: usize, xp: &Found, part: &MeshPart) {
        let read = |at: u64| self.registers.read(xp.offset + at).unwrap_or(0);
        let device = |at: u64| match u8::try_from(read(at) & 0x3F).unwrap_or(0) {
            0 => String::new(),
            kind => nodes::device_name(kind),
        };
        let places = (0..MAX_PORTS).map_while(|port| connect_info(part, port));
        let mut ports: Vec<String> = places.map(device).collect();
        while ports.last().is_some_and(String::is_empty) {
            ports.pop();
        }
        let crosspoint = &mut mesh.crosspoints[number];
        crosspoint.dtc = part.domain_at.and_then(|at| u8::try_from(read(at) & 0x3).ok());
        crosspoint.ports = ports;
    }

    fn devices(
        &mut self,
        mesh: &mut Mesh,
        number: usize,
        xp: &Found,
        part: &MeshPart,
    ) -> Result<(), MeshError> {
        let ports = mesh.crosspoints[number].ports.len();
        let (_, device_bits) = port_and_device_bits(mesh.crosspoints.len(), ports);
        for offset in self.children(xp.offset, part, MAX_CHILDREN)? {
            let node = self.node(offset)?;
            let (code, id) = (node.type_code, node.node_id);
            if nodes::name_of(code).is_none() {
                return wrong(offset, format!("a node of type {code:#x}, which is not known"));
            }
            // The bits below the crosspoint's are port and device; the rest must be the
            // crosspoint's.
            let below = id & 0x7;
            if id & !0x7 != xp.node_id & !0x7 && mesh.crosspoints.len() > 1 {
                let problem = format!("NodeID {id:#x} below the crosspoint {:#x}", xp.node_id);
                return wrong(offset, problem);
            }
            let place = Place {
                crosspoint: number,
                port: usize::from(below >> device_bits),
                device: u8::try_from(below & ((1 << device_bits) - 1)).unwrap_or(u8::MAX),
                device_bits,
            };
            let logical_id = node.logical_id;
            mesh.nodes.push(Node { node_id: id, logical_id, ..place.node(code, id) });
        }
        Ok(())
    }
}

fn part_code(id: u64) -> u16 {
    narrow(bits(id, 0, 7) | bits(id, 32, 35) << 8)
}

/// A dump of registers: lines `R 0xADDRESS 0xVALUE` of 64-bit registers, as cmn-tools writes them;
/// `#` begins a comment. `ERROR` is the value of an unreadable register, such as one for secure
/// software only.
#[derive(Clone, Debug, Default)]
pub(super) struct Dump {
    file: String,
    values: BTreeMap<u64, u64>,
    failed: BTreeSet<u64>,
    base: u64,
}

impl Dump {
    pub(super) fn parse(text: &str, file: &str) -> Result<Dump, MeshError> {
        let wrong = |line, problem: &str| MeshError::in_line(file, line, problem);
        let mut dump = Dump { file: file.to_owned(), ..Dump::default() };
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |text: &str| crate::sysfs::parse_number(text);
            match words.as_slice() {
                [kind, address, error, ..]
                    if kind.eq_ignore_ascii_case("R") && error.eq_ignore_ascii_case("ERROR") =>
                {
                    let wrong = || wrong(at, "no address before ERROR");
                    dump.failed.insert(number(address).ok_or_else(wrong)?);
                }
                [kind, address, value] if kind.eq_ignore_ascii_case("R") => {
                    match (number(address), number(value)) {
                        (Some(address), Some(value)) if address % 8 == 0 => {
                            dump.values.insert(address, value);
                        }
                        _ => return Err(wrong(at, "no address (a multiple of 8) and value")),
                    }
                }
                [kind, ..] if kind.eq_ignore_ascii_case("W") => {}
                _ => return Err(wrong(at, "R 0xADDRESS 0xVALUE is expected")),
            }
        }
        Ok(dump)
    }

    pub(super) fn discover(&self) -> Result<Mesh, MeshError> {
        let is_root = |(address, value): &(&u64, &u64)| {
            let id = self.values.get(&(**address + PERIPH_ID_01));
            let part = id.map(|id| part_code(*id));
            **address % 0x4000 == 0
                && **value & 0xFFFF == u64::from(nodes::CFG)
                && part.and_then(nodes::part_of_code).is_some()
        };
        let Some((root, _)) = self.values.iter().find(is_root) else {
            let problem =
                "no register is the root of a mesh (node type 2 with a known part number)";
            return Err(MeshError(format!("{}: {problem}", self.file)));
        };
        // The root is at the base, except for CMN-600: its pointers count from the base of the 64
        // MiB around it.
        let id = self.values.get(&(root + PERIPH_ID_01)).copied().unwrap_or(0);
        let is_600 = matches!(part_code(id), 0x434 | 0x438);
        let base = if is_600 { root & !0x3FF_FFFF } else { *root };
        let at_base = Dump { base, ..self.clone() };
        let mut mesh = discover(&at_base, root - base, &self.file)?;
        mesh.base = Some(base);
        Ok(mesh)
    }
}

impl MeshRegisters for Dump {
    fn read(&self, offset: u64) -> Option<u64> {
        self.values.get(&self.base.checked_add(offset)?).copied()
    }

    fn has_failed(&self, offset: u64) -> bool {
        let address = self.base.checked_add(offset);
        address.is_some_and(|address| self.failed.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::{Image, RegisterMemory};
    use crate::mesh::{from_text, topology};
    use proptest::prelude::*;

    #[test]
    fn discovery_finds_what_the_image_was_made_of() {
        for (name, _) in topology::SHIPPED {
            let mesh = topology::shipped(name).unwrap();
            let image = Image::of(&mesh);
            let found = discover(&image, image.root(), name).unwrap();
            let without_base = Mesh { base: None, ..unlabelled(mesh) };
            assert_eq!(found, without_base, "{name}");
        }
    }

    #[test]
    fn a_dump_gives_the_same_mesh_with_its_address() {
        for (name, _) in topology::SHIPPED {
            let mesh = topology::shipped(name).unwrap();
            let dump = Image::of(&mesh).dump();
            let found = Dump::parse(&dump, name).unwrap().discover().unwrap();
            assert_eq!(found, unlabelled(mesh), "{name}");
        }
    }

    /// The document's topology table names its PCI bridges; no register does.
    #[test]
    fn the_dump_of_a_known_board_gets_the_boards_labels_and_no_other_does() {
        let mesh = topology::shipped("n1sdp").unwrap();
        let label = |dump: &str| {
            let found = from_text(dump, "x").unwrap();
            let bridge =
                |node: &&daqmeter_record::mesh::Node| node.kind == "RN-D" && node.node_id == 0x0c;
            found.nodes.iter().find(bridge).unwrap().label.clone()
        };
        assert_eq!(label(&Image::of(&mesh).dump()), "PCI_0 (all other PCI-E)");
        let elsewhere = Mesh { base: mesh.base.map(|base| base << 1), ..mesh };
        assert_eq!(label(&Image::of(&elsewhere).dump()), "");
    }

    fn unlabelled(mut mesh: Mesh) -> Mesh {
        mesh.nodes.iter_mut().for_each(|node| node.label.clear());
        mesh
    }

    /// Issue 16: dumps of machines on which some nodes are secure were refused.
    #[test]
    fn a_node_that_could_not_be_read_is_left_out() {
        let mesh = topology::shipped("n1sdp").unwrap();
        let places = crate::emulated::Places::of(&mesh);
        let lost = mesh.nodes.iter().position(|node| node.kind == "SBSX").unwrap();
        let address = mesh.base.unwrap() + places.nodes[lost];
        let of_node = |line: &&str| line.starts_with(&format!("R {address:#x} "));
        let dump = Image::of(&mesh).dump();
        let line = dump.lines().find(of_node).unwrap();
        let dump = dump.replace(line, &format!("R {address:#x} ERROR"));
        let mut expected = unlabelled(mesh);
        expected.nodes.remove(lost);
        assert_eq!(from_text(&dump, "n1sdp"), Ok(expected));
        assert!(from_text("R 5x ERROR\n", "x").unwrap_err().to_string().contains("line 1"));
    }

    fn corrupt(change: impl Fn(&mut Image)) -> String {
        let mut image = Image::of(&topology::shipped("cmn700").unwrap());
        change(&mut image);
        discover(&image, image.root(), "x").unwrap_err().to_string()
    }

    #[test]
    fn loops_absurd_counts_and_pointers_outside_are_errors() {
        let root = Image::of(&topology::shipped("cmn700").unwrap()).root();
        let first = |image: &Image| image.read(root + CHILD_POINTERS).unwrap();
        assert!(
            corrupt(|image| image.write(root + CHILD_INFO, 0xFFFF | CHILD_POINTERS << 16))
                .contains("65535 children")
        );
        assert!(
            corrupt(|image| image.write(root + CHILD_POINTERS, first(image) + (1 << 29)))
                .contains("outside")
        );
        let again = |image: &mut Image| {
            let first = first(image);
            image.write(root + CHILD_POINTERS + 8, first);
        };
        assert!(corrupt(again).contains("reached twice"));
        let loops = |image: &mut Image| {
            let xp = first(image);
            image.write(xp + CHILD_INFO, 1 | CHILD_POINTERS << 16);
            image.write(xp + CHILD_POINTERS, xp);
        };
        assert!(corrupt(loops).contains("reached twice"));
        assert!(corrupt(|image| image.write(root, 0)).contains("type 0x0; the root"));
        assert!(corrupt(|image| image.write(root + PERIPH_ID_01, 0x99)).contains("part 0x99"));
        let foreign = |image: &mut Image| {
            let xp = first(image);
            let child = image.read(xp + CHILD_POINTERS).unwrap();
            image.write(child, 0xBEEF);
        };
        assert!(corrupt(foreign).contains("0xbeef"));
    }

    #[test]
    fn texts_that_are_no_dump_are_refused_with_the_line() {
        for (text, part) in [
            ("R 0x0 zzz", "line 1"),
            ("R 0x8 0x1\nR 0x4 0x1", "line 2"),
            ("R 0x0", "line 1"),
            ("R 0x0 0x0", "no register is the root"),
        ] {
            let error = from_text(text, "x.dump").unwrap_err().to_string();
            assert!(error.starts_with("x.dump") && error.contains(part), "{text}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_corruption_hangs_or_panics(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 1..8)) {
            let mut image = Image::of(&topology::shipped("n1sdp").unwrap());
            let places: Vec<u64> = image.places().collect();
            for (place, value) in changes {
                let at = places[place.index(places.len())];
                let before = image.read(at).unwrap();
                image.write(at, before ^ value & 0xFFFF_FFFF);
            }
            let _ = discover(&image, image.root(), "x");
        }
    }
}
