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
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_verb_has_a_manual_page_with_its_own_synopsis() {
        let mut command = crate::Cli::command();
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
