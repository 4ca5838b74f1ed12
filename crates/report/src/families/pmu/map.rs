//! Mesh as a grid for the terminal, as SVG, and as the table of documents.

use std::fmt::Write;

use daqmeter_record::Mesh;
use daqmeter_record::mesh::{Crosspoint, Node};

use super::heat::{Heat, short};
use crate::aligned::plain;
use crate::svg::escaped;

#[derive(Clone, Debug, PartialEq)]
pub struct PortLine {
    /// Text, e.g. `HN-F 0x24`.
    pub text: String,
    pub counted: Option<usize>,
    pub rate: Option<f64>,
}

impl PortLine {
    fn plain(text: String) -> PortLine {
        PortLine { text, counted: None, rate: None }
    }

    fn counted(text: String, kinds: &[&str], id: u16, heat: Option<(&Heat, usize)>) -> PortLine {
        let found = heat.and_then(|(heat, frame)| {
            let at = kinds.iter().find_map(|kind| heat.number(kind, id))?;
            let rates = heat.frames.get(frame).map(|(_, rates)| rates);
            Some((at, rates.and_then(|rates| *rates.get(at)?)))
        });
        PortLine { text, counted: found.map(|(at, _)| at), rate: found.and_then(|(_, rate)| rate) }
    }
}

pub fn cell(
    mesh: &Mesh,
    number: usize,
    xp: &Crosspoint,
    heat: Option<(&Heat, usize)>,
) -> Vec<PortLine> {
    let dtc = xp.dtc.map_or("DTC ?".to_owned(), |dtc| format!("DTC {dtc}"));
    let own = format!("XP {:#04x}  {dtc}", xp.node_id);
    let mut lines = vec![PortLine::counted(own, &["XP"], xp.node_id, heat)];
    for (port, device) in xp.ports.iter().enumerate() {
        let at_port =
            |node: &&Node| node.crosspoint as usize == number && usize::from(node.port) == port;
        let here: Vec<&Node> = mesh.nodes.iter().filter(at_port).collect();
        lines.extend(port_lines(xp, port, device, &here, heat));
    }
    lines
}

/// Returns a line for each NodeID at a port, or one without a NodeID.
fn port_lines(
    xp: &Crosspoint,
    port: usize,
    device: &str,
    here: &[&Node],
    heat: Option<(&Heat, usize)>,
) -> Vec<PortLine> {
    let mut ids: Vec<u16> = here.iter().map(|node| node.node_id).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut lines = Vec::new();
    if device.is_empty() {
        lines.push(PortLine::plain(format!("p{port} -")));
    } else if ids.is_empty() {
        // It has no registers: the NodeID follows from its place.
        let bits = if xp.ports.len() > 2 { 1 } else { 2 };
        let id = usize::from(xp.node_id) | port << bits;
        lines.push(PortLine::plain(format!("p{port} {device} {id:#04x}")));
    }
    lines.extend(ids.into_iter().map(|id| {
        let own = here.iter().filter(|node| node.node_id == id);
        let kinds: Vec<&str> = own.map(|node| node.kind.as_str()).collect();
        PortLine::counted(format!("p{port} {device} {id:#04x}"), &kinds, id, heat)
    }));
    lines
}

pub fn title(mesh: &Mesh) -> String {
    let mut out = mesh.name.clone();
    if !mesh.part.is_empty() {
        let _ = write!(out, ": {} {}", mesh.part, mesh.revision);
    }
    let _ = write!(out, ", {} x {} crosspoints, {} DTC", mesh.width, mesh.height, mesh.dtcs());
    if let Some(base) = mesh.base {
        let _ = write!(out, ", registers at {base:#x}");
    }
    out
}

pub fn grid(mesh: &Mesh, heat: Option<(&Heat, usize)>) -> String {
    let cells: Vec<Vec<String>> = mesh
        .crosspoints
        .iter()
        .enumerate()
        .map(|(number, xp)| cell(mesh, number, xp, heat).iter().map(entry_text).collect())
        .collect();
    let width = cells.iter().flatten().map(|line| line.chars().count()).max().unwrap_or(0);
    let rule =
        format!("      +{}", format!("{}+", "-".repeat(width + 2)).repeat(mesh.width as usize));
    let mut out = format!("{}\n", title(mesh));
    for y in (0..mesh.height).rev() {
        let row: Vec<&Vec<String>> =
            (0..mesh.width).filter_map(|x| cells.get((y * mesh.width + x) as usize)).collect();
        let lines = row.iter().map(|lines| lines.len()).max().unwrap_or(0);
        let _ = writeln!(out, "{rule}");
        for line in 0..lines {
            let head = if line == 0 { format!("y={y}") } else { String::new() };
            let _ = write!(out, " {head:<5}|");
            for cell in &row {
                let _ = write!(out, " {:<width$} |", cell.get(line).map_or("", String::as_str));
            }
            out.push('\n');
        }
    }
    let _ = writeln!(out, "{rule}");
    let foot: String =
        (0..mesh.width).map(|x| format!("{:^1$}", format!("x={x}"), width + 3)).collect();
    let _ = writeln!(out, "       {}", foot.trim_end());
    out
}

