"""Makes groups: from the environment, from another library's communicator, of new processes, or of threads.

All ranks of a group make it together. Calls ferry._core."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import secrets
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Callable, Literal, Sequence, TypeVar

from ferry import _core, errors
from ferry.parent import end_with_parent

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    Arguments = TypeVarTuple("Arguments")
Returned = TypeVar("Returned")


def await_place() -> None:
    """Waits until this process has a place in its job. Returns at once unless the process is a spare.

    A spare is a process that `ferry launch --spares` starts before a rank is lost. It waits here until it gets the
    place of a lost rank. os.environ then has the variables of that rank, such as RANK, and FERRY_NEWCOMER=1.
    ferry.init() without an argument calls this function. A program that reads RANK itself, or calls
    torch.distributed.init_process_group, must call await_place() before that and after its imports. The wait has no
    deadline: the launcher kills a spare that no rank needs. Raises ferry.Interrupted, and ferry.Closed if the launcher
    gives no place.
    """
    place = _core.await_place()
    if place:
        os.environ.update(place)
        del os.environ["FERRY_SPARE"]


def init(*, process_group: Any = None, comm: Any = None, all_gather: Callable[[bytes], list[bytes]] | None = None,
         rank: int | None = None, size: int | None = None, address: str | None = None, name: str = "",
         deadline: float = 100.0, topology: str = "", slot: int | None = None, members: Sequence[int] | None = None
         ) -> _core.Group:
    """Makes the group of the ranks of a job, and returns the Group of this rank.

    Without one of the following arguments the job is found in the environment: ferry launch, torchrun, Open MPI, Hydra
    (MPICH), PMIx or Slurm. A spare first waits there for a place, without a deadline (await_place).

    process_group: a torch.distributed ProcessGroup.
    comm: an mpi4py communicator.
    all_gather, with rank and size: a callable that takes the bytes of this rank and returns the list of the bytes of
        all ranks.
    address, with rank and size: the same address on all ranks; any text on one host, and "tcp://host:port" on several
        (docs/hosts.md).

    slot, with address and size and in place of rank: this process takes the place of rank `slot`, which a running
        group of processes has lost. The address is group.address of that group. If no rank is left on the host of rank
        0, it is the same port on the first host that has ranks (docs/placement.md). The call waits until the members of
        that group call admit(), and returns the Group in the view that begins. In a job that is found in the
        environment FERRY_NEWCOMER=1, which `ferry launch --restart` sets, has the same meaning.

    members, with an address: the ranks that the group begins with, ascending and equal on all of them. Its first view
        lacks the other ranks; a process of one of them waits for admit(), as with slot. Between hosts the topology must
        say on which hosts the other ranks will be. In a job that is found in the environment FERRY_GROUP_SIZE is the
        size of a group that begins with the ranks of the job.

    process_group, comm and all_gather are used in this call only, for bytes of fixed lengths. FERRY_SECRET protects the
    group from a process that can read or change these bytes (docs/hosts.md, Security). name distinguishes groups that
    the same ranks make at the same time. deadline is the number of seconds after which all waits of one call of the
    group have ended. topology has levels such as "host:2,rank:4" (docs/topology.md); with "" the topology is found.
    Collective. Raises ferry.Error.
    """
    ways = [way for way in (process_group, comm, all_gather, address) if way is not None]
    if len(ways) > 1:
        raise errors.InvalidArgument("init takes one of process_group, comm, all_gather and address")
    if members is not None and address is None:
        raise errors.InvalidArgument(f"members is {list(members)}: it needs an address, a rank and a size")
    if slot is not None:
        if address is None or size is None or rank is not None:
            raise errors.InvalidArgument(f"slot is {slot}: it needs an address and a size, and takes the place of rank")
        return _core.connect(address, slot, size, name, deadline, topology, True, list(members or []))
    if process_group is not None:
        return _from_process_group(process_group, name, deadline, topology)
    if comm is not None:
        return _from_communicator(comm, name, deadline, topology)
    if all_gather is None and address is None:
        if rank is not None or size is not None:
            raise errors.InvalidArgument("rank and size need an address or an all_gather")
        await_place()
        return _core.from_environment(name, deadline, topology)
    if rank is None or size is None:
        raise errors.InvalidArgument(f"rank is {rank} and size is {size}: both are needed here")
    if address is not None:
        return _core.connect(address, rank, size, name, deadline, topology, False, list(members or []))
    return _core.from_all_gather(rank, size, all_gather, name, deadline, topology)


# The gathers move bytes, equally many on each rank, and no pickles: unpickling runs code that the sender chooses, and
# the sender may be a process that only claims to be a rank.

_DEVICES = {"nccl": "cuda", "xccl": "xpu", "hccl": "npu"}  # device of the tensors of a backend, where it is not the CPU


def _from_communicator(comm, name, deadline, topology):
    rank, size = comm.Get_rank(), comm.Get_size()

    def gather(own_bytes):
        all_bytes = bytearray(size * len(own_bytes))
        comm.Allgather(bytearray(own_bytes), all_bytes)
        return [bytes(all_bytes[at:at + len(own_bytes)]) for at in range(0, len(all_bytes), len(own_bytes))]

    return _core.from_all_gather(rank, size, gather, name, deadline, topology)


def _from_process_group(process_group, name, deadline, topology):
    import torch
    import torch.distributed as dist

    def gather(own_bytes):
        device = _DEVICES.get(dist.get_backend(process_group), "cpu")
        own = torch.frombuffer(bytearray(own_bytes), dtype=torch.uint8).to(device)
        parts = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(parts, own, group=process_group)
        return [bytes(part.tolist()) for part in parts]

    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    if rank < 0:
        raise errors.InvalidArgument("this process is not in the process group")
    return _core.from_all_gather(rank, size, gather, name, deadline, topology)


def run_threads(num_ranks: int, fn: Callable[[_core.Group, Unpack[Arguments]], Returned], *args: Unpack[Arguments],
                name: str = "", deadline: float = 100.0, topology: str = "") -> list[Returned]:
    """Runs fn(group, *args) on num_ranks threads, one for each rank, and returns the list of results by rank.

    If a rank fails, the waits of the other ranks end, and the exception of the rank that failed first is raised, not an
    exception that follows from it. Meant for tests and notebooks: the Python code of the ranks takes turns, while rows
    move in parallel. name, deadline and topology are those of init.
    """
    groups = _core.threads(num_ranks, name, deadline, topology)
    results, failures = [None] * num_ranks, []
    ended = threading.Semaphore(0)  # Thread.join is not enough: after Ctrl-C it returns before its thread has ended

    def play(rank, group):
        try:
            results[rank] = fn(group, *args)
        except BaseException as error:
            failures.append(_error_of(rank, error))
        finally:
            group.destroy()
            ended.release()

    threads = [threading.Thread(target=play, args=each, name=f"ferry rank {each[0]}") for each in enumerate(groups)]
    for thread in threads:
        thread.start()
    remaining = num_ranks
    try:
        while remaining:
            ended.acquire()
            remaining -= 1
    except BaseException:  # Ctrl-C
        groups[0].interrupt()
        for _ in range(remaining):
            ended.acquire()
        raise
    finally:
        for thread in threads:
            thread.join()
    if failures:
        raise next((error for error in failures if not _follows(error)), failures[0])
    return results


def _follows(error):
    """Whether the error is caused by the failure of another rank."""
    return isinstance(error, (errors.PeerLost, errors.Broken, errors.PeerRejected))


class _Failure:
    """The failure of a rank. Its process sends it instead of a result."""

    def __init__(self, rank, error):
        self.text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.error = _error_of(rank, error)
        try:
            pickle.loads(pickle.dumps(self.error))
        except Exception:
            self.error = errors.Error(f"{type(error).__name__}: {error}")

    @property
    def follows(self):
        return _follows(self.error)


def _error_of(rank, error):
    """Returns the error to raise for a rank that failed. For SystemExit it is a ferry.Error."""
    if isinstance(error, SystemExit):
        return errors.Error(f"rank {rank} called sys.exit({error.code})")
    return error


def _play(connection, address, rank, size, deadline, fn, args):
    end_with_parent()
    try:
        with _core.connect(address, rank, size, "", deadline, "") as group:
            try:
                # pickle copies tensors; pickles of torch.multiprocessing would refer to memory of this process.
                reply = pickle.dumps(fn(group, *args))
            except BaseException as error:  # sent before the other ranks notice the end of this rank
                reply = pickle.dumps(_Failure(rank, error))
            connection.send_bytes(reply)
    except BaseException as error:  # an error of connect, or the parent has ended
        with contextlib.suppress(OSError):
            connection.send_bytes(pickle.dumps(_Failure(rank, error)))


# Exit code of a rank whose main module calls spawn() again while it is imported.
_NO_GUARD = 71


def spawn(num_ranks: int, fn: Callable[[_core.Group, Unpack[Arguments]], Returned], *args: Unpack[Arguments],
          deadline: float = 100.0, method: Literal["spawn", "fork", "forkserver"] = "spawn") -> list[Returned]:
    """Runs fn(group, *args) in num_ranks new processes, one for each rank, and returns the list of results by rank.

    fn, args and results are pickled, so fn is a function of a module. With method="fork" it may be any function, if
    torch or other threads have not been used before. If a rank fails, the other processes are ended, and the error of
    the rank that failed first is raised, with the traceback of that rank as its cause. For a rank whose process died it
    is ferry.PeerLost with the rank.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # a new rank imports the main module
        os._exit(_NO_GUARD)
    context = multiprocessing.get_context(method)
    address = f"spawn-{os.getpid()}-{secrets.token_hex(8)}"
    pipes, processes = [], []
    try:
        for rank in range(num_ranks):
            ours, theirs = context.Pipe(duplex=False)
            pipes.append(ours)
            process = context.Process(target=_play, args=(theirs, address, rank, num_ranks, deadline, fn, args),
                                      name=f"ferry rank {rank}")
            process.start()
            theirs.close()
            processes.append(process)
        results = _collect(pipes, processes)
        for process in processes:  # a process may go on after it has sent its result
            process.join()
        return results
    finally:
        _end(processes)
        for pipe in pipes:
            pipe.close()


