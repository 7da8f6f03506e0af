"""ColumnStorage: rows in one contiguous tensor per leaf; where these tensors come from is up to the subclasses."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, MutableSequence, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_buffers.gather import RowGather
from rl_buffers.gather_reference import check_slots
from rl_buffers.plan import RowPlan
from rl_buffers.put import RowPut
from rl_buffers.rows import FlatRows, RowSchema, flatten, object_rows, stack_objects
from rl_buffers.sent import SentTensor, received, sent
from rl_buffers.storages.leading import Leading, by_step, leading_dims, objects_by_step
from rl_buffers.write import RowWrite
from rl_core.buffers import Block, Span, Storage
from rl_core.errors import CheckpointError, ReplayBufferError
from rl_core.keys import Key, as_path

__all__ = ["ColumnStorage", "Payload", "last_of_each"]


class Payload(NamedTuple):
    """Checked data, ready to be written.

    Attributes:
        tensors: one per leaf, ``[steps, *lanes, ...]``; shaped as they came where `addresses` are known.
        objects: for each non-tensor leaf its steps * lanes values, time slowest.
        addresses: where the leaves lie in memory, row by row; ``None`` where that is not known.
    """

    tensors: list[Tensor]
    objects: list[list[Any]]
    addresses: list[int] | None


class ColumnStorage(Storage):
    """What all storages of tensor rows share; a subclass says where the columns are, in :meth:`_new_columns`.

    Args:
        max_size: capacity in rows; with ``ndim > 1`` rounded up to whole steps of all lanes.
        device: where the rows are kept; ``None`` takes the device of the first data.
        ndim: how many leading dimensions of the data count rows.

    Raises:
        ReplayBufferError: `max_size` or `ndim` is below 1.
    """

    _kind = "LazyTensorStorage"  # in saved states: what one of these storages saved, another can load
    _rows_alone = True  # whether a row is written without a look at those before
    pin_memory = False
    """Whether :meth:`get` puts its copies into pinned memory; the buffer sets it, only where CUDA is."""

    def __init__(self, max_size: int, *, device: torch.device | None, ndim: int = 1) -> None:
        if max_size < 1 or ndim < 1:
            raise ReplayBufferError(f"max_size and ndim must be at least 1, got max_size={max_size}, ndim={ndim}")
        self.max_size = int(max_size)
        self.ndim = int(ndim)
        self.device: torch.device | None = device
        self.schema: RowSchema | None = None
        self._lane_shape: tuple[int, ...] = ()
        self._filled: MutableSequence[int] = [0]  # steps; in shared memory where processes share the storage
        self._columns: list[Tensor] = []  # [max_steps, *lanes, *event]
        self._objects: list[list[Any]] = []
        self._bind()

    # ------------------------------------------------------------------------------------------------ structure
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
        return -(-self.max_size // self.lanes) if self._lane_shape else self.max_size

    def __len__(self) -> int:
        return self._filled[0] * self.lanes if self._lane_shape else self._filled[0]

    @abstractmethod
    def _new_columns(self, schema: RowSchema, lanes: tuple[int, ...], steps: int) -> list[Tensor]:
        """Contiguous tensors ``[steps, *lanes, ...]``, one per leaf of the schema, on :attr:`device`."""

    def _allocate(self, schema: RowSchema, lanes: tuple[int, ...], device: torch.device) -> None:
        if self.device is None:
            self.device = device
        steps = -(-self.max_size // max(1, math.prod(lanes)))
        self._use(schema, lanes, self._new_columns(schema, lanes, steps))
        self._filled[0] = 0

    def _use(self, schema: RowSchema, lanes: tuple[int, ...], columns: list[Tensor]) -> None:
        """Take these columns as the storage's memory."""
        steps = -(-self.max_size // max(1, math.prod(lanes)))
        self._columns, self._lane_shape, self.schema = columns, lanes, schema
        self._objects = [[] for _ in schema.objects]
        self.max_size = steps * math.prod(lanes)
        self._bind()

    def _bind(self) -> None:
        """Views of the columns row by row, and the kernels that read and write them."""
        self._rows = [column.flatten(0, len(self._lane_shape)) for column in self._columns]
        self._gather = RowGather(self._rows)
        self._write = RowWrite(self._columns)
        schema = self.schema
        quick = schema is not None and self._write.native and not schema.objects
        quick = quick and not any(column.is_complex() for column in self._columns)
        self._plan = RowPlan(schema) if quick and schema is not None else None
        self._row_put = RowPut.of(schema, self._columns) if quick and self._rows_alone and schema is not None else None

    # ------------------------------------------------------------------------------------------------ writing
    def prepare(self, data: Any, row_dims: int | None = None) -> Block:
        """Check `data`, allocate at the first call, and bring the leaves to ``[steps, *lanes, ...]``."""
        self._check_writable()  # before the writer moves on
        block = None if self._plan is None else self._quick(self._plan, data, row_dims)
        return self._careful(data, row_dims) if block is None else block

    def _quick(self, plan: RowPlan, data: Any, row_dims: int | None) -> Block | None:
        """The block of data that lie in memory as the rows do, or ``None``."""
        schema = self.schema
        assert schema is not None
        if type(data) is TensorDict:
            batch, of_a_row = data.batch_size, len(schema.row_batch)
        elif type(data) is Tensor and schema.is_tensor:
            batch, of_a_row = data.shape, len(schema.leaves[0].shape)
        else:
            return None
        found = len(batch) - of_a_row
        if found < 0 or (row_dims is not None and row_dims != found):
            return None
        lead = tuple(batch[:found])
        single = row_dims is not None and found == self.ndim - 1
        if (lead != self._lane_shape) if single else (self.ndim > 1 or found < 1):
            return None
        read = plan.read(data, lead)
        return None if read is None else Block(1 if single else math.prod(lead), Payload(read[0], [], read[1]))

    def _careful(self, data: Any, row_dims: int | None) -> Block:
        flat = flatten(data)
        batch = tuple(flat.nodes[()]) if flat.nodes else tuple(flat.tensors[()].shape)
        dims = leading_dims(flat, batch, row_dims, self.ndim, self.schema)
        lanes = tuple(batch[: self.ndim - 1]) if self.ndim > 1 else ()
        if 0 in lanes:
            raise ReplayBufferError(f"the data have no lane: their batch size is {list(batch)}")
        if self.schema is None:
            device = next((leaf.device for leaf in flat.tensors.values()), torch.device("cpu"))
            self._allocate(RowSchema.of(flat, dims.rows), lanes, device)
        schema = self.schema
        assert schema is not None
        schema.check(flat, dims.rows)
        if lanes != self._lane_shape:
            raise ReplayBufferError(
                f"the data have lanes {list(lanes)}, this storage has {list(self._lane_shape)} since its first write"
            )
        steps = 1 if dims.single else (math.prod(batch[: dims.rows]) if self.ndim == 1 else batch[self.ndim - 1])
        return Block(int(steps), self._payload(flat, dims))

    def _payload(self, flat: FlatRows, dims: Leading) -> Payload:
        assert self.schema is not None
        tensors = [by_step(flat.tensors[leaf.path], dims, self.ndim) for leaf in self.schema.leaves]
        objects = [
            objects_by_step(object_rows(flat.objects[path], dims.rows), dims, self.ndim, self.lanes)
            for path in self.schema.objects
        ]
        return Payload(tensors, objects, None)

    def write(self, block: Block, spans: Sequence[Span]) -> None:
        """Copy the steps of `spans`: at most one memcpy per span and leaf, all of them in one native call."""
        self._check_writable()
        payload: Payload = block.payload
        if payload.addresses is not None and self._write.native:
            self._write.from_addresses(payload.addresses, block.steps, spans)
        else:
            self._write(payload.tensors, spans)
        if self._objects:
            self._write_objects(payload.objects, spans)
        filled = self._filled
        for span in spans:
            if span.stop > filled[0]:
                filled[0] = span.stop

    def put(self, data: Any, step: int) -> bool:
        """Write a single step at a place that the writer has chosen, where `data` are as plain as the rows.

        Returns:
            False where they are not, or the place is no continuation: then nothing was written, and :meth:`prepare`
            takes the data or says what is wrong.
        """
        if self._row_put is None:
            return False
        self._check_writable()
        filled = self._filled[0]
        if step > filled or not self._row_put(data, step):
            return False
        if step == filled:
            self._filled[0] = step + 1
        return True

    def _write_objects(self, objects: list[list[Any]], spans: Sequence[Span]) -> None:
        lanes = self.lanes
        for start, stop, source in sorted(spans):  # lower places first: a list has no gaps to write behind
            for kept, new in zip(self._objects, objects, strict=True):
                kept[start * lanes : stop * lanes] = new[source * lanes : (source + stop - start) * lanes]

    def set(self, index: Tensor, data: Any) -> None:
        """Overwrite the filled rows at `index` (int64 ``[B]``, the last of equal slots wins) with B rows of `data`."""
        self._check_writable()
        flat = self._rows_to_set(index, data)
        assert self.schema is not None
        chosen = last_of_each(index)
        slots = index[chosen]
        for row, leaf in zip(self._rows, self.schema.leaves, strict=True):
            values = flat.tensors[leaf.path].detach().to(row.device).index_select(0, chosen.to(row.device))
            row.index_copy_(0, slots.to(row.device), values)
        self._set_objects(index, flat)

    def _set_objects(self, index: Tensor, flat: FlatRows) -> None:
        assert self.schema is not None
        for kept, path in zip(self._objects, self.schema.objects, strict=True):
            for slot, value in zip(index.tolist(), object_rows(flat.objects[path], 1), strict=True):
                kept[slot] = value

    def _rows_to_set(self, index: Tensor, data: Any) -> FlatRows:
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
        return flat

    def _check_writable(self) -> None:
        """Raise ReplayBufferError where the rows are only for reading."""

    # ------------------------------------------------------------------------------------------------ reading
    def get(self, index: Tensor) -> Any:
        """Copies of the rows at `index`, int64 ``[B]``, as a TensorDict or tensor ``[B, ...]``."""
        schema = self.schema
        if schema is None:
            raise ReplayBufferError("the storage is empty: write rows before reading them")
        tensors = self._tensors_at(index)
        objects: list[Any] = []
        if self._objects:
            slots = index.tolist()
            for kept, extra in zip(self._objects, schema.object_dims, strict=True):
                objects.append(stack_objects([kept[slot] for slot in slots], 1 + extra))
        return schema.build(tensors, objects, (index.numel(),), self.device)

    def entry(self, key: Key, index: Tensor) -> Tensor | None:
        """Copies of one entry of the rows at `index`; only that entry is read."""
        path = as_path(key)
        place = (
            next((i for i, leaf in enumerate(self.schema.leaves) if leaf.path == path), None) if self.schema else None
        )
        if place is None:
            return None
        check_slots(index, len(self))
        return self._column_at(place, index)

    def _column_at(self, place: int, index: Tensor) -> Tensor:
        return self._rows[place].index_select(0, index.to(self._rows[place].device))

    def _tensors_at(self, index: Tensor) -> list[Tensor]:
        """The rows' leaves at checked slots, in the schema's order."""
        out = self._gather.empty(index.numel(), True) if self.pin_memory and self._on_cpu else None
        return self._gather(index, len(self), out)

    @property
    def gathers_in_order(self) -> bool:
        """Whether rows are read by the kernel, which reads nothing before its call and all before its return."""
        return self._gather.native

    @property
    def _on_cpu(self) -> bool:
        return self.device is not None and self.device.type == "cpu"

    def empty(self) -> None:
        """Forget all rows; the structure and the memory stay."""
        self._check_writable()
        self._filled[0] = 0
        for kept in self._objects:
            kept.clear()

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """The filled rows (views, not copies) and the structure."""
        steps = self._filled[0]
        return {
            "kind": self._kind,
            "ndim": self.ndim,
            "max_steps": self.max_steps,
            "steps": steps,
            "lane_shape": list(self._lane_shape),
            "schema": None if self.schema is None else self.schema.state_dict(),
            "tensors": [column[:steps] for column in self._columns],
            "objects": [list(kept) for kept in self._objects],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over rows and structure as copies; the capacity must be the saved one."""
        self._check_writable()
        self._check_state(state_dict)
        if state_dict["schema"] is None:
            self.empty()
            return
        schema, lanes = RowSchema.from_state_dict(state_dict["schema"]), tuple(state_dict["lane_shape"])
        tensors: list[Tensor] = state_dict["tensors"]
        steps, objects = int(state_dict["steps"]), [list(kept) for kept in state_dict["objects"]]
        self._check_leaves(schema, lanes, steps, tensors, objects)
        if schema != self.schema or lanes != self._lane_shape:
            self._allocate(schema, lanes, tensors[0].device if tensors else torch.device("cpu"))
        self._filled[0] = 0  # while the rows are being replaced, there are none
        self._write(tensors, [Span(0, steps, 0)])
        self._objects = objects
        self._filled[0] = steps

    def _check_state(self, state: Mapping[str, Any]) -> None:
        if state.get("kind") != self._kind:
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
    def _check_leaves(
        schema: RowSchema, lanes: tuple[int, ...], steps: int, tensors: Sequence[Tensor], objects: Sequence[list[Any]]
    ) -> None:
        """Before anything is replaced: the rows are those that the structure speaks of."""
        if len(tensors) != len(schema.leaves) or len(objects) != len(schema.objects):
            raise CheckpointError("the state's rows have other entries than its structure says: it is damaged")
        for leaf, saved in zip(schema.leaves, tensors, strict=True):
            if saved.dtype != leaf.dtype or tuple(saved.shape) != (steps, *lanes, *leaf.shape):
                raise CheckpointError(
                    f"the state's entry {'.'.join(leaf.path) or 'tensor'} is {saved.dtype} {list(saved.shape)}, its "
                    f"structure says {leaf.dtype} {[steps, *lanes, *leaf.shape]}: it is damaged"
                )
        if any(len(kept) != steps * math.prod(lanes) for kept in objects):
            raise CheckpointError("the state has another number of non-tensor values than of rows: it is damaged")

    def __getstate__(self) -> dict[str, Any]:
        kernels: dict[str, Any] = {"_rows": [], "_gather": None, "_write": None, "_plan": None, "_row_put": None}
        return {**self.__dict__, **kernels, "_columns": self._columns_to_send()}

    def _columns_to_send(self) -> list[SentTensor]:
        steps = self._filled[0]
        return [sent(column[:steps]) for column in self._columns]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._columns = []
        for packed in state["_columns"]:
            rows = received(packed)
            self._columns.append(rows.new_empty((self.max_steps, *packed.shape[1:])))
            self._columns[-1][: rows.shape[0]].copy_(rows)
        self._bind()


def last_of_each(index: Tensor) -> Tensor:
    """The positions of the last occurrence of each number, ascending: int64 ``[number of different ones]``.

    >>> last_of_each(torch.tensor([4, 2, 4]))
    tensor([1, 2])
    """
    return torch.tensor(sorted({slot: place for place, slot in enumerate(index.tolist())}.values()), dtype=torch.int64)
