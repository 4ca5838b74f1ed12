//! Files that start a command on many hosts: for Slurm, Kubernetes, Ansible and ClusterShell. The
//! templates are in `launch/`.

use clap::ValueEnum;
use daqmeter_record::sanitise::{self, shell_word};

use crate::output::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Launcher {
    Slurm,
    K8s,
    Ansible,
    Clush,
}

const SLURM: &str = include_str!("../launch/slurm.sh");
const CLUSH: &str = include_str!("../launch/clush.sh");
const K8S: &str = include_str!("../launch/k8s.yml");
const ANSIBLE: &str = include_str!("../launch/ansible.yml");

impl Launcher {
    /// Quotes a word so that nothing changes it on its way to a host.
    fn quoted(self, word: &str) -> String {
        match self {
            Launcher::Slurm | Launcher::Clush => shell_word(word).into_owned(),
            Launcher::K8s => string(&word.replace('$', "$$")),
            Launcher::Ansible if word.contains('{') => format!("!unsafe {}", string(word)),
            Launcher::Ansible => string(word),
        }
    }
}

/// Writes a string of JSON, which YAML takes, too; a shell takes it for variables of ours.
fn string(word: &str) -> String {
    serde_json::Value::from(word).to_string()
}

/// Returns the file that starts a command.
pub(crate) fn filled(launcher: Launcher, command: &[String]) -> Result<String, Failure> {
    // The last two are the folder of records on a host, if not that of the command, and options.
    let (template, between, place, more): (_, _, _, &[&str]) = match launcher {
        Launcher::Slurm => (SLURM, " ", None, &[]),
        Launcher::Clush => (CLUSH, " ", Some("$records"), &[]),
        Launcher::K8s => (K8S, ", ", Some("farm/"), &["--json", "--label", "$(NODE)"]),
        Launcher::Ansible => {
            let own_name = &["--label", "{{ inventory_hostname }}"];
            (ANSIBLE, ", ", Some("{{ work.path }}/"), own_name)
        }
    };
    let command = command.strip_prefix(&["daqmeter".to_owned()]).unwrap_or(command);
    let end = command.iter().position(|word| word == "--").unwrap_or(command.len());
    let mut words = command[..end].to_vec();
    if words.is_empty() {
        words.push("survey".to_owned());
    }
    if !words.iter().any(|word| word == "--records") {
        words.extend(["--records", "farm/"].map(str::to_owned));
    }
    let at = 1 + words.iter().position(|word| word == "--records").expect("it was added");
    let rest = &command[end..];
    let more = more.iter().map(|word| (*word).to_owned());
    accepted(words.iter().cloned().chain(more.clone()).chain(rest.iter().cloned()).collect())?;
    let folder = words[at].clone();
    if !folder.ends_with('/') {
        return Err(Failure::refused(format!(
            "--records {folder}: each host has a file in a folder: write --records {folder}/"
        )));
    }
    let mut spelled: Vec<String> = words.iter().map(|word| launcher.quoted(word)).collect();
    spelled[at] = place.map_or_else(|| launcher.quoted(&folder), string);
    spelled.extend(more.map(|word| string(&word)));
    spelled.extend(rest.iter().map(|word| launcher.quoted(word)));
    let line = format!("daqmeter{between}{}", spelled.join(between));
    let texts = [
        ("@COMMAND@", line.as_str()),
        ("@QUOTED@", &shell_word(&line)),
        ("@FOLDER@", &shell_word(&folder)),
        ("@PLACE@", &launcher.quoted(&folder)),
    ];
    let fill = |text: String, (name, value): (&str, &str)| text.replace(name, value);
    Ok(texts.into_iter().fold(template.to_owned(), fill))
}

/// Refuses a command that each host would refuse.
fn accepted(words: Vec<String>) -> Result<(), Failure> {
    if words.iter().any(|word| sanitise::text(word) != word.as_str()) {
        return Err(Failure::refused("the command of --print has a control character"));
    }
    let line = std::iter::once("daqmeter".to_owned()).chain(words);
    let parsed = crate::command().try_get_matches_from(line);
    parsed.map(drop).map_err(|error| {
        let text = error.to_string();
        let why = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        Failure::refused(format!("the command of --print: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(launcher: Launcher, command: &str) -> Result<String, String> {
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        let words: Vec<String> = words.iter().map(|word| word.replace('~', " ")).collect();
        filled(launcher, &words).map_err(|failure| failure.line)
    }

    #[test]
    fn each_launcher_starts_a_survey_into_a_folder_and_names_the_next_step() {
        for (launcher, line) in [
            (Launcher::Slurm, "daqmeter survey --records farm/ ||"),
            (Launcher::Clush, r#"'daqmeter survey --records "$records"'"#),
            (
                Launcher::Ansible,
                r#"[daqmeter, "survey", "--records", "{{ work.path }}/", "--label", "{{ inventory_hostname }}"]"#,
            ),
            (
                Launcher::K8s,
                r#"[daqmeter, "survey", "--records", "farm/", "--json", "--label", "$(NODE)"]"#,
            ),
        ] {
            let text = file(launcher, "").unwrap();
            assert!(text.contains(line), "{line}: {text}");
            assert!(text.contains("daqmeter hosts farm/\n"), "{text}");
            assert!((10..=38).contains(&text.lines().count()) && !text.contains('@'), "{text}");
            assert_eq!(file(launcher, "daqmeter survey --records farm/"), Ok(text));
        }
    }

    #[test]
    fn words_of_a_command_are_quoted_for_the_shell_and_for_yaml() {
        let command = "pmu stat -e a$(b){{c}} --records a~b/ -- sh -c it's~$1";
        for (launcher, parts) in [
            (
                Launcher::Slurm,
                [
                    r"daqmeter pmu stat -e 'a$(b){{c}}' --records 'a b/' -- sh -c 'it'\''s $1'",
                    "daqmeter hosts 'a b/'",
                ],
            ),
            (
                Launcher::Clush,
                [
                    r#"--records "$records" -- sh -c '\''it'\''\'\'''\''s $1'\'''"#,
                    "mkdir -p 'a b/'",
                ],
            ),
            (
                Launcher::Ansible,
                [
                    r#"!unsafe "a$(b){{c}}", "--records", "{{ work.path }}/", "--label", "{{ inventory_hostname }}", "--", "sh""#,
                    "dest: \"a b/\"",
                ],
            ),
            (
                Launcher::K8s,
                [
                    r#""a$$(b){{c}}", "--records", "farm/", "--json", "--label", "$(NODE)", "--","#,
                    r#""it's $$1"]"#,
                ],
            ),
        ] {
            let text = file(launcher, command).unwrap();
            parts.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
        }
    }

    #[test]
    fn a_command_that_each_host_would_refuse_is_refused() {
        for (command, says) in [
            ("survey --tiem 3s", "unexpected argument '--tiem'"),
            ("survey --records farm", "write --records farm/"),
            ("survey --records", "a value is required"),
            ("list", "unexpected argument '--records'"),
            ("survey --label x", "cannot be used multiple times"),
            ("survey --observe a\u{7}b", "control character"),
        ] {
            let refused = file(Launcher::Ansible, command).unwrap_err();
            assert!(refused.contains(says), "{command}: {refused}");
        }
    }
}
