"""Which leaves of a row a TrajectoryStorage keeps, and which it puts together from neighbouring rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rl_buffers.rows import RowSchema
from rl_buffers.storages.row_compare import StackShape
from rl_core.errors import ReplayBufferError
from rl_core.keys import Key, as_key, as_path

__all__ = ["TrajectoryLayout"]


@dataclass(frozen=True)
class TrajectoryLayout:
    """Places of leaves in the schema, by how they are kept.

    Attributes:
        plain: kept as they are.
        stacks: kept as their newest frame, with how their frames lie.
        next_of: not kept: the place of a "next" entry, and of the root entry that the next row has of it.
    """

    plain: tuple[int, ...]
    stacks: Mapping[int, StackShape]
    next_of: Mapping[int, int]

    @classmethod
    def of(
        cls, schema: RowSchema, keys: Sequence[Key] | None, frame_stack: Mapping[Key, tuple[int, int]]
    ) -> TrajectoryLayout:
        """Decide it.

        Args:
            schema: the rows' structure.
            keys: root entries whose "next" twin is not kept; ``None``: all that have one and more than one number.
            frame_stack: for entries that are stacks, how many frames and along which dimension.

        Raises:
            ReplayBufferError: a key names no such entry, or frames do not divide a dimension.
        """
        places = {leaf.path: place for place, leaf in enumerate(schema.leaves)}
        next_of: dict[int, int] = {}
        for path, place in places.items():
            twin = places.get(("next", *path))
            if twin is None:
                continue
            one, other = schema.leaves[place], schema.leaves[twin]
            if (one.dtype, one.shape) == (other.dtype, other.shape):
                next_of[twin] = place
        if keys is None:
            next_of = {twin: place for twin, place in next_of.items() if _numbers(schema, place) > 1}
        else:
            wanted = {as_path(key) for key in keys}
            found = {schema.leaves[place].path for place in next_of.values()}
            for path in wanted - found:
                raise ReplayBufferError(
                    f"keys names {as_key(path)!r}, but the rows have no entry of that name with a twin of the same "
                    f'dtype and shape under "next"; those that have one are {sorted(map(as_key, found), key=str)}'
                )
            next_of = {twin: place for twin, place in next_of.items() if schema.leaves[place].path in wanted}
        stacks = {_place(places, key, next_of): _shape(schema, places, key, *how) for key, how in frame_stack.items()}
        kept = set(range(len(schema.leaves))) - set(next_of) - set(stacks)
        return cls(tuple(sorted(kept)), stacks, next_of)


def _numbers(schema: RowSchema, place: int) -> int:
    count = 1
    for size in schema.leaves[place].shape:
        count *= size
    return count


def _place(places: Mapping[tuple[str, ...], int], key: Key, next_of: Mapping[int, int]) -> int:
    place = places.get(as_path(key))
    if place is None or place in next_of:
        why = "the rows have no such entry" if place is None else "it is kept once already, through its root entry"
        raise ReplayBufferError(
            f"frame_stack names {key!r}: {why}; the entries are {[as_key(path) for path in places]}"
        )
    return place


def _shape(schema: RowSchema, places: Mapping[tuple[str, ...], int], key: Key, frames: int, dim: int) -> StackShape:
    leaf = schema.leaves[places[as_path(key)]]
    if frames < 2 or not -len(leaf.shape) <= dim < 0 or leaf.shape[dim] % frames:
        raise ReplayBufferError(
            f"frame_stack={{{key!r}: ({frames}, {dim})}}: a row of it has shape {list(leaf.shape)}, in which the "
            "negative dimension must be a multiple of the number of frames, at least 2"
        )
    return StackShape(leaf.shape, dim, frames, leaf.dtype.itemsize)
