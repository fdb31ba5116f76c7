"""An asyncio server, and clients that talk to it over loopback sockets: models go out, deltas come back."""

from __future__ import annotations

import asyncio
import struct
import sys

import numpy as np

import fedbuff as fb

N_CLIENTS, N_STEPS = 5, 20
PROBLEM = fb.Quadratic(np.random.default_rng(0).standard_normal((N_CLIENTS, 20)), noise_variance=0.1)
LOCAL = fb.LocalSGD(steps=3, lr=0.1, batch_size=4)
STRATEGY = fb.FedBuff(buffer_size=3)
SEED = 7
N_BYTES = PROBLEM.dim * PROBLEM.dtype.itemsize


async def serve(server: fb.Server, recorder: fb.Recorder, done: asyncio.Event, reader, writer) -> None:
    """One connection: the client's number comes first, then models and deltas take turns."""
    (number,) = struct.unpack("!q", await reader.readexactly(8))
    try:
        while not done.is_set():
            version, w = server.download()
            recorder.started(number, version)
            writer.write(memoryview(w).cast("B"))  # the model's own memory, not a copy
            await writer.drain()
            delta = np.frombuffer(await reader.readexactly(N_BYTES), w.dtype)
            if done.is_set():
                break
            if server.upload(delta, version):
                print(f"version {server.version}")
            recorder.arrived(number)
            if server.version == N_STEPS:
                done.set()
    except (asyncio.IncompleteReadError, ConnectionError):
        server.cancel(version)  # the client died: it owes nothing any more
        recorder.cancelled(number)
    writer.close()


async def client(port: int, number: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(struct.pack("!q", number))
    random = np.random.default_rng(number)
    for task in range(10_000):
        try:
            w = np.frombuffer(await reader.readexactly(N_BYTES), PROBLEM.dtype)
        except asyncio.IncompleteReadError:
            break  # the server has what it wants
        delta = PROBLEM.delta(w, number, LOCAL, task=task, seed=SEED)
        await asyncio.sleep(random.exponential(0.001))
        writer.write(memoryview(delta).cast("B"))
    writer.close()


async def train(path: str) -> None:
    server, recorder, done = fb.Server(PROBLEM.init(), STRATEGY), fb.Recorder(N_CLIENTS), asyncio.Event()
    listener = await asyncio.start_server(lambda r, w: serve(server, recorder, done, r, w), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    await asyncio.gather(*(client(port, number) for number in range(N_CLIENTS)))
    listener.close()
    recorder.save(path)

    log = fb.read_arrival_log(path, clients=N_CLIENTS)
    again = fb.replay(PROBLEM, fb.schedule(log, STRATEGY), LOCAL, seed=SEED)
    assert again.w.tobytes() == server.w.tobytes()
    print(f"loss {PROBLEM.loss(server.w):.4f}; the replay is equal")


if __name__ == "__main__":
    asyncio.run(train(*sys.argv[1:] or ["log.csv"]))
