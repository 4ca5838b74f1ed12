"""Kept runs against numpy, kills, full disks and lost power. Run by `cargo xtask ci`, and by hand: `python tests/keep.py DAQMETER [KILLS]`.

numpy is the oracle: it reads the arrays and the index without daqmeter, and computes the sums of blocks by their description in the book. What needs
root or another file system is left out with a line where it is missing.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

DAQMETER = sys.argv[1]
KILLS = int(sys.argv[2]) if len(sys.argv) > 2 else 40
BOOK = Path(__file__).parents[2] / "docs/book/src/formats/kept.md"
ENTRY = np.dtype(
    [("number", "<u8"), ("time_ns", "<u8"), ("offset", "<u8"), ("sum", "<u8")]
    + [(name, "<u4") for name in ("bytes", "events", "stream", "file")]
    + [("check", "<u8")]
)
ENDED_EARLY = "the recorder did not end: it was killed, or still runs"
PATH = """
title = "record"
block = "{block}"
{more}
[source]
kind = "digitizer"
devices = ["emu:l0", "emu:l1"]
unpaced = true
[sink]
kind = "file"
path = "{folder}"
keep = true
write = "{write}"
rotate = "{rotate}"
"""
MASK = (1 << 64) - 1


def mixed(total: int, word: int) -> int:
    """The finaliser of splitmix64 over both, in integers of Python."""
    x = ((((total << 5) | (total >> 59)) & MASK) ^ word) + 0x9E3779B97F4A7C15 & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def block_sum(data: bytes) -> int:
    """The sum of a block as the book describes it."""
    strides = len(data) // 64
    words = np.frombuffer(data, dtype="<u8", count=strides * 8).reshape(strides, 8)
    turns = (np.arange(strides - 1, -1, -1, dtype=np.uint64) % 64)[:, None]
    # A turn by 64 bits is none.
    turned = (words << turns) | np.where(turns == 0, 0, words >> ((64 - turns) % 64))
    both = [*np.bitwise_xor.reduce(turned, axis=0), *words.sum(axis=0, dtype=np.uint64)]
    total = len(data)
    for word in [*both, *data[strides * 64 :]]:
        total = mixed(total, int(word))
    return total


def run(*words: str, code: int = 0) -> str:
    done = subprocess.run([DAQMETER, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def check(folder: Path, code: int) -> dict:
    return json.loads(run("check", str(folder), "--json", code=code))


def written(folder: Path, name: str = "record.toml", **fields: str) -> Path:
    own = {"block": "1MiB", "more": "", "write": "auto", "rotate": "1GiB"} | fields
    path = folder / name
    path.write_text(PATH.format(folder=folder / "run", **own))
    return path


def last_interval(kept: Path) -> dict:
    """The last whole line of what the recorder said while it ran."""
    file = kept / "intervals.ndjson"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return json.loads(lines[-1]) if lines else {"written_blocks": 0, "durable_blocks": 0}


def arrays_open_without_us(folder: Path) -> None:
    kept = folder / "run"
    run("digitizer", "emu:l0", "emu:l1", "-S", "3200", "-l", "20", "--rate", "20Hz", "--keep", str(kept))
    check(kept, 0)
    about = json.loads((kept / "run.json").read_text())
    index = np.fromfile(kept / "index", dtype=ENTRY)
    assert len(index) == 40
    for at, stream in enumerate(about["streams"]):
        array = np.load(kept / f"{stream['file']}.0000.npy")
        assert array.shape == (20, 10, 320) and array.dtype == np.uint16, (array.shape, array.dtype)
        for block, entry in zip(array, index[index["stream"] == at]):
            assert block_sum(block.tobytes()) == entry["sum"]
    harmed = kept / "emu-l0.0000.npy"
    data = bytearray(harmed.read_bytes())
    data[5000] ^= 1
    harmed.write_bytes(data)
    assert "block 0 at byte 4096 is not as it was written" in check(kept, 1)["faults"][0]
    # The lines of the book make one file of HDF5.
    lines = BOOK.read_text().split("```python\n")[1].split("```")[0]
    exec(compile(lines.replace('"run7"', repr(str(kept))), "the book", "exec"), {})
    import h5py

    with h5py.File(kept / "run.h5") as file:
        assert file["emu:l1"].shape == (20, 10, 320)
    print("numpy and h5py read the arrays, the index and its sums")


def nothing_kept_is_lost_by_kills(folder: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    cut = blocks = 0
    for kill in range(KILLS):
        kept = folder / "run"
        shutil.rmtree(kept, ignore_errors=True)
        write = chance.choice(["direct", "cached"])
        path = written(folder, write=write, more='rate = "150MB/s"', rotate=chance.choice(["8MiB", "1GiB"]), block=chance.choice(["64KiB", "1MiB"]))
        program = subprocess.Popen([DAQMETER, "path", "run", str(path), "--time", "60s", "-q"], stderr=subprocess.PIPE)
        while not (kept / "index").exists():
            assert program.poll() is None, program.stderr.read()
            time.sleep(0.005)
        time.sleep(chance.uniform(0.0, 2.5))
        program.send_signal(signal.SIGKILL)
        program.wait()
        said = last_interval(kept)
        found = check(kept, 1)
        has = sum(stream["blocks"] for stream in found["streams"])
        at = f"kill {kill}, seed {seed}, {write}: {said}, {found}"
        assert has >= said["written_blocks"], at
        assert ENDED_EARLY in found["faults"], at
        others = [fault for fault in found["faults"] if fault != ENDED_EARLY]
        assert all("within an entry" in fault for fault in others), at
        assert all(stream["missing"] == 0 for stream in found["streams"]), at
        cut += bool(others)
        blocks += has
    print(f"{KILLS} kills: {blocks} blocks kept, none lost that was said to be kept; {cut} cut entries named")


def a_disk_that_goes_keeps_what_was_durable(folder: Path) -> None:
    """A shut-down file system refuses everything, as a disk does that is gone."""
    for write in ("direct", "cached"):
        image = folder / f"{write}.img"
        with Mounted(image, folder / "gone", "xfs", "512M") as disk:
            path = written(disk, write=write, more='rate = "40MB/s"')
            program = subprocess.Popen(
                [DAQMETER, "path", "run", str(path), "--time", "60s", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            while last_interval(disk / "run")["durable_blocks"] == 0:
                assert program.poll() is None, program.stderr.read()
                time.sleep(0.01)
            durable = last_interval(disk / "run")["durable_blocks"]
            subprocess.run(["xfs_io", "-x", "-c", "shutdown", disk], check=True)
            text, _ = program.communicate()
            record = json.loads(text.split("\n")[0])
            assert program.returncode == 1 and "Input/output error" in str(record["outcome"]), record["outcome"]
            for ledger in record["ledgers"]:
                assert ledger["issued"] == ledger["delivered"] + sum(ledger["losses"].values()), ledger
        with Mounted(image, folder / "gone", "xfs") as disk:
            found = check(disk / "run", 1)
            assert readable(disk / "run") >= durable, (durable, found)
            intact = sum((stream["intact"] or 0) + 1 for stream in found["streams"])
            assert intact >= durable, (durable, found)
        print(f"a disk that goes, {write}: {durable} durable blocks, {intact} intact")


class Mounted:
    """A file system in a file, mounted in a folder."""

    def __init__(self, image: Path, folder: Path, kind: str, size: str = "") -> None:
        if size:
            subprocess.run(["truncate", "-s", size, image], check=True)
            subprocess.run([f"mkfs.{kind}", "-q", image], check=True)
        folder.mkdir(exist_ok=True)
        subprocess.run(["mount", "-o", "loop", image, folder], check=True)
        self.folder = folder

    def __enter__(self) -> Path:
        return self.folder

    def __exit__(self, *_: object) -> None:
        # The kernel closes the files of a killed program's io_uring after the program is gone.
        for _ in range(50):
            if subprocess.run(["umount", self.folder], stderr=subprocess.DEVNULL).returncode == 0:
                return
            time.sleep(0.1)
        subprocess.run(["umount", self.folder], check=True)


def a_full_disk_keeps_what_it_has(folder: Path) -> None:
    for write in ("direct", "cached"):
        image = folder / f"{write}.img"
        with Mounted(image, folder / "small", "ext4", "96M") as disk:
            path = written(disk, write=write)
            text = run("path", "run", str(path), "--time", "60s", "--json", code=1)
            record = json.loads(text.split("\n")[0])
            assert "the disk is full" in str(record["outcome"]), record["outcome"]
            ledgers = record["ledgers"]
            for ledger in ledgers:
                assert ledger["issued"] == ledger["delivered"] + sum(ledger["losses"].values()), ledger
            found = check(disk / "run", 1)
            kept = sum(stream["blocks"] for stream in found["streams"])
            assert kept == sum(ledger["delivered"] for ledger in ledgers), (kept, ledgers)
            assert kept > 60 and all("the disk is full" in fault for fault in found["faults"]), found
            print(f"a full disk, {write}: {kept} blocks of 1 MiB kept, ledgers close")


def power_loss_keeps_what_was_durable(folder: Path) -> None:
    """The image of a disk is cloned at a moment, by the file system that it lies on."""
    with Mounted(folder / "outer.img", folder / "outer", "xfs", "3G") as outer:
        seen = []
        with Mounted(outer / "inner.img", folder / "inner", "ext4", "1G") as inner:
            path = written(inner, write="direct", more='rate = "20Hz"', rotate="8MiB")
            program = subprocess.Popen([DAQMETER, "path", "run", str(path), "--time", "60s", "-q"])
            time.sleep(1.5)
            for at in range(5):
                time.sleep(random.uniform(0.3, 0.9))
                said = last_interval(inner / "run")
                clone = outer / f"clone{at}.img"
                subprocess.run(["cp", "--reflink=always", outer / "inner.img", clone], check=True)
                seen.append((clone, said["durable_blocks"]))
            program.kill()
            program.wait()
        for clone, durable in seen:
            with Mounted(clone, folder / "after", "ext4") as disk:
                found = check(disk / "run", 1)
                good = readable(disk / "run")
                assert good >= durable > 0, (good, durable, found)
    print(f"power lost {len(seen)} times: all of {[durable for _, durable in seen]} durable blocks are there")


def readable(kept: Path) -> int:
    """Blocks from the first on whose sums are right, by numpy alone."""
    about = json.loads((kept / "run.json").read_text())
    raw = (kept / "index").read_bytes()
    index = np.frombuffer(raw, dtype=ENTRY, count=len(raw) // ENTRY.itemsize)
    for at, entry in enumerate(index):
        if block_sum(raw[at * 56 : at * 56 + 48]) != entry["check"]:
            return at
        stream = about["streams"][entry["stream"]]
        with (kept / f"{stream['file']}.{entry['file']:04}.npy").open("rb") as file:
            file.seek(int(entry["offset"]))
            if block_sum(file.read(int(entry["bytes"]))) != entry["sum"]:
                return at
    return len(index)


def main() -> None:
    tests = [arrays_open_without_us, nothing_kept_is_lost_by_kills]
    may_mount = os.geteuid() == 0 and Path("/dev/loop-control").exists()
    if may_mount:
        tests += [a_full_disk_keeps_what_it_has]
    if may_mount and shutil.which("mkfs.xfs"):
        tests += [power_loss_keeps_what_was_durable, a_disk_that_goes_keeps_what_was_durable]
    else:
        print("left out: what needs root, loop devices and mkfs.xfs")
    for test in tests:
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder))


if __name__ == "__main__":
    main()
