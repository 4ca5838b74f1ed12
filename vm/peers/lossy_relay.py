"""Relay for UDP that loses, doubles and delays datagrams, because a kernel may lack netem: PORT HOST PORT LOSS [DUPLICATE [REORDER]].
At its end it prints what it did: datagrams of each way, and those that it lost, doubled and delayed."""

import random
import select
import signal
import socket
import sys
import time

port, host, peer, loss, double, late = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *(float(word) for word in (sys.argv[4:] + ["0", "0"])[:3])
random.seed(7)
front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
front.bind(("0.0.0.0", port))
back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
back.connect((host, peer))
counts = {"asked": 0, "answered": 0, "lost": 0, "doubled": 0, "delayed": 0}


def end(*_):
    print(counts, flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
print("listens", flush=True)
client, waiting = None, []
while True:
    ready, _, _ = select.select([front, back], [], [], 0.001 if waiting else None)
    for due, send, data in [entry for entry in waiting if entry[0] <= time.monotonic()]:
        send(data)
        waiting.remove((due, send, data))
    for way in ready:
        if way is front:
            data, client = front.recvfrom(65536)
            send = back.send
        else:
            try:
                data = back.recv(65536)
            except ConnectionRefusedError:
                continue
            send = lambda data, to=client: front.sendto(data, to)
        counts["asked" if way is front else "answered"] += 1
        if random.random() < loss:
            counts["lost"] += 1
            continue
        if random.random() < late:
            counts["delayed"] += 1
            waiting.append((time.monotonic() + 0.001, send, data))
            continue
        send(data)
        if random.random() < double:
            counts["doubled"] += 1
            send(data)
