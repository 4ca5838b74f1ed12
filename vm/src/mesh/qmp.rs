//! QEMU's control protocol (a JSON object per line) and its protocol for tests, which raises
//! interrupts.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

fn connect(path: &Path) -> Result<BufReader<UnixStream>> {
    let began = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(BufReader::new(stream)),
            Err(error) if began.elapsed() > Duration::from_secs(30) => {
                bail!("{}: {error}", path.display())
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    pub(crate) fn connect(path: &Path) -> Result<Qmp> {
        let mut qmp = Qmp { stream: connect(path)? };
        qmp.read()?;
        qmp.ask("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line)? > 0, "QEMU ended");
        Ok(serde_json::from_str(&line)?)
    }

    /// Sends a command and returns the answer; earlier events are skipped.
    pub(crate) fn ask(&mut self, what: &str, arguments: Value) -> Result<Value> {
        let line = format!("{}\n", json!({ "execute": what, "arguments": arguments }));
        self.stream.get_mut().write_all(line.as_bytes())?;
        loop {
            let mut answer = self.read()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU: {what}: {error}");
            }
            if answer.get("return").is_some() {
                return Ok(answer["return"].take());
            }
        }
    }

    /// Returns the path of the first object of that type below the machine.
    pub(crate) fn find(&mut self, kind: &str) -> Result<String> {
        let all = self.ask("qom-list", json!({ "path": "/machine/unattached" }))?;
        let wanted = format!("child<{kind}>");
        let objects = all.as_array().context("no objects")?;
        let found = objects.iter().find(|object| object["type"] == wanted.as_str());
        let name = found.and_then(|object| object["name"].as_str());
        Ok(format!("/machine/unattached/{}", name.with_context(|| format!("no {kind}"))?))
    }

    pub(crate) fn bytes_read(&mut self) -> Result<u64> {
        let all = self.ask("query-blockstats", json!({}))?;
        all[0]["stats"]["rd_bytes"].as_u64().context("no rd_bytes")
    }
}

pub(crate) struct Qtest {
    stream: BufReader<UnixStream>,
    pub(crate) gic: String,
}

impl Qtest {
    pub(crate) fn connect(path: &Path, gic: String) -> Result<Qtest> {
        Ok(Qtest { stream: connect(path)?, gic })
    }

    pub(crate) fn pulse(&mut self, line: usize) -> Result<()> {
        for level in [1, 0] {
            let ask = format!("set_irq_in {} unnamed-gpio-in {line} {level}\n", self.gic);
            self.stream.get_mut().write_all(ask.as_bytes())?;
            let mut answer = String::new();
            // Lines about other interrupts may come before the answer.
            while !answer.starts_with("OK") && !answer.starts_with("FAIL") {
                answer.clear();
                ensure!(self.stream.read_line(&mut answer)? > 0, "qtest ended");
            }
            ensure!(answer.starts_with("OK"), "qtest: {answer}");
        }
        Ok(())
    }
}
