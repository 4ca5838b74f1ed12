//! Every option of every verb in every mode: it acts, is refused, or what was obtained is said.
//! Verbs and options are those of `docs/verbs.txt`, which a test of `help.rs` holds to the program;
//! modes, values and exceptions are those of `options.txt`.

use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde_json::Value;

use crate::common::{Folder, PROGRAM};
use crate::eb::Snoop;
use crate::outputs::{PLAN, RECORDS};

struct Opt {
    /// Spellings, such as `-o` and `--output`.
    names: Vec<String>,
    /// Name of the value; `None` for a flag.
    value: Option<String>,
    default: String,
    possible: Vec<String>,
}

impl Opt {
    /// Reads a line such as `-o, --output <FILE.html>   Write a page [default: x] [values: x, y]`.
    fn parse(line: &str) -> Option<Opt> {
        let mut words = line.split_whitespace().peekable();
        let mut names = Vec::new();
        while let Some(name) = words.next_if(|word| word.starts_with('-')) {
            names.push(name.trim_end_matches(',').to_owned());
        }
        names.dedup();
        let value = words.next_if(|word| !names.is_empty() && word.starts_with('<'));
        let list = |name: &str| {
            let after = line.rsplit_once(&format!("[{name}: "))?.1;
            Some(after.split(']').next()?.to_owned())
        };
        let value = value.map(|value| value.trim_matches(['<', '>']).to_owned());
        let possible = list("values").unwrap_or_default();
        let possible = possible.split(", ").map(str::to_owned).collect();
        let default = list("default").unwrap_or_default();
        (!names.is_empty()).then_some(Opt { names, value, default, possible })
    }

    fn name(&self) -> &str {
        self.names.last().expect("an option has a name")
    }
}

/// Returns the verbs with their options.
fn verbs() -> Vec<(&'static str, Vec<Opt>)> {
    let mut verbs: Vec<(&str, Vec<Opt>)> = Vec::new();
    for line in include_str!("../../../../docs/verbs.txt").lines() {
        if let Some(verb) = line.strip_prefix("daqmeter ") {
            verbs.push((verb.split(": ").next().unwrap(), Vec::new()));
        } else if let (Some(line), Some((_, options))) = (line.strip_prefix("  "), verbs.last_mut())
        {
            options.extend(Opt::parse(line));
        }
    }
    verbs
}

/// The table: sections of lines `NAME = TEXT`.
struct Table(Vec<(&'static str, &'static str, &'static str)>);

impl Table {
    fn read() -> Table {
        let (mut section, mut lines) = ("", Vec::new());
        for line in include_str!("options.txt").lines() {
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_end_matches(']');
            } else if let Some((name, text)) = line.split_once(" = ") {
                lines.push((section, name.trim(), text.trim()));
            }
        }
        Table(lines)
    }

    fn of<'a>(
        &'a self,
        section: &'a str,
        name: &'a str,
    ) -> impl Iterator<Item = &'static str> + 'a {
        let is_wanted = move |line: &&(&str, &str, &str)| line.0 == section && line.1 == name;
        self.0.iter().filter(is_wanted).map(|line| line.2)
    }

    /// Returns what the table says of an option of a verb, or of all verbs.
    fn of_option(&self, section: &str, verb: &str, option: &Opt) -> Option<&'static str> {
        let of_verb = format!("{verb} {}", option.name());
        let own = self.of(section, &of_verb).next();
        own.or_else(|| self.of(section, option.name()).next())
    }

    fn value(&self, verb: &str, option: &Opt) -> Option<String> {
        let name = option.value.as_deref()?;
        let given = self.of_option("values", verb, option);
        let other =
            option.possible.iter().rfind(|value| !value.is_empty() && **value != option.default);
        let of_kind = || self.of("values", name).next().map(str::to_owned);
        let value = given.map(str::to_owned).or(other.cloned()).or_else(of_kind);
        Some(value.unwrap_or_else(|| "NO-VALUE-IN-OPTIONS.TXT".to_owned()))
    }
}

/// Returns the rest of a call without an option that another value is tried for.
fn without(rest: &str, option: &Opt) -> String {
    let mut words = rest.split(' ').peekable();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if !option.names.iter().any(|name| name == word) {
            kept.push(word);
        } else if option.value.is_some() {
            words.next();
        }
    }
    kept.join(" ")
}

