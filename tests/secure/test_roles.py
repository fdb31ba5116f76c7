"""Clients, server and trusted aggregator: what they compute, and what they refuse."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedbuff as fb
from fedbuff.backends.spec import EncodeNumbers
from fedbuff.secure import (
    Aggregator,
    Client,
    FixedPoint,
    OneTimePad,
    Parameters,
    Refused,
    Server,
)
from fedbuff.secure._messages import REQUEST, TICKET, UPLOAD, tasks_digest

pytest.importorskip("cryptography")

DIM, K = 5, 3


class World:
    """A server and an aggregator that work together, and clients."""

    def __init__(self, **options: Any) -> None:
        self.agreed = Parameters(**{"dim": DIM, "buffer_size": K, **options})
        self.aggregator = Aggregator(self.agreed)
        self.server = Server(self.agreed, self.aggregator.hello)
        self.rng = np.random.default_rng(0)

    def delta(self) -> NDArray[np.float64]:
        return self.rng.uniform(-1, 1, self.agreed.dim)

    def upload(self, client: int, task: int = 0, version: int = 0, delta: Any = None, weight: float = 1.0) -> bytearray:
        sender = Client(self.agreed, self.aggregator.hello, client)
        return sender.upload(self.delta() if delta is None else delta, task=task, version=version, weight=weight)

    def enter(self, client: int, task: int = 0, version: int = 0, delta: Any = None, weight: float = 1.0) -> None:
        ticket = self.server.receive(self.upload(client, task, version, delta, weight))
        self.server.settle(self.aggregator.admit(ticket))

    def sum(self) -> NDArray[Any]:
        return self.server.open(self.aggregator.release(self.server.request()))


def refused(reason: str, role: Any, call: Any, *arguments: Any) -> None:
    before = role.refused[reason]
    with pytest.raises(Refused) as error:
        call(*arguments)
    assert error.value.reason == reason
    assert role.refused[reason] == before + 1


@pytest.mark.parametrize("cipher", ["chacha20", "aes-ctr"])
@pytest.mark.parametrize("modulus", [32, 64])
def test_the_sum_comes_out_and_nothing_else(cipher: Any, modulus: Any) -> None:
    secure = OneTimePad(encoding=FixedPoint(modulus=modulus), cipher=cipher, weight_unit=2, max_weight=5)
    world = World(dim=70_000, secure=secure)  # several pieces of the key stream, the last not whole
    deltas = [world.delta() for _ in range(K)]
    for buffer in range(2):
        for client, weight in enumerate((0.5, 2.5, 1.0)):
            world.enter(client, task=buffer, version=0, delta=deltas[client], weight=weight)
        want = 0.5 * deltas[0] + 2.5 * deltas[1] + 1.0 * deltas[2]
        np.testing.assert_allclose(world.sum(), want, rtol=0, atol=secure.encoding.error(8) / 2 + 1e-12)
    assert world.server.buffer == world.aggregator.buffer == 2


def test_bytes_are_what_traffic_says() -> None:
    world = World()
    expected = fb.secure.traffic(DIM)
    uploads = [world.upload(client) for client in range(K)]
    tickets = [world.server.receive(upload) for upload in uploads]
    receipts = [world.aggregator.admit(ticket) for ticket in tickets]
    for receipt in receipts:
        world.server.settle(receipt)
    request = world.server.request()
    release = world.aggregator.release(request)
    assert expected.to_server(K) == sum(map(len, uploads))
    assert expected.to_aggregator(K, 1) == sum(map(len, tickets)) + len(request)
    assert expected.from_aggregator(K, 1) == sum(map(len, receipts)) + len(release)
    large = fb.secure.traffic(10**6)
    assert large.to_aggregator(K, 1) == expected.to_aggregator(K, 1)  # no vector goes there


def test_too_few_tasks_are_not_released() -> None:
    world = World()
    world.enter(0)
    world.enter(1)
    refused("too_few", world.server, world.server.request)
    # A server that asks all the same is refused by the aggregator.
    tasks = tasks_digest(world.server._added)
    request = REQUEST.pack(b"FBQ1", world.server.session, 0, 2, tasks)
    refused("too_few", world.aggregator, world.aggregator.release, request)


def test_one_client_cannot_make_a_buffer_by_repeating_a_task() -> None:
    world = World()
    upload = world.upload(0)
    ticket = world.server.receive(upload)
    world.aggregator.admit(ticket)
    refused("duplicate", world.server, world.server.receive, upload)
    refused("duplicate", world.aggregator, world.aggregator.admit, ticket)
    assert world.aggregator.fill == 1


def test_a_buffer_is_released_once_and_never_in_part() -> None:
    world = World()
    for client in range(K + 1):
        world.enter(client)
    for left_out in range(K + 1):
        some = {key: weight for key, weight in world.server._added.items() if key[0] != left_out}
        request = REQUEST.pack(b"FBQ1", world.server.session, 0, K, tasks_digest(some))
        refused("subset", world.aggregator, world.aggregator.release, request)
    request = world.server.request()
    world.aggregator.release(request)
    refused("released", world.aggregator, world.aggregator.release, request)


def test_a_task_counts_once_over_all_buffers() -> None:
    world = World()
    old = world.upload(0)
    world.server.settle(world.aggregator.admit(world.server.receive(old)))
    world.enter(1)
    world.enter(2)
    world.sum()
    refused("replay", world.aggregator, world.aggregator.admit, world.server.receive(old))
    world.server.drop(0, 0)
    for client in range(K):
        world.enter(client, task=1, version=1)
    world.sum()


def test_unknown_buffers_are_refused_and_a_late_ticket_can_be_made_again() -> None:
    world = World()
    late = world.server.receive(world.upload(9))
    for client in range(K):
        world.enter(client)
    world.sum()
    refused("buffer", world.aggregator, world.aggregator.admit, late)
    world.server.settle(world.aggregator.admit(world.server.ticket(9, 0)))
    assert world.server.fill == 1
    early = REQUEST.pack(b"FBQ1", world.server.session, 7, K, bytes(32))
    refused("buffer", world.aggregator, world.aggregator.release, early)
    refused("version", world.server, world.server.receive, world.upload(5, version=2))
    refused("unknown", world.server, world.server.ticket, 77, 0)


def test_a_client_that_comes_too_late_is_refused() -> None:
    world = World(max_staleness=0)
    for client in range(K):
        world.enter(client)
    world.sum()
    refused("late", world.aggregator, world.aggregator.admit, world.server.receive(world.upload(4, version=0)))


def test_a_dropped_client_holds_nobody_up() -> None:
    """There are no masks between clients: who sends nothing is simply not in the sum."""
    world = World()
    world.upload(99)  # made and never sent
    deltas = [world.delta() for _ in range(K)]
    for client in range(K):
        world.enter(client, delta=deltas[client])
    np.testing.assert_allclose(world.sum(), np.sum(deltas, axis=0), atol=world.agreed.secure.encoding.error(K) + 1e-12)


def test_a_vector_without_a_seed_is_never_opened() -> None:
    world = World()
    for client in range(K - 1):
        world.enter(client)
    upload = world.upload(7)
    refused("malformed", world.server, world.server.receive, upload[:-1])
    without = bytearray(upload)
    without[108:156] = bytes(48)  # no sealed seed
    refused("tampered", world.aggregator, world.aggregator.admit, world.server.receive(without))
    # A server that adds it all the same gets no pads for such a set.
    forged = struct.pack("<4s16sQQQI", b"FBR1", world.server.session, 0, 7, 0, 1)
    world.server.settle(forged)
    refused("too_few", world.aggregator, world.aggregator.release, world.server.request())
    world.enter(8)
    refused("subset", world.aggregator, world.aggregator.release, world.server.request())
    # Nothing is left but to give the buffer up, on both sides.
    world.server.abandon()
    world.aggregator.abandon()
    for client in range(K):
        world.enter(client, task=1)
    world.sum()


@pytest.mark.parametrize("field", ["client", "task", "version", "ephemeral", "sealed", "weight"])
def test_a_tampered_ticket_is_refused_and_burns_nothing(field: str) -> None:
    world = World()
    for client in range(K):  # so that version 1 exists
        world.enter(client)
    world.sum()
    ticket = bytearray(world.server.receive(world.upload(4, task=3, version=0)))
    offset = {"client": 52, "task": 60, "version": 68, "ephemeral": 76, "sealed": 108, "weight": 156}[field]
    changed = bytearray(ticket)
    changed[offset] ^= 1
    refused("tampered", world.aggregator, world.aggregator.admit, changed)
    world.server.settle(world.aggregator.admit(ticket))


def test_every_bit_of_a_sealed_seed_matters() -> None:
    world = World()
    ticket = world.server.receive(world.upload(0))
    for byte in range(76, 156):
        changed = bytearray(ticket)
        changed[byte] ^= 1 << (byte % 8)
        if byte == 107:  # the top bit of an X25519 key does not count; it is another bit that is changed
            assert byte % 8 != 7
        refused("tampered", world.aggregator, world.aggregator.admit, changed)


def test_other_sessions_and_parameters_are_refused() -> None:
    world, other = World(), World(buffer_size=K + 1)
    refused("session", world.server, world.server.receive, other.upload(0))
    refused("session", world.aggregator, world.aggregator.admit, other.server.receive(other.upload(1)))
    with pytest.raises(Refused, match="other parameters"):
        Client(world.agreed, other.aggregator.hello, 0)
    with pytest.raises(Refused, match="other parameters"):
        Server(world.agreed, other.aggregator.hello)
    for role in (lambda hello: Client(world.agreed, hello, 0), lambda hello: Server(world.agreed, hello)):
        with pytest.raises(Refused, match="hello: expected 84 bytes"):
            role(b"FBH1")
    foreign = world.upload(0)
    foreign[20] ^= 1  # the digest of the parameters
    refused("parameters", world.server, world.server.receive, foreign)


def test_weights_are_in_their_domain() -> None:
    world = World(secure=OneTimePad(weight_unit=4))
    for weight, units in ((1.2, 5), (0.1, 0)):
        with pytest.raises(Refused, match=f"is {units} units of 1 / 4; expected 1 to 4"):
            world.server.receive(world.upload(0, weight=weight))
    assert world.server.refused["weight"] == 2
    with pytest.raises(ValueError, match="weight: expected a number > 0"):
        world.upload(0, weight=0.0)
    ticket = bytearray(world.server.receive(world.upload(1)))
    for units in (0, 1, 3, 5, 2**32 - 1):
        struct.pack_into("<I", ticket, len(ticket) - 4, units)
        refused("weight", world.aggregator, world.aggregator.admit, ticket)


@pytest.mark.parametrize("victim", [True, False])
def test_a_server_cannot_choose_weights(victim: bool) -> None:
    """Weighting one update by 64 and the others by 1, or the others by 64 and one by 1, would tell that one."""
    world = World(secure=OneTimePad(weight_unit=64))
    tickets = [bytearray(world.server.receive(world.upload(client))) for client in range(K)]
    for client, ticket in enumerate(tickets):
        changed = bytearray(ticket)
        struct.pack_into("<I", changed, len(changed) - 4, 64 if (client == 0) is victim else 1)
        if changed == ticket:
            world.aggregator.admit(changed)
        else:
            refused("weight", world.aggregator, world.aggregator.admit, changed)
    # Nor can it say that a client's own weight is another: the seed is bound to it.
    changed = bytearray(tickets[0 if not victim else 1])
    struct.pack_into("<d", changed, 156, 0.5)
    struct.pack_into("<I", changed, len(changed) - 4, 32)
    refused("tampered", world.aggregator, world.aggregator.admit, changed)


def test_weights_follow_the_table_of_staleness() -> None:
    world = World(secure=OneTimePad(weight_unit=8), staleness_weights=(1.0, 0.5, 0.25))
    waits = world.upload(9, delta=np.full(DIM, 0.5))
    world.server.receive(waits)
    for buffer, units in enumerate((8, 4, 2, 2, 2)):
        if buffer > 0:  # a ticket that is made again has the weight of its new staleness
            assert struct.unpack("<I", world.server.ticket(9, 0)[-4:]) == (units,)
        for client in range(K):
            world.enter(client, task=buffer, version=buffer, delta=np.zeros(DIM))
        if buffer == 2:
            world.server.settle(world.aggregator.admit(world.server.ticket(9, 0)))
            np.testing.assert_array_equal(world.sum(), np.full(DIM, 0.5 * 0.25))
            break
        world.sum()


def test_roles_must_agree_on_the_table() -> None:
    world, other = World(), World(staleness_weights=(1.0, 0.5))
    with pytest.raises(Refused, match="other parameters"):
        Client(world.agreed, other.aggregator.hello, 0)
    for table, error, words in (
        ((), ValueError, "at least one number"),
        (2.0, TypeError, "expected numbers, one for each staleness"),
        ((1.0, -1.0), ValueError, "expected a number >= 0, got -1"),
        (("a",), TypeError, "expected a number, got str"),
    ):
        with pytest.raises(error, match=f"staleness_weights: .*{words}"):
            World(staleness_weights=table)


def test_an_upload_that_is_written_over_is_in_the_sum_as_it_was() -> None:
    world = World()
    sender = Client(world.agreed, world.aggregator.hello, 0)
    memory, tickets = None, []
    for task in range(K):
        memory = sender.upload(np.full(DIM, 0.25 * task), task=task, version=0, out=memory)
        tickets.append(world.server.receive(memory))
    for ticket in tickets:
        world.server.settle(world.aggregator.admit(ticket))
    np.testing.assert_array_equal(world.sum(), np.full(DIM, 0.25 * (0 + 1 + 2)))
    # What cannot be changed is not copied.
    upload = bytes(world.upload(1, task=9, version=1))
    world.server.receive(upload)
    assert np.shares_memory(world.server._waiting[1, 9].words, np.frombuffer(upload, np.uint8))


def test_what_the_roles_remember_is_bounded_by_the_staleness() -> None:
    world = World(max_staleness=2)
    old = [world.upload(99, task=task, version=0) for task in range(2)]
    for upload in old:
        world.server.receive(upload)  # it never enters
    first = world.server.receive(world.upload(0, task=1000))
    world.aggregator.admit(first)
    world.server.abandon()
    world.aggregator.abandon()
    for buffer in range(1, 50):
        for client in range(K):
            world.enter(client, task=buffer, version=max(0, buffer - client % 3))
        world.sum()
        assert len(world.aggregator._used) <= 3 * K + 1
        assert len(world.aggregator._by_version) <= 3
    assert not world.server._waiting
    # A task whose name is forgotten is too stale to come back.
    again = TICKET.pack(*TICKET.unpack(first)[:-2], world.aggregator.buffer, 1)
    refused("late", world.aggregator, world.aggregator.admit, again)


def test_reserved_bytes_are_zero() -> None:
    world = World()
    for byte in (164, 191):
        upload = world.upload(0)
        upload[byte] = 1
        refused("malformed", world.server, world.server.receive, upload)
    for client in range(K):
        world.enter(client, delta=np.zeros(DIM))
    release = world.aggregator.release(world.server.request())
    for byte in (40, 63):
        changed = bytearray(release)
        changed[byte] = 1
        refused("malformed", world.server, world.server.open, changed)
    np.testing.assert_array_equal(world.server.open(release), np.zeros(DIM))


def test_a_buffer_that_could_overflow_takes_no_more() -> None:
    world = World(secure=OneTimePad(encoding=FixedPoint(bits=29)))
    assert world.agreed.secure.encoding.capacity == 7
    for client in range(7):
        world.enter(client, delta=np.ones(DIM))
    refused("overflow", world.aggregator, world.aggregator.admit, world.server.receive(world.upload(7)))
    np.testing.assert_array_equal(world.sum(), np.full(DIM, 7.0))


def test_distinct_clients_are_enforced_by_the_aggregator() -> None:
    world = World(distinct_clients=True)
    world.enter(0, task=0)
    refused("repeat", world.aggregator, world.aggregator.admit, world.server.receive(world.upload(0, task=1)))
    relaxed = World()
    for task in range(K):
        relaxed.enter(0, task=task)  # the paper's buffer: K tasks, whoever sent them
    relaxed.sum()


@pytest.mark.parametrize("kind", ["upload", "ticket", "receipt", "request", "release"])
def test_garbage_is_malformed(kind: str) -> None:
    world = World()
    role, call = {
        "upload": (world.server, world.server.receive),
        "ticket": (world.aggregator, world.aggregator.admit),
        "receipt": (world.server, world.server.settle),
        "request": (world.aggregator, world.aggregator.release),
        "release": (world.server, world.server.open),
    }[kind]
    for garbage in (b"", b"FBT1", bytes(10), world.rng.bytes(500)):
        refused("malformed", role, call, garbage)


def test_a_foreign_release_or_receipt_changes_nothing() -> None:
    world = World()
    for client in range(K):
        world.enter(client, delta=np.full(DIM, 0.25))
    release = world.aggregator.release(world.server.request())
    wrong = bytearray(release)
    struct.pack_into("<I", wrong, 28, K + 1)
    refused("unknown", world.server, world.server.open, wrong)
    receipt = struct.pack("<4s16sQQQI", b"FBR1", world.server.session, 0, 50, 0, 1)
    refused("unknown", world.server, world.server.settle, receipt)
    np.testing.assert_array_equal(world.server.open(release), np.full(DIM, 0.25 * K))


def test_a_client_refuses_what_it_must_not_send() -> None:
    world = World()
    client = Client(world.agreed, world.aggregator.hello, 0)
    with pytest.raises(ValueError, match="delta: element 1 is not finite; nothing was sent"):
        client.upload(np.array([0, np.nan, 0, 0, 0.0]), task=0, version=0)
    with pytest.raises(ValueError, match=r"delta: expected shape \(5,\)"):
        client.upload(np.zeros(4), task=0, version=0)
    with pytest.raises(TypeError, match="delta: expected float32 or float64"):
        client.upload(np.zeros(5, np.int32), task=0, version=0)
    with pytest.raises(ValueError, match="task: expected an int below"):
        client.upload(np.zeros(5), task=2**64, version=0)
    client.upload(np.full(5, 2.0), task=0, version=0)
    assert client.cut == 5


# What the server sees


def chi_square(words: NDArray[Any]) -> float:
    """Of the bytes of masked words against the uniform law, in standard deviations from its mean."""
    counts = np.bincount(words.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - 255) / np.sqrt(2 * 255)


@pytest.mark.parametrize("cipher", ["chacha20", "aes-ctr"])
def test_masked_words_tell_nothing_of_the_update(cipher: Any) -> None:
    """Everything that the server and K - 1 others hold of a missing update is its masked vector: uniform words,
    whether the update is zeros or ones, and unlike for the same update sent again."""
    world = World(dim=50_000, buffer_size=2, secure=OneTimePad(cipher=cipher))
    offset = UPLOAD.size
    seen = []
    for task, delta in enumerate((np.zeros(50_000), np.ones(50_000), np.ones(50_000))):
        masked = np.frombuffer(world.upload(0, task=task, delta=delta), np.uint32, offset=offset)
        assert abs(chi_square(masked)) < 5
        seen.append(masked)
    for a, b in ((0, 1), (1, 2)):
        assert abs(chi_square(seen[a] - seen[b])) < 5
    # The sum of a buffer less the one other update is the missing update; less than the whole buffer is uniform.
    world.enter(1, delta=np.ones(50_000))
    world.enter(2, delta=np.zeros(50_000))
    assert abs(chi_square(world.server._total)) < 5
    np.testing.assert_array_equal(world.sum(), np.ones(50_000))


def test_the_test_of_uniformity_has_power() -> None:
    plain = np.empty(50_000, np.uint32)
    fb.backends.current().encode_add(None, np.ones(50_000), EncodeNumbers(1, 1.0, 2.0**-19), plain)
    assert chi_square(plain) > 1000


def test_seeds_and_keys_are_fresh() -> None:
    world = World()
    delta = np.zeros(DIM)
    uploads = [bytes(world.upload(0, task=0, delta=delta)) for _ in range(20)]
    assert len({upload[76:108] for upload in uploads}) == 20  # ephemeral keys
    assert len({upload[108:156] for upload in uploads}) == 20  # sealed seeds
    assert len({upload[192:] for upload in uploads}) == 20  # pads
    assert World().aggregator.hello != world.aggregator.hello
