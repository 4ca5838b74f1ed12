"""Losses made at known places and for known causes, and what `daqmeter watch` says of them. Run by
`cargo xtask ci`, and as root: `python3 python/tests/watch.py DAQMETER [--losses N] [--causes N [--tries N]]`;
DAQMETER_SEED repeats a trial.

Truth of a place is what the sender sent and the receiver got, nft's counters, maps of the programs
of BPF, and the socket's drops; their sum must be what is missing. Only the backlog is the rest of
it. Truth of a cause is that the same receiver loses nothing without it, or less than a tenth.
"""

import ctypes
import itertools
import json
import multiprocessing
import os
import random
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
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
# Why a socket's buffer is full, in daqmeter's words.
CAUSES = ["slow program", "CPU taken", "blocked by a file", "burst", "interrupts"]


def count_of(option: str, default: int) -> int:
    return int(sys.argv[sys.argv.index(option) + 1]) if option in sys.argv else default


DAQMETER, TRIALS, CAUSE_TRIALS = sys.argv[1], count_of("--losses", len(CASES)), count_of("--causes", len(CAUSES))
SEND_S, WATCH_S, ADDRESS, PORT, PACKET_BYTES = 0.8, 1.7, "10.78.0.2", 5000, 100
CAUSE_SEND_S, CAUSE_WATCH_S = 1.2, 2.0
STEER = "unshare --mount sh -c 'mount -t sysfs none /sys && echo %x > /sys/class/net/v1/queues/rx-0/rps_cpus'"
SLOW_FILE = Path(f"/var/tmp/daqmeter-watch-{os.getpid()}")
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
        # The reader is one of several threads, and not the last one.
        for _ in range(3):
            threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
        pipe.send(None)
        while True:
            pipe.send(work(pipe, *pipe.recv()))

    def on(self, words: str) -> str:
        return subprocess.run(self.inside + words, shell=True, check=True, stdout=subprocess.PIPE, text=True).stdout

    def ask(self, *words):
        """Sends words, if any; returns the answer."""
        if words:
            self.pipe.send(words)
        assert self.pipe.poll(50), "a host does not answer"
        return self.pipe.recv()


def send(_pipe, packets_per_s: int, send_s: float = SEND_S, burst_s: float = 0) -> tuple[int, int, float]:
    """Sends numbered packets, those of each millisecond or burst together; returns how many, drops since the start, and the time."""
    os.sched_setaffinity(0, {0})  # the backlog is that of CPU 1
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    total, number, filler, began = int(packets_per_s * send_s), 0, bytes(PACKET_BYTES - 8), time.monotonic()
    while number < total:
        time_s = time.monotonic() - began
        due = min(total, int((time_s - time_s % burst_s if burst_s else time_s) * packets_per_s))
        # A veth device with XDP holds 256; more may be due if the sender had no CPU.
        burst = range(number, min(due, number + (10_000 if burst_s else 60)))
        for number in burst:
            out.sendto(struct.pack("<Q", number) + filler, (ADDRESS, PORT))
        number = burst.stop
        time.sleep(0.001)
    (row,) = (row.split() for row in Path("/proc/net/dev").read_text().splitlines() if "v0:" in row)
    return total, int(row[12]), time.monotonic() - began


def buffer_of(packets: float) -> int:
    """Size of a buffer for small packets, of which each takes up to 1280 bytes; the kernel doubles it."""
    return int(packets) * 1280 // 2


def spin(times: int) -> None:
    for _ in range(times):
        pass


def spins_per_us() -> float:
    def measure() -> float:
        began = time.monotonic_ns()
        spin(20_000)
        return 20e6 / (time.monotonic_ns() - began)

    return sorted(measure() for _ in range(40))[20]


