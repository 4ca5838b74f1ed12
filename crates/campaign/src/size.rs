//! Size of a plan, counted before its points are made.

const MAX_POINTS: u64 = 100_000;
const MAX_FILES: u64 = 64;
/// Combinations that a sweep leaves out: each point is compared with each of them.
const MAX_SKIPS: usize = 100;
const MAX_BYTES: u64 = 1 << 29;
/// Bytes of a point's parameters and their names, without its texts.
const POINT_BYTES: u64 = 1 << 10;

pub(crate) struct SweepSize {
    pub(crate) points: u64,
    pub(crate) repetitions: u64,
    pub(crate) skips: usize,
    pub(crate) text_bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Room {
    files: u64,
    points: u64,
    bytes: u64,
}

impl Default for Room {
    fn default() -> Self {
        Room { files: MAX_FILES - 1, points: MAX_POINTS, bytes: MAX_BYTES }
    }
}

impl Room {
    pub(crate) fn include(&mut self) -> Result<(), String> {
        self.files = self
            .files
            .checked_sub(1)
            .ok_or_else(|| format!("a plan has at most {MAX_FILES} files"))?;
        Ok(())
    }

    pub(crate) fn sweep(&mut self, size: &SweepSize) -> Result<(), String> {
        if size.skips > MAX_SKIPS {
            return Err(format!(
                "{} combinations are left out; at most {MAX_SKIPS} are compared",
                size.skips
            ));
        }
        // Points with no repetition are made all the same.
        let points = size.points.saturating_mul(size.repetitions.max(1));
        let left = self.points.checked_sub(points);
        self.points = left.ok_or_else(|| {
            format!(
                "{points} points with their repetitions; a plan has at most {MAX_POINTS} points"
            )
        })?;
        let bytes = points.saturating_mul(POINT_BYTES + size.text_bytes as u64);
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.ok_or_else(|| {
            format!("{points} points with {} bytes of text each", size.text_bytes)
        })?;
        Ok(())
    }
}
