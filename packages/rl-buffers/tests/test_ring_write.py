"""The ring write, native and twin: equal to slice copies for any leaves and spans, and safe for any of them."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_buffers import LazyTensorStorage, ReplayBuffer, gather, native
from rl_buffers.gather import RowGather
from rl_buffers.write import RowWrite, write_rows_reference
from rl_core.buffers import Span
from rl_core.errors import ReplayBufferError

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.fixture(params=["native", "twin"])
def kernels(request, monkeypatch):
    if request.param == "twin":
        monkeypatch.setenv("RL_BUFFERS_NATIVE", "0")
    native.load.cache_clear()
    yield request.param
    native.load.cache_clear()


leaves_strategy = st.lists(
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), min_size=1, max_size=4
)


@settings(max_examples=100, deadline=None)
@given(specs=leaves_strategy, capacity=st.integers(1, 12), data=st.data())
def test_a_write_equals_slice_copies(specs, capacity, data):
    n = data.draw(st.integers(0, 15))
    first = data.draw(st.integers(0, min(n, capacity)))
    start = data.draw(st.integers(0, capacity - first))
    second = data.draw(st.integers(0, min(start, n - first)))
    spans = [Span(start, start + first, n - second - first), Span(0, second, n - second)]
    leaves = [torch.zeros((capacity, *shape), dtype=dtype) for dtype, shape in specs]
    rows = [torch.randint(0, 2, (n, *shape)).to(dtype) for dtype, shape in specs]
    by_kernel, by_twin, expected = ([leaf.clone() for leaf in leaves] for _ in range(3))
    RowWrite(by_kernel)(rows, spans)
    write_rows_reference(by_twin, rows, spans)
    for leaf, row in zip(expected, rows, strict=True):
        leaf[start : start + first] = row[n - second - first : n - second]
        leaf[:second] = row[n - second :]
    for a, b, c in zip(by_kernel, by_twin, expected, strict=True):
        assert torch.equal(a, c) and torch.equal(b, c)


@pytest.mark.parametrize(
    "span", [Span(3, 5, 0), Span(-1, 1, 0), Span(0, 2, 2), Span(0, 1, -1), Span(2**62, 2**62 + 1, 0), Span(2, 1, 0)]
)
def test_a_span_outside_is_an_error_and_nothing_is_written(kernels, span):
    leaf = torch.zeros(4)
    with pytest.raises(ReplayBufferError, match="outside of a storage with 4 steps or of data with 3 steps"):
        RowWrite([leaf])([torch.ones(3)], [Span(0, 1, 0), span])
    assert leaf.sum() == 0


def test_lazily_conjugated_and_negated_rows_are_written_as_they_read(kernels):
    z = torch.tensor([1 + 2j, 3 - 4j])
    leaves = [torch.zeros(2, dtype=torch.complex64), torch.zeros(2, 1)]
    RowWrite(leaves)([z.conj(), z.conj().imag.unsqueeze(-1)], [Span(0, 2, 0)])
    assert leaves[0].tolist() == [1 - 2j, 3 + 4j] and leaves[1].flatten().tolist() == [-2.0, 4.0]


def test_a_buffer_writes_one_lazily_negated_number_as_it_reads(kernels):
    buffer = ReplayBuffer(storage=LazyTensorStorage(3))
    for z in (torch.tensor([1 + 2j]), torch.tensor([1 + 5j])):
        buffer.extend(TensorDict({"x": z.conj().imag}, [1]))
    assert buffer[:]["x"].tolist() == [-2.0, -5.0]


@pytest.mark.parametrize("layout", ["strided", "expanded", "transposed", "of a gradient", "subclass"])
def test_rows_may_lie_in_memory_in_any_way(kernels, layout):
    x = torch.arange(24.0)
    data = {
        "strided": x.reshape(12, 2)[::2],
        "expanded": x[:2].expand(6, 2),
        "transposed": x[:12].reshape(2, 6).T,
        "of a gradient": x[:12].reshape(6, 2).clone().requires_grad_() * 1,
        "subclass": torch.nn.Parameter(x[:12].reshape(6, 2)),
    }[layout]
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    for _ in range(2):  # the first write fixes the structure, later ones take the quick way
        buffer.extend(TensorDict({"x": data}, [6]))
    expected = torch.cat([data, data]).detach()
    assert torch.equal(buffer[:]["x"], torch.cat([expected[9:], expected[3:9]]))


def test_large_copies_are_shared_by_threads_and_equal(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    leaves = [torch.zeros(999, 4000, dtype=torch.uint8), torch.zeros(999, 3)]
    rows = [torch.randint(0, 256, (700, 4000), dtype=torch.uint8), torch.randn(700, 3)]
    RowWrite(leaves)(rows, [Span(500, 999, 0), Span(0, 201, 499)])
    assert torch.equal(torch.cat([leaves[0][500:], leaves[0][:201]]), rows[0])
    index = torch.randint(0, 999, (3001,))
    for got, leaf in zip(RowGather(leaves)(index, 999), leaves, strict=True):
        assert torch.equal(got, leaf.index_select(0, index))


def test_small_copies_start_no_thread():
    assert gather.threads_for(1 << 20) == 1 and gather.threads_for((1 << 20) + 1) == torch.get_num_threads()


def test_a_gather_fills_given_outputs(kernels):
    leaves = [torch.arange(12.0).reshape(6, 2), torch.arange(6)]
    rows = RowGather(leaves)
    out = rows.empty(3)
    assert [leaf.data_ptr() for leaf in rows(torch.tensor([5, 0, 5]), 6, out)] == [leaf.data_ptr() for leaf in out]
    assert out[1].tolist() == [5, 0, 5]


def test_a_pinning_buffer_gathers_into_pinned_memory_at_once(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked, plain = [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: (asked.append(pin_memory), plain(*a, **k))[1])
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # what it does to pinned memory
    monkeypatch.setattr(TensorDict, "pin_memory", lambda data, *a, **k: data)
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), pin_memory=True)
    buffer.extend(TensorDict({"x": torch.arange(5), "y": torch.zeros(5)}, [5]))
    asked.clear()
    assert sorted(set(buffer.sample(200)["x"].tolist())) == [0, 1, 2, 3, 4]
    assert asked == [True, True]


def test_other_threads_run_while_rows_are_copied():
    """The kernels hold no interpreter lock: a pure Python thread gets on during one long write."""
    leaf, rows = torch.zeros(1, 1 << 28, dtype=torch.uint8), torch.ones(1, 1 << 28, dtype=torch.uint8)
    write, count, stop = RowWrite([leaf]), [0], threading.Event()
    if not write.native:
        pytest.skip("the kernels are not installed")
    seen = []

    def tick() -> None:
        while not stop.is_set():
            count[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    kernel = write._kernel

    def counted(*arguments):
        before = count[0]
        code = kernel(*arguments)
        seen.append(count[0] - before)
        return code

    write._kernel = counted
    write([rows], [Span(0, 1, 0)])
    stop.set()
    thread.join()
    assert seen[0] > 10
