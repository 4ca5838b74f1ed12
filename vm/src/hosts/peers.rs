//! Etherbone of other makers against ours, between hosts: LiteX (CommUDP, RemoteClient,
//! litex_server) and wishbone-tool, as clients of our server and as servers of our client. CI's
//! step "other makers' Etherbone: programs" installs them.
//! Before that, our client measures two of our servers whose cables are cut.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use daqmeter_record::RunRecord;

use super::{Background, Hosts, booked, daqmeter_on, last_line, on, until};
use crate::shell::{program, scratch, tried};

const CLIENT: &str = "dqm-client";
const SLAVES: [&str; 2] = ["dqm-slave1", "dqm-slave2"];
/// Host of litex_server, which uses the ports of the clients.
const PROXY: &str = "dqm-proxy";

const SERVERS: [(&str, &str); 6] = [
    (SLAVES[0], "DAQMETER eb snoop --bus timing-receiver -q 60368"),
    (SLAVES[0], "DAQMETER eb snoop --bus timing-receiver -q 1234"),
    (SLAVES[0], "DAQMETER eb tunnel -q 8183"),
    (SLAVES[1], "DAQMETER eb snoop --bus timing-receiver -q 60368"),
    (SLAVES[1], "DAQMETER eb snoop --bus timing-receiver -q 1234"),
    (PROXY, "LITEX/litex_server --udp --udp-ip 10.77.0.3 --bind-ip 10.77.0.4 --bind-port 4321"),
];

/// Commands on the client's host, the seconds that each may take, and texts that it must print.
/// Some are tried again for a while. Servers take a moment to listen. A write through a proxy is
/// unanswered and may come after the next connection's read. wishbone-tool's threads lose a wake-up
/// at about every second start, and then wait forever.
const TALKS: &[(&str, u32, &[&str])] = &[
    ("DAQMETER eb ls -r 1 udp4/10.77.0.2", 5, &["ECA_UNIT:CONTROL"]),
    (
        "for slave in udp4/10.77.0.2 tcp4/10.77.0.3 udp6/fd77::2 tcp6/fd77::3; do DAQMETER eb write $slave 0x10000/4 0x11223344 && DAQMETER eb read $slave 0x10001/1; done | xargs",
        20,
        &["22 22 22 22"],
    ),
    ("DAQMETER eb read tunnel/10.77.0.2/8183/10.77.0.3/60368 0x10000/4", 20, &["11223344"]),
    ("DAQMETER eb discover udp/10.77.0.255", 20, &["udp4/10.77.0.2/60368", "udp4/10.77.0.3/60368"]),
    ("LITEX/python vm/peers/litex_clients.py udp 10.77.0.2 1234", 60, &["bursts of 255"]),
    ("LITEX/python vm/peers/litex_clients.py tcp 10.77.0.2 1234", 60, &["bursts of 255"]),
    ("DAQMETER eb write tcp/10.77.0.4/4321 0x10004/4 0xcafe0001 --litex -p --timeout 2s", 20, &[]),
    ("DAQMETER eb read tcp/10.77.0.4/4321 0x10004/4 --litex -p --timeout 2s", 20, &["cafe0001"]),
    (
        "seq 1000 1199 > target/ci/sent.bin && DAQMETER eb write tcp/10.77.0.4/4321 0x12000 --from target/ci/sent.bin --litex -p -b",
        30,
        &[],
    ),
    (
        "DAQMETER eb read tcp/10.77.0.4/4321 0x12000/200 -o target/ci/back.bin --litex -p -b && cmp -n 200 target/ci/sent.bin target/ci/back.bin",
        30,
        &[],
    ),
    ("LITEX/python vm/peers/litex_clients.py litex_server 10.77.0.4 4321", 60, &["bursts of 16"]),
    ("WISHBONE --ethernet-host 10.77.0.2 0x10010 0xdecade01", 1, &[]),
    ("WISHBONE --ethernet-host 10.77.0.2 0x10010", 1, &["decade01"]),
    ("WISHBONE --ethernet-host 10.77.0.2 --ethernet-tcp 0x10014 0xdecade02", 1, &[]),
    ("WISHBONE --ethernet-host 10.77.0.2 --ethernet-tcp 0x10014", 1, &["decade02"]),
    (
        "timeout 9 WISHBONE -s wishbone -n 5678 --ethernet-host 10.77.0.3 & timeout 9 sh -c 'until DAQMETER eb write tcp/127.0.0.1/5678 0x10004/4 0xcafe0002 --litex -p; do sleep 0.1; done; DAQMETER eb read tcp/127.0.0.1/5678 0x10004/4 --litex -p'; kill $!",
        10,
        &["cafe0002"],
    ),
];