def receive(pipe, work_us: float, buffer_bytes: int, cpus: set[int] = {0, 1}, stall=None) -> tuple[int, int]:
    """Receives until the pipe has a word; returns packets, and the drops of the socket. A stall is the
    time between two writes to a slow file, and their bytes."""
    os.sched_setaffinity(0, cpus)
    work, next_stall = int(work_us * spins_per_us()), time.monotonic()
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
            spin(work)
            if stall and time.monotonic() > next_stall:
                write_slowly(stall[1])
                next_stall = time.monotonic() + stall[0]
        except TimeoutError:
            if pipe.poll() and pipe.recv():
                (row,) = Path("/proc/net/udp").read_text().splitlines()[1:]
                return received, int(row.split()[-1])


def write_slowly(bytes_count: int) -> float:
    """Returns the time until the bytes were on the disk."""
    began = time.monotonic()
    file = os.open(SLOW_FILE, os.O_WRONLY | os.O_CREAT | os.O_DSYNC)
    os.write(file, bytes(bytes_count))
    os.close(file)
    return time.monotonic() - began


def take_cpu(bursts: tuple[float, float] | None) -> None:
    """Takes CPU 1: half of it, or all of it for a time, again and again."""
    os.sched_setaffinity(0, {1})
    if bursts:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    while True:
        until = time.monotonic() + (bursts[0] if bursts else 1)
        while time.monotonic() < until:
            pass
        if bursts:
            time.sleep(bursts[1])


