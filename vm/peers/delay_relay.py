"""Relay for TCP that delays what goes to the client, because a kernel may lack netem: PORT HOST PORT SECONDS."""

import asyncio
import sys


async def forward(source, sink, delay_s):
    later = asyncio.get_running_loop().call_later
    try:
        while data := await source.read(1 << 16):
            later(delay_s, sink.write, data)
    except OSError:
        pass
    later(delay_s, sink.close)


async def main(port, host, peer, delay_s):
    async def accept(reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(host, peer)
        except OSError:
            # The publisher does not listen yet: the client tries again.
            writer.close()
            return
        await asyncio.gather(forward(far_reader, writer, delay_s), forward(reader, far_writer, 0.0))

    await (await asyncio.start_server(accept, "", port)).serve_forever()


asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
