"""Train with a secure buffer: clients, server and trusted aggregator in processes of their own, over loopback.

Each client takes the aggregator's key from the aggregator, never from the server. The server sees masked vectors and
sums of whole buffers. At the end a replay of what arrived, with the same arithmetic and no ciphers, gives the same
model, bit for bit. Usage: python secure_processes.py [server steps]
"""

from __future__ import annotations

import multiprocessing as mp
import struct
import sys
from multiprocessing.connection import Client as connect
from multiprocessing.connection import Connection, Listener, wait

import numpy as np

import fedbuff as fb

N_CLIENTS = 4
SECURE = fb.secure.OneTimePad(encoding=fb.secure.FixedPoint(clip=0.5, bits=22))
STRATEGY = fb.FedBuff(buffer_size=3, secure=SECURE)
LOCAL = fb.LocalSGD(steps=10, lr=0.1, batch_size=16)
LOOPBACK = ("127.0.0.1", 0)


def make_problem() -> fb.Logistic:
    """The same rows in every process; a real client would hold its own only."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((800, 30)).astype(np.float32)
    y = X @ generator.standard_normal(30) + generator.standard_normal(800) > 0
    return fb.Logistic(X, y, fb.partition.dirichlet(y, N_CLIENTS, alpha=1.0, seed=0), l2=1e-3)


def agreed() -> fb.secure.Parameters:
    return fb.secure.Parameters(dim=make_problem().dim, buffer_size=STRATEGY.buffer_size, secure=SECURE)


def aggregate(pipe: Connection) -> None:
    """The trusted aggregator: says hello to whoever connects, then answers tickets and requests, until all are gone."""
    aggregator = fb.secure.Aggregator(agreed())
    with Listener(LOOPBACK) as listener:
        pipe.send(listener.address)
        peers = []
        for _ in range(N_CLIENTS + 1):
            peers.append(listener.accept())
            peers[-1].send_bytes(aggregator.hello)
    while peers:
        for peer in wait(peers):
            assert isinstance(peer, Connection)
            try:
                message = peer.recv_bytes()
            except EOFError:
                peers.remove(peer)
                continue
            try:
                answer = aggregator.admit(message) if message[:4] == b"FBT1" else aggregator.release(message)
            except fb.secure.Refused as refused:
                answer = refused.reason.encode()
            peer.send_bytes(answer)


def work(client: int, server_address: tuple[str, int], aggregator_address: tuple[str, int]) -> None:
    """A client: models come in, uploads go out, until nothing comes in."""
    problem = make_problem()
    with connect(aggregator_address) as aggregator:
        hello = aggregator.recv_bytes()
    sender = fb.secure.Client(agreed(), hello, client)
    with connect(server_address) as server:
        server.send_bytes(struct.pack("<Q", client))
        task = 0
        while model := server.recv_bytes():
            (version,) = struct.unpack_from("<Q", model)
            delta = problem.delta(np.frombuffer(model, np.float32, offset=8), client, LOCAL, task=task)
            server.send_bytes(sender.upload(delta, task=task, version=version))
            task += 1


def serve(listener: Listener, aggregator: Connection, steps: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The untrusted server. Returns the model, and client and version of every update that it used."""
    server = fb.secure.Server(agreed(), aggregator.recv_bytes(), dtype=np.float32)
    w, arrivals = make_problem().init(), []

    def send_model(client: int) -> None:
        version_of[client] = server.buffer
        peers[client].send_bytes(struct.pack("<Q", server.buffer) + w.tobytes())

    peers: dict[int, Connection] = {}
    version_of: dict[int, int] = {}
    for _ in range(N_CLIENTS):
        peer = listener.accept()
        peers[struct.unpack("<Q", peer.recv_bytes())[0]] = peer
    for client in peers:
        send_model(client)
    while server.buffer < steps:
        ready = wait(list(peers.values()))
        for client in [c for c in peers if peers[c] in ready]:
            aggregator.send_bytes(server.receive(peers[client].recv_bytes()))
            server.settle(aggregator.recv_bytes())
            arrivals.append((client, version_of[client]))
            if server.fill == STRATEGY.buffer_size:
                aggregator.send_bytes(server.request())
                total = server.open(aggregator.recv_bytes())
                w = fb.aggregate(w, [total], lr=STRATEGY.rule.lr)
            if server.buffer == steps:
                break
            send_model(client)
    for peer in peers.values():
        peer.send_bytes(b"")
    return w, arrivals


def replay(problem: fb.Logistic, arrivals: list[tuple[int, int]]) -> np.ndarray:
    """The same updates in the same order, with the arithmetic of secure sums and no ciphers."""
    client, version = np.array(arrivals).T
    log = fb.ArrivalLog(client, np.arange(1.0, len(client) + 1), version=version, clients=N_CLIENTS)
    simulated = fb.FedBuff(STRATEGY.buffer_size, secure=fb.secure.Simulate(encoding=SECURE.encoding))
    return fb.replay(problem, fb.schedule(log, simulated), LOCAL, strategy=simulated).w


def main(steps: int = 20) -> None:
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    processes = [context.Process(target=aggregate, args=(there,))]
    processes[0].start()
    aggregator_address = here.recv()
    with Listener(LOOPBACK) as listener:
        for client in range(N_CLIENTS):
            arguments = (client, listener.address, aggregator_address)
            processes.append(context.Process(target=work, args=arguments))
            processes[-1].start()
        with connect(aggregator_address) as aggregator:
            w, arrivals = serve(listener, aggregator, steps)
    for process in processes:
        process.join()
    problem = make_problem()
    print(f"{steps} server steps, loss {problem.loss(problem.init()):.4f} -> {problem.loss(w):.4f}")
    same = np.array_equal(replay(problem, arrivals), w)
    print("the replay gave the same model, bit for bit" if same else "the replay gave another model")
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
