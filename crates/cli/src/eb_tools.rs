//! Names of the C tools: called by a link such as `eb-read`, the program is that tool.

use std::ffi::OsString;
use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;

/// A C tool: its name, its verb, its letters that have a value, and its words.
///
/// A number in the verb stands for a word of the tool, `1:2` for two. `n=--index` renames a letter,
/// `c=` leaves it out: here as many cycles are on their way as the transport holds. Errors that
/// eb-put does not ask for are ignored (`f=-s`).
#[derive(Deserialize)]
pub(crate) struct EbTool(&'static str, &'static str, &'static str, &'static str);

static TOOLS: LazyLock<Vec<EbTool>> =
    LazyLock::new(|| serde_json::from_str(include_str!("eb_tools.json")).expect("tests read it"));

/// Returns the tool that this program was called as.
pub(crate) fn called() -> Option<&'static EbTool> {
    let program = std::env::args_os().next()?;
    let name = Path::new(&program).file_name()?;
    TOOLS.iter().find(|tool| name == tool.0)
}

/// Replaces the program's name before a message by that of the tool.
pub(crate) fn renamed(line: &str) -> String {
    match (called(), line.strip_prefix("daqmeter: ")) {
        (Some(tool), Some(message)) => format!("{}: {message}", tool.0),
        _ => line.to_owned(),
    }
}

impl EbTool {
    pub(crate) fn usage(&self) -> String {
        let widths = if self.2.is_empty() { "[-h] " } else { "[-vqh] [-a WIDTHS] [-d WIDTHS] " };
        let probes = if self.2.contains('r') { "[-r PROBES] " } else { "" };
        format!("Usage: {} {widths}{probes}{}\n", self.0, self.3)
    }

    /// Returns the command line of the verb. `None` for help, and for a wrong number of words.
    pub(crate) fn command_line(
        &self,
        mut arguments: impl Iterator<Item = OsString>,
    ) -> Option<Vec<OsString>> {
        let (mut options, mut words) = (Vec::new(), Vec::new());
        while let Some(argument) = arguments.next() {
            match argument.to_str().and_then(|text| text.strip_prefix('-')) {
                Some("h" | "-help") => return None,
                Some("-") => words.extend(arguments.by_ref()),
                Some(letters) if !letters.starts_with('-') && !letters.is_empty() => {
                    let end = letters.find(|letter| self.2.contains(letter));
                    let (flags, rest) = letters.split_at(end.map_or(letters.len(), |at| at + 1));
                    let names: Vec<_> = flags.chars().filter_map(|one| self.option(one)).collect();
                    let is_kept = names.len() == flags.chars().count();
                    options.extend(names);
                    let value = end.and_then(|_| match rest {
                        "" => arguments.next(),
                        rest => Some(rest.into()),
                    });
                    options.extend(value.filter(|_| is_kept));
                }
                Some(long) if !long.is_empty() => options.push(argument),
                _ => words.push(argument),
            }
        }
        let word = |part: &str| match part {
            "1:2" => Some([words.get(1)?.as_os_str(), words.get(2)?].join(":".as_ref())),
            "0" | "1" | "2" => words.get(part.parse::<usize>().ok()?).cloned(),
            other => Some(other.into()),
        };
        let parts = self.1.split(' ').filter(|part| !part.contains('='));
        let placed: Option<Vec<OsString>> = parts.map(word).collect();
        let is_placed = self.1.contains('0');
        let line = ["daqmeter", "eb"].map(OsString::from).into_iter().chain(placed?).chain(options);
        match (is_placed, words.len()) {
            (true, 3) => Some(line.collect()),
            (true, _) => None,
            (false, _) => Some(line.chain(words).collect()),
        }
    }

    /// Returns the option of a letter, if it has one.
    fn option(&self, letter: char) -> Option<OsString> {
        let renamed = |part: &str| Some(part.strip_prefix(letter)?.strip_prefix('=')?.to_owned());
        let name = self.1.split(' ').find_map(renamed).unwrap_or_else(|| format!("-{letter}"));
        (!name.is_empty()).then(|| name.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(call: &str) -> Option<String> {
        let mut words = call.split(' ');
        let name = words.next()?;
        let tool = TOOLS.iter().find(|tool| tool.0 == name)?;
        let words = tool.command_line(words.map(OsString::from))?;
        Some(words.join(" ".as_ref()).into_string().unwrap())
    }

    #[test]
    fn letters_and_words_of_the_c_tools_are_those_of_verbs() {
        for (call, wanted) in [
            ("eb-read -spv udp/h 0x10/4", "read -s -p -v udp/h 0x10/4"),
            ("eb-find -vn1 udp/h 0x651 2", "ls udp/h --find 0x651:2 -v --index 1"),
            ("eb-find udp/h -n 1 0x651 2", "ls udp/h --find 0x651:2 --index 1"),
            ("eb-get -c 8 udp/h -a 32 0/9 f", "read udp/h 0/9 --output f -a 32"),
            ("eb-put -fc8 udp/h 0 f", "write udp/h 0 --from f -s"),
            ("eb-put udp/h 0 -- -f", "write udp/h 0 --from -f"),
            ("eb-snoop -w 32 6 0-9", "snoop -w 32 6 0-9"),
        ] {
            assert_eq!(line(call).as_deref(), Some(&*format!("daqmeter eb {wanted}")), "{call}");
        }
        for wrong in ["eb-find udp/h 0x651", "eb-get udp/h 0/9 f g", "eb-read -h"] {
            assert_eq!(line(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_debian_package_has_a_link_for_each_tool() {
        let package = include_str!("../../../dist/src/package.rs");
        assert!(TOOLS.iter().all(|tool| package.contains(tool.0)));
    }
}
