//! Size of a plan, counted before its points are made.

const MAX_POINTS: u64 = 100_000;
const MAX_BYTES: u64 = 1 << 29;
/// Bytes of a point without its texts.
const POINT_BYTES: u64 = 1 << 10;

#[derive(Debug)]
pub(crate) struct Room {
    points: u64,
    bytes: u64,
}

impl Default for Room {
    fn default() -> Self {
        Room { points: MAX_POINTS, bytes: MAX_BYTES }
    }
}

impl Room {
    /// Takes room for points whose texts are parts of a file of this length.
    pub(crate) fn take(&mut self, points: u64, text_bytes: usize) -> Result<(), String> {
        self.points = self.points.checked_sub(points).ok_or_else(|| {
            format!(
                "{points} points with their repetitions; a plan has at most {MAX_POINTS} points"
            )
        })?;
        let bytes = points.saturating_mul(POINT_BYTES + text_bytes as u64);
        self.bytes = self.bytes.checked_sub(bytes).ok_or_else(|| {
            format!("{points} points of a file of {text_bytes} bytes: divide the file")
        })?;
        Ok(())
    }
}
