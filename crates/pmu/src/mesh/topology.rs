//! Meshes described in files: crosspoints and the devices at their ports.
//! The shipped descriptions are below `meshes/`; the emulated configuration space is made from
//! them.

use daqmeter_harness::{Fault, Shipped, TomlText};
use daqmeter_record::Mesh;
use daqmeter_record::border::from_peer;
use daqmeter_record::mesh::{Crosspoint, Node};
use serde::Deserialize;

use super::nodes;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    name: String,
    part: String,
    #[serde(default)]
    revision: String,
    #[serde(default)]
    base: Option<u64>,
    width: u32,
    height: u32,
    #[serde(default)]
    multi_dtm: bool,
    xp: Vec<DescribedXp>,
    #[serde(default)]
    label: Vec<Label>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Label {
    kind: String,
    node: u16,
    text: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedXp {
    x: u32,
    y: u32,
    #[serde(default)]
    dtc: Option<u8>,
    /// Device at each port: `RN-D`, or `HN-F*2` for two devices; empty for a free port.
    ports: Vec<String>,
}

const MAX_DIMENSION: u32 = 12;
pub(super) const MAX_PORTS: usize = 6;

pub const SHIPPED_MESHES: Shipped = Shipped {
    kind: "mesh",
    files: &[
        ("n1sdp", include_str!("../../meshes/n1sdp.toml")),
        ("cmn650", include_str!("../../meshes/cmn650.toml")),
        ("cmn700", include_str!("../../meshes/cmn700.toml")),
        ("s3", include_str!("../../meshes/s3.toml")),
    ],
};

pub fn shipped(name: &str) -> Option<Mesh> {
    let text = SHIPPED_MESHES.shipped(name)?;
    Some(parse(&text).expect("ships with the binary and is tested"))
}

/// Returns the bits of a coordinate in a NodeID: two at least in the hardware.
fn coordinate_bits(width: u32, height: u32) -> u32 {
    (32 - (width.max(height).max(1) - 1).leading_zeros()).max(2)
}

/// Returns the bits of port and device in the NodeIDs of a crosspoint's devices.
pub(super) fn port_and_device_bits(crosspoints: usize, ports_used: usize) -> (u32, u32) {
    match (crosspoints, ports_used) {
        (1, _) => (3, 2),
        (_, used) if used > 2 => (2, 1),
        _ => (1, 2),
    }
}

/// Refuses a mesh that is larger than any of the family.
pub(super) fn check_size(width: u32, height: u32) -> Result<(), String> {
    let is_possible = [width, height].iter().all(|length| (1..=MAX_DIMENSION).contains(length));
    let refused =
        || format!("a mesh of {width} x {height}; 1 to {MAX_DIMENSION} each are possible");
    is_possible.then_some(()).ok_or_else(refused)
}

pub(super) fn node_id(mesh: &Mesh, x: u32, y: u32) -> Result<u16, String> {
    let bits = coordinate_bits(mesh.width, mesh.height);
    u16::try_from((x << bits | y) << 3).map_err(|_| "a NodeID of more than 16 bits".to_owned())
}

/// Sets the domain of crosspoints, which CMN-600 does not tell; with one controller there is only
/// one.
pub(super) fn fill_domain(mesh: &mut Mesh) {
    if mesh.dtcs() == 1 {
        mesh.crosspoints.iter_mut().for_each(|xp| xp.dtc = Some(0));
    }
}

pub(super) struct Place {
    pub(super) crosspoint: usize,
    pub(super) port: usize,
    pub(super) device: u8,
    pub(super) device_bits: u32,
}

impl Place {
    pub(super) fn node(&self, type_code: u16, xp_node_id: u16) -> Node {
        let port = u8::try_from(self.port).unwrap_or(u8::MAX);
        Node {
            kind: nodes::name_of(type_code).unwrap_or_default().to_owned(),
            type_code,
            node_id: xp_node_id | u16::from(port) << self.device_bits | u16::from(self.device),
            logical_id: 0,
            crosspoint: u32::try_from(self.crosspoint).unwrap_or(u32::MAX),
            port,
            device: self.device,
            label: String::new(),
        }
    }
}

pub fn parse(text: &TomlText) -> Result<Mesh, Fault> {
    let description = text.parse().map_err(Fault::new)?;
    build(description).map_err(|problem| Fault::new(format!("{}: {problem}", text.name)))
}

/// Reads a mesh as in records.
pub(super) fn from_json(text: &str, file: &str) -> Result<Mesh, Fault> {
    let wrong = |problem: String| Fault::new(format!("{file}: {problem}"));
    let mesh: Mesh = from_peer(text.as_bytes(), &[("base", u64::MAX)]).map_err(wrong)?;
    check_size(mesh.width, mesh.height).map_err(wrong)?;
    let places = (0..mesh.height).flat_map(|y| (0..mesh.width).map(move |x| (x, y)));
    let is_whole = mesh.crosspoints.iter().map(|xp| (xp.x, xp.y)).eq(places)
        && mesh.crosspoints.iter().all(|xp| xp.ports.len() <= MAX_PORTS)
        && mesh.nodes.iter().all(|node| mesh.crosspoint_of(node).is_some());
    if is_whole { Ok(mesh) } else { Err(wrong("crosspoints are missing or misplaced".to_owned())) }
}

fn build(description: Description) -> Result<Mesh, String> {
    let Description { name, part, revision, base, width, height, multi_dtm, .. } = description;
    check_size(width, height)?;
    check_part(&part).map_err(|unknown| unknown.0)?;
    let outside = |xp: &&DescribedXp| xp.x >= width || xp.y >= height;
    let mut mesh = Mesh { name, part, revision, base, width, height, multi_dtm, ..Mesh::default() };
    for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
        let mut found = description.xp.iter().filter(|xp| (xp.x, xp.y) == (x, y));
        let (Some(xp), None) = (found.next(), found.next()) else {
            return Err(format!("crosspoint ({x},{y}) must be described exactly once"));
        };
        add_crosspoint(&mut mesh, xp)?;
    }
    if let Some(xp) = description.xp.iter().find(outside) {
        let DescribedXp { x, y, .. } = xp;
        return Err(format!("crosspoint ({x},{y}) lies outside of {width} x {height}"));
    }
    number(&mut mesh);
    description.label.into_iter().try_for_each(|label| set_label(&mut mesh, label))?;
    Ok(mesh)
}