fn entry_text(entry: &PortLine) -> String {
    match entry.rate {
        Some(rate) => format!("{} {:>6}/s", entry.text, short(rate)),
        None => entry.text.clone(),
    }
}

/// Kinds of nodes in the order of the table: purpose, and the beginning of the driver's events.
const KINDS: [(&str, &str, &str); 18] = [
    ("HN-F", "System-level cache slices (SLC)", "hnf"),
    ("HN-S", "System-level cache slices (SLC), S3", "hns"),
    ("RN-D", "I/O requesters with DVM", "rnid"),
    ("RN-I", "I/O requesters", "rnid"),
    ("XP", "Crosspoints", "mxp"),
    ("DTC", "Debug/trace controllers", "dtc_cycles"),
    ("SBSX", "ACE-Lite slaves", "sbsx"),
    ("DVM", "Distributed virtual memory", "dn"),
    ("HN-I", "I/O home nodes", "hni"),
    ("HN-P", "I/O home nodes, PCIe", "hnp"),
    ("CXRA", "CCIX gateways", "cxra"),
    ("CXHA", "CCIX gateways", "cxha"),
    ("CXLA", "CCIX gateways", ""),
    ("CCRA", "CXL and CCIX gateways", "ccra"),
    ("CCHA", "CXL and CCIX gateways", "ccha"),
    ("CCLA", "CXL and CCIX gateways", "ccla"),
    ("CCLA-RNI", "CXL and CCIX gateways", "ccla"),
    ("MTSX", "Memory tag slaves", "mtsx"),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindRow {
    pub purpose: String,
    pub kind: String,
    pub node_ids: Vec<u16>,
    pub events: String,
}

/// Groups nodes by kind, those with a label of their own first. Kinds from the fifth on that are no
/// crosspoints, DTC or SBSX are in the order of the mesh.
pub fn kinds(mesh: &Mesh) -> Vec<KindRow> {
    let rank = |kind: &str| KINDS.iter().take(7).position(|(known, ..)| *known == kind);
    let crosspoints = mesh.crosspoints.iter().map(|xp| ("XP", "", xp.node_id));
    let nodes =
        mesh.nodes.iter().map(|node| (node.kind.as_str(), node.label.as_str(), node.node_id));
    let mut all: Vec<(&str, &str, u16)> = crosspoints.chain(nodes).collect();
    all.sort_by_key(|(kind, label, _)| {
        let rank = rank(kind).unwrap_or(KINDS.len());
        (rank, rank < 4 && label.is_empty())
    });
    let mut rows: Vec<KindRow> = Vec::new();
    for (kind, label, id) in all {
        let known = KINDS.iter().find(|(known, ..)| *known == kind);
        let (purpose, events) = known.map_or(("", ""), |(_, purpose, events)| (purpose, events));
        let purpose = if label.is_empty() { purpose } else { label };
        match rows.iter_mut().find(|row| row.purpose == purpose && row.kind == kind) {
            Some(row) => row.node_ids.push(id),
            None => rows.push(KindRow {
                purpose: purpose.to_owned(),
                kind: kind.to_owned(),
                node_ids: vec![id],
                events: events.to_owned(),
            }),
        }
    }
    rows.iter_mut().for_each(|row| row.node_ids.sort_unstable());
    rows
}

/// Writes the table of nodes as in the document of the N1SDP.
pub fn node_table(mesh: &Mesh) -> String {
    let rows = kinds(mesh).into_iter().map(|row| {
        let ids: Vec<String> = row.node_ids.iter().map(|id| format!("{id:#04x}")).collect();
        let events =
            if row.events.is_empty() { "-".to_owned() } else { format!("arm_cmn/{}", row.events) };
        vec![row.purpose, row.kind, ids.join(" "), events]
    });
    plain(&["purpose", "node type", "NodeIDs", "event name"], rows)
}

const CELL_WIDTH: usize = 168;
const LINE: usize = 16;
const GAP: usize = 24;
const MARGIN: usize = 40;
const TOP: usize = 12;

struct Layout<'a> {
    mesh: &'a Mesh,
    cell_height: usize,
}

