#!/usr/bin/env python3
"""Conversion of 3 M samples by daqmeter, numpy, numba, C and VOLK, in turn, on one pinned CPU.

    bench/peers.py [PROGRAM]

Makes a virtual environment beside this file, installs numpy and numba into it from PyPI and VOLK from Debian
(libvolk2-bin), compiles loops in C (cc -O3 -march=native), and prints the median rate of each in MB/s of raw samples
(2 bytes each). Each does what its users would write for the best result: preallocated output, one thread. Prints which
of them daqmeter is slower than. Builds daqmeter first, unless PROGRAM names it.
"""
import ctypes
import ctypes.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
SAMPLES = 3_000_000
ROUNDS = 101
FACTOR, OFFSET = 0.123, -45.6


def inside_venv():
    venv = HERE / ".venv"
    python = venv / "bin" / "python"
    if sys.prefix == str(venv):
        return
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "numpy", "numba"], check=True)
    os.execv(str(python), [str(python), *sys.argv])


def volk():
    """The VOLK library, installed from Debian if it is not there."""
    name = ctypes.util.find_library("volk")
    if name is None and os.geteuid() == 0:
        subprocess.run(["apt-get", "install", "-y", "-qq", "libvolk2-bin"], check=False, stdout=subprocess.DEVNULL)
        name = ctypes.util.find_library("volk")
    return ctypes.CDLL(name) if name else None


C_LOOPS = """
#include <stdint.h>
#include <stddef.h>
void cast(const uint16_t *raw, float *out, size_t n) { for (size_t i = 0; i < n; i++) out[i] = raw[i]; }
void scale(const uint16_t *raw, float *out, size_t n, double factor, double offset)
{ for (size_t i = 0; i < n; i++) out[i] = (float)((double)raw[i] * factor + offset); }
void decimate(const uint16_t *raw, float *out, size_t n, size_t step)
{ for (size_t i = 0; i < n; i++) out[i] = raw[i * step]; }
void decimate_scale(const uint16_t *raw, float *out, size_t n, size_t step, double factor, double offset)
{ for (size_t i = 0; i < n; i++) out[i] = (float)((double)raw[i * step] * factor + offset); }
void u64(const uint16_t *raw, double *out, size_t n, double weight) { for (size_t i = 0; i < n; i++) out[i] = raw[i] * weight; }
void s64(const int16_t *raw, double *out, size_t n, double weight) { for (size_t i = 0; i < n; i++) out[i] = raw[i] * weight; }
void u32(const uint16_t *raw, float *out, size_t n, float weight) { for (size_t i = 0; i < n; i++) out[i] = raw[i] * weight; }
void s32(const int16_t *raw, float *out, size_t n, float weight) { for (size_t i = 0; i < n; i++) out[i] = raw[i] * weight; }
"""


