//! Short loops of known work: the present clock of a CPU, and whether its sibling is busy.
//!
//! A chain of dependent additions takes one cycle for each, whatever else the core does. Straight
//! after a piece of work its time is the clock that the work had (Lemire and Downs 2019, "Measuring
//! the system clock frequency using loops"). Independent additions need the core's issue slots, so
//! a busy sibling slows them, but not the chain.

use crate::clock::monotonic_ns;

/// Cycles of a chain: 2 to 4 us at 4 to 2 GHz, long against the cost of reading the clock.
pub const CHAIN_CYCLES: u64 = 8192;
const SPREAD_ROUNDS: u64 = 2048;
/// Runs of each loop behind [`counts_cycles`].
const RUNS: usize = 33;
/// Latencies of a multiplication in cycles on processors of today, and the error of their ratio.
const MULTIPLICATION: std::ops::RangeInclusive<f64> = 2.0..=5.0;
const RATIO_ERROR: f64 = 0.06;
/// A busy host may spoil all runs of one try.
const TRIES: usize = 4;

/// Times of both loops in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probed {
    /// [`CHAIN_CYCLES`] dependent additions.
    pub chain_ns: u64,
    /// A fixed number of independent additions.
    pub sibling_ns: u64,
    pub end_ns: u64,
}

/// Runs both loops.
pub fn probe() -> Probed {
    let begin = monotonic_ns();
    dependent_additions(CHAIN_CYCLES / 8);
    let chained = monotonic_ns();
    independent_additions(SPREAD_ROUNDS);
    let end_ns = monotonic_ns();
    Probed { chain_ns: chained - begin, sibling_ns: end_ns - chained, end_ns }
}

/// Does dependent additions for that many cycles, to eight of them.
#[inline]
pub fn spend(cycles: u64) {
    if cycles >= 8 {
        dependent_additions(cycles / 8);
    }
}

/// Tests if the chain counts cycles on this host: a chain of multiplications takes a whole number
/// of times as long. Under emulation, or with a clock that is too coarse, it does not. Takes about
/// half a millisecond.
pub fn counts_cycles() -> bool {
    (0..TRIES).any(|_| {
        // The least times: for tens of milliseconds a neighbour slows either chain.
        let least = |work: fn(u64)| {
            let once = |_| {
                let begin = monotonic_ns();
                work(CHAIN_CYCLES / 8);
                monotonic_ns() - begin
            };
            (0..RUNS).map(once).min().unwrap_or(0).max(1) as f64
        };
        let ratio = least(dependent_multiplications) / least(dependent_additions);
        let whole = ratio.round();
        MULTIPLICATION.contains(&whole) && (ratio / whole - 1.0).abs() <= RATIO_ERROR
    })
}

/// Repeats eight instructions in a loop of `$rounds`. The instructions may use `{x}`, `{by}`
/// and the registers that are named here.
macro_rules! repeated {
    (eight $rounds:expr, $instruction:literal) => {
        repeated!($rounds, $instruction, $instruction, $instruction, $instruction,
            $instruction, $instruction, $instruction, $instruction)
    };
    ($rounds:expr, $($instruction:literal),+) => {{
        let (rounds, x): (u64, u64) = ($rounds, 1);
        // SAFETY: changes its registers and the flags, touches no memory, and ends.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            std::arch::asm!("2:", $($instruction,)+ "dec {rounds}", "jnz 2b",
                rounds = inout(reg) rounds => _, x = inout(reg) x => _, by = in(reg) 3_u64,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
                out("r12") _, out("r13") _, out("r14") _, options(nomem, nostack));
            #[cfg(target_arch = "aarch64")]
            std::arch::asm!("2:", $($instruction,)+ "subs {rounds}, {rounds}, #1", "b.ne 2b",
                rounds = inout(reg) rounds => _, x = inout(reg) x => _, by = in(reg) 3_u64,
                out("x8") _, out("x9") _, out("x10") _, out("x11") _,
                out("x12") _, out("x13") _, out("x14") _, options(nomem, nostack));
        }
    }};
}

#[cfg(target_arch = "x86_64")]
mod loops {
    // Register operands: some cores do additions of constants for nothing.
    pub(super) fn dependent_additions(rounds: u64) {
        repeated!(eight rounds, "add {x}, {by}");
    }

    pub(super) fn dependent_multiplications(rounds: u64) {
        repeated!(eight rounds, "imul {x}, {by}");
    }

    pub(super) fn independent_additions(rounds: u64) {
        repeated!(
            rounds,
            "add r8, {by}",
            "add r9, {by}",
            "add r10, {by}",
            "add r11, {by}",
            "add r12, {by}",
            "add r13, {by}",
            "add r14, {by}",
            "add {x}, {by}"
        );
    }
}

#[cfg(target_arch = "aarch64")]
mod loops {
    pub(super) fn dependent_additions(rounds: u64) {
        repeated!(eight rounds, "add {x}, {x}, {by}");
    }

    pub(super) fn dependent_multiplications(rounds: u64) {
        repeated!(eight rounds, "mul {x}, {x}, {by}");
    }

    pub(super) fn independent_additions(rounds: u64) {
        repeated!(
            rounds,
            "add x8, x8, {by}",
            "add x9, x9, {by}",
            "add x10, x10, {by}",
            "add x11, x11, {by}",
            "add x12, x12, {by}",
            "add x13, x13, {by}",
            "add x14, x14, {by}",
            "add {x}, {x}, {by}"
        );
    }
}

use loops::{dependent_additions, dependent_multiplications, independent_additions};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_twice_the_length_takes_twice_the_time() {
        let time = |rounds: u64| {
            let begin = monotonic_ns();
            dependent_additions(rounds);
            monotonic_ns() - begin
        };
        let shortest = |rounds: u64| (0..200).map(|_| time(rounds)).min().unwrap() as f64;
        let (one, two) = (shortest(2000), shortest(4000));
        assert!((1.8..2.2).contains(&(two / one)), "{one} {two}");
        let Probed { chain_ns, sibling_ns, end_ns } = probe();
        assert!(chain_ns > 0 && sibling_ns > 0 && end_ns <= monotonic_ns());
    }
}
