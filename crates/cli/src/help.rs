//! `daqmeter help`: help, manual pages and scripts for shells, made from the command line's own
//! declaration.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::output::{Ended, Failure, emit};

/// Print the help or the manual page of the command or of a verb, or completions for a shell.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Verb and its subverb: readout run
    #[arg(value_name = "VERB")]
    verbs: Vec<String>,
    /// Manual page for man(1)
    #[arg(long)]
    man: bool,
    /// Completions for this shell
    #[arg(long, value_name = "SHELL", conflicts_with_all = ["verbs", "man"])]
    completions: Option<Shell>,
}

pub(crate) fn run(arguments: &Arguments, mut command: Command) -> Ended {
    if let Some(shell) = arguments.completions {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, "daqmeter", &mut script);
        return emit(&String::from_utf8_lossy(&script));
    }
    let mut command = named(&arguments.verbs, command)?;
    emit(&if arguments.man { manual(command)? } else { command.render_long_help().to_string() })
}

fn named(verbs: &[String], mut command: Command) -> Result<Command, Failure> {
    // Gives every verb its whole name: `daqmeter readout run`.
    command.build();
    let found = verbs.iter().try_fold(&command, |command, verb| command.find_subcommand(verb));
    found.cloned().ok_or_else(|| {
        Failure::refused(format!("there is no verb `{}`; see daqmeter -h", verbs.join(" ")))
    })
}