/// Writes `#` for numbers, and one space for many.
fn skeleton(line: &str) -> String {
    let mut out = String::new();
    for c in line.chars() {
        let c = match c {
            c if c.is_ascii_digit() => '#',
            '.' | ',' if out.ends_with('#') => continue,
            '\t' => ' ',
            c => c,
        };
        let is_more = "# -=".contains(c) && out.ends_with(c);
        if !is_more {
            out.push(c);
        }
    }
    out
}

/// Adds the names and values of a record, without measured numbers.
fn add_json(place: &str, value: &Value, out: &mut BTreeSet<String>) {
    const OF_THE_RUN: [&str; 6] = ["time_utc", "run_id", "command", "host", "tool", "clock"];
    let is_exact = ["/params/", "/order/", "_cpu", "/ignore"].iter().any(|it| place.contains(it));
    match value {
        Value::Object(fields) => {
            let own = fields.iter().filter(|(name, _)| !OF_THE_RUN.contains(&name.as_str()));
            own.for_each(|(name, value)| add_json(&format!("{place}/{name}"), value, out));
        }
        Value::Array(values) => {
            out.insert(format!("{place} length {}", values.len()));
            values.iter().for_each(|value| add_json(place, value, out));
        }
        Value::Number(_) if !is_exact => {}
        Value::String(text) if !is_exact => drop(out.insert(format!("{place} {}", skeleton(text)))),
        value => drop(out.insert(format!("{place} {value}"))),
    }
}

/// Adds the lines of a text, those of JSON by their fields. Lines about the host change by the load.
fn add(name: &str, text: &str, out: &mut BTreeSet<String>) {
    for line in text.lines() {
        match serde_json::from_str(line) {
            Ok(value @ Value::Object(_)) => add_json(name, &value, out),
            _ if line.starts_with("host: ") || line.contains("disturbed") => {}
            _ => drop(out.insert(format!("{name}: {}", skeleton(line)))),
        }
    }
}

/// Reads the page of metrics until the program ends, and returns the names on the last one.
fn scraped(address: &str) -> String {
    let mut last = String::new();
    while let Ok(mut stream) = TcpStream::connect(address) {
        let mut text = String::new();
        let _ = stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n");
        if stream.read_to_string(&mut text).is_ok() && text.contains("# EOF") {
            last = text;
        }
    }
    last
}

/// Lines, files and fields of records of one run.
struct Shown {
    code: Option<i32>,
    said: String,
    /// Both outputs, as they are.
    text: String,
    lines: BTreeSet<String>,
}

fn run(fixtures: &Path, script: &str) -> Shown {
    let folder = tempfile::tempdir().unwrap();
    let bin = Path::new(PROGRAM).parent().unwrap().display();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap());
    let stdout = tempfile::tempfile().unwrap();
    let mut command = Command::new("timeout");
    command.args(["20", "sh", "-c", script]).current_dir(folder.path()).env("COLUMNS", "200");
    // A side of `ab` measures no limits, which take most of the time.
    command.env("PATH", path).env("F", fixtures).env("DAQMETER_AB_SIDE", "");
    command.stdin(Stdio::null());
    let mut child =
        command.stdout(stdout.try_clone().unwrap()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut said, mut pages) = (String::new(), Vec::new());
    for line in BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok) {
        if let Some(at) = line.strip_prefix("metrics at http://") {
            let address = at.trim_end_matches("/metrics").to_owned();
            pages.push(std::thread::spawn(move || scraped(&address)));
        } else {
            said += &(line + "\n");
        }
    }
    let code = child.wait().unwrap().code();
    let mut lines = BTreeSet::from([format!("exit {code:?}")]);
    let text = read(stdout);
    lines.insert(format!("prints {}", !text.is_empty()));
    add("stdout", &text, &mut lines);
    add("stderr", &said, &mut lines);
    pages.into_iter().for_each(|page| add("metrics", &page.join().unwrap(), &mut lines));
    for (name, file) in files(folder.path()) {
        lines.insert(format!("file {name}"));
        if name.ends_with("dat") {
            let mut hash = DefaultHasher::new();
            read_all(file).hash(&mut hash);
            lines.insert(format!("file {name} {}", hash.finish()));
        } else if name.ends_with("jsonl") || name == "r1" {
            add(&name, &read(file), &mut lines);
        }
    }
    let text = format!("{text}{said}").replace(&folder.path().display().to_string(), "");
    Shown { code, said, text, lines }
}

