//! Hosts for tests between hosts: network namespaces on one bridge.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::shell::{line, need, root};
use anyhow::{Context, Result};

/// Namespaces on a bridge, which is in the first of them; removed when dropped. The bridge's port
/// to the n-th other is `to<n>`.
pub(crate) struct Hosts {
    names: Vec<&'static str>,
}

impl Hosts {
    /// Makes the hosts. The first has address 1 of the net, the others 2, 3 and so on, also of
    /// fd77::/64.
    pub(crate) fn up(net: &str, names: &[&'static str]) -> Result<Hosts> {
        let hosts = Hosts { names: names.to_vec() };
        hosts.down();
        let ip = |words: &str| line("ip").words(words).run();
        let (first, others) = names.split_first().context("no hosts")?;
        ip(&format!("netns add {first}"))?;
        ip(&format!("-n {first} link add br0 type bridge"))?;
        ip(&format!("-n {first} addr add {net}.1/24 brd {net}.255 dev br0"))?;
        ip(&format!("-n {first} link set br0 up"))?;
        ip(&format!("-n {first} link set lo up"))?;
        for (at, name) in others.iter().enumerate() {
            let host = at + 2;
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {first} link add to{at} type veth peer name eth0 netns {name}"))?;
            ip(&format!("-n {first} link set to{at} master br0"))?;
            ip(&format!("-n {first} link set to{at} up"))?;
            ip(&format!("-n {name} addr add {net}.{host}/24 brd {net}.255 dev eth0"))?;
            ip(&format!("-n {name} addr add fd77::{host}/64 dev eth0 nodad"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        ip(&format!("-n {first} addr add fd77::1/64 dev br0 nodad"))?;
        Ok(hosts)
    }

    fn down(&self) {
        for name in self.names.iter().rev() {
            let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.down();
    }
}

/// A program in the background of a host; ended when dropped.
pub(crate) struct Background(Child);

impl Background {
    pub(crate) fn start(host: &str, program: &str, arguments: &[&str]) -> Result<Background> {
        Background::with_output(host, program, arguments, Stdio::null())
    }

    pub(crate) fn into_file(
        host: &str,
        program: &str,
        arguments: &[&str],
        path: &Path,
    ) -> Result<Background> {
        Background::with_output(host, program, arguments, File::create(path)?.into())
    }

    fn with_output(
        host: &str,
        program: &str,
        arguments: &[&str],
        out: Stdio,
    ) -> Result<Background> {
        let child = Command::new("ip")
            .args(["netns", "exec", host, program])
            .args(arguments)
            .current_dir(root())
            .stdout(out)
            .stderr(Stdio::null())
            .spawn();
        Ok(Background(child.with_context(|| format!("cannot start {program} on {host}"))?))
    }

    /// Kills it without a chance to close connections.
    pub(crate) fn kill(&mut self) -> Result<()> {
        Ok(self.0.kill()?)
    }

    pub(crate) fn ends_within(&mut self, limit: Duration) -> Result<bool> {
        let began = Instant::now();
        while began.elapsed() < limit {
            if self.0.try_wait()?.is_some() {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(false)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Repeats until it works or the time is over: servers take a moment to listen.
pub(crate) fn until<T>(
    what: &str,
    limit: Duration,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(error) if began.elapsed() > limit => return Err(error.context(what.to_owned())),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

pub(crate) fn missing() -> Option<String> {
    if need("ip").is_err() {
        return Some("needs iproute2".to_owned());
    }
    if line("ip netns add dqm-probe").output().is_err() {
        return Some("needs root, or the right to make network namespaces".to_owned());
    }
    let _ = line("ip netns del dqm-probe").output();
    None
}
