"""Conversion through Python against the engine's own rate, in turn, in one process: prints the ratio, fails below 0.9.

Run by `cargo xtask ci`, and by hand: `python tests/rate.py`. Not a test of pytest: it is a measurement.
"""

import os
import statistics
import sys
import time

import numpy as np

import daqmeter

SAMPLES = 3_000_000


def python_rate(convert: daqmeter.Conversion, samples: np.ndarray, out: np.ndarray) -> float:
    begin = time.perf_counter()
    convert(samples, out)
    return SAMPLES / (time.perf_counter() - begin)


def rust_rate() -> float:
    workload = {"samples": SAMPLES, "function": 3, "scale_factor": 0.123, "scale_offset": -45.6, "store": "cached"}
    record = daqmeter.run("convert", workload, seconds=0.1)
    stage = record["lanes"][0]["stages"][0]
    return SAMPLES * stage["ops_per_sample"] / statistics.median(stage["sample_ns"]) * 1e9


def main() -> int:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    samples = np.random.default_rng(1).integers(0, 65536, SAMPLES, dtype=np.uint16)
    out = np.empty(SAMPLES, dtype=np.float32)
    convert = daqmeter.Scale(0.123, -45.6)
    convert(samples, out)
    ratios = []
    for _ in range(9):
        by_rust = rust_rate()
        by_python = statistics.median(python_rate(convert, samples, out) for _ in range(100))
        ratios.append(by_python / by_rust)
    ratio = statistics.median(ratios)
    print(f"conversion of {SAMPLES} samples through Python over the engine's rate: {ratio:.3f} (of 9: {min(ratios):.3f} to {max(ratios):.3f}), pinned")
    return 0 if ratio >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
