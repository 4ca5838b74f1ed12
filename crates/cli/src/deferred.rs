//! Verbs whose options are declared when the verb is called. With those of all verbs declared at
//! each start, and names of studies read from their files, `--version` took 37 ms in place of 2.

use std::ops::Deref;

use clap::{ArgMatches, Args, Command, Error, FromArgMatches};

/// Options of one verb.
#[derive(Debug)]
pub(crate) struct Deferred<T>(Box<T>);

impl<T> Deref for Deferred<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: FromArgMatches> FromArgMatches for Deferred<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Box::from_arg_matches(matches).map(Deferred)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl<T: Args> Args for Deferred<T> {
    fn augment_args(command: Command) -> Command {
        command.defer(|command| {
            // The text of the verb in the list of verbs.
            let about = command.get_about().cloned().unwrap_or_default();
            T::augment_args(command).about(about).long_about(None)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Declares the verbs of a group: the text, the options and the work of each.
macro_rules! verbs {
    ($(#[$of_group:meta])* $visibility:vis enum $group:ident {
        $($(#[$text:meta])* $verb:ident($given:ident: $options:ty) => $work:expr,)*
    }) => {
        #[derive(Debug, clap::Subcommand)]
        $(#[$of_group])*
        $visibility enum $group {
            $($(#[$text])* $verb($options),)*
        }

        impl $group {
            $visibility fn run(&self) -> crate::output::Ended {
                match self {
                    $($group::$verb($given) => $work,)*
                }
            }
        }
    };
}
pub(crate) use verbs;