def until(what: str, holds):
    """Returns the first answer that holds."""
    end = time.monotonic() + 20
    while not (answer := holds()):
        assert time.monotonic() < end, f"not within 20 s: {what}"
        time.sleep(0.01)
    return answer


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
            self.steer(1)
            stack.callback(self.steer, None)

    def watch(self, target: str, watch_s: float = WATCH_S) -> tuple[subprocess.Popen, float]:
        """Starts daqmeter; returns when it has counted once, and with the time of that."""
        words = ("" if target.startswith("--pid") else self.receiver.inside) + f"{DAQMETER} watch --time {watch_s}s --json {target}"
        watch = subprocess.Popen(shlex.split(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(f"{words} counts", lambda: watch.poll() is not None or "nanosleep" in Path(f"/proc/{watch.pid}/wchan").read_text())
        assert watch.poll() is None, f"{words} does not begin: {watch.communicate()}"
        began = time.monotonic()
        time.sleep(0.3)  # it sees who reads the sockets
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
                sent, drops, _ = self.sender.ask(packets_per_s)
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

    def steer(self, cpu: int | None) -> None:
        """Takes packets to the protocols on this CPU, or on the sender's."""
        self.receiver.on(STEER % (0 if cpu is None else 1 << cpu))

    def cost_us(self, stack: ExitStack) -> float:
        """Makes a firewall of many rules that no packet matches; returns what they take for a packet."""
        def of_a_packet() -> float:
            self.receiver.ask(0, 8 << 20)
            packets, _, seconds = self.sender.ask(10**9, 2e-6, 1e-9)
            self.receiver.ask("end")
            return seconds / packets * 1e6

        without, rules = of_a_packet(), "add rule inet t c udp dport 9 drop; " * 1500
        table = "add table inet t; add chain inet t c { type filter hook input priority 0; }"
        subprocess.run(f"{self.receiver.inside} nft -f -".split(), input=f"{table}; {rules}".replace(";", "\n").replace("0\n", "0;"), check=True, text=True)
        stack.callback(self.receiver.on, "nft delete table inet t")
        return of_a_packet() - without

    def cause_trial(self, seed: int) -> dict[str, bool] | None:
        dice, name = random.Random(seed), CAUSES[seed % len(CAUSES)]
        per_s, work_us, burst_s, stall = dice.randrange(3_000, 8_000), 5.0, 0.0, None
        buffer_bytes = buffer_of(per_s * 0.015)
        with ExitStack() as stack:
            if name == "slow program":
                work_us = dice.uniform(1.6, 3) * 1e6 / per_s
            elif name == "CPU taken":
                bursts = dice.choice([None, (dice.uniform(0.02, 0.06), dice.uniform(0.1, 0.2))])
                work_us = (0.2 if bursts else 0.55) * 1e6 / per_s
            elif name == "blocked by a file":
                stall = dice.uniform(0.1, 0.3), SLOW_BYTES
            elif name == "burst":
                per_s, work_us, burst_s = per_s // 4, dice.uniform(30, 60), dice.uniform(0.05, 0.15)
                buffer_bytes = max(4096, buffer_of(per_s * burst_s / dice.uniform(2, 4)))
            else:
                cost_us = self.cost_us(stack)
                per_s = int(dice.uniform(0.55, 0.75) * 1e6 / cost_us)
                work_us = dice.uniform(0.4, 0.5) * 1e6 / per_s
                buffer_bytes = buffer_of(per_s * 0.015)
            found = []
            for is_made in (False, True):
                plain_us = 0.3 * 1e6 / per_s if name == "slow program" else work_us
                self.receiver.ask(work_us if is_made else plain_us, buffer_bytes, {1}, stall if is_made else None)
                hog = None
                with ExitStack() as during:
                    if is_made and name == "CPU taken":
                        hog = multiprocessing.Process(target=take_cpu, args=(bursts,), daemon=True)
                        hog.start()
                        during.callback(hog.kill)
                    if is_made and name == "interrupts":
                        self.steer(1)
                        during.callback(self.steer, None)
                    watch, _ = self.watch(f"--pid {self.receiver.process.pid}", CAUSE_WATCH_S) if is_made else (None, 0)
                    sent, _, took_s = self.sender.ask(per_s, CAUSE_SEND_S, burst_s if is_made else 0.0)
                    output, said = watch.communicate(timeout=20) if watch else ("", "")
                received, drops = self.receiver.ask("end")
                found.append((sent, received, drops))
        # Work whose time was measured on a slower CPU may be too short to be the cause.
        fewest = sent / 10 if name == "slow program" else 20
        if drops < fewest or found[0][2] * 10 > drops or took_s > 1.3 * CAUSE_SEND_S:
            print(f"seed {seed} ({name}) is repeated: {found=} {took_s=:.2f}", flush=True)
            return None
        section = json.loads(output.splitlines()[-1])["sections"]["watched"]
        losses = [loss for loss in section["losses"] if loss["place"] == "socket"]
        causes = losses[0]["causes"] if losses else []
        named = causes[0]["cause"] if causes else "none"
        result = {"with the right cause": named == name}
        result |= {"with who had the CPU": not hog or f"({hog.pid}," in causes[0]["text"]}
        result |= {"without a wrong cause": named in (name, "none", "reader not seen")}
        # A file system without a disk, such as tmpfs, has device 0.
        has_disk = name == "blocked by a file" and os.major(SLOW_FILE.parent.stat().st_dev) > 0
        result |= {"with the disk": not has_disk or "for a write" in causes[0]["text"]}
        if not all(result.values()) or "-v" in sys.argv:
            print(f"seed {seed}: {name} ({per_s} packets/s, {work_us:.0f} us, {buffer_bytes} bytes {burst_s=:.2f} {stall=} hog {hog and bursts}): {found}")
            for cause in causes:
                print(f"  {cause['packets']} in {cause['bursts']}: {cause['cause']}: {cause['text']}")
            print(section["notes"], said, flush=True)
        return result

    def settings(self) -> tuple[set[int], str]:
        """CPUs of the receiver, and the size of its buffer."""
        memory = self.receiver.on(f"ss -uanm sport = {PORT}").split("skmem:(")[1]
        return os.sched_getaffinity(self.receiver.process.pid), memory.split(",")[1]

    def remedies(self) -> bool:
        """Tries what avoids a loss, and a kill meanwhile; another buffer and other CPUs avoid it here, too."""
        per_s, bursts = 4000, (0.04, 0.15)
        buffer_bytes, pid = buffer_of(per_s * 0.015), self.receiver.process.pid
        work_us, lost, result = 0.2 * 1e6 / per_s, {}, {}
        hog = multiprocessing.Process(target=take_cpu, args=(bursts,), daemon=True)
        hog.start()
        try:
            for what, words in {"before": (buffer_bytes, {1}), "buffer": (8 << 20, {1}), "CPUs": (buffer_bytes, {0})}.items():
                self.receiver.ask(work_us, *words)
                self.sender.ask(per_s, CAUSE_SEND_S)
                lost[what] = self.receiver.ask("end")[1]
            self.receiver.ask(work_us, buffer_bytes, {1})
            before = self.settings()
            self.sender.pipe.send((per_s, 45.0))
            words = f"{DAQMETER} watch --pid {pid} --time 1s --try --confirm --json"
            done = subprocess.run(words.split(), stdout=subprocess.PIPE, text=True, timeout=60)
            section = json.loads(done.stdout.splitlines()[-1])["sections"]["watched"]
            trials = section["losses"][0].get("trials", [])
            result["as before at the end"] = self.settings() == before
            killed = subprocess.Popen(words.split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            until("a change", lambda: self.settings() != before)
            killed.kill()
            said = killed.communicate()[1]  # the keeper has standard error until it has put back
            result["as before after a kill"] = self.settings() == before and "put back" in said
            self.sender.ask()
            self.receiver.ask("end")
        finally:
            hog.kill()
        for trial in trials:
            print(f"  {trial['change']}: {trial['before']}, then {trial['after']}, less by {trial['less_low']} to {trial['less_high']}")
        is_less = [trial["less_low"] > 0 for trial in trials]
        is_more = [trial["less_high"] < 0 for trial in trials]
        result["proved as here"] = (is_less[:2], is_more[2:]) == ([True, True], [True])
        result["avoided here"] = lost["before"] > 10 * max(lost["buffer"], lost["CPUs"])
        print("remedies:", lost, result, said.strip(), section["notes"], flush=True)
        return all(result.values())


def run(kind: str, trial, count: int, first: int, tries: int = 1) -> bool:
    """Runs trials from a seed on; returns whether each is right in all, in one of its tries."""
    results, too_slow = [], 0
    while len(results) < count:
        # Causes and places come in turn, so that a trial that is repeated has the same one.
        seed = first + len(results) + too_slow * len(CASES) * len(CAUSES)
        result = trial(seed)
        for _ in range(tries - 1):
            if result and not all(result.values()):
                result = trial(seed)
        results += [result] if result else []
        too_slow += not result
        assert too_slow <= 10 + 2 * len(results), "this host is too slow"
    sums = {key: sum(result[key] for result in results) for key in results[0]} if results else {}
    print(f"{len(results)} {kind}:", ", ".join(f"{count} {key}" for key, count in sums.items()), f"({too_slow} repeated: slow host)", flush=True)
    return all(count == len(results) for count in sums.values())


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if LIBC.unshare(NEW_MOUNTS) < 0 or (os.cpu_count() or 1) < 2:
        print("no namespaces without root, or no second CPU for a backlog")
        return 3
    first = int(os.environ.get("DAQMETER_SEED") or random.randrange(10**6))
    print(f"seeds from {first}", flush=True)
    subprocess.run(f"mount --make-rprivate / && mount -t bpf none {PROGRAMS}", shell=True, check=True)
    global SLOW_BYTES
    SLOW_BYTES = 1 << 16
    while min(write_slowly(SLOW_BYTES) for _ in range(3)) < 0.04 and SLOW_BYTES < 256 << 20:
        SLOW_BYTES *= 2
    bench = Bench()
    is_right = run("losses", bench.trial, TRIALS, first)
    with ExitStack() as stack:
        stack.callback(MAX_BACKLOG.write_text, MAX_BACKLOG.read_text())
        stack.callback(lambda: SLOW_FILE.unlink(missing_ok=True))
        MAX_BACKLOG.write_text("100000")
        is_right &= run("causes", bench.cause_trial, CAUSE_TRIALS, first, tries=count_of("--tries", 2))
        is_right &= not CAUSE_TRIALS or bench.remedies()
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
