//! Rules of ARCHITECTURE.md that a program can check.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use daqmeter_vm::shell::{line, root};

/// Our crates from bottom to top: each imports only from the rows above its own in this list. The
/// manifests have the actual imports.
const LAYERS: &[&[&str]] = &[
    &["stats", "wire", "kernels", "sys"],
    &["record"],
    &["harness", "report"],
    &["copy", "digitizer", "etherbone", "hostio", "pmu", "readout", "watch"],
    &["path"],
    &["campaign"],
    &["cli"],
];

/// Imports of the report, which shows records only.
const REPORT_IMPORTS: [&str; 2] = ["record", "stats"];

/// Most lines of a file; a longer one does more than one thing.
const MAX_LINES: usize = 900;

/// Longest comment, in columns.
const COMMENT_COLUMNS: usize = 100;

/// Readers of outside input that bound their numbers without `border::refuse_large`, and how.
const OWN_BOUNDS: [(&str, &str); 3] = [
    (
        "crates/digitizer/src/devices/sis8300/emulated/board.rs",
        "faults of a board: counts that are only compared",
    ),
    ("crates/pmu/src/perf_format/line.rs", "each number is a text, which `number` bounds"),
    ("crates/pmu/src/verify/loads.rs", "it takes one number of fio, and bounds it"),
];

/// Names of types that a crate may repeat: the arguments of a verb, and the verbs of a group.
const COMMON_NAMES: [&str; 2] = ["Arguments", "Verb"];

type FileRule = fn(&Path, &str, &mut Vec<String>);

pub(crate) fn run() -> Result<()> {
    let mut faults = faults(&[manifest, paths_of_one_machine, length])?;
    let sources = sources()?;
    faults.extend(wide_comments(&sources));
    faults.extend(repeated_names(&sources));
    faults.extend(circles(&sources));
    faults.extend(unbounded_readers(&sources));
    if faults.is_empty() {
        println!("tidy: no faults");
        return Ok(());
    }
    bail!("{} faults:\n  {}", faults.len(), faults.join("\n  "))
}

fn faults(rules: &[FileRule]) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for path in tracked()? {
        let Ok(text) = fs::read_to_string(root().join(&path)) else {
            continue;
        };
        for rule in rules {
            rule(&path, &text, &mut faults);
        }
    }
    Ok(faults)
}

fn tracked() -> Result<Vec<PathBuf>> {
    let files = line("git ls-files --cached --others --exclude-standard").output()?;
    Ok(files.lines().map(PathBuf::from).collect())
}

/// Checks a crate's manifest: layers, and the workspace's lints.
fn manifest(path: &Path, text: &str, faults: &mut Vec<String>) {
    let Some(name) = path.to_str().and_then(|path| {
        path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml").filter(|name| !name.contains('/'))
    }) else {
        return;
    };
    if !text.contains("[lints]\nworkspace = true") {
        faults.push(format!("{}: does not take the workspace's lints", path.display()));
    }
    let layer = |name: &str| LAYERS.iter().position(|row| row.contains(&name));
    let Some(own) = layer(name) else {
        faults.push(format!("crates/{name} has no row in LAYERS (xtask/src/tidy.rs)"));
        return;
    };
    for imported in imports(text) {
        let below = layer(imported).is_some_and(|layer| layer < own);
        if !below || (name == "report" && !REPORT_IMPORTS.contains(&imported)) {
            faults.push(format!("crates/{name} imports {imported}, which is not below it"));
        }
    }
}

fn imports(manifest: &str) -> impl Iterator<Item = &str> {
    let dependencies = manifest.split("\n[dependencies]").nth(1).unwrap_or("");
    let dependencies = dependencies.split("\n[").next().unwrap_or("");
    let ours = dependencies.lines().filter_map(|line| line.strip_prefix("daqmeter-"));
    ours.filter_map(|line| line.split(['.', ' ']).next())
}

fn paths_of_one_machine(path: &Path, text: &str, faults: &mut Vec<String>) {
    if path.starts_with("crates/report/assets") && path.to_string_lossy().contains("uPlot") {
        return;
    }
    let prefixes = [concat!("/", "home/"), concat!("/", "root/"), concat!("/", "work/")];
    // A longer path may hold one of these in its middle.
    let inside =
        |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || ".-_".contains(c));
    for (number, line) in text.lines().enumerate() {
        let mut found = prefixes.iter().flat_map(|prefix| line.match_indices(prefix));
        if found.any(|(at, _)| !inside(&line[..at])) {
            let place = format!("{}:{}", path.display(), number + 1);
            faults.push(format!("{place}: names a path of one machine"));
        }
    }
}

