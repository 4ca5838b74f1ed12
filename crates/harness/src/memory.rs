//! Limits that other engines measure.

use daqmeter_record::Workload;
use daqmeter_record::units::whole;

use crate::engine::LimitSpec;

impl LimitSpec {
    /// Returns the limit of memory at the stage's ratio. Of `counted_bytes` in all, the stage
    /// touches every line with one of its samples, which are `stride_bytes` apart, and writes
    /// `out_bytes` for each.
    pub fn memory(counted_bytes: u64, stride_bytes: u64, out_bytes: u64) -> LimitSpec {
        const LINE_BYTES: u64 = 64;
        // Samples further apart than a line leave lines untouched.
        let per_read = stride_bytes.clamp(1, LINE_BYTES);
        let scale = stride_bytes.max(1) as f64 / per_read as f64;
        let divisor = gcd(per_read, out_bytes);
        let (reads, writes) = (per_read / divisor, out_bytes / divisor);
        let what = if reads == writes {
            "copy".to_owned()
        } else {
            format!("{reads} lines read : {writes} written")
        };
        let sparse = if scale > 1.0 { ", sparse" } else { "" };
        let read_bytes = whole(counted_bytes as f64 / scale);
        LimitSpec::Measured {
            name: format!("memory {reads}:{writes} at {counted_bytes} B{sparse}"),
            how: format!("{what} of the same footprint, no arithmetic; best of all stores"),
            workload: Workload::new("memory")
                .with("read_bytes", read_bytes)
                .with("read_lines", reads)
                .with("write_lines", writes),
            scale,
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(spec: &LimitSpec) -> (u64, u64, f64) {
        let LimitSpec::Measured { workload, scale, .. } = spec else { panic!("measured") };
        (workload.int("read_lines").unwrap(), workload.int("write_lines").unwrap(), *scale)
    }

    #[test]
    fn a_limit_has_the_stages_own_ratio_of_reads_to_writes() {
        assert_eq!(ratio(&LimitSpec::memory(6_000_000, 2, 4)), (1, 2, 1.0));
        assert_eq!(ratio(&LimitSpec::memory(6_000_000, 2, 8)), (1, 4, 1.0));
        assert_eq!(ratio(&LimitSpec::memory(6_000_000, 20, 4)), (5, 1, 1.0));
        assert_eq!(ratio(&LimitSpec::memory(6_000_000, 1, 1)), (1, 1, 1.0));
    }

    #[test]
    fn samples_further_apart_than_a_line_skip_lines() {
        assert_eq!(ratio(&LimitSpec::memory(6_000_000, 128, 4)), (16, 1, 2.0));
    }
}
