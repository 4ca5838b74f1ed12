//! The driver's map of the mesh, `/sys/kernel/debug/arm-cmn/map`.
//! It has dimensions, ports and logical numbers, but neither NodeIDs nor node types; those follow
//! from the place. The NodeID of a device is its crosspoint's with port and device below.
//! The grid (Linux drivers/perf/arm-cmn.c, `arm_cmn_map_show`) begins with a line `Y` and a line of
//! domains. Each port has a line of device types and two of logical numbers. Cells have eight
//! characters between bars, and the highest row is first.

use daqmeter_harness::Fault;
use daqmeter_record::Mesh;
use daqmeter_record::mesh::{Crosspoint, Node};

use super::nodes;
use super::topology::{MAX_PORTS, Place, check_size, fill_domain, node_id, port_and_device_bits};

struct RowLines<'a> {
    y: u32,
    domains: Vec<&'a str>,
    types: Vec<Vec<&'a str>>,
    /// Logical numbers of device 0 and 1, for each port.
    numbers: Vec<[Vec<&'a str>; 2]>,
}

pub(super) fn parse(text: &str, name: &str) -> Result<Mesh, Fault> {
    let wrong = |line: usize, problem: &str| {
        Fault::new(format!("map of {name}: line {}: {problem}", line + 1))
    };
    let mut rows: Vec<RowLines<'_>> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        read_line(&mut rows, line).map_err(|problem| wrong(at, problem))?;
    }
    build(rows, name).map_err(|problem| wrong(0, &problem))
}

fn read_line<'a>(rows: &mut Vec<RowLines<'a>>, line: &'a str) -> Result<(), &'static str> {
    // The cell of a port without a known width begins after the first bar.
    let Some((head, cells)) = line.split_once('|') else {
        return Ok(());
    };
    let mut cells: Vec<&str> = cells.split('|').map(str::trim).collect();
    cells.pop();
    let (place, first) = (head.trim(), cells.first().copied().unwrap_or(""));
    if first.starts_with("XP") {
        let y = place.parse().map_err(|_| "a row without its number")?;
        rows.push(RowLines { y, domains: vec![], types: vec![], numbers: vec![] });
        return Ok(());
    }
    let row = rows.last_mut().ok_or("cells before the first row")?;
    if first.starts_with("DTC") {
        row.domains = cells;
    } else if first.starts_with("..") || cells.is_empty() {
        // The line between the crosspoint and its ports.
    } else if head.starts_with("    ") && (place == "0" || place == "1") {
        let numbers = row.numbers.last_mut().ok_or("numbers before a port")?;
        numbers[usize::from(place == "1")] = cells;
    } else {
        row.types.push(cells);
        row.numbers.push([Vec::new(), Vec::new()]);
    }
    if row.types.len() > MAX_PORTS {
        return Err("more ports than a crosspoint has");
    }
    Ok(())
}

fn build(mut rows: Vec<RowLines<'_>>, name: &str) -> Result<Mesh, String> {
    rows.sort_by_key(|row| row.y);
    let height = u32::try_from(rows.len()).unwrap_or(u32::MAX);
    let width = rows.first().map_or(0, |row| row.domains.len());
    let width = u32::try_from(width).unwrap_or(u32::MAX);
    check_size(width, height)?;
    let is_wrong = |(at, row): (usize, &RowLines<'_>)| {
        row.y as usize != at || row.domains.len() != width as usize
    };
    if rows.iter().enumerate().any(is_wrong) {
        return Err("rows are missing or of different lengths".to_owned());
    }
    let mut mesh = Mesh { name: name.to_owned(), width, height, ..Mesh::default() };
    for row in &rows {
        (0..width).try_for_each(|x| row.add(&mut mesh, x))?;
    }
    // The map does not show several monitors in a crosspoint; crosspoints with more than two ports
    // have them, as far as is known.
    mesh.multi_dtm = mesh.crosspoints.iter().any(|xp| xp.ports.len() > 2);
    fill_domain(&mut mesh);
    Ok(mesh)
}