fn length(path: &Path, text: &str, faults: &mut Vec<String>) {
    let lines = text.lines().count();
    let is_code = path.extension().is_some_and(|extension| extension == "rs" || extension == "c");
    if is_code && lines > MAX_LINES {
        faults.push(format!("{}: {lines} lines, more than {MAX_LINES}", path.display()));
    }
}

/// Returns Rust files of the workspace's crates with their texts, without tests and snapshots.
fn sources() -> Result<Vec<(PathBuf, String)>> {
    let is_source = |path: &PathBuf| {
        let text = path.to_string_lossy();
        let is_product = text.contains("src/") && !text.starts_with("fuzz/");
        is_product && text.ends_with(".rs") && !text.ends_with("tests.rs")
    };
    let paths = tracked()?.into_iter().filter(is_source);
    Ok(paths
        .filter_map(|path| Some((path.clone(), fs::read_to_string(root().join(path)).ok()?)))
        .collect())
}

fn wide_comments(sources: &[(PathBuf, String)]) -> Vec<String> {
    let of = |(path, text): &(PathBuf, String)| {
        let is_wide = |line: &str| {
            line.trim_start().starts_with("//") && line.chars().count() > COMMENT_COLUMNS
        };
        let wide = text.lines().enumerate().filter(|(_, line)| is_wide(line));
        let place = |(number, _)| format!("{}:{}: a wide comment", path.display(), number + 1);
        wide.map(place).collect::<Vec<String>>()
    };
    sources.iter().flat_map(of).collect()
}

/// Returns public types with one name in two files, and types of a crate with one, private ones
/// included. Types within modules and functions of a file are not read.
fn repeated_names(sources: &[(PathBuf, String)]) -> Vec<String> {
    let mut places: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for (path, text) in sources {
        let place = path.display().to_string();
        let package = path.to_str().and_then(|path| path.split("src/").next()).unwrap_or("");
        let types = product_lines(text).filter_map(type_of);
        for (name, is_public) in types.filter(|(name, _)| !COMMON_NAMES.contains(name)) {
            if is_public {
                places.entry(("", name)).or_default().insert(place.clone());
            }
            places.entry((package, name)).or_default().insert(place.clone());
        }
    }
    let repeated = places.into_iter().filter(|(_, places)| places.len() > 1);
    let repeated = repeated.map(|((_, name), places)| {
        format!("{name}: {}", places.into_iter().collect::<Vec<_>>().join(", "))
    });
    repeated.collect::<BTreeSet<String>>().into_iter().collect()
}

/// Returns the name of the type that a line defines, and true for a public one.
fn type_of(line: &str) -> Option<(&str, bool)> {
    let (visibility, rest) = match line.strip_prefix("pub") {
        Some(rest) => rest.split_once(' ')?,
        None => ("private", line),
    };
    let kinds = ["struct ", "enum ", "trait ", "union ", "type "];
    let rest = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    Some((name, visibility.is_empty()))
}

/// Iterates over the lines of a file without its module of tests and other lines for tests alone.
fn product_lines(text: &str) -> impl Iterator<Item = &str> + Clone {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let before = std::iter::once("").chain(text.lines());
    let lines = text.lines().zip(before).filter(|(_, before)| before.trim() != "#[cfg(test)]");
    lines.map(|(line, _)| line)
}

/// Returns files of a crate that import each other, directly or over others. A file may import from
/// its parent modules.
fn circles(sources: &[(PathBuf, String)]) -> Vec<String> {
    let names: BTreeMap<String, usize> =
        sources.iter().enumerate().map(|(at, (path, _))| (module(path), at)).collect();
    let imports: Vec<BTreeSet<usize>> = sources
        .iter()
        .enumerate()
        .map(|(at, (path, text))| {
            let own = module(path);
            let files = imported(&own, text).into_iter().filter_map(|name| {
                let parts: Vec<&str> = name.split("::").collect();
                (1..=parts.len()).rev().find_map(|to| names.get(&parts[..to].join("::")).copied())
            });
            let is_around = |other: usize| {
                format!("{own}::").starts_with(&format!("{}::", module(&sources[other].0)))
            };
            files.filter(|other| *other != at && !is_around(*other)).collect()
        })
        .collect();
    let reached = |from: usize| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(at) = left.pop() {
            left.extend(imports[at].iter().copied().filter(|next| seen.insert(*next)));
        }
        seen
    };
    let reached: Vec<BTreeSet<usize>> = (0..sources.len()).map(reached).collect();
    let circle = |at: usize| -> Vec<usize> {
        reached[at].iter().copied().filter(|other| reached[*other].contains(&at)).collect()
    };
    let all: BTreeSet<Vec<usize>> = (0..sources.len()).map(circle).collect();
    let shown = |circle: &Vec<usize>| {
        let files: Vec<String> =
            circle.iter().map(|at| sources[*at].0.display().to_string()).collect();
        format!("circle of files: {}", files.join(", "))
    };
    all.iter().filter(|circle| circle.len() > 1).map(shown).collect()
}

