"""send and recv of the backend `ferry`: order, tags, sizes, asynchronous ones, and what ends them with an error."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import ferry
import ferry.torch_backend
from ferry.testing import ranks

NUM_RANKS = 3
HAS_SOURCE = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 14)
LARGE = 1_000_000  # elements: several times the memory between two ranks


def numbers(source, destination, tag=0, length=5):
    return torch.arange(length, dtype=torch.float32) + 1000 * source + 100 * destination + 10 * tag


@pytest.mark.parametrize("length", [0, 5, LARGE])
@ranks(NUM_RANKS, deadline=30)
def test_all_to_all_by_messages_in_any_order(length):
    """Every rank begins all receives before it sends, and waits for them in another order."""
    rank = dist.get_rank()
    tags = [3, 1, 2]
    outs = {(peer, tag): torch.full((length,), -1.0) for peer in range(NUM_RANKS) for tag in tags}
    receives = {(peer, tag): dist.irecv(out, peer, tag=tag) for (peer, tag), out in outs.items()}
    sends = [dist.isend(numbers(rank, peer, tag, length), peer, tag=tag)
             for peer in range(NUM_RANKS) for tag in sorted(tags)]
    for key in reversed(receives):
        receives[key].wait()
        peer, tag = key
        assert torch.equal(outs[key], numbers(peer, rank, tag, length))
    for send in sends:
        send.wait()


@ranks(2, kind="threads", deadline=30)
def test_receives_of_one_tag_are_in_the_order_of_the_sends():
    if dist.get_rank() == 0:
        for number in range(20):
            dist.send(torch.tensor([number]), 1, tag=number % 2)
    else:
        outs = [torch.zeros(1, dtype=torch.int64) for _ in range(20)]
        works = [dist.irecv(outs[number], 0, tag=number % 2) for number in range(20)]
        for work in reversed(works):
            work.wait()
        assert [int(out) for out in outs] == list(range(20))


@ranks(2, kind="threads", deadline=30)
def test_messages_move_while_the_rank_is_in_a_collective():
    if dist.get_rank() == 0:
        work = dist.isend(numbers(0, 1, length=LARGE), 1)
        dist.barrier()
        work.wait()
    else:
        out = torch.zeros(LARGE)
        dist.recv(out, 0)
        dist.barrier()
        assert torch.equal(out, numbers(0, 1, length=LARGE))


@ranks(NUM_RANKS, kind="threads", deadline=30)
def test_receives_from_any_rank():
    rank = dist.get_rank()
    if rank:
        dist.send(numbers(rank, 0, tag=rank), 0, tag=7)
        dist.send(numbers(rank, 0), 0, tag=8)
        return
    group, found = dist.group.WORLD, set()
    for _ in range(1, NUM_RANKS):
        out = torch.zeros(5)
        work = group.recv_anysource([out], 7)
        work.wait()
        source = next(peer for peer in range(1, NUM_RANKS) if torch.equal(out, numbers(peer, 0, tag=peer)))
        found.add(source)
        if HAS_SOURCE:
            assert work._source_rank() == source
    assert found == set(range(1, NUM_RANKS))
    for peer in range(1, NUM_RANKS):
        out = torch.zeros(5)
        dist.recv(out, peer, tag=8)
        assert torch.equal(out, numbers(peer, 0))


@ranks(2, kind="threads", deadline=30)
def test_strided_tensors_and_other_types():
    wide = torch.zeros(4, 2, dtype=torch.complex64)
    if dist.get_rank() == 0:
        wide[:, 1] = torch.tensor([1j, 2, 3j, 4])
        dist.send(wide[:, 1], 1)
        dist.send(torch.tensor([True, False]), 1)
    else:
        dist.recv(wide[:, 0], 0)
        assert wide[:, 0].tolist() == [1j, 2, 3j, 4] and not wide[:, 1].any()
        flags = torch.zeros(2, dtype=torch.bool)
        dist.recv(flags, 0)
        assert flags.tolist() == [True, False]


@ranks(2, kind="threads", deadline=30)
def test_a_message_of_another_size_is_an_error_of_the_receiver_and_stays():
    if dist.get_rank() == 0:
        dist.send(numbers(0, 1), 1)
    else:
        with pytest.raises(ferry.Mismatch, match=r"recv 1 of group .*\[4\] float32.*rank 0 sent 20 bytes"):
            dist.recv(torch.zeros(4), 0)
        out = torch.zeros(5)
        dist.recv(out, 0)
        assert torch.equal(out, numbers(0, 1))
    with pytest.raises(ferry.InvalidArgument, match="2 tensors are given"):
        dist.group.WORLD.send([torch.zeros(1), torch.zeros(1)], 1 - dist.get_rank(), 0)


@ranks(2, kind="threads", deadline=30)
def test_futures_of_messages_have_callbacks():
    rank = dist.get_rank()
    out, seen = torch.zeros(5), []
    received = dist.irecv(out, 1 - rank)
    future = received.get_future().then(lambda done: seen.append(done.value()[0].clone()))
    dist.isend(numbers(rank, 1 - rank), 1 - rank).wait()
    future.wait()
    assert torch.equal(seen[0], numbers(1 - rank, rank))


def join(group, folder, seconds):
    dist.init_process_group("cpu:ferry", store=dist.FileStore(f"{folder}/store", group.size), rank=group.rank,
                            world_size=group.size, timeout=timedelta(seconds=seconds))
    dist.barrier()


def leave_a_message(group, folder):
    join(group, folder, 30)
    if group.rank == 0:
        dist.isend(numbers(0, 1, length=LARGE), 1)
        dist.irecv(torch.zeros(1), 1)  # never comes
    else:
        time.sleep(0.3)
        out = torch.zeros(LARGE)
        dist.recv(out, 0)
        return bool(torch.equal(out, numbers(0, 1, length=LARGE)))
    dist.destroy_process_group()


def test_a_message_that_was_sent_arrives_before_its_rank_leaves(tmp_path):
    assert ferry.spawn(2, leave_a_message, str(tmp_path), method="forkserver") == [None, True]


def lose(group, folder, how, receive):
    join(group, folder, 1 if how == "late" else 30)
    if group.rank == 1:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        while not Path(folder, "ended").exists():
            time.sleep(0.01)
        return None
    begin = time.monotonic()
    try:
        receive()
    except ferry.Error as error:
        return f"{type(error).__name__} {time.monotonic() - begin:.1f} {error}"
    finally:
        Path(folder, "ended").touch()
    return "no error"


def receive_now():
    dist.recv(torch.zeros(2, 3), 1)


def receive_any():
    dist.group.WORLD.recv_anysource([torch.zeros(2, 3)], 0).wait()


def send_large():
    dist.isend(torch.zeros(LARGE), 1).wait()


@pytest.mark.parametrize("what", [receive_now, send_large])
def test_a_late_rank_is_named_with_the_message(what, tmp_path):
    text, _ = ferry.spawn(2, lose, str(tmp_path), "late", what, method="forkserver")
    assert text.startswith("Timeout") and "rank 1" in text and " 1 of group 0 (" in text, text


@pytest.mark.parametrize("what", [receive_now, receive_any, send_large])
def test_a_rank_that_dies_ends_the_messages_with_it(what, tmp_path):
    with pytest.raises(ferry.PeerLost):
        ferry.spawn(2, play_and_write, str(tmp_path), what, method="forkserver")
    kind, seconds, text = (tmp_path / "error").read_text().split(" ", 2)
    assert kind == "PeerLost" and float(seconds) < 2 and "rank 1 (pid " in text, text


def play_and_write(group, folder, what):
    text = lose(group, folder, "dies", what)
    with open(f"{folder}/error", "w") as file:
        file.write(text)
