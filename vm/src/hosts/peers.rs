//! Etherbone of other makers against ours, between hosts that are network namespaces on one bridge.
//! Peers: LiteX (CommUDP, RemoteClient, litex_server) and wishbone-tool, as clients of our server
//! and, if possible, as servers of our client.

use std::time::Duration;

use crate::shell::{line, need, program, root, started, tried};
use anyhow::{Result, ensure};

use super::namespaces::{Background, Hosts, until};

const LITEX: &str = "litex==2024.12";
const WISHBONE_TOOL: &str = "0.7.9";

const CLIENT: &str = "dqm-client";
const SLAVES: [(&str, &str); 2] = [("dqm-slave1", "10.77.0.2"), ("dqm-slave2", "10.77.0.3")];

/// Runs a program on the client's host, for at most the given time, and returns its output.
fn on_client(seconds: u32, program: &str, arguments: &[&str]) -> Result<String> {
    let limit = format!("ip netns exec {CLIENT} timeout {seconds}");
    line(&limit).arg(program).args(arguments).output()
}

fn install() -> Result<(String, String)> {
    let litex = root().join("target/ci/litex");
    let python = litex.join("bin/python");
    if !litex.join("bin/litex_server").is_file() {
        need("python3")?;
        let venv = || line("python3 -m venv").arg(&litex).run();
        venv().or_else(|_| crate::shell::install("python3-venv").and_then(|()| venv()))?;
        started(&python).words("-m pip install --quiet").arg(LITEX).run()?;
    }
    let tools = root().join("target/ci/tools");
    let wishbone_tool = tools.join("bin/wishbone-tool");
    if !wishbone_tool.is_file() {
        line("cargo install --quiet --locked --debug wishbone-tool --version")
            .arg(WISHBONE_TOOL)
            .arg("--root")
            .arg(&tools)
            .words("--target-dir target/ci/tools-build")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .run()?;
    }
    Ok((python.display().to_string(), wishbone_tool.display().to_string()))
}

pub(crate) fn prepare() -> Result<()> {
    install().map(drop)
}

/// Runs all peers, in both roles, with several tries: their programs lose time on a busy host.
pub(crate) fn all() -> Result<()> {
    tried(once)
}

fn once() -> Result<()> {
    let (python, wishbone_tool) = install()?;
    let daqmeter = program().display().to_string();
    let _hosts = Hosts::up("10.77.0", &[CLIENT, SLAVES[0].0, SLAVES[1].0])?;
    let _slaves: Vec<Background> = SLAVES
        .iter()
        .flat_map(|(name, _)| ["60368", "1234"].map(|port| (*name, port)))
        .map(|(name, port)| {
            Background::start(
                name,
                &daqmeter,
                &["eb", "snoop", "--bus", "timing-receiver", "-q", port],
            )
        })
        .collect::<Result<_>>()?;
    ours(&daqmeter)?;
    litex(&python, &daqmeter)?;
    wishbone(&wishbone_tool, &daqmeter)
}

fn ours(daqmeter: &str) -> Result<()> {
    let eb = |arguments: &[&str]| on_client(20, daqmeter, &[&["eb"], arguments].concat());
    let first = |proto: &str, host: &str| format!("{proto}/{host}");
    until("our slave", Duration::from_secs(20), || {
        eb(&["ls", "-r", "1", &first("udp4", SLAVES[0].1)])
    })?;
    let found = eb(&["discover", "udp/10.77.0.255"])?;
    for (_, address) in SLAVES {
        let line = format!("udp4/{address}/60368");
        ensure!(found.contains(&line), "discover did not find {line}: {found}");
    }
    for slave in [
        first("udp4", SLAVES[0].1),
        first("tcp4", SLAVES[1].1),
        first("udp6", "fd77::2"),
        first("tcp6", "fd77::3"),
    ] {
        eb(&["write", &slave, "0x10000/4", "0x11223344"])?;
        ensure!(
            eb(&["read", &slave, "0x10001/1"])?.trim() == "22",
            "{slave}: a byte came back changed"
        );
        let listed = eb(&["ls", &slave])?;
        ensure!(listed.contains("ECA_UNIT:CONTROL"), "{slave}: {listed}");
    }
    let _tunnel = Background::start(SLAVES[0].0, daqmeter, &["eb", "tunnel", "-q", "8183"])?;
    let through = format!("tunnel/{}/8183/{}/60368", SLAVES[0].1, SLAVES[1].1);
    let value =
        until("the tunnel", Duration::from_secs(10), || eb(&["read", &through, "0x10000/4"]))?;
    ensure!(value.trim() == "11223344", "through the tunnel: {value}");
    println!(
        "agreed: daqmeter with itself between hosts: udp4, udp6, tcp4, tcp6, tunnel, discover"
    );
    Ok(())
}

