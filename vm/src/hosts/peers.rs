//! Etherbone of other makers against ours, between hosts: LiteX (CommUDP, RemoteClient,
//! litex_server) and wishbone-tool, as clients of our server and as servers of our client. CI's
//! step "other makers' Etherbone: programs" installs them.
//! Before that, our client measures two of our servers whose cables are cut.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use daqmeter_record::RunRecord;
use serde::Deserialize;

use super::{Background, Hosts, booked, daqmeter_on, last_line, on, until};
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
    tried(cut_cables)?;
    tried(once)
}

/// Begins to measure a slave; the record goes into `{proto}.jsonl`.
fn perf(proto: &str, address: &str) -> Result<Background> {
    let slave = format!("{proto}/{address}");
    until("the slave", Duration::from_secs(10), || {
        daqmeter_on(HOSTS[0], &format!("eb read -r 1 {slave} 0x10000/4")).output().map(|_| true)
    })?;
    let records = scratch(&format!("{proto}.jsonl"));
    fs::write(&records, "")?;
    let words = "-m 1 -n 100 -l 100000 --method blocking --timeout 300ms --records";
    let perf = daqmeter_on(HOSTS[0], &format!("eb perf {slave} {words}")).arg(records);
    Background::into_file(perf, &scratch(&format!("{proto}.txt")))
}

/// Cuts the cables of two slaves that are measured. Both measurements must end soon after three
/// deadlines, with exit code 1 and with the lost cycles in a column and an account of their own.
fn cut_cables() -> Result<()> {
    let _hosts = Hosts::up("10.77.0", &HOSTS[..3])?;
    let serve = |host: &&str| {
        Background::start(daqmeter_on(host, "eb snoop --bus timing-receiver -q 60368"))
    };
    let _slaves: Vec<Background> = HOSTS[1..3].iter().map(serve).collect::<Result<_>>()?;
    let protocols = ["udp4", "tcp4"];
    let runs = [perf(protocols[0], "10.77.0.2")?, perf(protocols[1], "10.77.0.3")?];
    for port in 0..runs.len() {
        let packets = format!("cat /sys/class/net/to{port}/statistics/tx_packets");
        until("cycles", Duration::from_secs(10), || {
            Ok(on(HOSTS[0], &packets).output()?.trim().parse::<u64>()? > 2000)
        })?;
    }
    for port in 0..runs.len() {
        on(HOSTS[0], &format!("ip link set to{port} down")).run()?;
    }
    for (proto, mut run) in protocols.into_iter().zip(runs) {
        until("eb perf", Duration::from_secs(5), || Ok(run.0.try_wait()?.is_some()))?;
        let code = run.0.wait()?.code();
        let record: RunRecord = serde_json::from_str(&last_line(&format!("{proto}.jsonl"))?)?;
        let ledger = record.ledgers.first().context("no ledger")?;
        let table = fs::read_to_string(scratch(&format!("{proto}.txt")))?;
        let is_booked = ledger.closes() && ledger.delivered > 0 && booked(ledger, "timeout") > 0;
        let is_expected = code == Some(1) && is_booked && table.contains("lost [%]");
        ensure!(is_expected, "{proto}: exit code {code:?}, {ledger}\n{table}");
        println!("closed: {proto} with its cable cut: {ledger}");
    }
    Ok(())
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
        assert_eq!((servers.len(), talks.len()), (6, 17));
    }
}
