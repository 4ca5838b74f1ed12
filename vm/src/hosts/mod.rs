//! Hosts that are network namespaces on one bridge.

mod launch;
mod paths;
mod peers;
mod readout;

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use daqmeter_record::Ledger;

use crate::shell::{Background, Line, left_out, line, program, scratch, until};

pub(crate) use launch::all as launch;
pub(crate) use paths::all as paths;
pub(crate) use peers::all as peers;
pub(crate) use readout::all as readout;

/// Namespaces on a bridge, which is in the first of them; removed when dropped. The bridge's port
/// to the n-th other is `to<n>`.
struct Hosts {
    names: Vec<&'static str>,
}

impl Hosts {
    /// Makes the hosts. The first has address 1 of the net and of fd77::/64, the others 2, 3 and so
    /// on.
    fn up(net: &str, names: &[&'static str]) -> Result<Hosts> {
        let hosts = Hosts { names: names.to_vec() };
        hosts.down();
        for name in names {
            if let Err(error) = line("ip netns add").arg(name).output() {
                return left_out(format!("no network namespaces without root: {error:#}"));
            }
        }
        let on = |host: &str, words: &str| line("ip -n").arg(host).words(words).run();
        let (first, others) = names.split_first().context("no hosts")?;
        on(first, "link add br0 type bridge")?;
        for (at, name) in others.iter().enumerate() {
            on(first, &format!("link add to{at} type veth peer name eth0 netns {name}"))?;
            on(first, &format!("link set to{at} master br0 up"))?;
        }
        for (name, host) in names.iter().zip(1..) {
            let port = if host == 1 { "br0" } else { "eth0" };
            on(name, &format!("addr add {net}.{host}/24 brd {net}.255 dev {port}"))?;
            on(name, &format!("addr add fd77::{host}/64 dev {port} nodad"))?;
            on(name, &format!("link set {port} up"))?;
            on(name, "link set lo up")?;
        }
        Ok(hosts)
    }

    fn down(&self) {
        for name in self.names.iter().rev() {
            let _ = line("ip netns del").arg(name).output();
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.down();
    }
}

fn on(host: &str, words: &str) -> Line {
    line("ip netns exec").arg(host).words(words)
}

fn daqmeter_on(host: &str, words: &str) -> Line {
    on(host, "").arg(program()).words(words)
}

/// Drops the packets to a host that the rule of nftables names.
fn drop_packets(host: &str, rule: &str) -> Result<()> {
    let chain = "add table inet dqm; add chain inet dqm in { type filter hook input priority 0; }";
    on(host, "nft").arg(format!("{chain}; add rule inet dqm in {rule} drop")).run()
}

impl Background {
    fn start(program: Line) -> Result<Background> {
        Background::into_file(program, Path::new("/dev/null"))
    }

    fn into_file(program: Line, path: &Path) -> Result<Background> {
        let mut command = program.command();
        let child = command.stdout(File::create(path)?).stderr(Stdio::null()).spawn();
        Ok(Background(child.context("cannot start a program on a host")?))
    }

    /// Kills it without a chance to close connections.
    fn kill(&mut self) -> Result<()> {
        Ok(self.0.kill()?)
    }

    fn end(&mut self, what: &str) -> Result<()> {
        until(what, Duration::from_secs(40), || Ok(self.0.try_wait()?.is_some()))
    }
}

/// Reads the last line of a file below `target/ci`.
fn last_line(name: &str) -> Result<String> {
    let path = scratch(name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.lines().last().with_context(|| format!("{name} is empty"))?.to_owned())
}

fn booked(ledger: &Ledger, reason: &str) -> u64 {
    ledger.losses.get(reason).copied().unwrap_or(0)
}
