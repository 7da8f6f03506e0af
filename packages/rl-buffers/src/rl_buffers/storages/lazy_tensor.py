"""LazyTensorStorage: one contiguous tensor per leaf, allocated when the first data show what a row looks like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_buffers.gather import RowGather
from rl_buffers.gather_reference import check_slots
from rl_buffers.rows import FlatRows, RowSchema, flatten, object_rows, stack_objects
from rl_core.buffers import Block, Span, Storage
from rl_core.errors import CheckpointError, ReplayBufferError

__all__ = ["LazyTensorStorage"]


class _Payload(NamedTuple):
    tensors: list[Tensor]  # [steps, *lanes, *event] each
    objects: list[list[Any]]  # steps * lanes values each, time slowest


class _Dims(NamedTuple):
    """How the leading dimensions of one write are to be read."""

    rows: int  # how many leading dimensions count rows
    single: bool  # whether the data are one step, without a time dimension


class LazyTensorStorage(Storage):
    """Keeps TensorDict (or tensor) rows in preallocated contiguous tensors, one per leaf.

    The first write fixes keys, dtypes and shapes. With ``ndim=1`` every batch dimension of a TensorDict counts rows: a
    rollout ``[N, T]`` becomes ``N * T`` rows (TorchRL keeps N rows of shape ``[T]``; ask for that with the buffer's
    ``dim_extend=0``). With ``ndim=2`` data ``[N, T]`` are N lanes that each grow by T steps.

    Args:
        max_size: capacity in rows; with ``ndim > 1`` rounded up to whole steps of all lanes.
        device: where the rows are kept; "auto" takes the device of the first data.
        ndim: how many leading dimensions of the data count rows.

    Raises:
        ReplayBufferError: `max_size` or `ndim` is below 1.

    >>> from tensordict import TensorDict
    >>> storage = LazyTensorStorage(4)
    >>> block = storage.prepare(TensorDict({"x": torch.arange(6).reshape(3, 2)}, [3]))
    >>> storage.write(block, [Span(0, 3, 0)])
    >>> len(storage), storage.get(torch.tensor([2]))["x"]
    (3, tensor([[4, 5]]))
    """

    def __init__(self, max_size: int, *, device: torch.device | str = "cpu", ndim: int = 1) -> None:
        if max_size < 1 or ndim < 1:
            raise ReplayBufferError(f"max_size and ndim must be at least 1, got max_size={max_size}, ndim={ndim}")
        self.max_size = int(max_size)
        self.ndim = int(ndim)
        self.device: torch.device | None = None if device == "auto" else torch.device(device)
        self.schema: RowSchema | None = None
        self._lane_shape: tuple[int, ...] = ()
        self._steps = 0
        self._columns: list[Tensor] = []  # [max_steps, *lanes, *event]
        self._rows: list[Tensor] = []  # [max_size, *event], views of the columns
        self._objects: list[list[Any]] = []
        self._gather = RowGather([])

    @property
    def initialized(self) -> bool:
        """Whether a write has fixed the structure."""
        return self.schema is not None

    @property
    def lane_shape(self) -> tuple[int, ...]:
        """The sizes of the leading ``ndim - 1`` dimensions of the data."""
        return self._lane_shape

    @property
    def lanes(self) -> int:
        """How many rows one step fills."""
        return math.prod(self._lane_shape)

    @property
    def max_steps(self) -> int:
        """Capacity in steps."""
        return -(-self.max_size // self.lanes)

    def __len__(self) -> int:
        return self._steps * self.lanes

    def prepare(self, data: Any, row_dims: int | None = None) -> Block:
        """Check `data`, allocate at the first call, and bring the leaves to ``[steps, *lanes, ...]``."""
        flat = flatten(data)
        batch = self._leading(flat)
        dims = self._dims(flat, batch, row_dims)
        lanes = tuple(batch[: self.ndim - 1]) if self.ndim > 1 else ()
        if 0 in lanes:
            raise ReplayBufferError(f"the data have no lane: their batch size is {list(batch)}")
        if self.schema is None:
            self._allocate(RowSchema.of(flat, dims.rows), lanes, flat)
        schema = self.schema
        assert schema is not None
        schema.check(flat, dims.rows)
        if lanes != self._lane_shape:
            raise ReplayBufferError(
                f"the data have lanes {list(lanes)}, this storage has {list(self._lane_shape)} since its first write"
            )
        tensors = [flat.tensors[leaf.path] for leaf in schema.leaves]
        if dims.single or dims.rows > 1:
            tensors = [self._by_step(leaf, dims) for leaf in tensors]
        objects = [self._objects_by_step(object_rows(flat.objects[path], dims.rows), dims) for path in schema.objects]
        steps = 1 if dims.single else (math.prod(batch[: dims.rows]) if self.ndim == 1 else batch[self.ndim - 1])
        return Block(int(steps), _Payload(tensors, objects))

    def write(self, block: Block, spans: Sequence[Span]) -> None:
        """Copy the steps of `spans`: one slice copy per span and leaf."""
        payload: _Payload = block.payload
        with torch.no_grad():
            for start, stop, source in spans:
                n = stop - start
                for column, leaf in zip(self._columns, payload.tensors, strict=True):
                    column.narrow(0, start, n).copy_(leaf if n == block.steps else leaf.narrow(0, source, n))
        lanes = self.lanes
        for start, stop, source in sorted(spans):  # lower places first: a list has no gaps to write behind
            for kept, new in zip(self._objects, payload.objects, strict=True):
                kept[start * lanes : stop * lanes] = new[source * lanes : (source + stop - start) * lanes]
            self._steps = max(self._steps, stop)

    def get(self, index: Tensor) -> Any:
        """Copies of the rows at `index`, int64 ``[B]``, as a TensorDict or tensor ``[B, ...]``."""
        schema = self.schema
        if schema is None:
            raise ReplayBufferError("the storage is empty: write rows before reading them")
        tensors = self._gather(index, len(self))
        objects: list[Any] = []
        if self._objects:
            slots = index.tolist()
            for kept, extra in zip(self._objects, schema.object_dims, strict=True):
                objects.append(stack_objects([kept[slot] for slot in slots], 1 + extra))
        return schema.build(tensors, objects, (index.numel(),), self.device)

    def set(self, index: Tensor, data: Any) -> None:
        """Overwrite the filled rows at `index` (int64 ``[B]``, no slot twice) with the B rows of `data`."""
        if self.schema is None:
            raise ReplayBufferError("the storage is empty: extend it before rows can be overwritten")
        check_slots(index, len(self))
        flat = flatten(data)
        self.schema.check(flat, 1)
        counts = {leaf.shape[0] for leaf in flat.tensors.values()} | {
            value.batch_size[0] for value in flat.objects.values()
        }
        if counts != {index.numel()}:
            raise ReplayBufferError(f"{index.numel()} slots were named, the data have {sorted(counts)} rows")
        for row, leaf in zip(self._rows, self.schema.leaves, strict=True):
            row.index_copy_(0, index.to(row.device), flat.tensors[leaf.path].detach().to(row.device))
        for kept, path in zip(self._objects, self.schema.objects, strict=True):
            for slot, value in zip(index.tolist(), object_rows(flat.objects[path], 1), strict=True):
                kept[slot] = value

    def empty(self) -> None:
        """Forget all rows; the structure and the memory stay."""
        self._steps = 0
        for kept in self._objects:
            kept.clear()

    def state_dict(self) -> dict[str, Any]:
        """The filled rows (views, not copies) and the structure."""
        return {
            "kind": type(self).__name__,
            "ndim": self.ndim,
            "max_steps": self.max_steps,
            "steps": self._steps,
            "lane_shape": list(self._lane_shape),
            "schema": None if self.schema is None else self.schema.state_dict(),
            "tensors": [column[: self._steps] for column in self._columns],
            "objects": [list(kept) for kept in self._objects],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over rows and structure as copies; the capacity must be the saved one."""
        self._check_state(state_dict)
        if state_dict["schema"] is None:
            self.empty()
            return
        schema, lanes = RowSchema.from_state_dict(state_dict["schema"]), tuple(state_dict["lane_shape"])
        tensors: list[Tensor] = state_dict["tensors"]
        if schema != self.schema or lanes != self._lane_shape:
            device = tensors[0].device if tensors else torch.device("cpu")
            self._allocate(schema, lanes, FlatRows({(): torch.empty(0, device=device)}, {}, {}))
        self._steps = int(state_dict["steps"])
        for column, saved in zip(self._columns, tensors, strict=True):
            column[: self._steps].copy_(saved)
        self._objects = [list(kept) for kept in state_dict["objects"]]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": [], "_gather": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()

    def _bind(self) -> None:
        """Views of the columns row by row, and the gather that reads them."""
        self._rows = [column.flatten(0, len(self._lane_shape)) for column in self._columns]
        self._gather = RowGather(self._rows)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        if state.get("kind") != type(self).__name__:
            raise CheckpointError(
                f"the state is of a {state.get('kind')}, this is a {type(self).__name__}: use the same storage"
            )
        steps = -(-self.max_size // max(1, math.prod(state["lane_shape"])))
        if state["ndim"] != self.ndim or (state["schema"] is not None and state["max_steps"] != steps):
            raise CheckpointError(
                f"the state is of a storage with ndim={state['ndim']} and {state['max_steps']} steps, this one has "
                f"ndim={self.ndim} and {steps} steps: create it with the same max_size and ndim"
            )

    @staticmethod
    def _leading(flat: FlatRows) -> tuple[int, ...]:
        """The dimensions that may count rows: a TensorDict's batch size, a tensor's whole shape."""
        return tuple(flat.nodes[()]) if flat.nodes else tuple(flat.tensors[()].shape)

    def _dims(self, flat: FlatRows, batch: tuple[int, ...], row_dims: int | None) -> _Dims:
        """Decide which leading dimensions count rows."""
        if self.schema is not None:
            of_a_row = (
                len(self.schema.row_batch)
                if flat.nodes
                else len(self.schema.leaves[0].shape if self.schema.is_tensor else ())
            )
            found = len(batch) - of_a_row
        else:
            found = row_dims if row_dims is not None else (len(batch) if flat.nodes else self.ndim)
        wanted = found if row_dims is None else row_dims
        admitted = (self.ndim - 1,) if wanted == self.ndim - 1 and row_dims is not None else (self.ndim,)
        flattens = self.ndim == 1 and wanted >= 1
        if wanted != found or len(batch) < wanted or not (flattens or wanted in admitted):
            raise self._dims_error(batch, row_dims)
        return _Dims(wanted, wanted == self.ndim - 1)

    def _dims_error(self, batch: tuple[int, ...], row_dims: int | None) -> ReplayBufferError:
        row = list(self.schema.row_batch) if self.schema is not None else []
        names = ["time"] if self.ndim == 1 else [*(f"lane{i}" for i in range(self.ndim - 1)), "time"]
        if row_dims is not None and row_dims == self.ndim - 1:
            lanes = names[:-1] + [str(size) for size in row]
            want, other = f"add takes one step: batch size [{', '.join(lanes)}]", "use extend for several steps"
        else:
            rows = "one or more row dimensions" if self.ndim == 1 else f"[{', '.join(names)}]"
            want, other = (
                f"extend takes batch size {rows}" + (f" followed by {row}" if row else ""),
                "use add for a single row",
            )
        return ReplayBufferError(f"{want} (storage ndim={self.ndim}), got batch size {list(batch)}; {other}.")

    def _allocate(self, schema: RowSchema, lanes: tuple[int, ...], flat: FlatRows) -> None:
        if self.device is None:
            self.device = next((leaf.device for leaf in flat.tensors.values()), torch.device("cpu"))
        steps = -(-self.max_size // max(1, math.prod(lanes)))
        columns = [
            torch.empty((steps, *lanes, *leaf.shape), dtype=leaf.dtype, device=self.device) for leaf in schema.leaves
        ]
        self._columns, self._lane_shape = columns, lanes
        self._bind()
        self._objects = [[] for _ in schema.objects]
        self._steps, self.schema = 0, schema
        self.max_size = steps * math.prod(lanes)

    def _by_step(self, leaf: Tensor, dims: _Dims) -> Tensor:
        if dims.single:
            return leaf.unsqueeze(0)
        if self.ndim == 1:
            return leaf.flatten(0, dims.rows - 1)
        return leaf.movedim(self.ndim - 1, 0)

    def _objects_by_step(self, rows: list[Any], dims: _Dims) -> list[Any]:
        """Rows come first dimension slowest, so lanes before time; a step must hold its lanes side by side."""
        if self.ndim == 1 or dims.single:
            return rows
        steps = len(rows) // self.lanes
        return [rows[lane * steps + step] for step in range(steps) for lane in range(self.lanes)]
