"""``Hash``: a fixed-size fingerprint of an entry."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Composite, Transform, Unbounded
from rl_core.errors import KeyMissingError
from rl_core.keys import Key
from rl_envs.transforms.payloads import entry_rows_of, put_rows

__all__ = ["Hash"]


class Hash(Transform):
    """Writes the hash of each row of an entry, text or tensor.

    Args:
        in_keys: entries that are hashed.
        out_keys: where the hashes go.
        in_keys_inv: entries that the environment reads, found again from their hashes.
        out_keys_inv: the hashes that the policy writes for them.
        hash_fn: of one row's payload (and of the seed, where one is given) to a tensor; default
            :meth:`reproducible_hash`, SHA-256 as uint8 ``[32]``.
        seed: the second argument of ``hash_fn``.
        use_raw_nontensor: accepted for compatibility; a payload is always handed over as it is.
        repertoire: hash (a tuple of numbers) -> payload, by which hashes are inverted. Filled along the way where one
            is given, and where there are ``in_keys_inv``.

    Example:
        >>> from tensordict import TensorDict
        >>> hashed = Hash(["text"], ["id"])(TensorDict(text="a board"))
        >>> hashed["id"].shape, hashed["id"].dtype
        (torch.Size([32]), torch.uint8)
    """

    def __init__(
        self,
        in_keys: Key | Iterable[Key] | None,
        out_keys: Key | Iterable[Key] | None,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
        *,
        hash_fn: Callable[..., Tensor] | None = None,
        seed: Any = None,
        use_raw_nontensor: bool = False,
        repertoire: dict[tuple[int, ...], Any] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if len(self.in_keys) != len(self.out_keys):
            raise ValueError(f"Hash got {len(self.in_keys)} in_keys and {len(self.out_keys)} out_keys")
        self.hash_fn = self.reproducible_hash if hash_fn is None else hash_fn
        self.seed, self.use_raw_nontensor = seed, use_raw_nontensor
        self.repertoire = {} if repertoire is None and self.in_keys_inv else repertoire

    @staticmethod
    def reproducible_hash(payload: Any, seed: Any = None) -> Tensor:
        """SHA-256 of a text, bytes, a tensor or anything with a repr, uint8 ``[32]``; equal in every process."""
        digest = hashlib.sha256()
        if seed is not None:
            digest.update(f"{seed!r}|".encode())
        if isinstance(payload, Tensor):
            digest.update(f"{payload.dtype}{tuple(payload.shape)}|".encode())
            digest.update(payload.detach().cpu().contiguous().numpy().tobytes())
        else:
            digest.update(payload if isinstance(payload, bytes) else str(payload).encode())
        return torch.tensor(list(digest.digest()), dtype=torch.uint8)

    @staticmethod
    def hash_to_repertoire_key(hashed: Tensor) -> tuple[int, ...]:
        """The key of a hash in the repertoire."""
        return tuple(hashed.flatten().tolist())

    def call_hash_fn(self, payload: Any) -> Tensor:
        """The hash of one payload, noted in the repertoire."""
        hashed = self.hash_fn(payload) if self.seed is None else self.hash_fn(payload, self.seed)
        if not isinstance(hashed, Tensor):
            raise TypeError(f"the hash_fn of Hash returned {type(hashed).__name__}; it must return a tensor")
        if self.repertoire is not None:
            self.repertoire[self.hash_to_repertoire_key(hashed)] = payload
        return hashed

    def get_input_from_hash(self, hashed: Tensor) -> Any:
        """The payload behind a hash.

        Raises:
            KeyMissingError: the repertoire does not have it.
        """
        if self.repertoire is None:
            raise KeyMissingError("Hash keeps no repertoire; construct it with repertoire={}")
        key = self.hash_to_repertoire_key(hashed)
        if key not in self.repertoire:
            raise KeyMissingError(f"Hash never saw what hashes to {key}; it has {len(self.repertoire)} payloads")
        return self.repertoire[key]

    # ---------------------------------------------------------------- TensorDicts
    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            rows = entry_rows_of(tensordict, key)
            if rows is None:
                if self._missing_ok:
                    continue
                raise KeyMissingError(self._missing(key, tensordict))
            put_rows(tensordict, out_key, [self.call_hash_fn(row) for row in rows])
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            rows = entry_rows_of(tensordict, out_key)
            if rows is None:
                raise KeyMissingError(self._missing(out_key, tensordict))
            put_rows(tensordict, key, [self.get_input_from_hash(row) for row in rows])
        return tensordict

    # ---------------------------------------------------------------- specs
    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the hashes."""
        for key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            if key in observation_spec:
                found = self.hash_fn("") if self.seed is None else self.hash_fn("", self.seed)
                shape = (*observation_spec.shape, *found.shape)
                observation_spec.set(out_key, Unbounded(shape=shape, dtype=found.dtype, device=observation_spec.device))
        return observation_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Hashes instead of what they stand for."""
        for key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            if key in action_spec:
                action_spec.pop(key)
                found = self.hash_fn("") if self.seed is None else self.hash_fn("", self.seed)
                action_spec.set(out_key, Unbounded(shape=(*action_spec.shape, *found.shape), dtype=found.dtype))
        return action_spec

    @property
    def supports_rows(self) -> bool:
        """False."""
        return False
