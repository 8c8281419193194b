"""MLX's distributed API on the job's group: each rank checks what it got, by what it knows of the others."""

import json
import math
import sys
import traceback

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np

group = mx.distributed.init()
rank, size = group.rank(), group.size()

INTEGERS = [mx.uint8, mx.uint16, mx.uint32, mx.uint64, mx.int8, mx.int16, mx.int32, mx.int64]
FLOATS = [mx.float16, mx.bfloat16, mx.float32, mx.float64, mx.complex64]
DTYPES = [mx.bool_, *INTEGERS, *FLOATS]


def of_rank(r, shape, dtype):
    """The input of rank r: small whole numbers, so that sums are exact in every dtype."""
    values = (np.arange(math.prod(shape)).reshape(shape) * (r + 2) + r) % 5
    with mx.stream(mx.cpu):
        return mx.array(values, dtype=mx.int32).astype(dtype)


def of_all(shape, dtype):
    return [of_rank(r, shape, dtype) for r in range(size)]


def same(found, expected):
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert mx.array_equal(found, expected).item(), (found, expected)


def summed(arrays):
    total = arrays[0]
    for one in arrays[1:]:
        total = mx.logical_or(total, one) if total.dtype == mx.bool_ else total + one
    return total


def check_all_dtypes():
    for dtype in DTYPES:
        shape = (4 * size, 3)
        everyone = of_all(shape, dtype)
        x = everyone[rank]
        same(mx.distributed.all_sum(x), summed(everyone))
        same(mx.distributed.all_gather(x), mx.concatenate(everyone))
        chunk = summed(everyone)[rank * 4 : (rank + 1) * 4]
        same(mx.distributed.sum_scatter(x), chunk)
        if dtype != mx.complex64:
            largest, smallest = everyone[0], everyone[0]
            for one in everyone[1:]:
                largest, smallest = mx.maximum(largest, one), mx.minimum(smallest, one)
            same(mx.distributed.all_max(x), largest)
            same(mx.distributed.all_min(x), smallest)


def check_send_and_recv():
    if size == 1:
        return  # MLX refuses
    following, previous = (rank + 1) % size, (rank - 1) % size
    for dtype in DTYPES:
        x = of_rank(rank, (3, 5), dtype)
        expected = of_rank(previous, (3, 5), dtype)
        if rank == 0:
            mx.eval(mx.distributed.send(x, following))
            got = mx.distributed.recv((3, 5), dtype, previous)
            mx.eval(got)
        else:
            got = mx.distributed.recv_like(x, previous)
            mx.eval(got)
            sent = mx.distributed.send(x, following)
            mx.eval(sent)
            same(sent, x)
        same(got, expected)


def check_empty_and_scalar():
    same(mx.distributed.all_sum(mx.array(rank + 1.0)), mx.array(size * (size + 1) / 2))
    same(mx.distributed.all_sum(mx.zeros((0, 3))), mx.zeros((0, 3)))
    same(mx.distributed.all_gather(mx.zeros((0, 3))), mx.zeros((0, 3)))
    same(mx.distributed.all_gather(mx.array(rank)).reshape(-1), mx.arange(size))
    same(mx.distributed.all_max(mx.array(rank)), mx.array(size - 1))


def check_sizes_around_the_frames():
    for count in (1, 7, 1023, 1024, 1025, 4096, 65537, 262144, 1000003):
        x = mx.full((count,), rank + 1.0)
        same(mx.distributed.all_sum(x), mx.full((count,), size * (size + 1) / 2))


def check_inputs_that_are_not_contiguous():
    everyone = of_all((6, 4 * size), mx.float32)
    views = {
        "transposed": lambda a: a.T,
        "every other row": lambda a: a[::2],
        "a column": lambda a: a[:, 1],
        "broadcast": lambda a: mx.broadcast_to(a[0, 0], (4 * size, 2)),
    }
    for view in views.values():
        x = view(everyone[rank])
        same(mx.distributed.all_sum(x), summed([view(a) for a in everyone]))
        same(mx.distributed.all_gather(x), mx.concatenate([view(a) for a in everyone]))
    same(
        mx.distributed.sum_scatter(everyone[rank].T),
        summed([a.T for a in everyone])[rank * 4 : (rank + 1) * 4],
    )


def check_donated_inputs():
    for _ in range(3):
        x = of_rank(rank, (100,), mx.float32)
        same(mx.distributed.all_sum(x + 1), summed([a + 1 for a in of_all((100,), mx.float32)]))
        same(x, of_rank(rank, (100,), mx.float32))
        y = mx.distributed.all_sum(mx.distributed.all_max(x * 2) * 3)
        same(y, mx.full((100,), 0.0) + summed([of_max() * 3] * size))


def of_max():
    largest = of_rank(0, (100,), mx.float32) * 2
    for one in of_all((100,), mx.float32)[1:]:
        largest = mx.maximum(largest, one * 2)
    return largest


