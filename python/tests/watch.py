"""Losses made at known places, and where `daqmeter watch` finds them. Run by `cargo xtask ci`, and
as root: `python3 python/tests/watch.py DAQMETER [--trials N]`; DAQMETER_SEED repeats a trial.

Truth is what the sender sent and the receiver got, nft's counters, maps of the programs of BPF, and
the socket's drops; their sum must be what is missing. Only the backlog is the rest of it.
"""

import ctypes
import itertools
import json
import multiprocessing
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

# Place and first words of the reason in daqmeter's record.
PLACES = {
    "xdp": ("driver", "a program of XDP"),
    "xdpgeneric": ("driver", "a program of generic XDP"),
    "backlog": ("backlog", "the backlog of the CPU"),
    "tc": ("traffic-control", "a filter or policer"),
    "ingress": ("traffic-control", "the firewall"),
    "input": ("ip", "the firewall"),
    "socket": ("socket", "its buffer of"),
}
# A device has one kind of XDP. What the backlog lost is known alone, or beside nft's counters.
APART = [{"xdp", "xdpgeneric"}] + [{"backlog", name} for name in ("xdp", "xdpgeneric", "tc", "socket")]
CASES = [case for count in range(3) for case in itertools.combinations(PLACES, count) if set(case) not in APART]
DAQMETER, TRIALS = sys.argv[1], int(sys.argv[3]) if sys.argv[2:3] == ["--trials"] else len(CASES)
SEND_S, WATCH_S, ADDRESS, PORT, PACKET_BYTES = 0.8, 1.7, "10.78.0.2", 5000, 100
MAX_BACKLOG = Path("/proc/sys/net/core/netdev_max_backlog")
PROGRAMS = Path("/mnt")  # in our own mount namespace
NEW_MOUNTS, NEW_NETWORK, FORCE_BUFFER = 0x20000, 0x40000000, 33
LIBC = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, layout: str, *fields: int) -> int:
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    attributes = ctypes.create_string_buffer(struct.pack(layout, *fields), 128)
    result = LIBC.syscall(number, command, attributes, len(attributes))
    assert result >= 0, f"bpf({command}): {os.strerror(ctypes.get_errno())}"
    return result


def dropper(kind: int, passes: int, drops: int, rate: float, path: Path):
    """Pins a program of BPF that drops at random; returns the function that counts its drops."""
    counts = bpf(0, "4I", 2, 4, 8, 1)
    # Opcode, registers, offset, immediate (linux/bpf.h).
    code = [(0x85, 0, 0, 7), (0x36, 0, 11, int(rate * 2**32))]  # get_prandom_u32() >= rate: pass
    code += [(0x62, 10, -4, 0), (0xBF, 2 | 10 << 4, 0, 0), (0x07, 2, 0, -4)]  # r2 = address of key 0
    code += [(0x18, 1 | 1 << 4, 0, counts), (0, 0, 0, 0), (0x85, 0, 0, 1)]  # r0 = map_lookup_elem
    code += [(0x15, 0, 2, 0), (0xB7, 1, 0, 1), (0xDB, 1 << 4, 0, 0)]  # *r0 += 1, atomically
    code += [(0xB7, 0, 0, drops), (0x95, 0, 0, 0), (0xB7, 0, 0, passes), (0x95, 0, 0, 0)]
    texts = b"".join(struct.pack("<BBhi", *one) for one in code), b"GPL", bytes(path)
    buffers = [ctypes.create_string_buffer(text) for text in texts]
    instructions, license, name = map(ctypes.addressof, buffers)
    program = bpf(5, "2I2Q", kind, len(code), instructions, license)
    bpf(6, "QI", name, program)
    os.close(program)

    def count() -> int:
        key, value = ctypes.c_uint32(0), ctypes.c_uint64(0)
        bpf(1, "Q2Q", counts, ctypes.addressof(key), ctypes.addressof(value))
        return value.value

    return count


class Host:
    """A process in a network namespace, which ends with it."""

    def __init__(self, work) -> None:
        self.pipe, far = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=self.serve, args=(far, work), daemon=True)
        self.process.start()
        far.close()
        self.inside = f"nsenter --target {self.process.pid} --net "
        self.ask()

    def serve(self, pipe, work) -> None:
        self.pipe.close()
        assert LIBC.unshare(NEW_NETWORK) == 0, "no new network namespace"
        # Nothing but the sender's packets: no neighbour discovery.
        for path in Path("/proc/sys/net/ipv6/conf").glob("*/disable_ipv6"):
            path.write_text("1")
        pipe.send(None)
        while True:
            pipe.send(work(pipe, *pipe.recv()))

    def on(self, words: str) -> str:
        return subprocess.run(self.inside + words, shell=True, check=True, stdout=subprocess.PIPE, text=True).stdout

    def ask(self, *words):
        """Sends words, if any; returns the answer."""
        if words:
            self.pipe.send(words)
        assert self.pipe.poll(20), "a host does not answer"
        return self.pipe.recv()