impl Layout<'_> {
    fn of(mesh: &Mesh) -> Layout<'_> {
        let lines = mesh
            .crosspoints
            .iter()
            .enumerate()
            .map(|(number, xp)| cell(mesh, number, xp, None).len());
        Layout { mesh, cell_height: lines.max().unwrap_or(1) * LINE + 20 }
    }

    fn width(&self) -> usize {
        self.mesh.width as usize * (CELL_WIDTH + GAP) + MARGIN
    }

    fn height(&self) -> usize {
        self.mesh.height as usize * (self.cell_height + GAP) + 56
    }

    fn centre(&self, x: u32, y: u32) -> (usize, usize) {
        let row = (self.mesh.height - 1 - y) as usize;
        (
            MARGIN + x as usize * (CELL_WIDTH + GAP) + CELL_WIDTH / 2,
            TOP + row * (self.cell_height + GAP) + self.cell_height / 2,
        )
    }

    fn links(&self, xp: &Crosspoint) -> String {
        let (cx, cy) = self.centre(xp.x, xp.y);
        let mut out = String::new();
        for (x, y) in [(xp.x + 1, xp.y), (xp.x, xp.y + 1)] {
            if x < self.mesh.width && y < self.mesh.height {
                let (tx, ty) = self.centre(x, y);
                let _ = writeln!(
                    out,
                    "<line x1=\"{cx}\" y1=\"{cy}\" x2=\"{tx}\" y2=\"{ty}\" stroke=\"#8a8f98\" stroke-width=\"3\"/>"
                );
            }
        }
        out
    }

    fn cell(&self, xp: &Crosspoint, entries: &[PortLine]) -> String {
        let (cx, cy) = self.centre(xp.x, xp.y);
        let height = self.cell_height;
        let (left, top) = (cx - CELL_WIDTH / 2, cy - height / 2);
        let mut out = format!(
            "<rect x=\"{left}\" y=\"{top}\" width=\"{CELL_WIDTH}\" height=\"{height}\" rx=\"6\" fill=\"var(--paper, #fff)\" stroke=\"#8a8f98\"/>\n"
        );
        for (at, entry) in entries.iter().enumerate() {
            out.push_str(&line(left, top + 10 + at * LINE, at == 0, entry));
        }
        out
    }

    fn axes(&self) -> String {
        let mut out = String::new();
        let below = self.height() - 24;
        for x in 0..self.mesh.width {
            let (cx, _) = self.centre(x, 0);
            let _ = writeln!(
                out,
                "<text x=\"{cx}\" y=\"{below}\" text-anchor=\"middle\" fill=\"var(--soft, #57606a)\">x={x}</text>"
            );
        }
        for y in 0..self.mesh.height {
            let (_, cy) = self.centre(0, y);
            let _ = writeln!(
                out,
                "<text x=\"6\" y=\"{cy}\" fill=\"var(--soft, #57606a)\">y={y}</text>"
            );
        }
        out
    }
}

fn line(left: usize, y: usize, is_first: bool, entry: &PortLine) -> String {
    let mut out = String::new();
    let base = y + 12;
    if let Some(index) = entry.counted {
        let (x, width, end) = (left + 4, CELL_WIDTH - 8, left + CELL_WIDTH - 8);
        let _ = writeln!(
            out,
            "<rect data-node=\"{index}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{LINE}\" rx=\"3\" fill=\"#d9480f\" fill-opacity=\"0\"/>"
        );
        let _ = writeln!(
            out,
            "<text data-rate=\"{index}\" x=\"{end}\" y=\"{base}\" text-anchor=\"end\" fill=\"var(--ink, #1b1f24)\"></text>"
        );
    }
    let weight = if is_first { " font-weight=\"600\"" } else { "" };
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{base}\" fill=\"var(--ink, #1b1f24)\"{weight}>{}</text>",
        left + 8,
        escaped(&entry.text)
    );
    out
}

/// Draws the mesh as SVG; counted nodes have `data-node`, so that a page can colour them. The
/// page's colours replace those given here.
pub fn svg(mesh: &Mesh, heat: Option<&Heat>) -> String {
    let layout = Layout::of(mesh);
    let (width, height, title) = (layout.width(), layout.height(), escaped(&title(mesh)));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\" class=\"mesh\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<title>{title}</title>\n"
    );
    let links = mesh.crosspoints.iter().map(|xp| layout.links(xp));
    out.extend(links);
    for (number, xp) in mesh.crosspoints.iter().enumerate() {
        let entries = cell(mesh, number, xp, heat.map(|heat| (heat, 0)));
        out.push_str(&layout.cell(xp, &entries));
    }
    out.push_str(&layout.axes());
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::pmu::heat::frames;
    use crate::families::pmu::heat::tests::example;

    #[test]
    fn the_grid_shows_every_node_in_its_place_and_its_rate() {
        let observed = example();
        let heat = &frames(&observed)[0];
        insta::assert_snapshot!(format!(
            "{}\n{}\n{}",
            grid(&observed.meshes[0], None),
            grid(&observed.meshes[0], Some((heat, 0))),
            node_table(&observed.meshes[0])
        ));
    }

    #[test]
    fn the_picture_is_whole_and_marks_what_is_counted() {
        let mut observed = example();
        observed.meshes[0].name = "<arm & cmn>".into();
        let picture = svg(&observed.meshes[0], Some(&frames(&example())[0]));
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
        assert_eq!(picture.matches("data-node=").count(), 2);
        assert!(picture.contains("&lt;arm &amp; cmn&gt;") && !picture.contains("<arm"));
    }
}
