"""TrajectoryStorage: each observation is kept once, and each frame of a stack of frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_buffers.gather import RowGather
from rl_buffers.rows import RowSchema
from rl_buffers.storages.columns import ColumnStorage, Payload, last_of_each
from rl_buffers.storages.row_compare import gather_stacks, rows_equal
from rl_buffers.storages.side_table import SideTable
from rl_buffers.storages.trajectory_layout import TrajectoryLayout
from rl_buffers.write import RowWrite
from rl_core.buffers import Block, Span
from rl_core.errors import CheckpointError
from rl_core.keys import Key

__all__ = ["TrajectoryStorage"]


class TrajectoryStorage(ColumnStorage):
    """Rows of trajectories in about half the memory, or an eighth for stacks of four frames; what comes back is exact.

    The "next" observation of a row is the observation of the row after it, unless an episode ends there. So it is kept
    only where it is another one: on the last rows of episodes, on the newest row, and wherever the next row written is
    not the continuation. In the same way a stack of frames is the one of the row before, moved on by a frame. What
    belongs together is found by comparing bytes at each write, not from end flags, so rows come back as they went in.

    Rows of one environment must follow each other: use ``ndim=2`` for data ``[environments, time]``. With ``ndim=1`` it
    pays for long pieces ``[time]`` only.

    Args:
        max_size: capacity in rows; with ``ndim > 1`` rounded up to whole steps of all lanes.
        device: where the rows are kept; "auto" takes the device of the first data.
        ndim: how many leading dimensions of the data count rows.
        keys: the root entries that are kept for their twin under "next" too; default: all that have a twin and more
            than one number.
        frame_stack: for entries that are stacks of frames, their number N and the dimension (negative) along which they
            follow each other, the newest last, as ``CatFrames(N=4, dim=-3)`` makes them: ``{"pixels": (4, -3)}``.

    Raises:
        ReplayBufferError: at the first write, where keys or frames do not fit the data.

    >>> from tensordict import TensorDict
    >>> storage = TrajectoryStorage(4)
    >>> seen = torch.arange(8.0).reshape(4, 2)
    >>> data = TensorDict({"observation": seen[:3], "next": {"observation": seen[1:]}}, [3])
    >>> storage.write(storage.prepare(data), [Span(0, 3, 0)])
    >>> storage.get(torch.tensor([1, 2]))["next", "observation"]
    tensor([[4., 5.],
            [6., 7.]])
    """

    _kind = "TrajectoryStorage"
    _rows_alone = False

    def __init__(
        self,
        max_size: int,
        *,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        keys: Sequence[Key] | None = None,
        frame_stack: Mapping[Key, tuple[int, int]] | None = None,
    ) -> None:
        self._keys, self._frame_stack = keys, dict(frame_stack or {})
        self._layout = TrajectoryLayout((), {}, {})
        self._next = SideTable(0, [], torch.device("cpu"))
        self._stacks: dict[int, SideTable] = {}
        super().__init__(max_size, device=None if device == "auto" else torch.device(device), ndim=ndim)

    # ------------------------------------------------------------------------------------------------ structure
    def _new_columns(self, schema: RowSchema, lanes: tuple[int, ...], steps: int) -> list[Tensor]:
        """One column per leaf that is kept: the plain ones, then the newest frames of the stacks."""
        self._layout = layout = TrajectoryLayout.of(schema, self._keys, self._frame_stack)
        device = self.device or torch.device("cpu")
        shapes = [schema.leaves[place].shape for place in layout.plain]
        shapes += [stack.frame_shape for stack in layout.stacks.values()]
        dtypes = [schema.leaves[place].dtype for place in (*layout.plain, *layout.stacks)]
        rows = steps * torch.Size(lanes).numel()
        twins = [(schema.leaves[place].dtype, schema.leaves[place].shape) for place in layout.next_of]
        self._next = SideTable(rows, twins, device)
        self._stacks = {
            place: SideTable(rows, [(schema.leaves[place].dtype, stack.shape)], device)
            for place, stack in layout.stacks.items()
        }
        return [
            torch.empty((steps, *lanes, *shape), dtype=dtype, device=device)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]

    def _bind(self) -> None:
        super()._bind()
        plain = len(self._layout.plain)
        self._gather = RowGather(self._rows[:plain])
        self._write = RowWrite(self._rows)
        self._kept = dict(zip((*self._layout.plain, *self._layout.stacks), self._rows, strict=True))

    @property
    def nbytes(self) -> int:
        """How much memory the rows take, side tables included."""
        tables = (self._next, *self._stacks.values())
        return sum(column.nbytes for column in self._columns) + sum(table.nbytes() for table in tables)

    # ------------------------------------------------------------------------------------------------ writing
    def write(self, block: Block, spans: Sequence[Span]) -> None:
        """Copy the steps of `spans`, and find out which of them continue which rows."""
        assert self.schema is not None
        payload: Payload = block.payload
        lanes, n = self.lanes, block.steps * self.lanes
        rows = [
            leaf.detach().to(self._columns[0].device).reshape(n, *spec.shape).contiguous()
            for leaf, spec in zip(payload.tensors, self.schema.leaves, strict=True)
        ]
        steps = max([self._filled[0], *(span.stop for span in spans)])
        self._put(
            [Span(start * lanes, stop * lanes, source * lanes) for start, stop, source in spans], rows, steps * lanes
        )
        if self._objects:
            self._write_objects(payload.objects, spans)
        self._filled[0] = steps

    def set(self, index: Tensor, data: Any) -> None:
        """Overwrite the filled rows at `index` (int64 ``[B]``, the last of equal slots wins) with B rows of `data`."""
        flat = self._rows_to_set(index, data)
        assert self.schema is not None
        rows = [
            flat.tensors[leaf.path].detach().to(self._columns[0].device).contiguous() for leaf in self.schema.leaves
        ]
        chosen = last_of_each(index)
        self._put([Span(int(index[i]), int(index[i]) + 1, int(i)) for i in chosen], rows, len(self))
        self._set_objects(index, flat)

    def _put(self, spans: Sequence[Span], rows: list[Tensor], filled: int) -> None:
        """Write rows (one tensor ``[n, ...]`` per leaf) to slots; `filled` slots hold rows afterwards."""
        if not spans:
            return
        slots = torch.cat([torch.arange(start, stop) for start, stop, _ in spans])
        data = torch.cat([torch.arange(source, source + stop - start) for start, stop, source in spans])
        before, after = (slots - self.lanes) % self.max_size, (slots + self.lanes) % self.max_size
        from_before, from_after = _lookup(slots, data, before), _lookup(slots, data, after)
        old = len(self)
        self._keep_what_depends(slots, before, from_before, after, from_after, old)
        self._next.drop(slots)
        for place, table in self._stacks.items():
            table.drop(slots)
            self._put_stacks(place, rows[place], slots, data, before, from_before, old)
        frames = [stack.split(rows[place])[:, :, -1] for place, stack in self._layout.stacks.items()]
        shaped = [
            frame.reshape(-1, *stack.frame_shape).contiguous()
            for frame, stack in zip(frames, self._layout.stacks.values(), strict=True)
        ]
        self._write([*(rows[place] for place in self._layout.plain), *shaped], spans)
        if self._layout.next_of:
            self._put_next(rows, slots, data, after, from_after, filled)
            self._join_to_before(rows, data, before, from_before, old)

    def _keep_what_depends(
        self, slots: Tensor, before: Tensor, from_before: Tensor, after: Tensor, from_after: Tensor, old: int
    ) -> None:
        """Rows that stay and were put together from rows that go get values of their own."""
        if self._layout.next_of:
            stays = (from_before < 0) & (before < old) & (self._places(self._next, before) < 0)
            self._next.put(before[stays], [self._leaf_at(root, slots[stays]) for root in self._layout.next_of.values()])
        for place, table in self._stacks.items():
            stays = (from_after < 0) & (after < old) & (self._places(table, after) < 0)
            table.put(after[stays], [self._leaf_at(place, after[stays])])

    def _put_stacks(
        self, place: int, rows: Tensor, slots: Tensor, data: Tensor, before: Tensor, from_before: Tensor, old: int
    ) -> None:
        """Whole stacks for those rows that are not the stack of the row before, moved on by a frame."""
        shape = self._layout.stacks[place]
        continues = rows_equal(rows, data, rows, from_before, shape, (0, 1))
        there = ((from_before < 0) & (before < old)).nonzero().squeeze(-1)
        if there.numel():
            stacks = self._leaf_at(place, before[there])
            continues[there] = rows_equal(rows, data[there], stacks, torch.arange(there.numel()), shape, (0, 1))
        whole = ~continues
        self._stacks[place].put(slots[whole], [rows.index_select(0, data[whole].to(rows.device))])

    def _put_next(
        self, rows: list[Tensor], slots: Tensor, data: Tensor, after: Tensor, from_after: Tensor, filled: int
    ) -> None:
        """Values of their own for those rows whose next observation is not that of the row after."""
        same = torch.ones(slots.numel(), dtype=torch.bool)
        there = ((from_after < 0) & (after < filled)).nonzero().squeeze(-1)
        for twin, root in self._layout.next_of.items():
            equal = rows_equal(rows[twin], data, rows[root], from_after)
            if there.numel():
                kept = self._leaf_at(root, after[there])
                equal[there] = rows_equal(rows[twin], data[there], kept, torch.arange(there.numel()))
            same &= equal
        chosen = data[~same].to(rows[0].device)
        self._next.put(slots[~same], [rows[twin].index_select(0, chosen) for twin in self._layout.next_of])

    def _join_to_before(self, rows: list[Tensor], data: Tensor, before: Tensor, from_before: Tensor, old: int) -> None:
        """Rows that stay and have a next observation of their own, which has now been written, let go of it."""
        places = self._places(self._next, before)
        there = ((from_before < 0) & (before < old) & (places >= 0)).nonzero().squeeze(-1)
        if there.numel() == 0:
            return
        same = torch.ones(there.numel(), dtype=torch.bool)
        for value, root in zip(self._next.values, self._layout.next_of.values(), strict=True):
            same &= rows_equal(value, places[there], rows[root], data[there])
        self._next.drop(before[there[same]])

    @staticmethod
    def _places(table: SideTable, rows: Tensor) -> Tensor:
        return table.place_of.index_select(0, rows.to(table.place_of.device)).long().cpu()

    # ------------------------------------------------------------------------------------------------ reading
    def _tensors_at(self, index: Tensor) -> list[Tensor]:
        assert self.schema is not None
        index = index.to("cpu", torch.int64)
        found = dict(zip(self._layout.plain, self._gather(index, len(self)), strict=True))
        return [
            found[place] if place in found else self._leaf_at(place, index) for place in range(len(self.schema.leaves))
        ]

    def _column_at(self, place: int, index: Tensor) -> Tensor:
        return self._leaf_at(place, index)

    def _leaf_at(self, place: int, index: Tensor) -> Tensor:
        """One leaf of filled rows, kept or put together."""
        root = self._layout.next_of.get(place)
        if root is not None:
            return self._next_at(place, root, index)
        kept = self._kept[place]
        stack = self._layout.stacks.get(place)
        if stack is None:
            return kept.index_select(0, index.to(kept.device))
        table = self._stacks[place]
        return gather_stacks(kept, table.place_of, table.values[0], stack, self.lanes, index)

    def _next_at(self, twin: int, root: int, index: Tensor) -> Tensor:
        places = self._places(self._next, index)
        own = (places >= 0).nonzero().squeeze(-1)
        after = (index + self.lanes) % self.max_size
        after[own] = index[own]  # a row that is there, to be replaced
        found = self._leaf_at(root, after)
        if own.numel():
            values = self._next.values[list(self._layout.next_of).index(twin)]
            found.index_copy_(0, own.to(found.device), values.index_select(0, places[own].to(values.device)))
        return found

    def empty(self) -> None:
        """Forget all rows; the structure and the memory stay."""
        super().empty()
        for table in (self._next, *self._stacks.values()):
            table.clear()

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """The filled rows as they are kept, and the structure."""
        state = super().state_dict()
        state["keys"] = (
            [list(self.schema.leaves[root].path) for root in self._layout.next_of.values()] if self.schema else []
        )
        state["next"] = self._next.state_dict()
        state["stacks"] = [table.state_dict() for table in self._stacks.values()]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over rows and structure as copies; capacity, keys and frame stacks must be the saved ones."""
        self._check_state(state_dict)
        if state_dict["schema"] is None:
            self.empty()
            return
        schema, lanes = RowSchema.from_state_dict(state_dict["schema"]), tuple(state_dict["lane_shape"])
        layout = TrajectoryLayout.of(schema, self._keys, self._frame_stack)
        steps, tensors = int(state_dict["steps"]), list(state_dict["tensors"])
        objects = [list(kept) for kept in state_dict["objects"]]
        self._check_tables(state_dict, schema, layout, steps, lanes)
        if schema != self.schema or lanes != self._lane_shape:
            self._allocate(schema, lanes, tensors[0].device if tensors else torch.device("cpu"))
        self._filled[0] = 0
        self._write([saved.flatten(0, len(lanes)) for saved in tensors], [Span(0, steps * self.lanes, 0)])
        self._next.load_state_dict(state_dict["next"])
        for table, saved in zip(self._stacks.values(), state_dict["stacks"], strict=True):
            table.load_state_dict(saved)
        self._objects, self._filled[0] = objects, steps

    def _check_tables(
        self, state: Mapping[str, Any], schema: RowSchema, layout: TrajectoryLayout, steps: int, lanes: tuple[int, ...]
    ) -> None:
        """Before anything is replaced: the state is of the same layout and whole."""
        kept = [list(schema.leaves[root].path) for root in layout.next_of.values()]
        wanted = [schema.leaves[place].shape for place in layout.plain]
        wanted += [stack.frame_shape for stack in layout.stacks.values()]
        shapes = [tuple(saved.shape) for saved in state["tensors"]]
        if kept != state["keys"] or len(state["stacks"]) != len(layout.stacks):
            raise CheckpointError("the state is of a TrajectoryStorage with other keys or frame stacks: use the same")
        dtypes = [schema.leaves[place].dtype for place in (*layout.plain, *layout.stacks)]
        if shapes != [(steps, *lanes, *shape) for shape in wanted] or dtypes != [x.dtype for x in state["tensors"]]:
            raise CheckpointError("the state's rows have other shapes than its structure says: it is damaged")
        for table in (state["next"], *state["stacks"]):
            rows = table["rows"]
            if rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= steps * torch.Size(lanes).numel()):
                raise CheckpointError("the state has values for rows that are not there: it is damaged")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_kept": {}}


def _lookup(slots: Tensor, data: Tensor, wanted: Tensor) -> Tensor:
    """For each wanted slot the row of the data that goes there, -1 where it is not among `slots`."""
    ordered, order = slots.sort()
    places = torch.searchsorted(ordered, wanted).clamp(max=slots.numel() - 1)
    return torch.where(ordered[places] == wanted, data[order[places]], -1)
