//! Etherbone of other makers against ours, between hosts: LiteX (CommUDP, RemoteClient,
//! litex_server) and wishbone-tool as clients of our server, and litex_server as a server of our
//! client. CI's step "other makers' Etherbone: programs" installs them.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Background, Hosts, daqmeter_on, on, until};
use crate::shell::{scratch, tried};

const CLIENT: &str = "dqm-client";
const SLAVES: [&str; 2] = ["dqm-slave1", "dqm-slave2"];
/// Host of litex_server, which uses the ports of the clients.
const PROXY: &str = "dqm-proxy";

/// Commands on the client's host, the seconds that each may take, and texts that it must print.
/// Some are tried again for a while. Servers take a moment to listen. A write through a proxy is
/// unanswered and may come after the next connection's read. wishbone-tool's threads lose a wake-up
/// at about every second start, and then wait forever.
const TALKS: &[(&str, u32, &[&str])] = &[
    ("DAQMETER eb ls -r 1 udp4/10.77.0.2", 5, &["ECA_UNIT:CONTROL"]),
    ("DAQMETER eb discover udp/10.77.0.255", 20, &["udp4/10.77.0.2/60368", "udp4/10.77.0.3/60368"]),
    ("PYTHON vm/peers/litex_clients.py udp 10.77.0.2 1234", 60, &["bursts of 255"]),
    ("PYTHON vm/peers/litex_clients.py tcp 10.77.0.2 1234", 60, &["bursts of 255"]),
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
    ("PYTHON vm/peers/litex_clients.py litex_server 10.77.0.4 4321", 60, &["bursts of 16"]),
    ("WISHBONE --ethernet-host 10.77.0.2 0x10010 0xdecade01", 1, &[]),
    ("WISHBONE --ethernet-host 10.77.0.2 0x10010", 1, &["decade01"]),
    ("WISHBONE --ethernet-host 10.77.0.2 --ethernet-tcp 0x10014 0xdecade02", 1, &[]),
    ("WISHBONE --ethernet-host 10.77.0.2 --ethernet-tcp 0x10014", 1, &["decade02"]),
];

/// Holds all talks, with several tries: the programs lose time on a busy host.
pub(crate) fn all() -> Result<()> {
    tried(once)
}

fn once() -> Result<()> {
    let _hosts = Hosts::up("10.77.0", &[CLIENT, SLAVES[0], SLAVES[1], PROXY])?;
    let mut servers = Vec::new();
    for (slave, port) in SLAVES.iter().flat_map(|slave| [(slave, "60368"), (slave, "1234")]) {
        let snoop = daqmeter_on(slave, "eb snoop --bus timing-receiver -q").arg(port);
        servers.push(Background::start(snoop)?);
    }
    let litex = scratch("litex/bin");
    let proxy = on(PROXY, "").arg(litex.join("litex_server"));
    let proxy = proxy.words("--udp --udp-ip 10.77.0.3 --bind-ip 10.77.0.4 --bind-port 4321");
    servers.push(Background::start(proxy)?);
    let wishbone = scratch("tools/bin/wishbone-tool").display().to_string();
    let python = litex.join("python").display().to_string();
    let tool = crate::shell::program().display().to_string();
    for (command, seconds, wanted) in TALKS {
        let words = command.replace("DAQMETER", &tool).replace("PYTHON", &python);
        let words = words.replace("WISHBONE", &wishbone);
        until(command, Duration::from_secs(60), || {
            let run = on(CLIENT, &format!("timeout {seconds} sh -c")).arg(&words);
            let printed = run.output()?.to_lowercase();
            let lacks = wanted.iter().find(|text| !printed.contains(&text.to_lowercase()));
            ensure!(lacks.is_none(), "no `{lacks:?}` in {printed}");
            Ok(true)
        })?;
        println!("agreed: {command}");
    }
    Ok(())
}
