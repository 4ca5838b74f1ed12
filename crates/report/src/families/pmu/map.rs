//! Mesh as a grid for the terminal, as SVG, and as the table of documents.

use std::collections::BTreeMap;
use std::fmt::Write;

use daqmeter_record::Mesh;
use minijinja::context;
use serde::Serialize;

use super::heat::{Heat, short};
use crate::aligned::plain;
use crate::groups::in_groups;
use crate::template::{rendered, serde};

#[derive(Serialize)]
struct PortLine {
    /// Text, e.g. `HN-F 0x24`.
    text: String,
    rate: Option<f64>,
    shown: String,
}

/// Returns the lines of a crosspoint: itself, and one for each NodeID at a port, or for a port
/// without one.
fn cell(mesh: &Mesh, number: usize, heat: Option<&Heat<'_>>) -> Vec<PortLine> {
    let xp = &mesh.crosspoints[number];
    let line = |text: String, kinds: &[&str], id: u16| {
        let rate = heat.and_then(|heat| kinds.iter().find_map(|kind| heat.rate(kind, id)));
        PortLine { text, rate, shown: rate.map_or(String::new(), |rate| short(rate) + "/s") }
    };
    let dtc = xp.dtc.map_or("DTC ?".to_owned(), |dtc| format!("DTC {dtc}"));
    let mut lines = vec![line(format!("XP {:#04x}  {dtc}", xp.node_id), &["XP"], xp.node_id)];
    for (port, device) in xp.ports.iter().enumerate() {
        let here = mesh
            .nodes
            .iter()
            .filter(|node| node.crosspoint as usize == number && usize::from(node.port) == port);
        let mut nodes: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
        here.for_each(|node| nodes.entry(node.node_id).or_default().push(&node.kind));
        if device.is_empty() {
            lines.push(line(format!("p{port} -"), &[], 0));
        } else if nodes.is_empty() {
            // It has no registers: the NodeID follows from its place.
            let bits = if xp.ports.len() > 2 { 1 } else { 2 };
            nodes.insert(xp.node_id | (port as u16) << bits, Vec::new());
        }
        let at_port =
            |(id, kinds): (u16, Vec<&str>)| line(format!("p{port} {device} {id:#04x}"), &kinds, id);
        lines.extend(nodes.into_iter().map(at_port));
    }
    lines
}

pub(crate) fn title(mesh: &Mesh) -> String {
    let Mesh { name, part, revision, width, height, .. } = mesh;
    let part = if part.is_empty() { String::new() } else { format!(": {part} {revision}") };
    let base = mesh.base.map_or(String::new(), |base| format!(", registers at {base:#x}"));
    format!("{name}{part}, {width} x {height} crosspoints, {} DTC{base}", mesh.dtcs())
}

pub fn grid(mesh: &Mesh, heat: Option<&Heat<'_>>) -> String {
    let text = |line: &PortLine| match line.rate {
        Some(_) => format!("{} {:>8}", line.text, line.shown),
        None => line.text.clone(),
    };
    let texts = |number| cell(mesh, number, heat).iter().map(text).collect();
    let cells: Vec<Vec<String>> = (0..mesh.crosspoints.len()).map(texts).collect();
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

/// Writes the table of nodes as in the document of the N1SDP: grouped by kind, those with a label
/// of their own first. Kinds from the eighth on are in the order of the mesh.
pub fn node_table(mesh: &Mesh) -> String {
    // Kinds of nodes in the order of the table: purpose, and the beginning of the driver's events.
    let kinds: Vec<[&str; 3]> =
        serde_json::from_str(include_str!("nodes.json")).expect("tests write a table");
    let crosspoints = mesh.crosspoints.iter().map(|xp| ("XP", "", xp.node_id));
    let nodes = mesh.nodes.iter().map(|node| (&*node.kind, &*node.label, node.node_id));
    let mut all: Vec<(&str, &str, u16)> = crosspoints.chain(nodes).collect();
    all.sort_by_key(|(kind, label, _)| {
        let rank = kinds.iter().take(7).position(|[known, ..]| known == kind);
        let rank = rank.unwrap_or(kinds.len());
        (rank, rank < 4 && label.is_empty())
    });
    let named = all.into_iter().map(|(kind, label, id)| {
        let known = kinds.iter().find(|[known, ..]| *known == kind);
        let [_, purpose, events] = known.copied().unwrap_or_default();
        ([if label.is_empty() { purpose } else { label }, kind, events], id)
    });
    let cells = in_groups(named).into_iter().map(|([purpose, kind, events], mut ids)| {
        ids.sort_unstable();
        let ids: Vec<String> = ids.iter().map(|id| format!("{id:#04x}")).collect();
        let events = if events.is_empty() { "-".to_owned() } else { format!("arm_cmn/{events}") };
        vec![purpose.to_owned(), kind.to_owned(), ids.join(" "), events]
    });
    plain(&["purpose", "node type", "NodeIDs", "event name"], cells)
}

const PICTURE: &str = include_str!("../../../assets/mesh.svg");

/// Draws the mesh as SVG. The page's colours replace those given there.
pub(crate) fn svg(mesh: &Mesh, heat: Option<&Heat<'_>>) -> String {
    let entries = |number| cell(mesh, number, heat);
    let cells = mesh.crosspoints.iter().enumerate().map(|(number, xp)| {
        context! { x => xp.x, row => mesh.height - 1 - xp.y, entries => serde(entries(number)) }
    });
    let lines = (0..mesh.crosspoints.len()).map(|number| entries(number).len()).max();
    let values = context! {
        title => title(mesh),
        width => mesh.width,
        height => mesh.height,
        columns => (0..mesh.width).collect::<Vec<_>>(),
        rows => (0..mesh.height).collect::<Vec<_>>(),
        lines => lines.unwrap_or(1),
        max => heat.map_or(0.0, Heat::max).max(f64::MIN_POSITIVE),
        cells => cells.collect::<Vec<_>>(),
    };
    rendered("mesh.svg", PICTURE, values) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::pmu::heat::heats;
    use crate::families::pmu::heat::tests::example;

    #[test]
    fn the_grid_shows_every_node_in_its_place_and_its_rate() {
        let observed = example();
        let (mesh, heat) = (&observed.meshes[0], &heats(&observed, Some(0))[0]);
        let (plain, heated) = (grid(mesh, None), grid(mesh, Some(heat)));
        insta::assert_snapshot!(format!("{plain}\n{heated}\n{}", node_table(mesh)));
    }

    #[test]
    fn the_picture_is_whole_and_marks_what_is_counted() {
        let mut observed = example();
        observed.meshes[0].name = "<arm & cmn>".into();
        let picture = svg(&observed.meshes[0], heats(&example(), Some(0)).first());
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
        assert_eq!(picture.matches("class=\"heat\"").count(), 2);
        assert!(picture.contains("&lt;arm &amp; cmn&gt;") && !picture.contains("<arm"));
    }
}
