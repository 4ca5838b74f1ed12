//! Fixed piece of arithmetic, for the present speed of a CPU and the variation of equal work.

use daqmeter_sys::clock;

/// Returns the time of `rounds` dependent multiplications, in nanoseconds. Only the CPU's clock
/// speed and interruptions change it.
pub(crate) fn arithmetic_ns(rounds: u64) -> u64 {
    let begin = clock::monotonic_ns();
    let mut x = 1_u64;
    for _ in 0..rounds {
        x = std::hint::black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }
    clock::monotonic_ns() - begin
}

/// Returns the time on the calling thread's CPU: the shortest of several pieces, without an
/// interruption. Takes about half a millisecond.
pub(crate) fn speed_ns() -> u64 {
    const PIECES: usize = 8;
    const ROUNDS: u64 = 50_000;
    let pieces = (0..PIECES).map(|_| arithmetic_ns(ROUNDS));
    pieces.min().unwrap_or(0)
}
