"""``Collector``: runs a policy in an environment of this process and yields batches of steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_collectors.budget import FrameBudget
from rl_collectors.split import split_trajectories
from rl_collectors.trajectories import TrajectoryCounter
from rl_core import registry
from rl_core.collectors.contract import BaseCollector
from rl_core.envs.base import EnvBase
from rl_core.envs.container_runner import ContainerRunner
from rl_core.envs.rollout import mark_truncated
from rl_core.envs.row_runner import RowRunner
from rl_core.errors import CollectorError
from rl_core.exploration import ExplorationType, set_exploration_type
from rl_core.keys import join
from rl_core.policy import wrap_policy
from rl_core.policy_state import with_carried_state
from rl_core.transforms.transformed_env import supports_rows

__all__ = ["Collector", "SyncDataCollector"]


class Collector(BaseCollector):
    """Yields batches ``[*B, T]`` of an environment's steps under a policy.

    Episodes go on from batch to batch; ``("collector", "traj_ids")`` numbers them. A numpy environment whose transforms
    all have row programs is stepped on columns, without a TensorDict per step; any other one step by step.

    Args:
        create_env_fn: an environment (stays open when the collector shuts down), a function or ``EnvRef`` that makes
            one, or a name such as ``"gym:CartPole-v1"`` (closed with the collector).
        policy: what acts; None draws random actions. It is used as it is, so training it needs no copying, unless
            ``policy_device`` differs from where it lives: then a copy acts, and :meth:`update_policy_weights_`
            refreshes it.
        policy_factory: makes the policy instead.
        frames_per_batch: environment steps in a batch; a multiple of the number of environments that step together.
        total_frames: environment steps in all; the last batch holds what remains. -1: no end.
        rounding: "up" rounds numbers of frames that do not divide; by default they raise.
        device: default of the three devices below; None moves nothing.
        storing_device: where batches live.
        policy_device: where the policy acts.
        env_device: where the environment's data live.
        create_env_kwargs: arguments for ``create_env_fn``.
        max_frames_per_traj: truncate episodes after so many steps (appends ``StepCounter``, from rl-envs).
        init_random_frames: act at random for so many frames first, rounded up to whole batches; what the policy would
            have written beside the action is zero there.
        reset_at_each_iter: start new episodes with every batch.
        postproc: a function of each batch.
        split_trajs: yield ``[N, T_max]``, one padded row per trajectory, with ``("collector", "mask")``.
        track_traj_ids: write ``("collector", "traj_ids")``.
        exploration_type: in force while the policy acts.
        set_truncated: mark each batch's last step as truncated where its episode goes on.
        replay_buffer: extend this buffer with each batch, and yield None.
        trust_policy: call the policy with a TensorDict without looking at its signature.
        track_policy_version: write ``policy_version``, int64 ``[*B, T]``, the number of weight updates so far.
        pre_collect_hook: called before each batch.
        post_collect_hook: called with each batch.

    Raises:
        CollectorError: budgets that do not divide.

    Example:
        >>> from rl_core.testing import ArrayCountingEnv
        >>> for batch in Collector(ArrayCountingEnv(length=3), frames_per_batch=4, total_frames=8):
        ...     print(batch["collector", "traj_ids"].tolist(), batch["observation"].flatten().tolist())
        [0, 0, 0, 1] [0.0, 1.0, 2.0, 0.0]
        [1, 1, 2, 2] [1.0, 2.0, 0.0, 1.0]
    """

    def __init__(
        self,
        create_env_fn: EnvBase | Callable[..., EnvBase] | str,
        policy: Any = None,
        *,
        policy_factory: Callable[[], Any] | None = None,
        frames_per_batch: int,
        total_frames: int | None = -1,
        rounding: str | None = None,
        device: torch.device | str | None = None,
        storing_device: torch.device | str | None = None,
        policy_device: torch.device | str | None = None,
        env_device: torch.device | str | None = None,
        create_env_kwargs: dict[str, Any] | None = None,
        max_frames_per_traj: int | None = None,
        init_random_frames: int | None = None,
        reset_at_each_iter: bool = False,
        postproc: Callable[[TensorDictBase], TensorDictBase] | None = None,
        split_trajs: bool | None = None,
        track_traj_ids: bool = True,
        exploration_type: ExplorationType | None = ExplorationType.RANDOM,
        set_truncated: bool = False,
        replay_buffer: Any = None,
        trust_policy: bool = False,
        track_policy_version: bool = False,
        pre_collect_hook: Callable[[], Any] | None = None,
        post_collect_hook: Callable[[TensorDictBase], Any] | None = None,
    ) -> None:
        self.env, self._owns_env = _make_env(create_env_fn, create_env_kwargs or {})
        if max_frames_per_traj:
            self.env = self.env.append_transform(registry.transforms.get("StepCounter")(max_steps=max_frames_per_traj))
        self.budget = FrameBudget.checked(self.env.batch_size.numel(), frames_per_batch, total_frames, rounding)
        self.storing_device = _device(storing_device, device)
        self.policy_device = _device(policy_device, device)
        self.env_device = _device(env_device, device)
        if self.env_device is not None and self.env.device != self.env_device:
            self.env = self.env.to(self.env_device)
        if policy_factory is not None:
            if policy is not None:
                raise CollectorError("policy and policy_factory exclude each other; pass one of them")
            policy = policy_factory()
        self.env = with_carried_state(self.env, policy)
        self.original_policy = policy
        self.policy = _on_device(policy, self.policy_device)
        self._acting = None if policy is None else wrap_policy(self.policy, self.env, trust=trust_policy)
        self.init_random_frames = init_random_frames or 0
        self.reset_at_each_iter = reset_at_each_iter
        self.postproc, self.split_trajs = postproc, bool(split_trajs)
        self.exploration_type, self.set_truncated = exploration_type, set_truncated
        self.replay_buffer = replay_buffer
        self.pre_collect_hook, self.post_collect_hook = pre_collect_hook, post_collect_hook
        self.policy_version = 0
        self.track_policy_version = track_policy_version
        self.frames, self.iteration = 0, 0
        self.closed = False
        self._trajectories = TrajectoryCounter(self.env.batch_size.numel()) if track_traj_ids else None
        self._random = False
        self._runner = self._make_runner(frames_per_batch=self.budget.frames_per_batch)

    def _make_runner(self, frames_per_batch: int) -> RowRunner | ContainerRunner:
        steps = frames_per_batch // self.budget.rows
        self._random = self.frames < self.init_random_frames
        acting = None if self._random else self._acting
        if supports_rows(self.env) and not _off_cpu(self.policy):
            return RowRunner(self.env, acting, steps)
        return ContainerRunner(self.env, acting, steps, self.policy_device, self.env_device)

    # ---------------------------------------------------------------- collecting
    def __iter__(self) -> Iterator[Any]:
        """Batches until ``total_frames``; the collector shuts down when they are used up or an error passes through.

        A loop that is left early can be taken up again by another one.
        """
        try:
            while steps := self.budget.steps(self.frames):
                batch = self._collect(steps)
                if self.replay_buffer is None:
                    yield batch
                else:
                    self.replay_buffer.extend(batch)
                    yield None
        except GeneratorExit:  # the caller left its loop
            raise
        except BaseException:
            self.shutdown()
            raise
        self.shutdown()

    def next(self) -> TensorDictBase | None:
        """One more batch, or None when ``total_frames`` is reached."""
        steps = self.budget.steps(self.frames)
        return self._collect(steps) if steps else None

    def rollout(self) -> TensorDictBase:
        """One more batch of full length, whatever the budget says."""
        return self._collect(self.budget.frames_per_batch // self.budget.rows)

    @torch.no_grad()
    def _collect(self, steps: int) -> TensorDictBase:
        if self.closed:
            raise CollectorError("this collector is shut down; construct a new one")
        if self.pre_collect_hook is not None:
            self.pre_collect_hook()
        if self.reset_at_each_iter and self.iteration:
            self.reset()
        self._choose_actor()
        with set_exploration_type(self.exploration_type):
            batch = self._runner.run(steps)
            if self._random:
                self._fill_policy_entries(batch)
        self.frames += steps * self.budget.rows
        self.iteration += 1
        return self._finish(batch)

    def _choose_actor(self) -> None:
        random = self.frames < self.init_random_frames
        if random != self._random:
            self._random = random
            self._runner.use(None if random else self._acting)

    def _fill_policy_entries(self, batch: TensorDictBase) -> None:
        """Zeros for what the policy writes beside the action: random batches have the entries of the others."""
        if self._acting is None:
            return
        given = batch[..., 0].exclude("next")
        written = self._acting(given if self.policy_device is None else given.to(self.policy_device))
        for key in written.keys(True, True):
            value = written.get(key)
            if batch.get(key, None) is None and isinstance(value, Tensor):
                dims = len(self.env.batch_size)
                shape = (*value.shape[:dims], batch.shape[-1], *value.shape[dims:])
                batch.set(key, torch.zeros(shape, dtype=value.dtype, device=batch.device))

    def _finish(self, batch: TensorDictBase) -> TensorDictBase:
        if self._trajectories is not None:
            done = batch.get(join("next", self.env.end_groups[0].done))
            flat = done.reshape(*batch.shape, -1).any(-1).reshape(self.budget.rows, batch.shape[-1])
            ids = self._trajectories.number(flat).reshape(batch.shape)
            batch.set(("collector", "traj_ids"), ids if batch.device is None else ids.to(batch.device))
        if self.track_policy_version:
            batch.set("policy_version", torch.full(batch.shape, self.policy_version, device=batch.device))
        if self.set_truncated:
            mark_truncated(batch, self.env)
        if self.storing_device is not None:
            batch = batch.to(self.storing_device)
        if self.split_trajs:
            batch = split_trajectories(batch, prefix="collector")
        if self.postproc is not None:
            batch = self.postproc(batch)
        if self.post_collect_hook is not None:
            self.post_collect_hook(batch)
        return batch

    # ---------------------------------------------------------------- steering
    def reset(self) -> None:
        """Start new episodes, with new trajectory ids, in every row."""
        self._runner.reset()
        if self._trajectories is not None and self.iteration:
            self._trajectories.restart()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environment; takes effect with the episodes that start after it."""
        following = self.env.set_seed(seed, static_seed)
        assert following is not None
        return following

    def update_policy_weights_(self, policy_or_weights: Any = None, **kwargs: Any) -> None:
        """Give the acting policy the trained weights.

        Args:
            policy_or_weights: a module, its ``state_dict`` or a TensorDict of its parameters; default: the policy that
                the collector was given (nothing to do where that one acts itself).
            **kwargs: ``weights`` or ``policy``, other spellings of the argument.
        """
        given = policy_or_weights
        for name in ("weights", "policy", "policy_weights"):
            given = kwargs.pop(name, None) if given is None else given
        if kwargs:
            raise TypeError(f"update_policy_weights_ takes no {', '.join(kwargs)}")
        source = self.original_policy if given is None else given
        if isinstance(self.policy, nn.Module) and source is not self.policy:
            _load_weights(self.policy, source)
        self.policy_version += 1

    def shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """Close the environment if this collector made it; calling it twice is harmless."""
        if not self.closed and close_env and self._owns_env:
            self.env.close()
        self.closed = True

    # ---------------------------------------------------------------- checkpoints
    def state_dict(self) -> dict[str, Any]:
        """Counters, trajectory ids, the row where collecting goes on, the environment's state and the policy's."""
        state: dict[str, Any] = {
            "frames": self.frames,
            "iteration": self.iteration,
            "policy_version": self.policy_version,
            "env": self.env.state_dict(),
            "runner": self._runner.state_dict(),
        }
        if self._trajectories is not None:
            state["trajectories"] = self._trajectories.state_dict()
        if isinstance(self.policy, nn.Module):
            state["policy"] = self.policy.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back.

        Where the environment cannot go on with the episodes that were under way, new ones start.
        """
        self.frames, self.iteration = int(state_dict["frames"]), int(state_dict["iteration"])
        self.policy_version = int(state_dict["policy_version"])
        restored = self.env.load_state_dict(state_dict["env"])
        self._runner.load_state_dict(state_dict["runner"])
        if self._trajectories is not None:
            self._trajectories.load_state_dict(state_dict["trajectories"])
        if self.iteration and not restored:
            self.reset()
        if isinstance(self.policy, nn.Module) and "policy" in state_dict:
            self.policy.load_state_dict(state_dict["policy"])

    def __len__(self) -> int:
        """Batches of a run."""
        if self.budget.total_frames < 0:
            raise CollectorError("this collector has no end (total_frames=-1), so it has no length")
        return -(-self.budget.total_frames // self.budget.frames_per_batch)

    def __repr__(self) -> str:
        return f"Collector({self.env!r}, frames_per_batch={self.budget.frames_per_batch}, frames={self.frames})"


SyncDataCollector = Collector


def _make_env(source: Any, kwargs: Mapping[str, Any]) -> tuple[EnvBase, bool]:
    """The environment, and whether the collector owns it."""
    if isinstance(source, EnvBase):
        return source, False
    if isinstance(source, str):
        return registry.envs.make(source, **kwargs), True
    env = source(**kwargs)
    if not isinstance(env, EnvBase):
        raise CollectorError(f"create_env_fn returned {type(env).__name__}, not an environment (EnvBase)")
    return env, True


def _device(own: torch.device | str | None, default: torch.device | str | None) -> torch.device | None:
    chosen = default if own is None else own
    return None if chosen is None else torch.device(chosen)


def _on_device(policy: Any, device: torch.device | None) -> Any:
    """The policy itself where all of it is on the device already, else a copy there."""
    if device is None or not isinstance(policy, nn.Module):
        return policy
    tensors = [*policy.parameters(), *policy.buffers()]
    if all(t.device.type == device.type and (device.index is None or t.device.index == device.index) for t in tensors):
        return policy
    return copy.deepcopy(policy).to(device)


def _off_cpu(policy: Any) -> bool:
    return isinstance(policy, nn.Module) and any(p.device.type != "cpu" for p in policy.parameters())


def _load_weights(policy: nn.Module, source: Any) -> None:
    if isinstance(source, nn.Module):
        source = source.state_dict()
    elif isinstance(source, TensorDictBase):
        source = dict(source.flatten_keys(".").items())
    elif not isinstance(source, Mapping):
        raise TypeError(
            f"weights are a module, a state_dict or a TensorDict of parameters, got {type(source).__name__}"
        )
    policy.load_state_dict(source)