/// Holds all talks, with several tries: the programs lose time on a busy host.
pub(crate) fn all() -> Result<()> {
    tried(cut_cables)?;
    tried(once)
}

/// Begins to measure a slave; the record goes into `{proto}.jsonl`.
fn perf(proto: &str, address: &str) -> Result<Background> {
    let slave = format!("{proto}/{address}");
    until("the slave", Duration::from_secs(10), || {
        daqmeter_on(CLIENT, &format!("eb read -r 1 {slave} 0x10000/4")).output().map(|_| true)
    })?;
    let records = scratch(&format!("{proto}.jsonl"));
    fs::write(&records, "")?;
    let words = "-m 1 -n 100 -l 100000 --method blocking --timeout 300ms --records";
    let perf = daqmeter_on(CLIENT, &format!("eb perf {slave} {words}")).arg(records);
    Background::into_file(perf, &scratch(&format!("{proto}.txt")))
}

/// Cuts the cables of two slaves that are measured. Both measurements must end soon after three
/// deadlines, with exit code 1 and with the lost cycles in a column and an account of their own.
fn cut_cables() -> Result<()> {
    let _hosts = Hosts::up("10.77.0", &[CLIENT, SLAVES[0], SLAVES[1]])?;
    let serve =
        |host| Background::start(daqmeter_on(host, "eb snoop --bus timing-receiver -q 60368"));
    let _slaves: Vec<Background> = SLAVES.into_iter().map(serve).collect::<Result<_>>()?;
    let protocols = ["udp4", "tcp4"];
    let runs = [perf(protocols[0], "10.77.0.2")?, perf(protocols[1], "10.77.0.3")?];
    for port in 0..runs.len() {
        let packets = format!("cat /sys/class/net/to{port}/statistics/tx_packets");
        until("cycles", Duration::from_secs(10), || {
            Ok(on(CLIENT, &packets).output()?.trim().parse::<u64>()? > 2000)
        })?;
    }
    for port in 0..runs.len() {
        on(CLIENT, &format!("ip link set to{port} down")).run()?;
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

fn once() -> Result<()> {
    let _hosts = Hosts::up("10.77.0", &[CLIENT, SLAVES[0], SLAVES[1], PROXY])?;
    let path = |path: std::path::PathBuf| path.display().to_string();
    let programs = [
        ("DAQMETER", path(program())),
        ("LITEX", path(scratch("litex/bin"))),
        ("WISHBONE", path(scratch("tools/bin/wishbone-tool"))),
    ];
    let full = |command: &str| {
        programs.iter().fold(command.to_owned(), |text, (name, path)| text.replace(name, path))
    };
    let start = |(host, command): &(&str, &str)| Background::start(on(host, &full(command)));
    let _servers: Vec<Background> = SERVERS.iter().map(start).collect::<Result<_>>()?;
    for (command, seconds, wanted) in TALKS {
        until(command, Duration::from_secs(60), || {
            let run = on(CLIENT, &format!("timeout {seconds} sh -c")).arg(full(command));
            let printed = run.output()?.to_lowercase();
            let lacks = wanted.iter().find(|text| !printed.contains(&text.to_lowercase()));
            ensure!(lacks.is_none(), "no `{lacks:?}` in {printed}");
            Ok(true)
        })?;
        println!("agreed: {command}");
    }
    Ok(())
}