fn read_all(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn read(file: File) -> String {
    String::from_utf8_lossy(&read_all(file)).into_owned()
}

fn files(folder: &Path) -> Vec<(String, File)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let open = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        Some((name, File::open(path).ok()?))
    };
    entries.filter_map(open).collect()
}

/// One mode of a verb, and the lines that its runs have without further options.
struct Mode<'a> {
    fixtures: &'a Path,
    verb: &'a str,
    rest: &'a str,
    always: BTreeSet<String>,
    ever: BTreeSet<String>,
    /// Outputs that are equal in all runs.
    text: Option<String>,
}

impl<'a> Mode<'a> {
    /// Runs the mode until a run shows nothing that others did not.
    fn learn(fixtures: &'a Path, verb: &'a str, rest: &'a str) -> Mode<'a> {
        let (always, ever) = Default::default();
        let mut mode = Mode { fixtures, verb, rest, always, ever, text: None };
        let first = run(fixtures, &mode.script(rest, ""));
        (mode.always, mode.text) = (first.lines, Some(first.text));
        mode.ever.clone_from(&mode.always);
        for _ in 0..5 {
            let Shown { lines: found, text, .. } = run(fixtures, &mode.script(rest, ""));
            mode.text = mode.text.filter(|known| *known == text);
            let is_same = !mode.is_changed(&found);
            mode.always = mode.always.intersection(&found).cloned().collect();
            mode.ever.extend(found);
            if is_same {
                return mode;
            }
        }
        mode
    }

    fn script(&self, rest: &str, option: &str) -> String {
        let call = format!("daqmeter {} {option}", self.verb);
        match rest.contains("RUN") {
            true => rest.replace("RUN", &call),
            false => format!("{call} {rest}"),
        }
    }

    fn is_changed(&self, found: &BTreeSet<String>) -> bool {
        !self.always.is_subset(found) || !found.is_subset(&self.ever)
    }

    /// Runs all options at once that leave a trace of their own, and returns those that left it.
    fn with_trace<'o>(&self, table: &Table, options: &'o [Opt]) -> Vec<&'o str> {
        let traced = options.iter().filter_map(|option| {
            let trace = table.of("traces", option.name()).next()?;
            let value = table.value(self.verb, option).unwrap_or_default();
            Some((option, trace, format!("{} {value}", option.name())))
        });
        let traced: Vec<_> = traced.collect();
        let call: Vec<&str> = traced.iter().map(|(.., call)| call.as_str()).collect();
        let rest =
            traced.iter().fold(self.rest.to_owned(), |rest, (option, ..)| without(&rest, option));
        if traced.is_empty() {
            return Vec::new();
        }
        let found = run(self.fixtures, &self.script(&rest, &call.join(" "))).lines;
        let new: Vec<&String> = found.difference(&self.ever).collect();
        let left =
            traced.iter().filter(|(_, trace, _)| new.iter().any(|line| line.contains(trace)));
        left.map(|(option, ..)| option.name()).collect()
    }

    /// Returns why an option neither acts nor is refused in one line that names it.
    fn wrong(&self, table: &Table, option: &Opt) -> Option<String> {
        let is_exception = table.of_option("exceptions", self.verb, option).is_some();
        if is_exception || table.of("exceptions", self.verb).next().is_some() {
            return None;
        }
        let words: Vec<&str> = self.rest.split(' ').collect();
        let is_of_mode = option.names.iter().any(|name| words.contains(&name.as_str()));
        if is_of_mode && option.value.is_none() {
            return None;
        }
        let value = table.value(self.verb, option);
        let is_of_mode = value.as_ref().is_some_and(|value| {
            option.names.iter().any(|name| self.rest.contains(&format!("{name} {value}")))
        });
        if is_of_mode {
            return None;
        }
        let typed = value.clone().unwrap_or_else(|| option.name().to_owned());
        let value = value.map_or(String::new(), |value| format!(" {value}"));
        let script = self.script(&without(self.rest, option), &format!("{}{value}", option.name()));
        let found = run(self.fixtures, &script);
        let mut names = option.names.iter().chain([&typed]);
        let is_named = names.any(|name| found.said.contains(name.as_str()));
        let is_of_the_table = ["invalid value", "unexpected argument", "No such file", "NO-VALUE"]
            .iter()
            .any(|text| found.said.contains(text));
        let is_required = found.said.contains("required arguments were not provided");
        if found.code == Some(2) && !self.always.contains("exit Some(2)") {
            let is_one = found.said.lines().count() == 1;
            let is_right = is_required || is_named && is_one && !is_of_the_table;
            return (!is_right).then(|| format!("{script}: {}", found.said));
        }
        if found.code == Some(2) && self.always.contains("exit Some(2)") {
            return Some(format!("options.txt: {script} cannot run: {}", found.said));
        }
        if self.text.as_ref().is_some_and(|known| *known != found.text) {
            return None;
        }
        if !self.is_changed(&found.lines) {
            return Some(format!("{script}: no effect"));
        }
        // Of its own accord, only texts and numbers of samples change.
        let is_fixed = |line: &&String| {
            let may_vary = ["stdout: ", "stderr: ", " length ", "/warnings"];
            !may_vary.iter().any(|text| line.contains(text))
        };
        let gone = self.always.difference(&found.lines);
        if gone.chain(found.lines.difference(&self.ever)).any(|line| is_fixed(&line)) {
            return None;
        }
        // A change by chance does not come twice.
        let again = run(self.fixtures, &script).lines;
        let gone =
            self.always.iter().any(|line| !found.lines.contains(line) && !again.contains(line));
        let new = found.lines.iter().any(|line| !self.ever.contains(line) && again.contains(line));
        (!gone && !new).then(|| format!("{script}: no lasting effect"))
    }
}