def send(_pipe, packets_per_s: int) -> tuple[int, int]:
    """Sends numbered packets, those of each millisecond together; returns how many, and drops since the start."""
    os.sched_setaffinity(0, {0})  # the backlog is that of CPU 1
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    total, number, filler, began = int(packets_per_s * SEND_S), 0, bytes(PACKET_BYTES - 8), time.monotonic()
    while number < total:
        due = min(total, int((time.monotonic() - began) * packets_per_s))
        # A veth device with XDP holds 256; more may be due if the sender had no CPU.
        burst = range(number, min(due, number + 60))
        for number in burst:
            out.sendto(struct.pack("<Q", number) + filler, (ADDRESS, PORT))
        number = burst.stop
        time.sleep(0.001)
    (row,) = (row.split() for row in Path("/proc/net/dev").read_text().splitlines() if "v0:" in row)
    return total, int(row[12])


def receive(pipe, work_us: int, buffer_bytes: int) -> tuple[int, int]:
    """Receives until the pipe has a word; returns packets, and the drops of the socket."""
    entry = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    entry.setsockopt(socket.SOL_SOCKET, FORCE_BUFFER, buffer_bytes)
    entry.bind((ADDRESS, PORT))
    entry.settimeout(0.02)
    pipe.send(None)
    received, next_number = 0, 0
    while True:
        try:
            (number,) = struct.unpack_from("<Q", entry.recv(2048))
            assert number >= next_number, "a packet came twice or too late"
            received, next_number = received + 1, number + 1
            until = time.monotonic_ns() + work_us * 1000
            while time.monotonic_ns() < until:
                pass
        except TimeoutError:
            if pipe.poll() and pipe.recv():
                (row,) = Path("/proc/net/udp").read_text().splitlines()[1:]
                return received, int(row.split()[-1])


def has_open(file: Path, name: str) -> bool:
    """A descriptor may be closed while it is looked at."""
    try:
        return os.readlink(file).endswith(name)
    except OSError:
        return False


