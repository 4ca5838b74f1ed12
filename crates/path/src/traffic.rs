//! Bytes that a path moves past the last-level cache, estimated from the sizes of its buffers if no
//! counter is at hand.
//!
//! All rings are filled and emptied again and again. Bytes of a ring are touched again after those
//! of all rings and those that the source read meanwhile. If all these fit into the cache, blocks
//! stay in it. Otherwise a block that is written is read first and written back later (two bytes
//! for each), and one that is read comes from memory.

use daqmeter_record::path::PathMemory;

use crate::definition::{Path, SinkKind, SourceKind, StageKind};

/// Bytes for a byte that is written through the cache: read for ownership, and written back.
const WRITTEN: f64 = 2.0;

/// `None` if the size of the cache is unknown.
pub(crate) fn traffic(path: &Path, last_level_bytes: u64) -> Option<PathMemory> {
    if last_level_bytes == 0 {
        return None;
    }
    let cache = last_level_bytes as f64;
    let rings = rings_bytes(path);
    let turnover = rings + (path.buffers * path.block_bytes) as f64;
    // Share of the rings' bytes that is no longer in the cache: 0 or 1.
    let ring = if turnover > cache { 1.0 } else { 0.0 };
    let past = |bytes: usize| {
        if rings + bytes as f64 > cache { 1.0 } else { 0.0 }
    };
    let block = path.block_bytes as f64;
    let source = match &path.source.kind {
        SourceKind::Memory { span_bytes } | SourceKind::Felix { span_bytes, .. } => {
            past(*span_bytes) + WRITTEN * ring
        }
        // A device writes to memory, and the copy from the page cache reads it.
        SourceKind::File { cached: false, .. } => 1.0,
        SourceKind::File { path, .. } => past(file_bytes(path)) + WRITTEN * ring,
        _ => WRITTEN * ring,
    };
    let mut bytes_per_block = vec![source * block];
    let mut before = block;
    for stage in &path.stages {
        let behind = stage.out_bytes as f64;
        bytes_per_block.push(match stage.kind {
            StageKind::Work { .. } | StageKind::Wait { .. } => 0.0,
            StageKind::Checksum | StageKind::Decode(_) => before * ring,
            _ => (before + WRITTEN * behind) * ring,
        });
        before = behind;
    }
    let sink = match &path.sink.kind {
        SinkKind::File { direct: true, .. } => 1.0,
        SinkKind::File { span_bytes, .. } => ring + WRITTEN * past(*span_bytes),
        _ => ring,
    };
    bytes_per_block.push(sink * before);
    Some(PathMemory { bytes_per_block, ceiling_bytes_per_s: None })
}

/// A device is larger than any cache.
fn file_bytes(path: &str) -> usize {
    let data = std::fs::metadata(path).ok();
    let file = data.filter(std::fs::Metadata::is_file);
    file.and_then(|file| usize::try_from(file.len()).ok()).unwrap_or(usize::MAX)
}

fn rings_bytes(path: &Path) -> f64 {
    let stages = path.stages.iter();
    let behind = std::iter::once((path.source.threads, path.source.out_bytes))
        .chain(stages.map(|stage| (stage.threads, stage.out_bytes)));
    let threads = path.stages.iter().map(|stage| stage.threads).chain([1]);
    let rings = behind.zip(threads);
    let bytes = rings.map(|((from, bytes), to)| (from.max(to) * path.buffers * bytes) as f64);
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str, last_level_bytes: u64) -> Vec<f64> {
        let head = "title = \"a test\"\nblock = \"1MiB\"\nbuffers = 8\n";
        let path = Path::parse(&format!("{head}{text}"), "test").unwrap();
        let mib = f64::from(1 << 20);
        let all = traffic(&path, last_level_bytes).unwrap().bytes_per_block;
        all.iter().map(|bytes| bytes / mib).collect()
    }

    #[test]
    fn blocks_that_fit_into_the_cache_cost_no_memory_and_a_large_source_is_read() {
        let copied = |span: &str| {
            format!(
                "[source]\nkind = \"memory\"\nspan = \"{span}\"\n[[stage]]\nkind = \"copy\"\n[sink]\nkind = \"read\"\n"
            )
        };
        // Two rings of 8 MiB, and 8 MiB of the source meanwhile.
        assert_eq!(bytes(&copied("8MiB"), 32 << 20), [0.0, 0.0, 0.0]);
        assert_eq!(bytes(&copied("64MiB"), 32 << 20), [1.0, 0.0, 0.0]);
        // Misses: read and written twice, read and written twice, read.
        assert_eq!(bytes(&copied("64MiB"), 16 << 20), [3.0, 3.0, 1.0]);
    }

    #[test]
    fn a_stage_that_touches_no_byte_moves_none_and_an_unknown_cache_says_nothing() {
        let text = "[source]\nkind = \"memory\"\nspan = \"64MiB\"\n[[stage]]\nkind = \"work\"\ntime = \"1us\"\n[sink]\nkind = \"read\"\n";
        assert_eq!(bytes(text, 1 << 20), [3.0, 0.0, 1.0]);
        let path = Path::load("pattern").unwrap();
        assert_eq!(traffic(&path, 0), None);
    }

    #[test]
    fn a_file_in_the_page_cache_is_read_from_memory_where_it_is_larger_than_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data");
        std::fs::File::create(&file).unwrap().set_len(64 << 20).unwrap();
        let text = format!(
            "[source]\nkind = \"file\"\npath = \"{}\"\ncached = true\n[sink]\nkind = \"read\"\n",
            file.display()
        );
        assert_eq!(bytes(&text, 32 << 20), [1.0, 0.0]);
        assert_eq!(bytes(&text, 128 << 20), [0.0, 0.0]);
    }
}