def c_loops():
    """The loops in C, as the host's compiler makes them with the instructions of this CPU; none without a compiler.

    The contraction of a product and a sum to one step is off: it would round once where the definition rounds twice.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, library = pathlib.Path(folder) / "loops.c", pathlib.Path(folder) / "loops.so"
        source.write_text(C_LOOPS)
        command = ["cc", "-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-o", library, source]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return ctypes.CDLL(str(library))


def median_rate(work):
    work()
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - begin)
    times.sort()
    return SAMPLES * 2 / times[len(times) // 2] * 1e3


def daqmeter(program, function, factor, cpu):
    command = [program, "digitizer", "emu:l0", "--unpaced", "-S", str(SAMPLES), "-N", str(ROUNDS), "-A", str(function)]
    command += ["-f", str(factor), "-F", str(FACTOR), "-O", str(OFFSET), "--pin", str(cpu), "--json"]
    record = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    samples = sorted(record["lanes"][0]["stages"][-1]["sample_ns"])
    return SAMPLES * 2 / samples[len(samples) // 2] * 1e3


def peers(np, numba, library, loops):
    """Name of the operation, daqmeter's function and decimation, and the peers' ways to do it."""
    raw = ((np.arange(SAMPLES, dtype=np.uint32) * 40503) >> 3).astype(np.uint16)
    signed = raw.view(np.int16)
    f32, f64 = np.zeros(SAMPLES, np.float32), np.zeros(SAMPLES, np.float64)
    tenth = np.zeros(SAMPLES // 10, np.float32)
    scratch = np.zeros(SAMPLES, np.float64)

    def compiled(loop):
        return numba.njit(loop, fastmath=False)

    @compiled
    def cast(raw, out):
        for i in range(raw.size):
            out[i] = raw[i]

    @compiled
    def scale(raw, out, factor, offset):
        for i in range(raw.size):
            out[i] = np.float32(np.float64(raw[i]) * factor + offset)

    @compiled
    def decimate(raw, out, step):
        for i in range(out.size):
            out[i] = raw[i * step]

    @compiled
    def decimate_scale(raw, out, step, factor, offset):
        for i in range(out.size):
            out[i] = np.float32(np.float64(raw[i * step]) * factor + offset)

    @compiled
    def qmn(raw, out, weight):
        for i in range(raw.size):
            out[i] = raw[i] * weight

    def numpy_scale(raw, out, scratch):
        np.multiply(raw, FACTOR, out=scratch)
        np.add(scratch, OFFSET, out=scratch)
        np.copyto(out, scratch, casting="same_kind")

    u, s = 2.0**-15, 2.0**-13
    u32, s32 = np.float32(u), np.float32(s)
    cases = [
        ("cast", 4, 1, {"numpy": lambda: np.copyto(f32, raw), "numba": lambda: cast(raw, f32)}),
        ("scale", 3, 1, {"numpy": lambda: numpy_scale(raw, f32, scratch), "numba": lambda: scale(raw, f32, FACTOR, OFFSET)}),
        ("decimate 1", 2, 1, {"numpy": lambda: np.copyto(f32, raw[::1]), "numba": lambda: decimate(raw, f32, 1)}),
        ("decimate 10", 2, 10, {"numpy": lambda: np.copyto(tenth, raw[::10]), "numba": lambda: decimate(raw, tenth, 10)}),
        ("decimate 10 + scale", 1, 10, {
            "numpy": lambda: numpy_scale(raw[::10], tenth, scratch[: SAMPLES // 10]),
            "numba": lambda: decimate_scale(raw, tenth, 10, FACTOR, OFFSET),
        }),
        ("unsigned f64", 5, 1, {"numpy": lambda: np.multiply(raw, u, out=f64), "numba": lambda: qmn(raw, f64, u)}),
        ("signed f64", 6, 1, {"numpy": lambda: np.multiply(signed, s, out=f64), "numba": lambda: qmn(signed, f64, s)}),
        ("unsigned f32", 7, 1, {"numpy": lambda: np.multiply(raw, u32, out=f32), "numba": lambda: qmn(raw, f32, u32)}),
        ("signed f32", 8, 1, {"numpy": lambda: np.multiply(signed, s32, out=f32), "numba": lambda: qmn(signed, f32, s32)}),
    ]
    if loops is not None:
        pointers = {id(array): ctypes.c_void_p(array.ctypes.data) for array in (raw, signed, f32, f64, tenth)}

        def loop(name, source, out, *more):
            call, arguments = getattr(loops, name), (pointers[id(source)], pointers[id(out)], ctypes.c_size_t(out.size), *more)
            return lambda: call(*arguments)

        step, factor, offset = ctypes.c_size_t(10), ctypes.c_double(FACTOR), ctypes.c_double(OFFSET)
        in_c = [
            loop("cast", raw, f32),
            loop("scale", raw, f32, factor, offset),
            loop("decimate", raw, f32, ctypes.c_size_t(1)),
            loop("decimate", raw, tenth, step),
            loop("decimate_scale", raw, tenth, step, factor, offset),
            loop("u64", raw, f64, ctypes.c_double(u)),
            loop("s64", signed, f64, ctypes.c_double(s)),
            loop("u32", raw, f32, ctypes.c_float(u)),
            loop("s32", signed, f32, ctypes.c_float(s)),
        ]
        for case, work in zip(cases, in_c, strict=True):
            case[3]["C"] = work
    if library is not None:
        # A dispatcher is a pointer to a function, chosen at the first call.
        pointer = ctypes.c_void_p.in_dll(library, "volk_16i_s32f_convert_32f")
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_uint)
        def convert(scalar):
            call(pointer.value)(f32.ctypes.data, signed.ctypes.data, scalar, SAMPLES)
        convert(1.0)
        cases[-1][3]["VOLK"] = lambda: convert(float(1 << 13))
    return cases


def main():
    inside_venv()
    import numba
    import numpy as np

    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})
    program = sys.argv[1] if len(sys.argv) > 1 else ROOT / "target" / "release" / "daqmeter"
    if len(sys.argv) == 1:
        subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    library, loops = volk(), c_loops()
    print(f"one thread on CPU {cpu}, {SAMPLES} samples, medians of {ROUNDS}, MB/s raw; "
          f"numpy {np.__version__}, numba {numba.__version__}, VOLK {'found' if library else 'NOT FOUND: left out'}, "
          f"C compiler {'found' if loops else 'NOT FOUND: left out'}")
    print(f"{'operation':<20} {'daqmeter':>9} {'numpy':>9} {'numba':>9} {'C':>9} {'VOLK':>9}")
    slower = []
    for name, function, factor, ways in peers(np, numba, library, loops):
        ours = daqmeter(program, function, factor, cpu)
        rates = {peer: median_rate(work) for peer, work in ways.items()}
        ours = (ours + daqmeter(program, function, factor, cpu)) / 2  # before and after the peers
        cells = " ".join(f"{rates[peer]:>9.0f}" if peer in rates else f"{'-':>9}" for peer in ("numpy", "numba", "C", "VOLK"))
        print(f"{name:<20} {ours:>9.0f} {cells}")
        slower += [f"{name}: {peer} is {rate / ours:.2f} times as fast" for peer, rate in rates.items() if rate > ours * 1.05]
    print("daqmeter is slower than: " + ("; ".join(slower) if slower else "none of them (within 5 %)"))


if __name__ == "__main__":
    main()
