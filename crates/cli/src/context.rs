//! Facts of this invocation that every record has.

use std::sync::Arc;

use daqmeter_harness::Context;
use daqmeter_record::{Tool, sanitise};

/// Build profile of this program. It names an unusual C library, whose memcpy is measured, too.
const PROFILE: &str = match (cfg!(debug_assertions), cfg!(target_env = "musl")) {
    (true, _) => "debug",
    (false, false) => "release",
    (false, true) => "release, musl",
};

/// Gathers the facts; a label replaces the name of the host.
pub(crate) fn context(label: Option<&str>) -> Context {
    let tool = Tool {
        name: "daqmeter".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        git_revision: env!("DAQMETER_GIT_REVISION").into(),
        profile: PROFILE.into(),
    };
    let mut context = daqmeter_campaign::context(tool, command_line());
    if let Some(label) = label {
        label.clone_into(&mut Arc::make_mut(&mut context.host).name);
    }
    context
}

/// Returns the command line as typed, with quotes where a shell needs them.
fn command_line() -> String {
    let words = std::env::args_os().skip(1);
    let words = words.map(|word| format!(" {}", sanitise::shell_word(&word.to_string_lossy())));
    "daqmeter".to_owned() + &words.collect::<String>()
}
