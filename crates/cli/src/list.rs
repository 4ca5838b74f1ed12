//! `daqmeter list`: names to choose from.

use std::path::Path;

use clap::{Args, ValueEnum as _};
use daqmeter_campaign::{ENGINES, Plan};
use daqmeter_copy::CopyPath;
use daqmeter_digitizer::devices::{FAMILIES, nodes};
use daqmeter_etherbone::transport::{BRIDGES, Bridge};
use daqmeter_harness::{Loaded, MAX_TEXT_BYTES, text_input};
use daqmeter_path::SHIPPED_PATHS;
use daqmeter_report::table::paragraphs;
use daqmeter_sys::host::Files;

use crate::output::{Ended, Failure, RowWriter, emit, row_writer};
use crate::run::prospect;

/// List devices, engines, plans, paths and more; list the points of a plan; draw a path.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/list.txt"))]
pub(crate) struct Arguments {
    /// devices, engines, plans, paths, bridges, scenarios or copies; or the name or file of a plan
    /// or a path
    what: Option<String>,
    /// Print the file of a path, to start your own
    #[arg(long, requires = "what")]
    toml: bool,
    /// Print JSON lines, with a field for each column
    #[arg(long, conflicts_with = "toml")]
    json: bool,
}

/// Name for the command line, title and table of each section.
type Section = (&'static str, &'static str, fn(RowWriter) -> String);

const SECTIONS: [Section; 7] = [
    ("devices", "Devices", devices),
    ("engines", "Engines", engine_list),
    ("plans", "Plans (run ...)", crate::run::shipped),
    ("paths", "Paths (path ...)", paths),
    ("bridges", "Bridges (eb ... emu/<bridge>)", bridges),
    ("scenarios", "Scenarios (readout ... <scenario>)", scenarios),
    ("copies", "Ways to copy (copy ... --path)", copies),
];

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let wanted = arguments.what.as_deref();
    let sections = SECTIONS.iter().filter(|(name, ..)| wanted.is_none_or(|wanted| wanted == *name));
    let write = row_writer(arguments.json);
    let text = sections.map(|(_, title, rows)| match arguments.json {
        true => rows(write),
        false => format!("{title}\n{}", rows(write)),
    });
    let text: Vec<String> = text.collect();
    if arguments.toml && !wanted.is_some_and(is_path) {
        return Err(Failure::refused("--toml prints the file of a path: daqmeter list paths"));
    }
    emit(&match wanted {
        Some(name) if text.is_empty() && is_path(name) => {
            let path = daqmeter_path::Path::load(name)?;
            if arguments.json {
                return Err("--json: a path has no rows; --toml prints its file".into());
            }
            if arguments.toml { path.text } else { paragraphs(&path.picture()) + "\n" }
        }
        Some(name) if text.is_empty() => crate::run::points(&Plan::load(name)?, arguments.json),
        _ => text.join(if arguments.json { "" } else { "\n" }),
    })
}

/// Returns true for a path that ships, or a file with the tables of one. An unreadable file counts
/// as a plan, which refuses it.
fn is_path(text: &str) -> bool {
    let is_table = |line: &str| ["[source]", "[[stage]]", "[sink]"].contains(&line.trim());
    let of_path = |text: String| text.lines().any(is_table);
    SHIPPED_PATHS.shipped(text).is_some()
        || text_input(Path::new(text), MAX_TEXT_BYTES).is_ok_and(of_path)
}

fn devices(write: RowWriter) -> String {
    let emulated = FAMILIES.iter().flat_map(|family| (family.emulated)());
    let emulated = emulated.map(|(names, about)| vec![names, "emulated".to_owned(), about]);
    let files = Files::default();
    let real = nodes(&files).map(|(family, node)| {
        let (driver, about) = (family.describe)(&node);
        vec![node, driver, about]
    });
    write(&["device", "driver", "description"], &mut emulated.chain(real))
}

fn engine_list(write: RowWriter) -> String {
    let row = |engine: &daqmeter_harness::Engine| {
        let job = engine.parse(&engine.example());
        let waiver = job.map_or_else(|fault| Some(fault.0), |job| job.waiver);
        vec![engine.name.to_owned(), prospect(waiver), engine.description.to_owned()]
    };
    write(&["engine", "state", "description"], &mut ENGINES.iter().map(row))
}

fn paths(write: RowWriter) -> String {
    let row = |name| {
        let path = daqmeter_path::Path::load(name).expect("ships and is tested");
        vec![path.name, path.title]
    };
    write(&["path", "title"], &mut SHIPPED_PATHS.names().into_iter().map(row))
}

fn bridges(write: RowWriter) -> String {
    let row = |bridge: Bridge| {
        let kind = if bridge.stream { "stream" } else { "datagrams" };
        vec![bridge.name, kind.to_owned(), bridge.about]
    };
    let bridges = BRIDGES.all().map(|file| Bridge::read(&file).expect("a test reads it"));
    write(&["bridge", "kind", "model"], &mut bridges.map(row))
}

fn scenarios(write: RowWriter) -> String {
    let row = |(name, text): &(&str, &str)| {
        let scenario = daqmeter_readout::Scenario::parse(text, name).expect("ships and is tested");
        let card = &scenario.card;
        let channels = format!("{} x {}", card.devices, card.channels);
        let elinks = scenario.elinks(0, 0).len().to_string();
        let payload = format!("{} B", card.payload.0);
        let source = if scenario.replays() { "replayed" } else { "live" };
        let about = text.trim_start_matches("# ").split([':', '\n']).next().unwrap_or_default();
        [*name, &channels, &elinks, &payload, source, about].map(str::to_owned).to_vec()
    };
    let headings = ["scenario", "devices x channels", "E-links", "payload", "blocks", "title"];
    write(&headings, &mut daqmeter_readout::Scenario::SHIPPED.files.iter().map(row))
}

fn copies(write: RowWriter) -> String {
    let row = |path: &CopyPath| {
        let value = path.to_possible_value().expect("no path is hidden");
        let help = value.get_help().map(ToString::to_string);
        vec![value.get_name().to_owned(), help.unwrap_or_default(), prospect(path.waiver())]
    };
    write(&["path", "description", "state"], &mut CopyPath::value_variants().iter().map(row))
}