/// Labels the bridges of known boards, because registers do not name their devices.
pub(super) fn label_known(mesh: &mut Mesh) {
    let key = |mesh: &Mesh| (mesh.part.clone(), mesh.base, mesh.width, mesh.height);
    let own = key(mesh);
    let known = SHIPPED_MESHES.names().into_iter().filter_map(shipped);
    for board in known.filter(|board| board.base.is_some() && key(board) == own) {
        for node in &mut mesh.nodes {
            let id = |node: &Node| (node.type_code, node.node_id);
            if let Some(known) = board.nodes.iter().find(|known| id(known) == id(node)) {
                node.label.clone_from(&known.label);
            }
        }
    }
}

/// Refuses a part that is not known.
pub fn check_part(part: &str) -> Result<(), Fault> {
    let parts: Vec<&str> = nodes::parts().iter().map(|part| &*part.name).collect();
    let unknown = || format!("there is no part `{part}`; there are {}", parts.join(", "));
    nodes::part_of_name(part).map(drop).ok_or_else(|| Fault::new(unknown()))
}

fn set_label(mesh: &mut Mesh, label: Label) -> Result<(), String> {
    let is_meant = |node: &&mut Node| node.kind == label.kind && node.node_id == label.node;
    let missing = || format!("label for {} {:#x}, which is not there", label.kind, label.node);
    mesh.nodes.iter_mut().find(is_meant).ok_or_else(missing)?.label = label.text;
    Ok(())
}

fn add_crosspoint(mesh: &mut Mesh, xp: &DescribedXp) -> Result<(), String> {
    let (x, y, count) = (xp.x, xp.y, xp.ports.len());
    if count > MAX_PORTS {
        return Err(format!("crosspoint ({x},{y}) has {count} ports; {MAX_PORTS} at most"));
    }
    let node_id = node_id(mesh, x, y)?;
    let ports = xp.ports.iter().enumerate();
    let ports = ports.map(|(port, text)| add_devices(mesh, xp, node_id, port, text));
    let ports = ports.collect::<Result<_, _>>()?;
    let logical_id = u16::try_from(mesh.crosspoints.len()).unwrap_or(u16::MAX);
    mesh.crosspoints.push(Crosspoint { x, y, node_id, logical_id, dtc: xp.dtc, ports });
    Ok(())
}

