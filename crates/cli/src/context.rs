//! Facts of this invocation that every record has.

use daqmeter_harness::Context;
use daqmeter_record::Tool;

/// Build profile of this program. It names an unusual C library, whose memcpy is measured, too.
const PROFILE: &str = match (cfg!(debug_assertions), cfg!(target_env = "musl")) {
    (true, _) => "debug",
    (false, false) => "release",
    (false, true) => "release, musl",
};

pub(crate) fn context() -> Context {
    let tool = Tool {
        name: "daqmeter".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        git_revision: env!("DAQMETER_GIT_REVISION").into(),
        profile: PROFILE.into(),
    };
    daqmeter_campaign::context(tool, command_line())
}

/// Returns the command line as typed, with quotes where a shell needs them.
fn command_line() -> String {
    let quoted = |argument: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+@".contains(c);
        match !argument.is_empty() && argument.chars().all(plain) {
            true => format!(" {argument}"),
            false => format!(" '{}'", argument.replace('\'', r"'\''")),
        }
    };
    let arguments = std::env::args_os().skip(1);
    let quoted = arguments.map(|argument| quoted(&argument.to_string_lossy()));
    "daqmeter".to_owned() + &quoted.collect::<String>()
}
