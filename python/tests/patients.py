"""Receivers that others wrote, and what `daqmeter watch` says of them, each with and without a loss. Run by `cargo xtask ci`,
and as root: `python3 python/tests/patients.py DAQMETER [NAME...]`.

Judges are nstat, ss, tc, the statistics of packet sockets, and the programs' own numbers. Each trial has new network namespaces,
whose counters begin at 0: all numbers must be equal.
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from watch import ADDRESS, LIBC, MAX_BACKLOG, NEW_MOUNTS, PORT, PROGRAMS, Bench, Host, until

NEEDED = "arv-camera-test-0.8 arv-fake-gv-camera-0.8 dpdk-testpmd iperf3 nstat socat ss tc".split()
MODULES = ["numpy", "p4p", "spead2"]
BUFFER = Path("/proc/sys/net/core/rmem_default")  # of sockets that ask for no size
SMALL_BYTES, LARGE_BYTES = 2304, 32 << 20
PYTHON, TOOLS = Path(sys.executable), Path(sys.executable).parent
READER = f"""
import socket
entry = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
entry.bind(("", {PORT}))
while True: entry.recv(2048)
"""
LIAR = f"""
import socket
entry = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
entry.bind(("", {PORT}))
count = len([entry.recv(2048)])
entry.settimeout(0.5)
try:
    while True: count += len([entry.recv(2048)])
except TimeoutError:
    print("received", 2 * count)
"""
SERVER = """
import time, numpy, p4p.nt, p4p.server, p4p.server.thread
wave = p4p.server.thread.SharedPV(nt=p4p.nt.NTScalar("ad"), initial=numpy.zeros(50000))
conf = dict(EPICS_PVAS_INTF_ADDR_LIST="10.78.0.1", EPICS_PVAS_AUTO_BEACON_ADDR_LIST="NO")
with p4p.server.Server(providers=[dict(wave=wave)], conf=conf, useenv=False):
    while True:
        wave.post(numpy.zeros(50000))
        time.sleep(0.02)
