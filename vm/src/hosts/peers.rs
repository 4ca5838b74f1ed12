//! Etherbone of other makers against ours, between hosts: LiteX (CommUDP, RemoteClient,
//! litex_server) and wishbone-tool, as clients of our server and as servers of our client. CI's
//! step "other makers' Etherbone: programs" installs them.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Deserialize;

use super::{Background, Hosts, on, until};
use crate::shell::{Line, program, scratch, tried};

/// Hosts of the network: the client, two slaves, and litex_server, which uses the client's ports.
const HOSTS: [&str; 4] = ["dqm-client", "dqm-slave1", "dqm-slave2", "dqm-proxy"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Peers {
    /// Host and command.
    servers: Vec<(String, String)>,
    /// Command on the client, the seconds that it may take, and texts that it must print.
    talks: Vec<(String, u32, Vec<String>)>,
}

/// Holds all talks, with several tries: the programs lose time on a busy host.
pub(crate) fn all() -> Result<()> {
    tried(once)
}

fn shell(host: &str, before: &str, command: &str) -> Line {
    on(host, before)
        .words("sh -c")
        .arg(command)
        .env("DAQMETER", program())
        .env("LITEX", scratch("litex/bin"))
        .env("WISHBONE", scratch("tools/bin/wishbone-tool"))
}

fn once() -> Result<()> {
    let Peers { servers, talks } = toml::from_str(include_str!("peers.toml"))?;
    let _hosts = Hosts::up("10.77.0", &HOSTS)?;
    let start = |(host, command): &(String, String)| {
        Background::start(shell(host, "", &format!("exec {command}")))
    };
    let _servers: Vec<Background> = servers.iter().map(start).collect::<Result<_>>()?;
    for (command, seconds, wanted) in talks {
        until(&command, Duration::from_secs(60), || {
            let run = shell(HOSTS[0], &format!("timeout {seconds}"), &command);
            let printed = run.output()?.to_lowercase();
            let lacks = wanted.iter().find(|text| !printed.contains(&text.to_lowercase()));
            ensure!(lacks.is_none(), "no `{lacks:?}` in {printed}");
            Ok(true)
        })?;
        println!("agreed: {command}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_on_hosts_of_the_network() {
        let Peers { servers, talks } = toml::from_str(include_str!("peers.toml")).unwrap();
        assert!(servers.iter().all(|(host, _)| HOSTS[1..].contains(&host.as_str())));
        assert_eq!((servers.len(), talks.len()), (6, 16));
    }
}