fn add_devices(
    mesh: &mut Mesh,
    xp: &DescribedXp,
    node_id: u16,
    port: usize,
    text: &str,
) -> Result<String, String> {
    let (name, devices) = text.split_once('*').unwrap_or((text, "1"));
    let devices: u8 =
        devices.parse().map_err(|_| format!("`{text}` is not a device; write HN-F or HN-F*2"))?;
    if name.is_empty() {
        return Ok(String::new());
    }
    let (_, kinds) = nodes::device_of_name(name).ok_or_else(|| {
        let known = nodes::device_names().join(", ");
        format!("there is no device `{name}`; there are {known}")
    })?;
    let crosspoints = (mesh.width * mesh.height) as usize;
    let (port_bits, device_bits) = port_and_device_bits(crosspoints, xp.ports.len());
    if port >= 1 << port_bits || devices > 1 << device_bits || devices == 0 {
        let DescribedXp { x, y, .. } = xp;
        return Err(format!("`{text}` at port {port} of ({x},{y}) has no NodeIDs of its own"));
    }
    let crosspoint = mesh.crosspoints.len();
    for device in 0..devices {
        let place = Place { crosspoint, port, device, device_bits };
        mesh.nodes.extend(kinds.iter().map(|code| place.node(*code, node_id)));
    }
    Ok(if name == "RN-F" { "RN-F_A" } else { name }.to_owned())
}

/// Numbers the nodes of each type in the order of their crosspoints, as the hardware does.
fn number(mesh: &mut Mesh) {
    let mut next = std::collections::BTreeMap::new();
    for node in &mut mesh.nodes {
        let counter = next.entry(node.type_code).or_insert(0);
        node.logical_id = *counter;
        *counter += 1;
    }
    fill_domain(mesh);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_nodes_of_the_n1sdp_are_where_the_document_says() {
        let mesh = shipped("n1sdp").unwrap();
        for (kind, node, x, y, port) in [
            ("HN-F", 0x24, 1, 0, 1),
            ("HN-F", 0x28, 1, 1, 0),
            ("HN-F", 0x44, 2, 0, 1),
            ("HN-F", 0x48, 2, 1, 0),
            ("RN-D", 0x08, 0, 1, 0),
            ("RN-D", 0x0c, 0, 1, 1),
            ("SBSX", 0x64, 3, 0, 1),
            ("DTC", 0x68, 3, 1, 0),
        ] {
            let found = mesh.nodes.iter().find(|found| found.kind == kind && found.node_id == node);
            let found = found.unwrap_or_else(|| panic!("no {kind} {node:#x}"));
            assert_eq!((mesh.place(node), found.port), (Some((x, y)), port), "{kind} {node:#x}");
        }
        let xps: Vec<u16> = mesh.crosspoints.iter().map(|xp| xp.node_id).collect();
        let mut sorted = xps.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0x00, 0x08, 0x20, 0x28, 0x40, 0x48, 0x60, 0x68]);
        assert_eq!(mesh.dtcs(), 1);
    }

    #[test]
    fn a_saved_mesh_is_read_and_one_with_gaps_is_refused() {
        for name in SHIPPED_MESHES.names() {
            let mut mesh = shipped(name).unwrap();
            let read =
                |mesh: &Mesh| crate::mesh::from_text(&serde_json::to_string(mesh).unwrap(), "x");
            assert_eq!(read(&mesh).as_ref(), Ok(&mesh));
            mesh.crosspoints.swap(0, 1);
            assert!(read(&mesh).unwrap_err().to_string().contains("misplaced"));
        }
    }

    /// The document's topology table names its PCI bridges; the driver's map does not.
    #[test]
    fn a_known_board_gets_its_labels_and_no_other_does() {
        let board = shipped("n1sdp").unwrap();
        let mut bare = board.clone();
        bare.nodes.iter_mut().for_each(|node| node.label.clear());
        let mut elsewhere = Mesh { base: None, ..bare.clone() };
        label_known(&mut elsewhere);
        assert!(elsewhere.nodes.iter().all(|node| node.label.is_empty()));
        label_known(&mut bare);
        assert_eq!(bare, board);
    }

    #[test]
    fn nonsense_is_refused_with_what_is_wrong() {
        let n1sdp = SHIPPED_MESHES.files[0].1;
        for (from, to, part) in [
            ("width = 4", "width = 40", "40 x 2"),
            ("width = 4", "width = 5", "crosspoint (4,0) must be described exactly once"),
            ("x = 3\ny = 1", "x = 3\ny = 0", "described exactly once"),
            ("part = \"CMN-600\"", "part = \"CMN-1\"", "there is no part `CMN-1`"),
            ("\"SBSX\"", "\"SBSY\"", "there is no device `SBSY`"),
            ("\"SBSX\"", "\"SBSX*9\"", "no NodeIDs of its own"),
            ("width = 4", "width = four", "x.toml:"),
        ] {
            assert!(n1sdp.contains(from), "{from}");
            let error =
                parse(&TomlText::new("x.toml", &n1sdp.replace(from, to))).unwrap_err().to_string();
            assert!(
                error.starts_with("x.toml:") && error.contains(part),
                "{from} -> {to}: {error}"
            );
        }
    }
}
