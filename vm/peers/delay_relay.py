"""A relay for TCP that delays what goes to the client: a long line where the kernel has no netem.

    delay_relay.py LISTEN_PORT HOST PORT DELAY_MS
"""

import socket
import sys
import threading
import time
from collections import deque


def forward(source, sink, delay):
    """Hands on what comes, each piece so much later; ends both directions with the source."""
    waiting, more = deque(), threading.Condition()

    def deliver():
        while True:
            with more:
                while not waiting:
                    more.wait()
                due, data = waiting.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            if not data:
                break
            try:
                sink.sendall(data)
            except OSError:
                break
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    threading.Thread(target=deliver, daemon=True).start()
    while True:
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        with more:
            waiting.append((time.monotonic() + delay, data))
            more.notify()
        if not data:
            return


def main():
    port, host, peer, delay_ms = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    listener = socket.create_server(("", port))
    while True:
        client, _ = listener.accept()
        try:
            server = socket.create_connection((host, peer))
        except OSError:
            # Nobody listens there yet: the client tries again.
            client.close()
            continue
        for source, sink, delay in ((server, client, delay_ms / 1e3), (client, server, 0.0)):
            threading.Thread(target=forward, args=(source, sink, delay), daemon=True).start()


main()
