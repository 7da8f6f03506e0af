"""CompressedListStorage: rows whose tensors are kept compressed, for frames that hold much of the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.rows import RowSchema, flatten, object_rows, stack_objects
from rl_buffers.storages.codecs import Codec, codec
from rl_buffers.storages.list_storage import ListStorage
from rl_core.buffers import Block
from rl_core.errors import CheckpointError, ReplayBufferError

__all__ = ["CompressedListStorage"]


@dataclass(frozen=True)
class _Place:
    """Where a tensor was taken out of a row."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Packed:
    """A row: its structure with places instead of tensors, and all their bytes in one compressed block."""

    tree: Any
    block: bytes


class CompressedListStorage(ListStorage):
    """A :class:`ListStorage` that compresses the tensors of each row when it is written, and unpacks them when read.

    Args:
        max_size: capacity in rows; ``None`` means unlimited.
        codec: "zlib", or "zstd" with the extra ``rl-buffers[zstd]``, which is several times faster.
        compression_level: the codec's; default: a quick one.
        compression_fn: a function of bytes to be used instead, together with `decompression_fn`.
        decompression_fn: what undoes it.
        compilable: accepted for TorchRL's scripts; it makes no difference here.
        device: where unpacked rows are; default: the CPU.

    Raises:
        ReplayBufferError: an unknown codec, a missing library, or one function without the other.

    >>> from rl_core.buffers import Span
    >>> storage = CompressedListStorage(3)
    >>> storage.write(storage.prepare(torch.zeros(2, 1000)), [Span(0, 2, 0)])
    >>> storage.compressed_bytes < 100, storage.get(torch.tensor([1]))[0].shape
    (True, torch.Size([1000]))
    """

    def __init__(
        self,
        max_size: int | None = None,
        *,
        codec: str = "zlib",
        compression_level: int | None = None,
        compression_fn: Callable[[bytes], bytes] | None = None,
        decompression_fn: Callable[[bytes], bytes] | None = None,
        compilable: bool | None = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(max_size, compilable=compilable, device=device)
        if (compression_fn is None) != (decompression_fn is None):
            raise ReplayBufferError("compression_fn and decompression_fn come together: one undoes the other")
        self._level = compression_level
        self._functions = None if compression_fn is None else (compression_fn, decompression_fn)
        self._name = codec if compression_fn is None else "custom"
        self._codec = self._make_codec()

    def _make_codec(self) -> Codec:
        if self._functions is None:
            return codec(self._name, self._level)
        compress, decompress = self._functions
        assert decompress is not None
        return Codec("custom", compress, decompress)

    @property
    def compressed_bytes(self) -> int:
        """The size of all rows' tensors as they are kept."""
        return sum(len(row.block) for row in self._items)

    def prepare(self, data: Any, row_dims: int | None = None) -> Block:
        """Split `data` into rows and compress them (see :meth:`ListStorage.prepare`)."""
        block = super().prepare(data, row_dims)
        return Block(block.steps, [self._pack(row) for row in block.payload])

    def get(self, index: Tensor) -> list[Any]:
        """The rows at `index`, int64 ``[B]``, unpacked: a list of B new objects."""
        return [self._unpack(row) for row in super().get(index)]

    def state_dict(self) -> dict[str, Any]:
        """All rows as plain data, compressed as they are."""
        items = [
            {"tree": _plain(row.tree), "block": torch.frombuffer(bytearray(row.block or b"\0"), dtype=torch.uint8)}
            for row in self._items
        ]
        return {"kind": type(self).__name__, "max_size": self.max_size, "codec": self._codec.name, "items": items}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over such rows as copies; capacity and codec must be the saved ones."""
        self._check_state(state_dict)
        if state_dict["codec"] != self._codec.name:
            raise CheckpointError(
                f"the state was compressed with {state_dict['codec']!r}, this storage uses {self._codec.name!r}: "
                "create it as it was saved"
            )
        self._items = [
            _Packed(_from_plain(item["tree"]), item["block"].numpy().tobytes()) for item in state_dict["items"]
        ]

    def _pack(self, row: Any) -> _Packed:
        parts: list[bytes] = []
        tree = _take(row, parts)
        return _Packed(tree, self._codec.compress(b"".join(parts)) if parts else b"")

    def _unpack(self, row: _Packed) -> Any:
        data = bytearray(self._codec.decompress(row.block)) if row.block else bytearray()
        value = _put(row.tree, memoryview(data), [0])
        return value if self.device is None else _moved(value, self.device)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_codec": None}  # functions are made again

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._codec = self._make_codec()


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, (Tensor, TensorDictBase)) else value


def _take(value: Any, parts: list[bytes]) -> Any:
    """The structure of a row; the bytes of its tensors are appended to `parts`."""
    if isinstance(value, Tensor):
        raw = value.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
        if raw.numel():
            parts.append(raw.reshape(-1).view(torch.uint8).numpy().tobytes())
        return _Place(raw.dtype, tuple(raw.shape))
    if isinstance(value, TensorDictBase):
        flat = flatten(value)
        objects = [object_rows(entry, 0)[0] for entry in flat.objects.values()]
        return (_TENSORDICT, RowSchema.of(flat, 0), [_take(leaf, parts) for leaf in flat.tensors.values()], objects)
    if isinstance(value, dict):
        return {key: _take(entry, parts) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take(entry, parts) for entry in value)
    return value


_TENSORDICT = "$tensordict"  # marks a tuple that stands for one


def _is_tensordict(tree: Any) -> bool:
    return type(tree) is tuple and len(tree) == 4 and tree[0] == _TENSORDICT and isinstance(tree[1], RowSchema)


def _put(tree: Any, data: memoryview, at: list[int]) -> Any:
    """The row again, its tensors read from `data` in the order in which they were taken."""
    if isinstance(tree, _Place):
        count = math.prod(tree.shape)
        if count == 0:
            return torch.empty(tree.shape, dtype=tree.dtype)
        start = at[0]
        at[0] = start + count * tree.dtype.itemsize
        flat = torch.frombuffer(data, dtype=torch.uint8, offset=start, count=at[0] - start).clone()  # aligned
        return flat.view(tree.dtype).reshape(tree.shape)
    if _is_tensordict(tree):
        schema: RowSchema = tree[1]
        tensors = [_put(leaf, data, at).unsqueeze(0) for leaf in tree[2]]
        objects = [stack_objects([value], 1 + dims) for value, dims in zip(tree[3], schema.object_dims, strict=True)]
        return schema.build(tensors, objects, (1,), None)[0]
    if isinstance(tree, dict):
        return {key: _put(entry, data, at) for key, entry in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_put(entry, data, at) for entry in tree)
    return tree


def _plain(tree: Any) -> Any:
    """A structure as plain data: tagged pairs, so that any row can be told from what stands for a tensor."""
    if isinstance(tree, _Place):
        return ["tensor", str(tree.dtype).removeprefix("torch."), list(tree.shape)]
    if _is_tensordict(tree):
        return ["tensordict", tree[1].state_dict(), [_plain(leaf) for leaf in tree[2]], tree[3]]
    if isinstance(tree, dict):
        return ["dict", [[key, _plain(entry)] for key, entry in tree.items()]]
    if type(tree) in (list, tuple):
        return [type(tree).__name__, [_plain(entry) for entry in tree]]
    return ["value", tree]


def _from_plain(state: Sequence[Any]) -> Any:
    kind = state[0]
    if kind == "tensor":
        return _Place(getattr(torch, state[1]), tuple(state[2]))
    if kind == "tensordict":
        return (_TENSORDICT, RowSchema.from_state_dict(state[1]), [_from_plain(leaf) for leaf in state[2]], state[3])
    if kind == "dict":
        return {key: _from_plain(entry) for key, entry in state[1]}
    if kind in ("list", "tuple"):
        entries = [_from_plain(entry) for entry in state[1]]
        return entries if kind == "list" else tuple(entries)
    return state[1]