class Bench:
    def __init__(self) -> None:
        self.sender, self.receiver, self.drops = Host(send), Host(receive), 0
        mac, peer = "02:00:00:00:00:0", self.receiver.process.pid
        self.sender.on(f"ip link add v0 address {mac}1 type veth peer name v1 address {mac}2 netns {peer}")
        for host, at in [(self.sender, 1), (self.receiver, 2)]:
            host.on(f"ip addr add 10.78.0.{at}/24 dev v{at - 1}")
            host.on(f"ip link set v{at - 1} up")
            host.on(f"ip neigh replace 10.78.0.{3 - at} lladdr {mac}{3 - at} dev v{at - 1} nud permanent")

    def inject(self, name: str, rate: float, stack: ExitStack):
        """Makes a loss until the stack ends; returns the function that counts it, if there is one."""
        def during(begin: str, end: str) -> None:
            self.receiver.on(begin)
            stack.callback(self.receiver.on, end)

        if name in ("xdp", "xdpgeneric", "tc"):
            count = dropper(*((3, 0, 2) if name == "tc" else (6, 2, 1)), rate, path := PROGRAMS / name)
            if name == "tc":
                filter = f"tc qdisc add dev v1 clsact && tc filter add dev v1 ingress bpf da pinned {path}"
                during(f"sh -c '{filter}'", "tc qdisc del dev v1 clsact")
            else:
                during(f"ip link set v1 {name} pinned {path}", f"ip link set v1 {name} off")
            path.unlink()
            return count
        if name in ("input", "ingress"):
            family, hook = ("inet", "input") if name == "input" else ("netdev", "ingress device v1")
            chain = f"add chain {family} t c {{ type filter hook {hook} priority 0; }}"
            rule = f"numgen random mod 1000000 < {max(1, int(rate * 1e6))} counter drop"
            during(f"nft 'add table {family} t; {chain}; add rule {family} t c {rule}'", f"nft delete table {family} t")
            return lambda: int(self.receiver.on(f"nft list table {family} t").split("packets ")[1].split()[0])
        if name == "backlog":
            steer = "unshare --mount sh -c 'mount -t sysfs none /sys && echo %d > /sys/class/net/v1/queues/rx-0/rps_cpus'"
            during(steer % 2, steer % 0)

    def watch(self, target: str) -> tuple[subprocess.Popen, float]:
        """Starts daqmeter; returns when it has counted once, and with the time of that."""
        words = ("" if target.startswith("--pid") else self.receiver.inside) + f"{DAQMETER} watch {target} --time {WATCH_S}s --json"
        watch = subprocess.Popen(words.split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 10
        while not any(has_open(file, "softnet_stat") for file in Path(f"/proc/{watch.pid}/fd").glob("*")):
            assert watch.poll() is None and time.monotonic() < until, f"{words} does not begin: {watch.communicate()}"
            time.sleep(0.005)
        began = time.monotonic()
        time.sleep(0.3)
        return watch, began

    def trial(self, seed: int) -> dict[str, bool] | None:
        dice, names = random.Random(seed), CASES[seed % len(CASES)]
        rates = {name: 10 ** dice.uniform(-4, -0.52) for name in names}
        target = dice.choice([f"--pid {self.receiver.process.pid}", f"--port udp/{PORT}", ""])
        packets_per_s, backlog = dice.randrange(10_000, 30_000), dice.randrange(1, 6)
        # More time for a packet than lies between two of them.
        work = (dice.randrange(150, 400), 4096) if "socket" in names else (0, 8 << 20)
        with ExitStack() as stack:
            counts = {name: self.inject(name, rates[name], stack) for name in names}
            self.receiver.ask(*work)
            watch, began = self.watch(target)
            with ExitStack() as limit:
                if "backlog" in names:
                    limit.callback(MAX_BACKLOG.write_text, MAX_BACKLOG.read_text())
                    MAX_BACKLOG.write_text(str(backlog))
                sent, drops = self.sender.ask(packets_per_s)
            quiet_s = began + WATCH_S - time.monotonic()
            output, said = watch.communicate(timeout=20)
            received, full = self.receiver.ask("end")
            truth = {name: count() for name, count in counts.items() if count} | {"socket": full}
        # A full ring of the pair drops at the sender, where drops of the backlog are counted, too.
        sent -= 0 if "backlog" in names else drops - self.drops
        self.drops = drops
        if quiet_s < 0.2:
            return None  # the watch may have counted before the sender ended
        truth["backlog"] = sent - received - sum(truth.values())
        truth = {name: count for name, count in truth.items() if count}
        assert truth.keys() <= set(names), f"seed {seed}: the truth is not closed: {sent=} {received=} {truth}"
        section = json.loads(output.splitlines()[-1])["sections"]["watched"]
        found: dict[str, int] = {}
        for loss in section["losses"]:
            is_row = [loss["place"] == place and loss["reason"].startswith(reason) for place, reason in PLACES.values()]
            name = [*PLACES, f"{loss['place']}: {loss['reason']}"][[*is_row, True].index(True)]
            found[name] = found.get(name, 0) + loss["packets"]
        stages = section["stages"]
        closed = (stages[0]["came_in"], stages[-1]["went_on"]) == (sent, received) and not any(stage["other"] for stage in stages)
        result = {"named rightly": found.keys() == truth.keys(), "exact": found == truth}
        result |= {"with closed stages": closed, "with the right exit code": watch.returncode == bool(truth)}
        if not all(result.values()):
            print(f"seed {seed} ({rates}; {target or 'host'}) is not {', '.join(key for key, good in result.items() if not good)}:")
            print(f"  true {truth}, found {found}; sent {sent}, received {received}; exit code {watch.returncode}")
            print("\n".join(f"  {stage}" for stage in stages), section["unseen"], section["notes"], said, flush=True)
        return result


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if LIBC.unshare(NEW_MOUNTS) < 0 or (os.cpu_count() or 1) < 2:
        print("no namespaces without root, or no second CPU for a backlog")
        return 3
    first = int(os.environ.get("DAQMETER_SEED") or random.randrange(10**6))
    print(f"seeds from {first}", flush=True)
    results, too_slow = [], 0
    subprocess.run(f"mount --make-rprivate / && mount -t bpf none {PROGRAMS}", shell=True, check=True)
    bench = Bench()
    while len(results) < TRIALS:
        result = bench.trial(first + len(results))
        results += [result] if result else []
        too_slow += not result
        assert too_slow <= 5 + len(results), "this host is too slow"
    sums = {key: sum(result[key] for result in results) for key in results[0]}
    print(f"{len(results)} trials:", ", ".join(f"{count} {key}" for key, count in sums.items()), f"({too_slow} repeated: slow host)")
    return 0 if all(count == len(results) for count in sums.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