/// Reads and writes by our client in the dialect of LiteX, through another's server.
fn our_client(daqmeter: &str, slave: &str, what: &str, patience: Duration) -> Result<()> {
    let eb = |arguments: &[&str]| {
        on_client(
            20,
            daqmeter,
            &[&["eb"], arguments, &["--litex", "-p", "--timeout", "2s"]].concat(),
        )
    };
    until(what, patience, || eb(&["write", slave, "0x10004/4", "0xcafe0001"]))?;
    // Writes are unanswered in this dialect, and a proxy may reorder them behind the next
    // connection's read.
    until(what, patience, || {
        let value = eb(&["read", slave, "0x10004/4"])?;
        ensure!(value.trim() == "cafe0001", "read {value}");
        Ok(())
    })?;
    println!("agreed: our client with {what}");
    Ok(())
}

fn litex(python: &str, daqmeter: &str) -> Result<()> {
    let script = root().join("vm/peers/litex_clients.py").display().to_string();
    for kind in ["udp", "tcp"] {
        print!("{}", on_client(60, python, &[&script, kind, SLAVES[0].1, "1234"])?);
    }
    let server = python.replace("bin/python", "bin/litex_server");
    let arguments = [
        server.as_str(),
        "--udp",
        "--udp-ip",
        SLAVES[1].1,
        "--bind-ip",
        "127.0.0.1",
        "--bind-port",
        "4321",
    ];
    let _server = Background::start(CLIENT, python, &arguments)?;
    let listens =
        || on_client(5, "bash", &["-c", "exec 3<>/dev/tcp/127.0.0.1/4321 && head -c 7 <&3"]);
    let banner = until("litex_server", Duration::from_secs(30), listens)?;
    ensure!(banner.starts_with("CommUDP"), "the banner of litex_server is {banner}");
    our_client(daqmeter, "tcp/127.0.0.1/4321", "litex_server", Duration::from_secs(40))?;
    a_file_through(daqmeter, "tcp/127.0.0.1/4321")?;
    print!("{}", on_client(60, python, &[&script, "litex_server", "127.0.0.1", "4321"])?);
    Ok(())
}

/// Copies a file to memory and back, in bursts.
fn a_file_through(daqmeter: &str, slave: &str) -> Result<()> {
    let place = |name: &str| root().join("target/ci").join(name).display().to_string();
    let (sent, back) = (place("sent.bin"), place("back.bin"));
    let data: Vec<u8> = (0..=250).cycle().take(2000).collect();
    std::fs::write(&sent, &data)?;
    let options = ["--litex", "-p"];
    on_client(30, daqmeter, &[&["eb", "put", slave, "0x12000", &sent], &options[..]].concat())?;
    // The proxy answers no write, so a read on a later connection may overtake the last of them.
    until("a file through litex_server", Duration::from_secs(20), || {
        on_client(
            30,
            daqmeter,
            &[&["eb", "get", slave, "0x12000/2000", &back], &options[..]].concat(),
        )?;
        ensure!(std::fs::read(&back)? == data, "the file came back changed");
        Ok(())
    })?;
    println!("agreed: a file by our client through litex_server");
    Ok(())
}

/// Starts wishbone-tool anew after a second, and once more for each of its two roles. Its threads
/// lose a wake-up at about every second start, and then wait forever. Otherwise it is done in 10
/// ms.
fn wishbone(wishbone_tool: &str, daqmeter: &str) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(60);
    for (way, option) in [("UDP", None), ("TCP", Some("--ethernet-tcp"))] {
        let host = ["--ethernet-host", SLAVES[0].1];
        let call = |arguments: &[&str]| {
            let options: Vec<&str> =
                host.into_iter().chain(option).chain(arguments.iter().copied()).collect();
            until("wishbone-tool", PATIENCE, || on_client(1, wishbone_tool, &options))
        };
        call(&["0x10010", "0xdecade01"])?;
        let found = call(&["0x10010"])?.to_lowercase();
        ensure!(found.contains("decade01"), "wishbone-tool over {way} read {found}");
        println!("agreed: wishbone-tool over {way}");
    }
    let arguments = ["-s", "wishbone", "-n", "5678", "--ethernet-host", SLAVES[1].1];
    until("wishbone-tool as a server", PATIENCE, || {
        let _server = Background::start(CLIENT, wishbone_tool, &arguments)?;
        our_client(
            daqmeter,
            "tcp/127.0.0.1/5678",
            "wishbone-tool as a server",
            Duration::from_secs(5),
        )
    })
}