"""
MONITOR = """
import time, p4p.client.thread
conf = dict(EPICS_PVA_ADDR_LIST="10.78.0.1", EPICS_PVA_AUTO_ADDR_LIST="NO")
monitor = p4p.client.thread.Context("pva", conf=conf, useenv=False).monitor("wave", lambda value: None)
time.sleep(60)
"""


class Patient(NamedTuple):
    comm: str
    receive: str
    target: str  # words for the watch; the receiver is its command if they end with --
    ready: str  # a file of /proc/net, and a text in it
    send: str = ""  # without it and a peer: numbered packets
    peer: str = ""  # program of the sender that runs before the receiver
    lose: str = "small"  # buffers are small, and the program is stopped; or a filter; or a limit of the rate
    place: str = "socket"  # empty: nothing is lost
    note: str = ""  # of daqmeter, when it loses
    has_ring: bool = False  # its drops are told to the program alone


SOCAT = Patient("socat", f"socat -u UDP4-RECV:{PORT} /dev/null", "--pid {pid}", "udp :1388 ")
SAYS_LOST = "--says lost_packets.:.(?P<lost>[0-9]+)"
IPERF = Patient("iperf3", "iperf3 -s -1 --json", f"{SAYS_LOST} --", "tcp6 :1451 ", f"iperf3 -u -c {ADDRESS} -l 1000 -t 1 -b {{rate}}", note="the program says it lost")
CAMERA = Patient("arv-camera-test", "", "--", "udp 02004E0A:", peer="arv-fake-gv-camera-0.8 -i 10.78.0.1")
ARAVIS = "arv-camera-test-0.8 -r --duration=1 -f 10 "
SPEAD = Patient("spead2_recv.py", f"{TOOLS}/spead2_recv.py {ADDRESS}:{PORT} --buffer {{bytes}}", "--says packets:.([0-9]+) --", "udp :1388 ")
P4P = Patient(PYTHON.name, f"{PYTHON} -c {shlex.quote(MONITOR)}", "--pid {pid}", "tcp :13D3 01", place="", note="made its sender wait")
DPDK = "--no-pci --no-huge -m 64 -l 0-1 --no-shconf --no-telemetry --vdev=net_af_packet0,iface=v1"
TESTPMD = f"dpdk-testpmd {DPDK} -- --total-num-mbufs=2048 -a --forward-mode=rxonly"
PATIENTS = {
    "python": Patient(PYTHON.name, f"{PYTHON} -c {shlex.quote(READER)}", f"--port udp/{PORT}", "udp :1388 "),
    "twice its packets": Patient(
        PYTHON.name, f"{PYTHON} -c {shlex.quote(LIAR)}", "--says received.([0-9]+) --", "udp :1388 ", note="do not trust it"
    ),
    "socat": SOCAT._replace(lose="small, stop"),
    "socat behind a filter": SOCAT._replace(lose="filter", place="traffic-control"),
    "socat with a packet socket": SOCAT._replace(receive="socat -u INTERFACE:v1 /dev/null", ready="packet 0003", lose="small, stop"),
    "iperf3": IPERF,
    "iperf3 behind a limit": IPERF._replace(target=f"--port udp/5201 --sequence offset=8,bytes=4,big {SAYS_LOST} --", lose="limit", place="before-this-host"),
    "spead2": SPEAD._replace(
        send=f"{TOOLS}/spead2_send.py --heap-size 200000 --rate 0.2 {ADDRESS}:{PORT} --heaps {{heaps}}", note="which is what it read"
    ),
    "aravis": CAMERA._replace(receive=f"{ARAVIS} -w {{pixels}} -h {{pixels}} --no-packet-socket"),
    # It reads a ring beside its socket of UDP, which stays full.
    "aravis with a ring": CAMERA._replace(receive=f"{ARAVIS} -w 128 -h 128", place="", has_ring=True),
    "p4p": P4P._replace(peer=f"{PYTHON} -c {shlex.quote(SERVER)}", lose="small, stop"),
    "testpmd": Patient("dpdk-testpmd", TESTPMD, "--pid {pid}", "packet 0003", lose="small, stop"),
}
def packets_dropped(pid: int) -> int:
    """What the packet sockets of a process dropped, also those with a ring; the kernel begins again at zero."""
    drops, process = 0, os.pidfd_open(pid)
    for file in Path(f"/proc/{pid}/fd").iterdir():
        copy = LIBC.syscall(438, process, int(file.name), 0)  # pidfd_getfd
        try:
            drops += struct.unpack("II", socket.socket(fileno=copy).getsockopt(263, 6, 8))[1]  # PACKET_STATISTICS
        except OSError:
            continue
    return drops


def has(host: Host, words: str) -> bool:
    file, text = words.split(maxsplit=1)
    return text in Path(f"/proc/{host.process.pid}/net/{file}").read_text()


class Trial:
    def __init__(self, stack: ExitStack) -> None:
        self.stack, self.bench, self.lost, self.details = stack, Bench(), 0, []
        self.sender, self.at = self.bench.sender, self.bench.receiver
        stack.callback(lambda: [host.process.kill() for host in (self.sender, self.at)])

    def begin(self, words: str, host: Host) -> subprocess.Popen:
        quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        program = subprocess.Popen(shlex.split(host.inside + words), **quiet)
        self.stack.callback(program.wait)
        self.stack.callback(program.kill)
        return program

    def judge(self, patient: Patient, lose: str, watch_s: float) -> dict[str, bool] | None:
        """Watches the receiver; returns what was right, or nothing if it took longer than the watch."""
        forms = {"bytes": 4096, "pixels": 1024, "rate": "100M"} if "small" in lose else {"bytes": LARGE_BYTES, "pixels": 128, "rate": "20M"}
        receive, send, end = (words.format(heaps=heaps, **forms) for words, heaps in [(patient.receive, 0), (patient.send, 10), (patient.send, 0)])
        BUFFER.write_text(str(SMALL_BYTES if "small" in lose else LARGE_BYTES))
        filtered = self.bench.inject("tc", 0.1, self.stack) if lose == "filter" else int
        if lose == "limit":
            self.sender.on("tc qdisc add dev v0 root tbf rate 8mbit burst 10kb limit 10kb")
        if patient.peer:
            self.begin(patient.peer, self.sender)
            until("a socket of the peer", lambda: has(self.sender, "udp 0:"))
        is_command, dropped, of_packets = patient.target.endswith("--"), 0, 0
        pid = 0 if is_command else self.begin(receive, self.at).pid
        if is_command:
            watch, _ = self.bench.watch(f"{patient.target} {receive}", 60)
            self.stack.callback(watch.kill)
        until("the receiver", lambda: has(self.at, patient.ready))
        if not is_command:
            watch, began = self.bench.watch(patient.target.format(pid=pid), watch_s)
            self.stack.callback(watch.kill)
        if "stop" in lose:
            os.kill(pid, signal.SIGSTOP)
        if send:
            self.begin(send, self.sender).wait(20)
        elif not patient.peer:
            self.sender.ask(5000, 0.4 if lose else 0.06)
        elif "stop" in lose:
            until("a closed window", lambda: watch.poll() is not None or self.at.on("nstat -as TcpExtTCPToZeroWindowAdv").count("\n") > 1)
            if time.monotonic() > began + watch_s - 0.1:
                return None
            watch.wait(60)
        if "stop" in lose:
            os.kill(pid, signal.SIGCONT)
        if end != send:  # the end of its stream may be lost
            until("the end of the receiver", lambda: self.begin(end, self.sender).wait(20) or watch.poll() is not None)
        if not is_command:
            until("all is read", lambda: not re.findall(r"^\S+ +[1-9]", self.at.on("ss -Huan"), re.MULTILINE))
            if not patient.peer and time.monotonic() > began + watch_s - 0.1:
                return None
            dropped, of_packets = (sum(map(int, re.findall(r",d([0-9]+)", self.at.on(f"ss -H{kind}anm")))) for kind in "u0")
        output, said = watch.communicate(timeout=70)
        if not is_command:
            of_packets = max(of_packets, packets_dropped(pid))  # ss does not see drops of a ring
        own, _, answer = output.rstrip().rpartition("\n")

        counters, section = json.loads(self.at.on("nstat -asjz"))["kernel"], json.loads(answer)["sections"]["watched"]
        datagrams, full = (counters[f"Udp{name}"] + counters[f"Udp6{name}"] for name in ("InDatagrams", "RcvbufErrors"))
        truth = {"socket": (full if patient.place else 0) + of_packets, "traffic-control": filtered(), "before-this-host": 0}
        found, at_socket, of_own = dict.fromkeys(truth, 0), [], True
        for loss in section["losses"]:
            found[loss["place"]] = found.get(loss["place"], 0) + (loss["packets"] if loss["effect"] == "lost" else 0)
            at_socket += [loss] if loss["place"] == "socket" else []
        if patient.comm == "iperf3":
            ended = json.loads(own)["end"]["sum"]
            of_own = ended["packets"] - ended["lost_packets"] == datagrams - 1  # less its greeting
            # Before a packet that it did not read at its end may be one more gap.
            unread = counters["IpInDelivers"] - counters["TcpInSegs"] - datagrams
            if lose == "limit":
                truth["before-this-host"] = max(ended["lost_packets"], found["before-this-host"] if unread else 0)
        if patient.comm == "arv-camera-test" and truth["socket"]:
            of_own = any(map(int, re.findall(r"n_(?:failures|missing_frames|missing_packets) += ([0-9]+)", own)))
        disciplines = json.loads(self.at.on("tc -s -j qdisc show dev v1"))
        causes = [cause["cause"] for loss in at_socket for cause in loss.get("causes", [])]
        self.lost = sum(truth.values()) + of_packets * patient.has_ring
        self.details = [truth, found, f"{datagrams=} {full=} {dropped=} exit code {watch.returncode} {said}", *section.values(), ""]
        return {
            "as wished": [place for place, packets in truth.items() if packets] == [patient.place] * bool(lose and patient.place),
            "exact": {place: packets for place, packets in found.items() if packets or place in truth} == truth,
            "as nstat says": not patient.place or section["stages"][-1]["went_on"] == datagrams,
            "as ss and tc say": (is_command or dropped == full) and sum(one["drops"] for one in disciplines) == filtered(),
            "with its own numbers": of_own,
            "with its name": all(patient.comm in loss["at"] or loss["at"] == "sockets that were closed" for loss in at_socket),
            "with the note": not lose or patient.note in " ".join(section["notes"]),
            "with a likely cause": "interrupts" not in causes or "stop" not in lose and bool(patient.place),
            "with what it cannot see": any("ring" in one["shows"] for one in section["unseen"]) == patient.has_ring,
            "with the exit code": watch.returncode == (3 if patient.has_ring else any(truth.values())),
        }


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    missing = [name for name in NEEDED if not shutil.which(name)] + [name for name in MODULES if not importlib.util.find_spec(name)]
    if missing or LIBC.unshare(NEW_MOUNTS) < 0:
        print(f"not installed here: {', '.join(missing)}" if missing else "no namespaces without root")
        return 3
    subprocess.run(f"mount --make-rprivate / && mount -t bpf none {PROGRAMS}", shell=True, check=True)
    subprocess.run("mount -t tracefs none /sys/kernel/tracing", shell=True, check=False)
    is_right = True
    with ExitStack() as settings:
        for path in (BUFFER, MAX_BACKLOG):
            settings.callback(path.write_text, path.read_text())
        MAX_BACKLOG.write_text("100000")
        for name, lose in [(name, lose) for name in sys.argv[2:] or PATIENTS for lose in ("", PATIENTS[name].lose)]:
            began = time.monotonic()
            for watch_s in (2, 8, 30):
                with ExitStack() as stack:
                    trial = Trial(stack)
                    if result := trial.judge(PATIENTS[name], lose, watch_s):
                        break
            wrong = [key for key, good in (result or {"in time": False}).items() if not good]
            words = f"not {', '.join(wrong)}" if wrong else "right"
            print(f"{name}, {lose or 'quiet'}: {words}; {trial.lost} lost ({time.monotonic() - began:.1f} s)")
            print(*(trial.details if wrong else []), sep="\n", end="", flush=True)
            is_right &= not wrong
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
