//! `daqmeter completions`, `daqmeter man` and `daqmeter help`: scripts for shells and manual pages,
//! made from the command line's own declaration.
//!
//! Names that ship with the program (plans, scenarios, studies, sections of `list`) are not values
//! of an option, since these words may also be files. Here each is listed once, for all shells.

use std::process::ExitCode;

use clap::Command;
use clap::builder::PossibleValuesParser;
use clap_complete::Shell;

use crate::output::{Failure, emit};

struct Words {
    verbs: &'static [&'static str],
    argument: &'static str,
    words: Vec<&'static str>,
}

fn places() -> Vec<Words> {
    let plans = || daqmeter_campaign::SHIPPED_PLANS.names().into_iter();
    let scenarios: Vec<&str> = daqmeter_readout::scenario::SHIPPED.names();
    // Values need the lifetime of the program for clap.
    let nouns = crate::list::nouns().into_iter().map(|noun| &*noun.leak());
    let mut all = vec![
        Words { verbs: &["run"], argument: "plan", words: plans().collect() },
        Words { verbs: &["list"], argument: "what", words: nouns.chain(plans()).collect() },
    ];
    for verbs in [
        &["readout", "run"][..],
        &["readout", "sweep"],
        &["readout", "emulate"],
        &["readout", "tohost"],
        &["readout", "record"],
    ] {
        all.push(Words { verbs, argument: "scenario", words: scenarios.clone() });
    }
    all
}

fn at<'a>(command: &'a Command, verbs: &[&str]) -> Option<&'a Command> {
    verbs.iter().try_fold(command, |command, verb| command.find_subcommand(verb))
}

fn with_words(command: Command, verbs: &[&str], place: &Words) -> Command {
    match verbs {
        [] => command.mut_arg(place.argument, |argument| {
            argument.value_parser(PossibleValuesParser::new(place.words.clone()))
        }),
        [verb, rest @ ..] => {
            command.mut_subcommand(verb, |command| with_words(command, rest, place))
        }
    }
}

fn known_places(command: &Command) -> Vec<Words> {
    let has = |place: &Words| {
        let found = at(command, place.verbs)?;
        let mut arguments = found.get_arguments();
        arguments.find(|argument| argument.get_id() == place.argument)
    };
    places().into_iter().filter(|place| has(place).is_some()).collect()
}

pub(crate) fn completions(shell: Shell, command: Command) -> Result<ExitCode, Failure> {
    emit(&script(shell, command))
}

fn script(shell: Shell, command: Command) -> String {
    let places = known_places(&command);
    let mut with =
        places.iter().fold(command, |command, place| with_words(command, place.verbs, place));
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut with, "daqmeter", &mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    match shell {
        Shell::Zsh => places.iter().fold(text, also_files),
        Shell::Fish => text + &fish(&places),
        _ => text,
    }
}

/// Adds files to the values, since zsh offers only the values otherwise.
fn also_files(text: String, place: &Words) -> String {
    let words = place.words.join(" ");
    text.replace(
        &format!(":({words})'"),
        &format!(":{{_alternative \"names\\:name\\:({words})\" \"files\\:file\\:_files\"}}'"),
    )
}

/// Adds words for fish: the generator knows options alone, and fish offers files by itself.
fn fish(places: &[Words]) -> String {
    let line = |place: &Words| {
        let condition = match place.verbs {
            [verb] => format!("__fish_daqmeter_using_subcommand {verb}"),
            verbs => format!(
                "__fish_daqmeter_using_subcommand {}; and __fish_seen_subcommand_from {}",
                verbs[0],
                verbs[1..].join(" ")
            ),
        };
        format!("complete -c daqmeter -n \"{condition}\" -F -a \"{}\"\n", place.words.join(" "))
    };
    places.iter().map(line).collect()
}

pub(crate) fn man(verbs: &[String], command: Command) -> Result<ExitCode, Failure> {
    emit(&page(named(verbs, command)?)?)
}

pub(crate) fn help(verbs: &[String], command: Command) -> Result<ExitCode, Failure> {
    emit(&named(verbs, command)?.render_long_help().to_string())
}

fn named(verbs: &[String], mut command: Command) -> Result<Command, Failure> {
    // Gives every verb its whole name: `daqmeter readout run`.
    command.build();
    let verbs: Vec<&str> = verbs.iter().map(String::as_str).collect();
    at(&command, &verbs).cloned().ok_or_else(|| {
        Failure::refused(format!("there is no verb `{}`; see daqmeter -h", verbs.join(" ")))
    })
}

fn page(command: Command) -> Result<String, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut text)
        .map_err(|error| Failure::refused(error.to_string()))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_place_with_names_is_on_the_command_line() {
        let known = known_places(&Cli::command());
        assert_eq!(known.len(), places().len());
        assert!(known.iter().all(|place| !place.words.is_empty()));
    }

    #[test]
    fn shells_complete_plans_scenarios_nouns_and_ways_to_copy() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = script(shell, Cli::command());
            for word in ["survey-short", "kernels", "process-vm"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
            let (scenario, _) = daqmeter_readout::scenario::SHIPPED.files[0];
            assert!(text.contains(scenario), "{shell}: {scenario}");
        }
        let zsh = script(Shell::Zsh, Cli::command());
        assert!(zsh.matches("files\\:file\\:_files").count() >= places().len());
    }

    #[test]
    fn every_verb_has_a_manual_page_with_its_own_synopsis() {
        let mut command = Cli::command();
        command.build();
        let mut left = vec![command];
        let mut pages = 0;
        while let Some(command) = left.pop() {
            left.extend(command.get_subcommands().cloned());
            let name = command.get_bin_name().unwrap_or_default().to_owned();
            let text = page(command).map_err(|_| ()).unwrap();
            let synopsis = text.split(".SH SYNOPSIS").nth(1).unwrap();
            let synopsis = synopsis.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
            let line = synopsis.lines().find(|line| !line.is_empty()).unwrap();
            assert!(line.starts_with(&name), "{name}: {line}");
            pages += 1;
        }
        assert!(pages > 40, "{pages}");
    }
}