def _end(processes):
    """Ends the processes that still run, by SIGTERM and after 5 seconds by SIGKILL."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def _collect(pipes, processes):
    """Waits for the processes and returns the list of results by rank. Raises the error of the first failure. If that
    follows from the failure of another rank, waits up to a second for the cause, and raises the error of the cause, or
    else that of the first failure."""
    results, waiting, failure, until = [None] * len(pipes), dict(enumerate(pipes)), None, None
    while waiting:
        timeout = None if until is None else max(until - time.monotonic(), 0)
        ready = multiprocessing.connection.wait(list(waiting.values()), timeout)
        if until is not None and not ready:
            break
        for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
            results[rank] = _result(rank, waiting.pop(rank), processes[rank])
            if isinstance(results[rank], _Failure) and (
                failure is None or failure.follows and not results[rank].follows
            ):
                failure = results[rank]
        if failure is not None:
            if not failure.follows:
                break
            until = until or time.monotonic() + 1
    if failure is not None:
        raise failure.error from RuntimeError(f"traceback of the rank:\n{failure.text}")
    return results


def _result(rank, pipe, process):
    try:
        return pickle.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        process.join()
        if process.exitcode == _NO_GUARD:
            return _Failure(rank, errors.InvalidArgument(
                "the main module calls ferry.spawn when it is imported, and every new rank imports it: put the call "
                "under if __name__ == '__main__':"))
        text = f"rank {rank} (pid {process.pid}) ended with exit code {process.exitcode}"
        return _Failure(rank, errors.make_error("peer_lost", text, rank, False))
