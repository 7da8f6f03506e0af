"""``CatFrames``: the last N frames as one observation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Bounded, Categorical, Composite, TensorSpec, Unbounded, reset_rows
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, as_keys, as_path, join
from rl_envs.transforms.end_groups import ends_along_time, governing_group, time_dim
from rl_envs.transforms.entry_transform import dtype_of
from rl_envs.transforms.frame_ring import FrameRing, RingTransform, Write
from rl_envs.transforms.frame_windows import Episodes, future_windows, past_windows

if TYPE_CHECKING:
    from rl_core import Transform
    from rl_core.buffers import Sampler

__all__ = ["CatFrames"]


class CatFrames(RingTransform):
    """Concatenates each entry with its N - 1 predecessors in the episode, the newest last.

    At the beginning of an episode there are none: padding "same" repeats the first frame, "constant" writes
    ``padding_value``. ("next", key) at an end is the old episode's; the root after it starts anew.

    Stored steps ``[*B, T]`` give the same numbers as the environment (``forward``, or ``inv`` with
    ``as_inverse=True``), under "next" too. Frames from before the data are not there: the first step of the data counts
    as the first of an episode, unless the out key, being another one than the in key, holds its frames already.

    Args:
        N: how many frames.
        dim: the dimension along which they are joined, negative.
        in_keys: frames; default ``["pixels"]``. A key under "next" only matters for stored steps.
        out_keys: where to write them; default: the same keys.
        padding: "same" or "constant".
        padding_value: the number for "constant".
        as_inverse: join when data are written to a buffer instead of when they are sampled.
        reset_key: accepted for compatibility; which rows start anew follows from the reset.
        done_key: the end flag in stored steps, under "next"; default: the "done" of the entry's group.
        future: join each frame with its N - 1 successors, the newest first; for stored steps only (chunks of actions).
            After an episode's last step, "same" repeats that one.
        mask_key: also write a bool ``[*B, N]``, True where a frame is padding.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(length=2), CatFrames(3, -1, in_keys=["observation"]))
        >>> env.rollout(3, break_when_any_done=False)["next", "observation"]
        tensor([[0., 0., 1.],
                [0., 1., 2.],
                [0., 0., 1.]])
    """

    def __init__(
        self,
        N: int,
        dim: int,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        padding: str = "same",
        padding_value: float = 0,
        as_inverse: bool = False,
        reset_key: Key | None = None,
        done_key: Key | None = None,
        future: bool = False,
        mask_key: Key | None = None,
    ) -> None:
        if N < 1:
            raise ValueError(f"N is the number of frames, at least 1; got {N}")
        if dim >= 0:
            raise ValueError(f"dim must be negative, since batch dimensions stand in front; got {dim}")
        if padding not in ("same", "constant"):
            raise ValueError(f"padding must be 'same' or 'constant', got {padding!r}")
        keys = ["pixels"] if in_keys is None else as_keys(in_keys)
        fill = padding_value if padding == "constant" else None
        super().__init__(keys, out_keys, N, fill)
        self.N, self.dim, self.padding, self.padding_value = N, dim, padding, padding_value
        self.as_inverse, self.future = as_inverse, future
        self.reset_key, self.done_key, self.mask_key = reset_key, done_key, mask_key
        self._ages = FrameRing(N, 1.0)  # per row and frame: whether it is padding

    # ---------------------------------------------------------------- in an environment
    def _joined(self, frames: list[Tensor]) -> Tensor:
        return torch.cat(frames, self.dim)

    def _check_online(self) -> None:
        for given, reason in (
            (self.future, "future=True joins frames that an environment has not shown yet"),
            (self.as_inverse, "as_inverse=True joins frames on their way into a buffer"),
        ):
            if given:
                raise EnvError(f"{reason}; give this CatFrames to a buffer: ReplayBuffer(transform=...)")

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._check_online()
        super()._step(tensordict, next_tensordict)
        if self.mask_key is not None:
            self._ages.push(torch.zeros_like(self._ages.frames[0]))
            next_tensordict.set(self.mask_key, torch.stack(list(self._ages), -1))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        self._check_online()
        super()._reset(tensordict, tensordict_reset)
        if self.mask_key is not None:
            real = torch.zeros(tensordict_reset.batch_size, dtype=torch.bool, device=tensordict_reset.device)
            self._ages.begin(real, reset_rows(tensordict))
            tensordict_reset.set(self.mask_key, torch.stack(list(self._ages), -1))
        return tensordict_reset

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True, without a mask."""
        return self.mask_key is None and not self.future and not self.as_inverse

    def _writer(self, ring: FrameRing, target: Tensor) -> Write:
        """Each frame is copied into its place."""
        apart = target.unflatten(self.dim, (self.N, -1))
        place = target.ndim + self.dim
        places = apart.movedim(place, 1).numpy()  # [T + 1, N, *B, ...]
        copyto, arrays = np.copyto, {id(frame): frame.numpy() for frame in ring.frames}

        def write(t: int, mask: np.ndarray | None) -> None:
            for target_frame, frame in zip(places[t], ring, strict=True):
                if mask is None:
                    copyto(target_frame, arrays[id(frame)])
                else:
                    target_frame[mask] = arrays[id(frame)][mask]

        return write

    # ---------------------------------------------------------------- specs
    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        if leaf.ndim < -self.dim:
            raise EnvError(f"CatFrames joins along dimension {self.dim}; the entry has shape {tuple(leaf.shape)}")
        longer = _repeated(leaf, self.N, self.dim)
        if self.padding == "constant" and isinstance(longer, Bounded):
            low, high = longer.low.clamp(max=self.padding_value), longer.high.clamp(min=self.padding_value)
            longer = longer.replace(low=low, high=high)
        return longer

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """N times as long along ``dim``."""
        super().transform_observation_spec(observation_spec)
        if self.mask_key is not None:
            flag = Categorical(2, shape=(*observation_spec.shape, self.N), dtype=torch.bool)
            observation_spec.set(self.mask_key, flag)
        return observation_spec

    # ---------------------------------------------------------------- stored steps
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Join the frames of stored steps ``[*B, T]``."""
        return tensordict if self.as_inverse else self.unfold(tensordict)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Join the frames of steps on their way into a buffer, where ``as_inverse``."""
        return self.unfold(tensordict.copy()) if self.as_inverse else tensordict

    def unfold(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the joined frames of stored steps, at the root and under "next"; returns the TensorDict."""
        dim = time_dim(tensordict)
        done = self._ends(tensordict)
        written: list[tuple[Key, Tensor]] = []
        for key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            path = as_path(key)
            if path[0] == "next" and join(*path[1:]) in self.in_keys:
                continue  # written along with its twin at the root
            base = join(*path[1:]) if path[0] == "next" else key
            frames = tensordict.get(base, None)
            if frames is None:
                raise KeyMissingError(self._missing(base, tensordict))
            ends = done[governing_group(base, list(done))] if len(done) > 1 else next(iter(done.values()))
            steps = _Steps(self, frames, tensordict.get(join("next", base), None), ends, dim, tensordict.batch_dims)
            held = None if path[0] == "next" or out_key == base else tensordict.get(out_key, None)
            marks = None if self.mask_key is None else tensordict.get(self.mask_key, None)
            root, mask, nxt, mask_next = steps.joined(held, marks)
            if path[0] != "next":
                written.append((out_key, root))
                if self.mask_key is not None:
                    written.append((self.mask_key, mask))
            if nxt is not None:
                written.append((self._next_key(key, out_key), nxt))
                if self.mask_key is not None:
                    written.append((join("next", self.mask_key), mask_next))
        for key, value in written:  # at the end, so that no entry is joined twice
            tensordict.set(key, value)
        return tensordict

    def _next_key(self, key: Key, out_key: Key) -> Key:
        if as_path(key)[0] == "next":
            return out_key
        twin = join("next", key)
        return self.out_keys[self.in_keys.index(twin)] if twin in self.in_keys else join("next", out_key)

    def _ends(self, tensordict: TensorDictBase) -> dict[tuple[str, ...], Tensor]:
        if self.done_key is None:
            return {prefix: done for prefix, done, _ in ends_along_time(tensordict, type(self).__name__)}
        done = tensordict.get(join("next", self.done_key), None)
        if done is None:
            raise KeyMissingError(self._missing(join("next", self.done_key), tensordict))
        return {(): done}

    def make_rb_transform_and_sampler(self, batch_size: int, **sampler_kwargs: Any) -> tuple[Transform, Sampler]:
        """For a buffer that stores single frames: a sampler of slices of N steps, and a transform that joins each.

        What is sampled are ``batch_size`` steps with their frames, from the beginning of an episode to its end; frames
        from before an episode are padded as here.

        Args:
            batch_size: of the samples; the buffer's own batch size.
            **sampler_kwargs: of ``SliceSampler`` (rl-buffers).
        """
        from rl_envs.transforms.frame_slices import FrameSlices, LastOfSlices

        joined = CatFrames(
            self.N,
            self.dim,
            self.in_keys,
            self.out_keys,
            self.padding,
            self.padding_value,
            done_key=self.done_key,
            mask_key=self.mask_key,
        )
        return LastOfSlices(joined, self.N), FrameSlices(self.N, batch_size, **sampler_kwargs)


class _Steps:
    """Stored frames of one entry, time second: ``[M, T, ...]``."""

    def __init__(self, owner: CatFrames, frames: Tensor, following: Tensor | None, done: Tensor, dim: int, lead: int):
        self.owner, self.dim = owner, dim
        self.batch = [*frames.shape[:dim], *frames.shape[dim + 1 : lead]]
        self.lead = lead
        self.frames = self._flat(frames)
        self.following = None if following is None else self._flat(following)
        flags = self._flat(done)
        self.episodes = Episodes.of(flags.reshape(*flags.shape[:2], -1).any(-1))

    def _flat(self, value: Tensor) -> Tensor:
        moved = value.movedim(self.dim, self.lead - 1)
        return moved.reshape(-1, moved.shape[self.lead - 1], *moved.shape[self.lead :])

    def _back(self, value: Tensor) -> Tensor:
        return value.reshape(*self.batch, *value.shape[1:]).movedim(self.lead - 1, self.dim)

    def joined(self, held: Tensor | None, marks: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """The joined frames and their padding, at the root and under "next".

        Args:
            held: joined frames that the data have already, and
            marks: their padding; of both the first step's are read.
        """
        owner = self.owner
        if owner.future:
            root, mask, nxt, mask_next = future_windows(self.frames, self.following, self.episodes, owner.N)
        else:
            history = None if held is None or owner.N == 1 else self._history(self._flat(held))
            padding = None if marks is None else self._flat(marks)[:, 0]
            root, mask, nxt, mask_next = past_windows(
                self.frames, self.following, self.episodes, owner.N, history, padding
            )
        following = None if nxt is None else self._back(self._cat(nxt, mask_next))
        return self._back(self._cat(root, mask)), self._back(mask), following, self._back(mask_next)

    def _history(self, held: Tensor) -> Tensor:
        """The frames ``[M, N, ...]`` of the first step, taken apart."""
        dim = held.ndim - 1 + self.owner.dim
        return held[:, 0].unflatten(dim, (self.owner.N, -1)).movedim(dim, 1)

    def _cat(self, frames: list[Tensor], padded: Tensor) -> Tensor:
        if self.owner.padding == "constant":
            blank = torch.full((), self.owner.padding_value, dtype=frames[0].dtype, device=frames[0].device)
            rest = (1,) * (frames[0].ndim - 2)
            masks = [mask.reshape(*mask.shape, *rest) for mask in padded.unbind(-1)]
            frames = [torch.where(mask, blank, frame) for mask, frame in zip(masks, frames, strict=True)]
        return torch.cat(frames, self.owner.dim)


def _repeated(leaf: TensorSpec, n: int, dim: int) -> TensorSpec:
    """The spec of n values joined along a dimension."""
    shape = list(leaf.shape)
    shape[dim] *= n
    if isinstance(leaf, Bounded):
        low, high = (torch.cat([bound.expand(leaf.shape)] * n, dim) for bound in (leaf.low, leaf.high))
        return leaf.replace(low=low, high=high, shape=torch.Size(shape))
    if isinstance(leaf, Categorical):
        return Categorical(leaf.n, shape=shape, dtype=dtype_of(leaf), device=leaf.device)
    return Unbounded(shape=shape, dtype=leaf.dtype, device=leaf.device)
