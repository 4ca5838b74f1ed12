//! All 50 figures of the study of copies by one command.
//! Times and rates are this host's, by system calls and an emulated engine. Calls by size come from
//! the tracer in a virtual machine, cache misses from the cache model in another.

use std::path::{Path, PathBuf};

use crate::shell::daqmeter;
use anyhow::{Result, ensure};

use super::boot::{Boot, Machine, Pc};
use super::modules;
use super::pollution::{RECORDS, keep, pollution, records_of};
use super::programs;
use crate::debian::Kernel;
use crate::files::{folder, tail, timed};

/// Measurements on this host: figures 2.1 to 2.20 and 2.39 to 2.50, at few sizes and repetitions.
const HERE: [&str; 5] = [
    "copy latency --operations from,to,from_nc,to_nc --sizes 1,64,4KiB,64KiB,1MiB --reps 30",
    "copy latency --operations from,to,from_nc,to_nc --sizes 1,64,4KiB,64KiB,1MiB --reps 30 --load heavy",
    "copy bandwidth --lanes 4 --sizes 1KiB,64KiB,1MiB --reps 30",
    "copy bandwidth --lanes 4 --sizes 1KiB,64KiB,1MiB --reps 30 --load heavy",
    "copy pollution --neighbours ideal,cpu,dma --reps 3",
];

pub(crate) fn figures() -> Result<()> {
    let mut records = vec![timed("times and rates of this host", here)?];
    records.push(timed("calls by size: the tracer", traced)?);
    pollution(true)?;
    records.push(folder().join(RECORDS));
    draw(&records)
}

fn here() -> Result<PathBuf> {
    let place = folder().join("host.jsonl");
    if place.exists() {
        std::fs::remove_file(&place)?;
    }
    for words in HERE {
        let run = daqmeter(words).arg("--records");
        run.arg(&place).output()?;
    }
    Ok(place)
}

/// Traces copies beside reads of files of several sizes and of directories.
const SCRIPT: &str = "\
insmod /daqmeter_trace.ko
(while :; do cat /proc/stat /proc/meminfo > /dev/null; ls -lR /sys/class > /dev/null; dd if=/dev/zero of=/tmp/f bs=4096 count=16 2> /dev/null; done) & busy=$!
/daqmeter copy trace --time 10s --records /tmp/records > /tmp/said 2>&1 || echo GUEST failed \"$(tail -3 /tmp/said)\"
kill $busy
sed 's/^/RECORD /' /tmp/records
";

fn traced() -> Result<PathBuf> {
    let kernel = Kernel::fetch("6.1", "amd64")?;
    let boot = Boot {
        name: "trace",
        machine: Machine::Pc(Pc::IN_TURN),
        kernel: &kernel.image,
        script: SCRIPT,
        command_line: "",
        limit_s: 480,
    };
    let mut files = programs::files()?;
    files.extend(modules::files(&modules::built(&kernel)?)?);
    let printed = boot.run(files)?;
    ensure!(!printed.contains("GUEST failed"), "last lines:\n{}", tail(&printed));
    keep(&records_of(&printed)?, "trace.jsonl")
}

fn draw(records: &[PathBuf]) -> Result<()> {
    let page = folder().join("figures.html");
    let drawing = daqmeter("report --format copy-figures");
    let printed = drawing.args(records).arg("-o").arg(&page).output()?;
    print!("{printed}");
    judge(&printed, &page)
}

fn judge(printed: &str, page: &Path) -> Result<()> {
    let missing: Vec<&str> = printed.lines().filter(|line| line.contains("no records; ")).collect();
    let drawn = printed.lines().filter(|line| line.ends_with("drawn")).count();
    ensure!(
        missing.is_empty() && drawn == 50,
        "{drawn} of 50 figures are drawn; missing:\n{}",
        missing.join("\n")
    );
    println!("all 50 figures are in {}", page.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_must_be_drawn() {
        let all: String = (1..=50).map(|at| format!("2.{at} what  drawn\n")).collect();
        assert!(judge(&all, Path::new("page.html")).is_ok());
        let one_less =
            all.replace("2.21 what  drawn", "2.21 what  no records; daqmeter copy trace");
        let error = judge(&one_less, Path::new("page.html")).unwrap_err().to_string();
        assert!(error.starts_with("49 of 50") && error.contains("copy trace"), "{error}");
    }
}