fn manual(command: Command) -> Result<String, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use clap::{Arg, CommandFactory, Parser};

    use super::*;
    use crate::Cli;

    const UPDATE: &str = "DAQMETER_UPDATE=1 cargo test -p daqmeter-cli verbs_in_docs";

    /// Returns the command and all verbs below it, each before its own subverbs, with its name as a
    /// user types it.
    fn all() -> Vec<(String, Command)> {
        fn below(parent: &str, command: &Command, found: &mut Vec<(String, Command)>) {
            let name = format!("{parent} {}", command.get_name()).trim().to_owned();
            found.push((name.clone(), command.clone()));
            command.get_subcommands().for_each(|verb| below(&name, verb, found));
        }
        let (mut command, mut found) = (Cli::command(), Vec::new());
        command.build();
        below("", &command, &mut found);
        found
    }

    /// Returns the arguments of a verb beside those of clap itself.
    fn own(command: &Command) -> impl Iterator<Item = &Arg> {
        command
            .get_arguments()
            .filter(|argument| !["help", "version"].contains(&argument.get_id().as_str()))
    }

    fn spelled(argument: &Arg) -> String {
        let short = argument.get_short().map_or(String::new(), |short| format!("-{short}, "));
        let aliases = argument.get_all_aliases().unwrap_or_default();
        let aliases: String = aliases.iter().map(|alias| format!(" = --{alias}")).collect();
        format!("{short}{argument}{aliases}")
    }

    fn text_of(argument: &Arg) -> String {
        argument.get_help().map(ToString::to_string).unwrap_or_default()
    }

    /// Writes what follows the help of an option, as clap shows it.
    fn values(argument: &Arg) -> String {
        let list = |name: &str, values: Vec<String>| {
            let is_listed = !values.is_empty() && argument.get_action().takes_values();
            if is_listed { format!(" [{name}: {}]", values.join(", ")) } else { String::new() }
        };
        let defaults = argument.get_default_values().iter();
        let defaults = defaults.map(|value| value.to_string_lossy().into_owned()).collect();
        let possible = argument.get_possible_values();
        let possible = possible.iter().filter(|_| !argument.is_hide_possible_values_set());
        let possible = possible.map(|value| value.get_name().to_owned()).collect();
        list("default", defaults) + &list("values", possible)
    }

    /// Lists each verb with its options and arguments, a line each. The book includes the lines of
    /// a verb and its subverbs by their anchor.
    fn listed() -> String {
        let mut out = format!("# Made by {UPDATE}\n");
        let mut anchor = String::new();
        for (name, command) in all() {
            let verb = name.split(' ').nth(1).unwrap_or("daqmeter");
            if anchor != verb {
                let end = if anchor.is_empty() { "" } else { "# ANCHOR_END: " };
                let _ = write!(out, "{end}{anchor}\n# ANCHOR: {verb}\n");
                verb.clone_into(&mut anchor);
            }
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(out, "{name}: {about}");
            for argument in own(&command) {
                let help = text_of(argument) + &values(argument);
                let _ = writeln!(out, "  {:<32} {help}", spelled(argument));
            }
        }
        out + &format!("# ANCHOR_END: {anchor}\n")
    }

    #[test]
    fn the_list_of_verbs_in_docs_is_that_of_the_program() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/verbs.txt");
        if std::env::var_os("DAQMETER_UPDATE").is_some() {
            std::fs::write(path, listed()).unwrap();
        }
        let is_same = std::fs::read_to_string(path).unwrap() == listed();
        assert!(is_same, "docs/verbs.txt is not what the program has: {UPDATE}");
    }

    #[test]
    fn help_has_80_columns_and_short_help_40_lines() {
        for (name, command) in all() {
            let mut command = command.term_width(80);
            let short = command.render_help().to_string();
            let lines = short.lines().count();
            assert!(lines <= 40, "{name}: {lines} lines");
            let long = command.render_long_help().to_string();
            let wide = short.lines().chain(long.lines()).find(|line| line.chars().count() > 80);
            assert_eq!(wide, None, "{name}");
        }
    }

    /// Splits a call as a shell does, up to what is for the shell.
    fn words(call: &str) -> Vec<&str> {
        let mut words = vec!["daqmeter"];
        for (at, part) in call.split(['\'', '"']).enumerate() {
            let parts = if at % 2 == 0 { part.split_whitespace().collect() } else { vec![part] };
            words.extend(parts);
        }
        let end = words.iter().position(|word| ["|", ">", ">>", "&", "#"].contains(word));
        words.truncate(end.unwrap_or(words.len()));
        words
    }

    /// A line of an example that is a call of this program is one that it accepts.
    #[test]
    fn each_verb_of_options_has_an_example_and_each_example_is_accepted() {
        for (name, mut command) in all() {
            let long = command.render_long_help().to_string();
            let promised = long.lines().any(|line| line.starts_with("Example"));
            let calls = long.lines().filter_map(|line| line.trim().split_once("$ daqmeter "));
            let mut count = 0;
            for (_, call) in calls {
                let parsed = Cli::try_parse_from(words(call));
                assert!(parsed.is_ok(), "{name}: {call}: {}", parsed.unwrap_err());
                count += 1;
            }
            assert_eq!(promised, count > 0, "{name}: {count} examples");
        }
    }

    /// Units by which a default shows what its value is, and the name that the value then has.
    const UNITS: [(&str, &str); 5] =
        [("s", "TIME"), ("m", "TIME"), ("%", "PERCENT"), ("Hz", "RATE"), ("iB", "SIZE")];

    #[test]
    fn every_option_has_a_text_in_words_and_a_value_that_names_its_unit() {
        for (name, command) in all() {
            for argument in own(&command) {
                let (text, at) = (text_of(argument), format!("{name}: {}", spelled(argument)));
                assert!(!text.is_empty() && !text.ends_with('.'), "{at}: {text}");
                let mut fields = own(&command).map(|own| own.get_id().as_str());
                let words: Vec<&str> =
                    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
                let field = fields.find(|field| field.contains('_') && words.contains(field));
                assert_eq!(field, None, "{at}: {text}");
                for default in argument.get_default_values().iter().map(|it| it.to_string_lossy()) {
                    let unit = default.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
                    let is_number = unit.len() < default.len();
                    let unit = UNITS.iter().find(|(ending, _)| is_number && unit.ends_with(ending));
                    let value = argument.get_value_names().unwrap_or_default();
                    let is_named =
                        unit.is_none_or(|(_, named)| value.iter().all(|name| name == named));
                    assert!(is_named, "{at}: {default}");
                }
            }
        }
    }

    #[test]
    fn every_verb_has_a_manual_page_with_its_own_synopsis() {
        let mut command = Cli::command();
        command.build();
        let mut left = vec![command];
        while let Some(command) = left.pop() {
            left.extend(command.get_subcommands().cloned());
            let name = command.get_bin_name().unwrap_or_default().to_owned();
            let text = manual(command).map_err(|_| ()).unwrap();
            let synopsis = text.split(".SH SYNOPSIS").nth(1).unwrap();
            let synopsis = synopsis.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
            let line = synopsis.lines().find(|line| !line.is_empty()).unwrap();
            assert!(line.starts_with(&name), "{name}: {line}");
        }
    }
}
