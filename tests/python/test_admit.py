"""group.admit(): a new process takes the place of a killed one, and what the exchange of all ranks returns is right."""

import multiprocessing
import os
import signal

import pytest

import ferry
from expert_steps import SETTINGS, step

SIZE = 4


def go_on_with_all(group, number, exchange):
    """The exchange of before goes on, and another one is made."""
    assert group.view == (number, (0, 1, 2, 3))
    with pytest.raises(ferry.InvalidArgument, match=f"may join in view {number}"):
        group.join_exchange(**SETTINGS)
    for each in (exchange, group.exchange(**SETTINGS)):
        for _ in range(3):
            step(group, each, range(SIZE))
    assert group.all_gather(bytes([group.rank])) == [b"\0", b"\1", b"\2", b"\3"]


def member(rank, address, results):
    """Rank 2 is killed and comes back, and then rank 0, whose process all ranks met first."""
    try:
        with ferry.init(address=address, rank=rank, size=SIZE) as group:
            exchange = group.exchange(**SETTINGS)
            step(group, exchange, range(SIZE))
            with pytest.raises(ferry.InvalidArgument, match="view 1 has all 4 ranks"):
                group.admit()
            for number, lost in ((2, 2), (4, 0)):
                group.barrier()
                if rank == lost:
                    os.kill(os.getpid(), signal.SIGKILL)
                with pytest.raises(ferry.PeerLost, match=f"rank {lost}"):
                    group.barrier()
                assert group.survive() == (number, tuple(one for one in range(SIZE) if one != lost))
                with pytest.raises(ferry.PeerRejected, match=f"rank {lost}"):
                    group.admit([lost], deadline=2)
                results.put((rank, "admits"))
                assert group.admit() == (number + 1, (0, 1, 2, 3))
                go_on_with_all(group, number + 1, exchange)
        results.put((rank, "well"))
    except BaseException as error:
        results.put((rank, repr(error)))


def newcomer(rank, address, results):
    try:
        with ferry.init(address=address, slot=rank, size=SIZE) as group:
            with pytest.raises(ferry.InvalidArgument, match="top_k is 2 and 1"):
                group.join_exchange(**{**SETTINGS, "top_k": 2})
            exchange = group.join_exchange(**SETTINGS)
            go_on_with_all(group, 3 if rank == 2 else 5, exchange)
            if rank == 2:
                group.barrier()
                with pytest.raises(ferry.PeerLost, match="rank 0"):
                    group.barrier()
                assert group.survive() == (4, (1, 2, 3))
                with pytest.raises(ferry.PeerRejected, match="rank 0"):
                    group.admit([0], deadline=2)
                results.put((rank, "admits"))
                assert group.admit() == (5, (0, 1, 2, 3))
                go_on_with_all(group, 5, exchange)
        results.put((rank, "well"))
    except BaseException as error:
        results.put((rank, repr(error)))


def test_killed_processes_are_replaced():
    context = multiprocessing.get_context("spawn")
    results, address = context.Queue(), f"admit-{os.getpid()}"

    def start(body, rank):
        process = context.Process(target=body, args=(rank, address, results))
        process.start()
        return process

    ranks = [start(member, rank) for rank in range(SIZE)]
    for lost in (2, 0):
        others = [rank for rank in range(SIZE) if rank != lost]
        assert sorted(results.get(timeout=60) for _ in others) == [(rank, "admits") for rank in others]
        ranks.append(start(newcomer, lost))
    assert sorted(results.get(timeout=60) for _ in range(SIZE)) == [(rank, "well") for rank in range(SIZE)]
    for rank in ranks:
        rank.join()


GROWING = dict(SETTINGS, expert_ranks=[0, 1, 2, 3])


def by_arguments(rank, address):
    return ferry.init(address=address, rank=rank, size=SIZE, members=[0, 2])


def by_environment(rank, address):
    """The job has ranks 0 and 1, and the others know the address of the group."""
    begins = rank < 2
    os.environ.update({"FERRY_ADDR": address, "FERRY_RANK": str(rank)})
    os.environ.update({"FERRY_SIZE": "2", "FERRY_GROUP_SIZE": str(SIZE)} if begins else
                      {"FERRY_SIZE": str(SIZE), "FERRY_NEWCOMER": "1"})
    return ferry.init()


def grow(rank, init, first, address, results):
    try:
        with init(rank, address) as group:
            assert group.size == SIZE
            if rank in first:
                assert group.view == (1, first)
                exchange = group.exchange(**GROWING)
                step(group, exchange, first)
                assert group.admit() == (2, (0, 1, 2, 3))
            else:
                exchange = group.join_exchange(**GROWING)
            go_on_with_all(group, 2, exchange)
        results.put((rank, "well"))
    except BaseException as error:
        results.put((rank, repr(error)))


@pytest.mark.parametrize("init, first", [(by_arguments, (0, 2)), (by_environment, (0, 1))])
def test_a_group_begins_with_some_ranks_and_grows(init, first):
    context = multiprocessing.get_context("spawn")
    results, address = context.Queue(), f"grow-{init.__name__}-{os.getpid()}"
    ranks = [context.Process(target=grow, args=(rank, init, first, address, results)) for rank in range(SIZE)]
    for rank in ranks:
        rank.start()
    assert sorted(results.get(timeout=60) for _ in ranks) == [(rank, "well") for rank in range(SIZE)]
    for rank in ranks:
        rank.join()


def test_members_need_an_address():
    with pytest.raises(ferry.InvalidArgument, match=r"members is \[0\]"):
        ferry.init(members=[0])
    for wrong in ([1, 0], [0, 2]):
        with pytest.raises(ferry.InvalidArgument, match="ascending ranks from 0 to 1"):
            ferry.init(address="nobody-else", rank=0, size=2, members=wrong)


def test_slot_needs_an_address():
    for wrong in (dict(slot=1), dict(slot=1, size=2), dict(slot=1, size=2, rank=1, address="here")):
        with pytest.raises(ferry.InvalidArgument, match="slot is 1"):
            ferry.init(**wrong)
    with pytest.raises(ferry.Timeout, match="a member that admits others"):
        ferry.init(slot=1, size=2, address="nobody-admits", deadline=0.1)