#[test]
fn every_option_of_every_verb_in_every_mode_acts_or_is_refused() {
    let (table, folder) = (Table::read(), Folder::new());
    let snoop = Snoop::start("0x10000-0x1ffff");
    let slave = snoop.at("udp");
    let profile = include_str!("../../../digitizer/profiles/ess-2017.toml");
    for (name, text) in [("r.jsonl", RECORDS), ("p.toml", PLAN), ("profile.toml", profile)] {
        folder.write(name, text);
    }
    table.of("files", "write").for_each(|line| {
        let (name, text) = line.split_once(' ').unwrap();
        folder.write(name, text.replace("\\n", "\n"));
    });
    table.of("files", "make").for_each(|line| {
        let (call, file) = line.split_once(" > ").unwrap_or((line, "log"));
        folder.write(file, folder.done(call));
    });
    let mut wrong = std::fs::read(folder.path("x.dat")).unwrap();
    wrong[600] ^= 1;
    wrong.drain(2 << 10..3 << 10);
    folder.write("wrong.dat", wrong);
    let fixtures = folder.path("");
    let is_all = std::env::var_os("DAQMETER_OPTIONS").is_some();
    let verbs = verbs();
    let mut work = Vec::new();
    for (verb, options) in &verbs {
        let slow: Vec<&str> = table.of("slow modes", verb).collect();
        let mut modes: Vec<&str> = table.of("modes", verb).collect();
        let has_none = modes.is_empty() && slow.is_empty();
        assert!(!has_none || options.is_empty(), "options.txt: no mode of {verb}");
        modes.extend(slow.iter().filter(|_| is_all));
        work.extend(modes.into_iter().map(|rest| (*verb, rest.replace("SLAVE", &slave), options)));
    }
    let (work, wrong) = (Mutex::new(work.into_iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let next = work.lock().unwrap().next();
                    let Some((verb, rest, options)) = next else { return };
                    let mode = Mode::learn(&fixtures, verb, &rest);
                    let with_trace = mode.with_trace(&table, options);
                    let others =
                        options.iter().filter(|option| !with_trace.contains(&option.name()));
                    for option in others {
                        if mode.wrong(&table, option).is_some() {
                            wrong.lock().unwrap().push((verb, rest.clone(), option));
                        }
                    }
                }
            });
        }
    });
    // A run that was late beside the others changes what is learnt: alone, it is learnt again.
    let again = |(verb, rest, option): (&str, String, &Opt)| {
        Mode::learn(&fixtures, verb, &rest).wrong(&table, option)
    };
    let wrong: Vec<_> = wrong.into_inner().unwrap().into_iter().filter_map(again).collect();
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}