def check_streams():
    second = mx.new_stream(mx.cpu)
    x = of_rank(rank, (50,), mx.float32)
    expected = summed(of_all((50,), mx.float32))
    a = mx.distributed.all_sum(x, stream=second)
    b = mx.distributed.all_sum(x + 1)
    c = mx.distributed.all_sum(x + 2, stream=mx.cpu)
    mx.eval(c, a, b)
    same(a, expected)
    same(b, expected + size)
    same(c, expected + 2 * size)
    with mx.stream(second):
        same(mx.distributed.all_sum(x), expected)


def check_one_order_on_two_streams():
    # On rank 0 the first is ready long after the second; the others take them as they were written.
    slow = mx.new_stream(mx.cpu)
    for _ in range(3):
        late = mx.ones((500, 500), stream=slow) / 500
        for _ in range(20 if rank == 0 else 0):
            late = mx.matmul(late, mx.ones((500, 500), stream=slow) / 500, stream=slow)
        first = mx.distributed.all_sum(late, stream=slow)
        second = mx.distributed.all_max(mx.array([rank]))
        mx.async_eval(first)
        mx.eval(second)
        same(second, mx.array([size - 1]))
        assert mx.allclose(first, mx.full((500, 500), size / 500)).item()


def check_many_queued():
    x = mx.ones((1000,))
    outputs = []
    for step in range(50):
        outputs.append(mx.distributed.all_sum(x * step))
        mx.async_eval(outputs[-1])
    for step, output in enumerate(outputs):
        same(output, mx.full((1000,), float(step * size)))


def check_compile():
    @mx.compile
    def step(x):
        return mx.distributed.all_sum(x * 2) + 1

    for _ in range(3):
        same(step(mx.full((10,), rank + 1.0)), mx.full((10,), size * (size + 1) + 1.0))


def check_gradient_through_all_sum():
    def loss(w):
        return (mx.distributed.all_sum(w * (rank + 1)) ** 2).sum()

    # MLX's rule: the cotangent of a sum passes through as it is.
    total = size * (size + 1) / 2
    value, grad = mx.value_and_grad(loss)(mx.array([1.0, 2.0]))
    assert value.item() == total**2 * 5
    same(grad, mx.array([1.0, 2.0]) * (2 * total * (rank + 1)))


def check_average_gradients():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    mx.random.seed(3)
    model.update(nn.utils.tree_map(lambda p: mx.random.normal(p.shape), model.parameters()))
    data = [mx.full((5, 4), r + 1.0) for r in range(size)]
    gradients = nn.value_and_grad(model, lambda x: model(x).sum())
    each = [gradients(data[r])[1] for r in range(size)]
    found = dict(nn.utils.tree_flatten(nn.average_gradients(each[rank])))
    for name, value in found.items():
        expected = sum(dict(nn.utils.tree_flatten(one))[name] for one in each) / size
        assert mx.allclose(value, expected, rtol=1e-5).item(), name
    small = nn.average_gradients(each[rank], all_reduce_size=0)
    mx.eval(small)


def check_shard_linear():
    mx.random.seed(5)
    layer = nn.Linear(8 * size, 4 * size)
    x = mx.random.normal((3, 8 * size))
    whole = layer(x)
    wide = nn.layers.distributed.shard_linear(layer, "all-to-sharded")
    part = wide(x)
    assert mx.allclose(part, whole[:, rank * 4 : (rank + 1) * 4], atol=1e-4).item()
    deep = nn.layers.distributed.shard_linear(layer, "sharded-to-all")
    assert mx.allclose(deep(x[:, rank * 8 : (rank + 1) * 8]), whole, atol=1e-4).item()


def check_training():
    mx.random.seed(1)
    model = nn.Linear(6, 3)
    optimizer = optim.Adam(learning_rate=0.01)
    step = nn.value_and_grad(model, lambda x: (model(x) ** 2).mean())
    for index in range(5):
        _, grads = step(mx.full((4, 6), rank + index + 1.0))
        optimizer.update(model, nn.average_gradients(grads))
        mx.eval(model.parameters(), optimizer.state)
    everyone = mx.distributed.all_gather(model.weight[None])
    for other in range(size):
        same(everyone[other], model.weight)


def check_init_again():
    assert mx.distributed.init() is group
    assert mx.distributed.init(strict=True, backend="jaccl") is group
    assert mx.distributed.is_available()
    assert mx.distributed.is_available("jaccl")
    assert not mx.distributed.is_available("ring")
    same(mx.distributed.all_sum(mx.array(1), group=group), mx.array(size))


def check_refusals():
    for backend, kind, word in (("ring", RuntimeError, "--backend ring"), ("no such", ValueError, "jaccl")):
        try:
            mx.distributed.init(backend=backend)
        except kind as error:
            assert word in str(error), error
        else:
            raise AssertionError(f"init(backend={backend!r}) passed")
    try:
        group.split(rank % 2)
    except RuntimeError as error:
        assert "not supported yet" in str(error)
    else:
        raise AssertionError("split passed")


failed = {}
for name, check in list(globals().items()):
    if name.startswith("check_"):
        try:
            check()
        except Exception:
            failed[name] = traceback.format_exc()
            break  # the others are in step with us no more
print(json.dumps({"failed": failed}), flush=True)
sys.exit(bool(failed))