/// Returns files of crates that read numbers from outside without the limits of `record::border`.
/// Texts that ship with the binary need none, nor do tests and the tools of developers.
fn unbounded_readers(sources: &[(PathBuf, String)]) -> Vec<String> {
    let calls = ["serde_json::from_s", "serde_json::from_reader", "toml::from_str"];
    let reads =
        |line: &str| calls.iter().any(|call| line.contains(call)) && !line.contains("include_str!");
    let is_unbounded = |(path, text): &&(PathBuf, String)| {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_product = path.starts_with("crates") && path.iter().all(|part| part != "tests");
        let is_reader = is_product && code.lines().any(reads);
        let has_bound = code.contains("refuse_large(")
            || OWN_BOUNDS.iter().any(|(known, _)| path == Path::new(known));
        is_reader && !has_bound
    };
    let fault = |(path, _): &(PathBuf, String)| {
        let path = path.display();
        format!("{path}: reads numbers without a limit: use border::from_peer or TomlText::parse")
    };
    sources.iter().filter(is_unbounded).map(fault).collect()
}

/// Returns the name of a file's module: `crates/path/src/read/kinds.rs` is
/// `crates/path::read::kinds`.
fn module(path: &Path) -> String {
    let text = path.to_string_lossy();
    let (package, file) = text.split_once("src/").unwrap_or(("", &text));
    let file = file.trim_end_matches(".rs").trim_end_matches("/mod");
    let file = if ["lib", "main", "mod"].contains(&file) { "" } else { file };
    let name = format!("{}::{}", package.trim_end_matches('/'), file.replace('/', "::"));
    name.trim_end_matches("::").to_owned()
}

/// Returns the modules that a file names after `crate::`, `super::`, `self::` or one of its own
/// modules, with groups split.
fn imported(own: &str, text: &str) -> Vec<String> {
    let lines = product_lines(text).filter(|line| !line.trim_start().starts_with("//"));
    let inner = lines.clone().filter_map(|line| {
        let (_, name) = line.strip_suffix(';')?.split_once("mod ")?;
        Some((format!("{name}::"), join(own, name)))
    });
    let of = |begin: &str, base: &str| (begin.to_owned(), base.to_owned());
    let bases = [("crate::", root_of(own)), ("super::", parent(own)), ("self::", own)];
    let bases = bases.map(|(begin, base)| of(begin, base)).into_iter().chain(inner);
    let code = lines.collect::<Vec<_>>().join(" ");
    let mut found = Vec::new();
    for (begin, base) in bases {
        for (at, _) in code.match_indices(&begin) {
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == ':' || c == '_') {
                continue;
            }
            let mut rest = &code[at + begin.len()..];
            let mut base = base.as_str();
            while let Some(further) = rest.strip_prefix("super::") {
                (base, rest) = (parent(base), further);
            }
            let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let end = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
            let path = rest[..end].trim_end_matches(':');
            match rest[end..].strip_prefix('{').filter(|_| rest[..end].ends_with("::") || end == 0)
            {
                Some(group) => {
                    let group = group.split('}').next().unwrap_or_default();
                    let names = group.split([',', '{']).map(str::trim);
                    found.extend(names.map(|name| join(base, &join(path, name))));
                }
                None => found.push(join(base, path)),
            }
        }
    }
    found
}

fn join(base: &str, name: &str) -> String {
    if base.is_empty() { name.to_owned() } else { format!("{base}::{name}") }
}

fn parent(module: &str) -> &str {
    module.rsplit_once("::").map_or(module, |(parent, _)| parent)
}

