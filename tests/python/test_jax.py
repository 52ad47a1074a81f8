"""ferry.jax: ragged_all_to_all on CPU devices against the same moves by numpy. Each case is a process."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")


def run(name, num_devices, flags="", check=True):
    """Runs the function `name` of this file with num_devices devices of JAX."""
    environment = dict(os.environ, XLA_FLAGS=f"--xla_force_host_platform_device_count={num_devices}{flags}",
                       JAX_PLATFORMS="cpu")
    done = subprocess.run([sys.executable, __file__, name], env=environment, capture_output=True, text=True,
                          timeout=240)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("num_devices", [1, 2, 4, 7])
@pytest.mark.parametrize("name", ["moves", "moves_in_flight", "gradients", "refusals", "beside_other_collectives"])
def test_ragged_all_to_all(name, num_devices):
    run(name, num_devices)


@pytest.mark.parametrize("name", ["two_axes", "index_groups"])
def test_ragged_all_to_all_of_four(name):
    run(name, 4)


def test_a_device_that_does_not_call_ends_the_process():
    limits = "".join(f" --xla_cpu_collective_call_{what}_timeout_seconds={seconds}"
                     for what, seconds in [("warn_stuck", 1), ("terminate", 2)])
    done = run("missing_device", 4, limits, check=False)
    assert done.returncode < 0 and "Expected 4 threads to join the rendezvous" in done.stderr


class Case:
    """Rows that devices send each other: the arguments of all devices, and the outputs that they must give."""

    def __init__(self, seed, num_devices, hidden=8, capacity=40, dtype=np.float32):
        random = np.random.default_rng(seed)
        sizes = random.integers(0, capacity // num_devices + 1, (num_devices, num_devices))
        operand = random.integers(-100, 100, (num_devices, capacity, hidden)).astype(dtype)
        output = random.integers(-100, 100, (num_devices, capacity, hidden)).astype(dtype)
        first = np.cumsum(sizes, axis=1) - sizes
        place = np.cumsum(sizes, axis=0) - sizes
        self.wanted = output.copy()
        for source in range(num_devices):
            for device in range(num_devices):
                rows = sizes[source, device]
                sent = operand[source, first[source, device]:][:rows]
                self.wanted[device, place[source, device]:][:rows] = sent
        self.arrays = [operand, output, first, sizes, place, sizes.T]

    def arguments(self):
        rows, integers = self.arrays[:2], self.arrays[2:]
        return [placed(array.reshape(-1, array.shape[-1])) for array in rows] + [
            placed(array.reshape(-1).astype(np.int32)) for array in integers]

    def check(self, found):
        np.testing.assert_array_equal(np.asarray(found), self.wanted.reshape(np.shape(found)))


def placed(array):
    """The array in parts on all devices.

    jaxlib 0.10.2 can stall, without ferry too, where many executions in flight have arguments that lie on one device.
    """
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    return jax.device_put(array, NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x")))


def mapped(function, names=("x",), shape=(-1,)):
    import jax
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(np.array(jax.devices()).reshape(shape), names)
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=PartitionSpec(names), out_specs=PartitionSpec(names),
                                 check_vma=False))


def along_x(*arguments, **settings):
    import jax

    return jax.lax.ragged_all_to_all(*arguments, axis_name="x", **settings)


def num_devices():
    import jax

    return jax.device_count()


def moves():
    move = mapped(along_x)
    for seed, (hidden, capacity, dtype) in enumerate([(8, 40, np.float32), (1, 7, np.int8), (2048, 1024, np.float32),
                                                      (3, 100, np.float16), (5, 16, bool), (2, 9, np.complex64)]):
        case = Case(seed, num_devices(), hidden, capacity, dtype)
        case.check(move(*case.arguments()))


def moves_in_flight():
    """XLA runs several executions at the same time, and the two calls of the second program in any order."""
    one = mapped(along_x)
    two = mapped(lambda first, second: (along_x(*first), along_x(*second)))
    cases = [(Case(seed, num_devices()), Case(1000 + seed, num_devices(), 64, 400)) for seed in range(60)]
    found = [(two(first.arguments(), second.arguments()), one(*first.arguments())) for first, second in cases]
    for (first, second), (pair, single) in zip(cases, found):
        first.check(pair[0])
        second.check(pair[1])
        first.check(single)


def gradients():
    """The gradient of rows that are moved and squared: twice the rows, where they were sent."""
    import jax

    case = Case(5, num_devices())
    move, arguments = mapped(along_x), case.arguments()
    arguments[1] = 0 * arguments[1]
    found = jax.jit(jax.grad(lambda operand: (move(operand, *arguments[1:]) ** 2).sum()))(arguments[0])
    sent = np.zeros(case.arrays[0].shape[:2] + (1,), np.float32)
    for device, count in enumerate(case.arrays[3].sum(axis=1)):
        sent[device, :count] = 1
    np.testing.assert_array_equal(np.asarray(found), (2 * sent * case.arrays[0]).reshape(found.shape))


def refusals():
    import jax

    move, case = mapped(along_x), Case(7, num_devices())
    for argument, number, said in [(5, 1, "which expects"), (2, 1000, "sends rows"), (4, 1000, "whose output has")]:
        arguments = case.arguments()
        arguments[argument] = arguments[argument].at[0].add(number)
        if argument == 4:  # a row goes to a place outside the output
            arguments[3], arguments[5] = arguments[3].at[0].set(1), arguments[5].at[0].set(1)
        try:
            jax.block_until_ready(move(*arguments))
            raise SystemExit(f"no error for {said}")
        except jax.errors.JaxRuntimeError as error:
            assert said in str(error) and "device 0" in str(error), error
        case.check(move(*case.arguments()))


def two_axes():
    """Two pairs of devices, each with rows of its own."""
    move = mapped(along_x, ("y", "x"), (2, 2))
    cases = [Case(seed, 2) for seed in (1, 2)]
    import jax.numpy as jnp

    found = move(*(jnp.concatenate(arrays) for arrays in zip(*(case.arguments() for case in cases))))
    for case, rows in zip(cases, np.split(np.asarray(found), 2)):
        case.check(rows)


def index_groups():
    """Devices 0 and 3, and devices 2 and 1 in this order."""
    import jax.numpy as jnp

    groups, cases = [[0, 3], [2, 1]], [Case(seed, 2) for seed in (3, 4)]
    move = mapped(lambda *arguments: along_x(*arguments, axis_index_groups=groups))
    parts = {device: [jnp.split(array, 2)[rank] for array in case.arguments()]
             for group, case in zip(groups, cases) for rank, device in enumerate(group)}
    found = np.split(np.asarray(move(*(jnp.concatenate(arrays) for arrays in
                                       zip(*(parts[device] for device in range(4)))))), 4)
    for group, case in zip(groups, cases):
        case.check(np.concatenate([found[device] for device in group]))


def beside_other_collectives():
    """Sums of XLA that nothing orders with the rows: no callback waits, so no thread is missing for them."""
    import jax

    def function(arguments, numbers):
        sums = [jax.lax.psum((numbers * i).sum(), "x") for i in range(20)]
        return along_x(*arguments), numbers * sum(sums)

    move, case = mapped(function), Case(11, num_devices(), 64, 2000)
    numbers = placed(np.ones(1000 * num_devices(), np.float32))
    for rows, scaled in [move(case.arguments(), numbers) for _ in range(30)]:
        case.check(rows)
        assert (np.asarray(scaled) == len(numbers) * 190).all()


def missing_device():
    """XLA ends the process where a device does not call, as with its own collectives."""
    import jax

    case = Case(9, 4)
    stray = mapped(lambda *arguments: jax.lax.cond(jax.lax.axis_index("x") != 1, lambda: along_x(*arguments),
                                                   lambda: arguments[1]))
    jax.block_until_ready(stray(*case.arguments()))


if __name__ == "__main__":
    import ferry.jax  # noqa: F401

    globals()[sys.argv[1]]()
