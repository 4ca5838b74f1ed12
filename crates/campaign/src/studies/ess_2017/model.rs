//! What the profile that is fitted to the document's crate gives for its read-out and its CPU use.

use daqmeter_digitizer::devices::sis8300::emulated::{Profile, uplink};

use super::{CpuRow, Kind, Table};

/// Rate of the document's triggers.
const TRIGGER_HZ: f64 = 14.0;

/// Bytes per second that one board of a model moves alone.
fn own_bytes_per_s(profile: &Profile, model: &str) -> Option<f64> {
    let board = profile.board.iter().find(|board| board.model == model)?;
    Some(board.own_bytes_per_s)
}

/// Speed of each board of a read-out table, in MB/s, in the order of its boards. Nothing for conversions: their costs in the
/// profile are the means of these very tables.
pub(super) fn speeds_mb_per_s(table: &Table, profile: &Profile) -> Vec<f64> {
    if table.kind == Kind::Conversion {
        return Vec::new();
    }
    let bytes = (table.samples * 2 * table.reads) as f64;
    let own = table.boards.iter();
    let own: Vec<f64> = own.filter_map(|model| own_bytes_per_s(profile, model)).collect();
    let seconds = uplink::predict(&profile.uplink, &own, bytes);
    seconds.into_iter().map(|seconds| bytes / seconds / 1e6).collect()
}

/// CPU use in per cent of a core. The profile's is of read-out; conversion adds its cost per sample.
pub(super) fn cpu_percent(row: &CpuRow, profile: &Profile) -> f64 {
    let bytes = row.samples * 2;
    let own = own_bytes_per_s(profile, "l").unwrap_or(f64::INFINITY);
    let own = vec![own; row.boards as usize];
    let read_s = uplink::predict(&profile.uplink, &own, bytes as f64)[0];
    let converted_ns =
        if row.function == 5 { profile.conversion_ns_per_raw_byte.unsigned_f64 } else { 0.0 };
    let converted = TRIGGER_HZ * f64::from(row.boards) * bytes as f64 * converted_ns * 1e-9;
    profile.cpu_percent(row.boards, bytes, read_s, TRIGGER_HZ, row.polling) + converted * 100.0
}