fn root_of(module: &str) -> &str {
    module.split_once("::").map_or(module, |(root, _)| root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_no_faults() {
        run().unwrap();
    }

    fn check(rule: FileRule, path: &str, text: &str) -> Vec<String> {
        let mut faults = Vec::new();
        rule(Path::new(path), text, &mut faults);
        faults
    }

    #[test]
    fn a_crate_imports_only_from_below_and_report_only_records() {
        let faults = |name: &str, imported: &str| {
            let text = format!(
                "[package]\n[lints]\nworkspace = true\n\n[dependencies]\ndaqmeter-{imported}.workspace = true\n\n[dev-dependencies]\ndaqmeter-cli.workspace = true\n"
            );
            check(manifest, &format!("crates/{name}/Cargo.toml"), &text).len()
        };
        assert_eq!(faults("harness", "record"), 0);
        assert_eq!(faults("campaign", "copy"), 0);
        assert_eq!(faults("stats", "record"), 1);
        assert_eq!(faults("copy", "pmu"), 1);
        assert_eq!(faults("report", "harness"), 1);
        assert_eq!(faults("report", "sys"), 1);
        assert_eq!(faults("newcomer", "record"), 1);
        assert_eq!(check(manifest, "crates/stats/Cargo.toml", "[package]\n").len(), 1);
    }

    #[test]
    fn paths_of_a_machine_and_long_files_are_found() {
        let path = concat!("see /", "home/someone");
        assert_eq!(check(paths_of_one_machine, "README.md", path).len(), 1);
        let longer = concat!("see target/", "home/someone");
        assert!(check(paths_of_one_machine, "README.md", longer).is_empty());
        let long = "\n".repeat(MAX_LINES + 1);
        assert_eq!(check(length, "crates/copy/src/lib.rs", &long).len(), 1);
    }

    fn texts(files: &[(&str, &str)]) -> Vec<(PathBuf, String)> {
        files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect()
    }

    #[test]
    fn wide_comments_and_repeated_names_are_found() {
        let wide = format!("let a = 1;\n    // {}\n", "x".repeat(COMMENT_COLUMNS));
        let sources = texts(&[
            ("crates/a/src/lib.rs", "pub struct One;\npub(crate) struct Two;\n"),
            ("crates/b/src/lib.rs", "pub type One = u8;\nstruct Two;\npub struct OneMore<T>(T);\n"),
            ("crates/c/src/lib.rs", &wide),
            ("crates/c/src/a.rs", "struct Three;\n#[cfg(test)]\nuse b::B;\nstruct Four;\n"),
            ("crates/c/src/b.rs", "enum Four {}\n#[cfg(test)]\nmod tests {\nenum Three {}\n"),
            ("crates/path/src/a.rs", "struct Five;\n"),
            ("crates/path/src/b.rs", "struct Five;\nstruct Arguments;\n"),
        ]);
        assert_eq!(wide_comments(&sources), ["crates/c/src/lib.rs:2: a wide comment"]);
        let repeated = [
            "Five: crates/path/src/a.rs, crates/path/src/b.rs",
            "Four: crates/c/src/a.rs, crates/c/src/b.rs",
            "One: crates/a/src/lib.rs, crates/b/src/lib.rs",
        ];
        assert_eq!(repeated_names(&sources), repeated);
    }

    #[test]
    fn a_reader_without_limits_is_found() {
        let read = "let a = toml::from_str(&text);\n";
        let sources = texts(&[
            ("crates/a/src/lib.rs", read),
            ("crates/b/src/lib.rs", &format!("{read}refuse_large(&a, &[])?;\n")),
            ("crates/c/src/lib.rs", &format!("#[cfg(test)]\n{read}")),
            ("crates/d/src/lib.rs", "serde_json::from_str(include_str!(\"d.json\"))"),
            ("vm/src/lib.rs", read),
        ]);
        let [found] = &unbounded_readers(&sources)[..] else { panic!("one reader") };
        assert!(found.starts_with("crates/a/src/lib.rs: reads"), "{found}");
    }

    #[test]
    fn circles_of_files_are_found_over_others_and_in_groups() {
        let sources = texts(&[
            ("crates/a/src/lib.rs", "mod one;\nmod two;\nuse one::One;\n"),
            ("crates/a/src/one.rs", "use crate::{\n    two::{Two, More},\n};\n"),
            ("crates/a/src/two/mod.rs", "pub(crate) mod three;\nuse three::Three;\n"),
            ("crates/a/src/two/three.rs", "use super::Two;\nuse super::super::one::One;\n"),
            ("crates/b/src/lib.rs", "mod one;\n"),
            ("crates/b/src/one.rs", "use crate::B;\n#[cfg(test)]\nuse crate::two::Two;\n"),
            ("crates/b/src/two.rs", "use crate::one::One;\n"),
        ]);
        let found = circles(&sources);
        let files = "crates/a/src/one.rs, crates/a/src/two/mod.rs, crates/a/src/two/three.rs";
        assert_eq!(found, [format!("circle of files: {files}")]);
    }
}
