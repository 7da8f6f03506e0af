"""The rows that a simulator writes and reads: every leaf's array with its conversion, bound once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_core import Columns
from rl_core.errors import EnvError
from rl_core.keys import Key
from rl_envs.gym.conversions import Encoder
from rl_envs.gym.library import gymnasium
from rl_envs.gym.spaces import Leaf

__all__ = ["Part", "action_reader", "bind_parts", "check_rows", "item_rows", "observation_writer", "reach"]


@dataclass(frozen=True)
class Part:
    """One leaf of the observations: where it is in the native value, and where it goes.

    Attributes:
        key: its key.
        path: names and positions in the native observation.
        array: its rows, time first.
        encode: native value to row, or None.
    """

    key: Key
    path: tuple[Any, ...]
    array: np.ndarray
    encode: Encoder | None

    def value(self, observation: Any) -> Any:
        """What numpy can assign to a row."""
        native = reach(observation, self.path)
        return native if self.encode is None else self.encode(native)


def reach(value: Any, path: Sequence[Any]) -> Any:
    """Follow names and positions into a nested value."""
    for step in path:
        value = value[step]
    return value


def bind_parts(leaves: Sequence[Leaf], columns: Columns, index: int | None = None, batched: bool = False) -> list[Part]:
    """The observation leaves on their columns.

    Args:
        leaves: of the space of one environment.
        columns: the columns to write.
        index: one environment of a batch; None for all of it.
        batched: observations come with a leading batch dimension.
    """
    parts = []
    for leaf in leaves:
        array = columns[leaf.key]
        array = array if index is None else array[:, index]
        encode = leaf.encoder()
        if array.dtype == object and batched:
            encode = _objects(encode)
        parts.append(Part(leaf.key, leaf.path, array, encode))
    return parts


def _objects(encode: Encoder | None) -> Encoder:
    """Python objects as an object array, whatever numpy would make of them."""

    def write(values: Any) -> np.ndarray:
        row = np.empty(len(values), dtype=object)
        for place, value in enumerate(values):
            row[place] = value if encode is None else encode(value)
        return row

    return write


def observation_writer(parts: Sequence[Part]) -> Callable[[int, Any], None]:
    """``write(t, observation)`` into row t of every leaf."""
    if len(parts) == 1 and not parts[0].path:
        array, encode = parts[0].array, parts[0].encode
        if encode is None:
            return array.__setitem__

        def write_one(t: int, observation: Any) -> None:
            array[t] = encode(observation)

        return write_one
    bound = [(part.path, part.array, part.encode) for part in parts]

    def write(t: int, observation: Any) -> None:
        for path, array, encode in bound:
            value = observation
            for step in path:
                value = value[step]
            array[t] = value if encode is None else encode(value)

    return write


def action_reader(
    space: Any,
    leaves: Sequence[Leaf],
    columns: Columns | Mapping[Any, np.ndarray],
    index: int | None = None,
    batched: bool = False,
) -> Callable[[int], Any]:
    """``read(t)`` gives the native action of row t: numbers, arrays, dicts and tuples as the space has them."""
    by_path = {leaf.path: leaf for leaf in leaves}

    def build(part: Any, path: tuple[Any, ...]) -> Callable[[int], Any]:
        if isinstance(part, gymnasium.spaces.Dict):
            named = [(name, build(sub, (*path, name))) for name, sub in part.spaces.items()]
            return lambda t: {name: read(t) for name, read in named}
        if isinstance(part, gymnasium.spaces.Tuple):
            listed = [build(sub, (*path, place)) for place, sub in enumerate(part.spaces)]
            return lambda t: tuple([read(t) for read in listed])
        leaf = by_path[path]
        array = columns[leaf.key]
        array = array if index is None else array[:, index]
        decode = leaf.decoder(batched)
        return lambda t: decode(array[t])

    return build(space, ())


def item_rows(array: np.ndarray) -> Any:
    """Rows ``[T, 1]`` of numbers as a memoryview ``[T]``: reading or writing one costs half of what numpy takes."""
    return memoryview(array[..., 0])  # type: ignore[arg-type]


def check_rows(name: str, parts: Sequence[Part], observation: Any) -> None:
    """Compare what a simulator gave with what its space says; the rows are then written without looking.

    Raises:
        EnvError: a leaf is missing, or has another shape, or real numbers where integers are kept.
    """
    for part in parts:
        try:
            value = part.value(observation)
        except (KeyError, IndexError, TypeError) as error:
            raise EnvError(
                f"{name} gave an observation without {part.key!r} ({type(error).__name__}: {error}); its observation "
                "space has it. Fix the space or what reset and step return"
            ) from error
        if part.array.dtype != object:
            _check_array(name, part, np.asarray(value))


def _check_array(name: str, part: Part, found: np.ndarray) -> None:
    expected = part.array.shape[1:]
    if found.shape != expected:
        raise EnvError(
            f"{name} gave {part.key!r} of shape {found.shape}; its space says {expected}. Fix the observation space "
            "or what reset and step return"
        )
    wanted = part.array.dtype
    if found.dtype.kind not in "biuf" or (found.dtype.kind == "f" and wanted.kind != "f" and (found % 1).any()):
        raise EnvError(
            f"{name} gave {part.key!r} of dtype {found.dtype}, which cannot be kept as {wanted}, the dtype of its "
            "space. Fix the observation space or what reset and step return"
        )
