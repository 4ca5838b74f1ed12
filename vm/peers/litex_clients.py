"""LiteX's own clients against a slave: CommUDP straight, RemoteClient on TCP. Prints one line per peer that agreed."""

import sys

from litex.tools.litex_client import RemoteClient
from litex.tools.remote.comm_udp import CommUDP

MEMORY = 0x10000


def agree(name, bus, burst):
    written = [(0x9E3779B1 * (index + len(name))) & 0xFFFFFFFF for index in range(burst)]
    bus.write(MEMORY, written)
    found = bus.read(MEMORY, burst)
    assert found == written, f"{name}: wrote {written[:4]}..., read {found[:4]}..."
    bus.write(MEMORY + 8, 0x600DF00D)
    assert bus.read(MEMORY + 8) == 0x600DF00D, f"{name}: a single word came back changed"
    print(f"agreed: {name}, bursts of {burst}")


def main(kind, host, port):
    if kind == "udp":
        bus = CommUDP(server=host, port=port)
        bus.open(probe=True)
        bursts = [1, 16, 255]
    else:
        bus = RemoteClient(host=host, port=port)
        bus.open()
        bursts = [1, 16, 255] if kind == "tcp" else [1, 16]
    for burst in bursts:
        agree(f"{type(bus).__name__} ({kind})", bus, burst)
    bus.close()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
