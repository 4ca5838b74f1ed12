//! Kept files in sentences, and the times at which the disk took less.

use daqmeter_record::path::{DiskCause, DiskFall, PathKept, PathRun};
use daqmeter_record::units::{joined, percent, plural, show_bytes, show_mb_per_s, show_ns};

/// Says what is in a folder, how far it is safe, and what was compared.
pub(super) fn kept_files(kept: &PathKept) -> String {
    let PathKept {
        folder,
        direct_bytes,
        files,
        blocks,
        bytes,
        durable_blocks,
        compared_blocks,
        ..
    } = kept;
    let by = match direct_bytes {
        0 => "through the page cache".to_owned(),
        bytes => format!("past the page cache, {} at once", show_bytes(*bytes)),
    };
    let durable = match durable_blocks {
        all if all == blocks => "all durable".to_owned(),
        some => format!("{some} of them durable"),
    };
    let compared = match compared_blocks {
        0 => "none read back".to_owned(),
        all if all == blocks => "all read back and equal".to_owned(),
        some => format!("{some} of them read back and equal"),
    };
    let (has, files) = (plural(*blocks, "block"), plural(*files, "file"));
    let sync = show_ns(kept.longest_sync_ns as f64);
    let bytes = show_bytes(*bytes);
    format!(
        "{bytes} in {has} and {files} in {folder}, {by}; {durable}, {compared}; longest synchronisation {sync}"
    )
}

/// Says when the disk took less, why, and for how long the buffers hold that.
pub(super) fn falls(run: &PathRun, kept: &PathKept) -> Option<String> {
    const MAX_SHOWN: usize = 3;
    let wanted = run.asked_bytes_per_s.filter(|_| run.is_paced);
    let buffers: f64 = run.queues.last().map(|queue| queue.seen.len().saturating_sub(1) as f64)?;
    let block_bytes = kept.bytes as f64 / kept.blocks.max(1) as f64;
    let text = |fall: &DiskFall| {
        let DiskFall { at_s, from_bytes_per_s, to_bytes_per_s, causes } = fall;
        let cause = joined(causes.iter().map(disk_cause), "; ");
        let cause = cause.as_deref().unwrap_or("nothing on this host shows why");
        let comes = wanted.unwrap_or(*from_bytes_per_s);
        let holds_s = buffers * block_bytes / (comes - to_bytes_per_s).max(1.0);
        let [from, to] = [from_bytes_per_s, to_bytes_per_s].map(|rate| show_mb_per_s(*rate));
        let (at, holds) = (show_ns(at_s * 1e9), show_ns(holds_s * 1e9));
        format!(
            "after {at} it took {to} MB/s in place of {from}: {cause}; the buffers hold that for {holds}"
        )
    };
    let more = kept.falls.len().saturating_sub(MAX_SHOWN);
    let more = (more > 0).then(|| format!("and {more} more, see intervals.ndjson"));
    joined(kept.falls.iter().take(MAX_SHOWN).map(text).chain(more), "; ")
}

fn disk_cause(cause: &DiskCause) -> String {
    let percent = |share: &f64| percent(*share, 2);
    let time = |s: &f64| show_ns(s * 1e9);
    match cause {
        DiskCause::Full { free_bytes } => {
            format!("the disk is full: {} are free", show_bytes(*free_bytes))
        }
        DiskCause::WaitedForCpu { share } => {
            format!("the recorder waited for a CPU for {} % of the time", percent(share))
        }
        DiskCause::GroupLimit { bytes_per_s } => {
            format!("a control group lets {} MB/s to this disk", show_mb_per_s(*bytes_per_s))
        }
        DiskCause::WriteBack { dirty_bytes } => format!(
            "the kernel holds back who writes: {} of the page cache wait for the disk",
            show_bytes(*dirty_bytes)
        ),
        DiskCause::SlowDevice { write_s, before_s } => {
            let (now, before) = (time(write_s), time(before_s));
            format!("the device was busy and took {now} for a write, {before} before")
        }
        DiskCause::NoWrite => "the device ended no write".to_owned(),
        DiskCause::BusyDevice { share } => {
            format!("the device was busy for {} % of the time", percent(share))
        }
        DiskCause::SlowSync { sync_s } => {
            format!("the file system took {} to synchronise", time(sync_s))
        }
        DiskCause::IdleDevice { share } => format!(
            "the device was busy for {} % only: the file system or a limit above it held the writes",
            percent(share)
        ),
    }
}
