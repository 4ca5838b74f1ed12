//! A fixed piece of arithmetic: how fast a CPU is at this moment, and how much equal work varies.

use daqmeter_sys::clock;

/// Time of so many dependent multiplications, in nanoseconds. Nothing but the CPU's clock speed,
/// and what interrupts it, changes it.
pub(crate) fn arithmetic_ns(rounds: u64) -> u64 {
    let begin = clock::monotonic_ns();
    let mut x = 1_u64;
    for _ in 0..rounds {
        x = std::hint::black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }
    clock::monotonic_ns() - begin
}

/// Speed of the CPU that the calling thread is on: the shortest of several pieces, which no
/// interruption made longer. Takes about half a millisecond.
pub(crate) fn speed_ns() -> u64 {
    const PIECES: usize = 8;
    const ROUNDS: u64 = 50_000;
    let pieces = (0..PIECES).map(|_| arithmetic_ns(ROUNDS));
    pieces.min().unwrap_or(0)
}