impl RowLines<'_> {
    fn add(&self, mesh: &mut Mesh, x: u32) -> Result<(), String> {
        let cell = |cells: &[&str]| cells.get(x as usize).copied().unwrap_or("").to_owned();
        let crosspoint = mesh.crosspoints.len();
        let node_id = node_id(mesh, x, self.y)?;
        let mut ports: Vec<String> = self.types.iter().map(|cells| cell(cells)).collect();
        while ports.last().is_some_and(String::is_empty) {
            ports.pop();
        }
        let (_, device_bits) =
            port_and_device_bits((mesh.width * mesh.height) as usize, ports.len());
        for (port, name) in ports.iter().enumerate() {
            let kinds = nodes::device_of_name(name).map_or(&[][..], |(_, kinds)| kinds);
            for device in 0..2_u8 {
                let number = cell(&self.numbers[port][usize::from(device)]);
                let number = number.strip_prefix('#').and_then(|text| text.trim().parse().ok());
                let Some(logical_id) = number else {
                    continue;
                };
                let place = Place { crosspoint, port, device, device_bits };
                let node = |code: &u16| Node { logical_id, ..place.node(*code, node_id) };
                mesh.nodes.extend(kinds.iter().map(node));
            }
        }
        let domain = cell(&self.domains);
        mesh.crosspoints.push(Crosspoint {
            x,
            y: self.y,
            node_id,
            logical_id: u16::try_from(crosspoint).unwrap_or(u16::MAX),
            dtc: domain.trim_start_matches("DTC").trim().parse().ok(),
            ports,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::topology::shipped;

    /// Recorded from the driver on the emulated configuration space of the shipped mesh.
    const MAPS: [(&str, &str); 4] = [
        ("n1sdp", include_str!("../../testdata/maps/cmn600.txt")),
        ("cmn650", include_str!("../../testdata/maps/cmn650.txt")),
        ("cmn700", include_str!("../../testdata/maps/cmn700.txt")),
        ("s3", include_str!("../../testdata/maps/s3.txt")),
    ];

    #[test]
    fn the_drivers_map_gives_the_nodes_and_nodeids_that_the_mesh_was_made_of() {
        for (name, text) in MAPS {
            let (found, made) = (parse(text, "arm_cmn_0").unwrap(), shipped(name).unwrap());
            assert_eq!(
                (found.width, found.height, found.multi_dtm),
                (made.width, made.height, made.multi_dtm),
                "{name}"
            );
            for (seen, xp) in found.crosspoints.iter().zip(&made.crosspoints) {
                assert_eq!(
                    (seen.x, seen.y, seen.node_id, seen.dtc),
                    (xp.x, xp.y, xp.node_id, xp.dtc),
                    "{name}"
                );
                let same = seen
                    .ports
                    .iter()
                    .zip(&xp.ports)
                    .all(|(seen, made)| seen == made || seen.contains('?'));
                assert!(same && seen.ports.len() == xp.ports.len(), "{name}: {seen:?} {xp:?}");
            }
            for node in &found.nodes {
                let is_there = |other: &&Node| {
                    (other.type_code, other.node_id, other.crosspoint)
                        == (node.type_code, node.node_id, node.crosspoint)
                };
                assert!(made.nodes.iter().any(|other| is_there(&other)), "{name}: {node:?}");
            }
            let home = |mesh: &Mesh| -> Vec<u16> {
                mesh.nodes
                    .iter()
                    .filter(|node| node.kind == "HN-F")
                    .map(|node| node.node_id)
                    .collect()
            };
            assert_eq!(home(&found), home(&made), "{name}");
        }
    }

    #[test]
    fn what_is_no_map_is_refused() {
        for (text, part) in [
            ("", "0 x 0"),
            ("X 0\n | a |\n", "cells before the first row"),
            ("x | XP #0 |\n", "a row without its number"),
            ("3 | XP #0 |\n  | DTC 0 |\n", "rows are missing"),
        ] {
            let error = parse(text, "x").unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
