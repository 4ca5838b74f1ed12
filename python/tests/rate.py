"""Conversion through Python against the engine's own rate, in turn, in one process.

Run by `cargo xtask ci`, and by hand: `python tests/rate.py`. Not a test of pytest: it is a measurement. Two figures have a target: what a call costs
beside a conversion (at most 10 %), and the rate beside the engine's (at least 0.9). The engine converts in memory that is aligned to 2 MiB and has huge
pages, so the arrays that are judged have the same; what arrays of numpy's own give is printed beside it. Each round has new arrays, because
where pages lie counts too. Hosts differ by more than the distance to the target (0.93 on a Xeon of 2017), so it ends with 1 only for what a fault
would cost, and says whether the targets are met.
"""

import mmap
import os
import statistics
import sys
import time

import numpy as np

import daqmeter

SAMPLES = 3_000_000
ROUNDS = 15
CALLS = 60
HUGE_PAGE = 2 << 20
MAX_CALL_SHARE = 0.1
MIN_RATE = 0.9
# A copy of the samples on the way, the cheapest fault, gives 0.41 to 0.54 of the rate on that Xeon.
FAULTY_RATE = 0.75


def aligned(count: int, kind: type[np.generic]) -> np.ndarray:
    """An array of zeros at a multiple of 2 MiB, on huge pages where the kernel has them."""
    size = count * np.dtype(kind).itemsize
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    everything = np.frombuffer(memory, dtype=np.uint8)
    first = -everything.ctypes.data % HUGE_PAGE
    array = everything[first : first + size].view(kind)
    array[:] = 0
    return array


def a_call_ns(convert: daqmeter.Conversion, samples: np.ndarray, out: np.ndarray) -> float:
    """What one of CALLS calls takes, in the median."""
    convert(samples, out)
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter_ns()
        convert(samples, out)
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times)


def engine_ns() -> float:
    """What the engine takes for as many samples, in the median of a tenth of a second."""
    workload = {"samples": SAMPLES, "function": 3, "scale_factor": 0.123, "scale_offset": -45.6, "store": "cached"}
    stage = daqmeter.run("convert", workload, seconds=0.1)["lanes"][0]["stages"][0]
    return statistics.median(stage["sample_ns"]) / stage["ops_per_sample"]


def median_within(ratios: list[float]) -> tuple[float, float, float]:
    """The median and the interval that holds it with 96.5 %: the fourth from either end of fifteen (a binomial of a half)."""
    assert len(ratios) == 15
    ranked = sorted(ratios)
    return statistics.median(ranked), ranked[3], ranked[11]


def main() -> int:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    codes = np.random.default_rng(1).integers(0, 65536, SAMPLES, dtype=np.uint16)
    convert = daqmeter.Scale(0.123, -45.6)
    call_shares, rates, numpy_rates = [], [], []
    before = engine_ns()
    for _ in range(ROUNDS):
        samples, out = aligned(SAMPLES, np.uint16), aligned(SAMPLES, np.float32)
        samples[:] = codes
        by_python = a_call_ns(convert, samples, out)
        by_numpy = a_call_ns(convert, codes.copy(), np.zeros(SAMPLES, dtype=np.float32))
        nothing = a_call_ns(convert, samples[:1], out[:1])
        after = engine_ns()
        engine = (before + after) / 2
        rates.append(engine / by_python)
        numpy_rates.append(engine / by_numpy)
        call_shares.append(nothing / engine)
        before = after
    call, rate, numpys = (median_within(ratios) for ratios in (call_shares, rates, numpy_rates))
    print(f"conversion of {SAMPLES} samples through Python, pinned, {ROUNDS} rounds in turn with the engine, median (96.5 %):")
    print(f"  a call of one sample over the engine's time    {call[0]:.4f} ({call[1]:.4f} to {call[2]:.4f}), at most {MAX_CALL_SHARE}")
    print(f"  rate over the engine's, memory as the engine's {rate[0]:.3f} ({rate[1]:.3f} to {rate[2]:.3f}), at least {MIN_RATE}")
    print(f"  rate over the engine's, arrays of numpy's own  {numpys[0]:.3f} ({numpys[1]:.3f} to {numpys[2]:.3f}), not judged")
    is_met = call[0] <= MAX_CALL_SHARE and rate[0] >= MIN_RATE
    print("targets met" if is_met else "a target is missed")
    return int(call[0] > MAX_CALL_SHARE or rate[2] < FAULTY_RATE)


if __name__ == "__main__":
    sys.exit(main())
