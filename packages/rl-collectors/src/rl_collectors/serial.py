"""``Collector``: runs a policy in an environment of this process and yields batches of steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_collectors.acting import acting_policy, is_off_cpu, on_device
from rl_collectors.budget import FrameBudget
from rl_collectors.delivery import Delivery
from rl_collectors.exploring import exploring
from rl_collectors.making import as_device, made_env
from rl_collectors.random_actions import has_masks, random_policy
from rl_collectors.resetting import reset_rows_of, row_mask
from rl_collectors.running import RunningCollector
from rl_collectors.trajectories import TrajectoryCounter
from rl_collectors.weights.models import WeightUpdate, model_at
from rl_collectors.weights.named import named_weights, write_weights
from rl_core import registry
from rl_core.envs.base import EnvBase
from rl_core.envs.container_runner import ContainerRunner
from rl_core.envs.rollout import mark_truncated
from rl_core.envs.row_runner import RowRunner
from rl_core.errors import CollectorError
from rl_core.exploration import ExplorationType
from rl_core.keys import join
from rl_core.policy_state import with_carried_state
from rl_core.transforms.transformed_env import supports_rows

__all__ = ["Collector"]


class Collector(RunningCollector):
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
        trajs_per_batch: yield whole trajectories, so many at a time: pieces that a batch's edge cut wait for their end.
            At the end of the run fewer may come, and those without an end do not.
        traj_format: how these come, "padded" ``[n, T_max]`` with ``("collector", "mask")`` or "cat" ``[sum T_i]``.
        track_traj_ids: write ``("collector", "traj_ids")``.
        exploration_type: in force while the policy acts.
        set_truncated: mark each batch's last step as truncated where its episode goes on.
        replay_buffer: extend this buffer with each batch (after ``postproc``), as by hand, and yield None. It can also
            be filled by a thread of its own, see :meth:`start`.
        trust_policy: call the policy with a TensorDict without looking at its signature.
        compile_policy: compile the policy's function of tensors; True, or arguments of ``torch.compile``.
        cudagraph_policy: capture that function in a CUDA graph.
        track_policy_version: write ``policy_version``, int64 ``[*B, T]``, the number of weight updates so far.
        pre_collect_hook: called before each batch.
        post_collect_hook: called with each batch, after ``postproc``.

    Raises:
        CollectorError: budgets that do not divide; arguments that exclude each other.

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
        create_env_kwargs: Mapping[str, Any] | None = None,
        max_frames_per_traj: int | None = None,
        init_random_frames: int | None = None,
        reset_at_each_iter: bool = False,
        postproc: Callable[[TensorDictBase], TensorDictBase] | None = None,
        split_trajs: bool | None = None,
        trajs_per_batch: int | None = None,
        traj_format: str = "padded",
        track_traj_ids: bool = True,
        exploration_type: ExplorationType | None = ExplorationType.RANDOM,
        set_truncated: bool = False,
        replay_buffer: Any = None,
        trust_policy: bool = False,
        compile_policy: bool | Mapping[str, Any] | None = None,
        cudagraph_policy: bool | Mapping[str, Any] | None = None,
        track_policy_version: bool = False,
        pre_collect_hook: Callable[[], Any] | None = None,
        post_collect_hook: Callable[[TensorDictBase], Any] | None = None,
    ) -> None:
        super().__init__()
        self.closed = True  # until there is something to close
        self.storing_device = as_device(storing_device, device)
        self.policy_device, self.env_device = as_device(policy_device, device), as_device(env_device, device)
        self.delivery = Delivery(
            storing_device=self.storing_device, split_trajs=bool(split_trajs), trajs_per_batch=trajs_per_batch,
            traj_format=traj_format, postproc=postproc, post_collect_hook=post_collect_hook,
            replay_buffer=replay_buffer, tracked=track_traj_ids,
        )  # fmt: skip
        if policy_factory is not None:
            if policy is not None:
                raise CollectorError("policy and policy_factory exclude each other; pass one of them")
            policy = policy_factory()
        self.original_policy = policy
        self.policy = on_device(policy, self.policy_device)
        env, self._owns_env = made_env(create_env_fn, create_env_kwargs or {})
        self.env = self._fitted(env, max_frames_per_traj)
        self.budget = FrameBudget.checked(self.env.batch_size.numel(), frames_per_batch, total_frames, rounding)
        self._acting_options: dict[str, Any] = {
            "trust": trust_policy, "compile_policy": compile_policy, "cudagraph_policy": cudagraph_policy
        }  # fmt: skip
        self._acting = None if policy is None else acting_policy(self.policy, self.env, **self._acting_options)
        self._random_acting = random_policy(self.env) if has_masks(self.env) else None
        self.init_random_frames = init_random_frames or 0
        self.reset_at_each_iter = reset_at_each_iter
        self.exploration_type, self.set_truncated = exploration_type, set_truncated
        self.pre_collect_hook = pre_collect_hook
        self.policy_version, self._version_acting = 0, 0
        self.track_policy_version = track_policy_version
        self._waiting_weights: tuple[int, dict[str, dict[str, Tensor]]] | None = None
        self.frames, self.iteration = 0, 0
        self.restarted = False  # whether load_state_dict had to start new episodes
        self._began = time.monotonic()
        self._trajectories = TrajectoryCounter(self.budget.rows) if track_traj_ids else None
        self.delivery.follow(self.env.end_groups[0].done)
        self._random = self.init_random_frames > 0
        self._runner = self._make_runner(self.budget.frames_per_batch // self.budget.rows)
        self.closed = False

    def _fitted(self, env: EnvBase, max_frames_per_traj: int | None) -> EnvBase:
        """The environment on its device, with the transforms that the collector's arguments and the policy ask for."""
        if max_frames_per_traj:
            if "step_count" in env.observation_keys:
                raise CollectorError(
                    f"max_frames_per_traj={max_frames_per_traj} counts steps under 'step_count', which the environment "
                    "has already; truncate there: StepCounter(max_steps=...)"
                )
            env = env.append_transform(registry.transforms.get("StepCounter")(max_steps=max_frames_per_traj))
        if self.env_device is not None and env.device != self.env_device:
            env = env.to(self.env_device)
        return with_carried_state(env, self.original_policy)

    def _make_runner(self, steps: int) -> RowRunner | ContainerRunner:
        acting = self._random_acting if self._random else self._acting_or_random
        if supports_rows(self.env) and not is_off_cpu(self.policy):
            return RowRunner(self.env, acting, steps)
        return ContainerRunner(self.env, acting, steps, self.policy_device, self.env_device)

    @property
    def _acting_or_random(self) -> Any:
        return self._random_acting if self._acting is None else self._acting

    # ---------------------------------------------------------------- collecting
    def _unbudgeted(self) -> TensorDictBase:
        return self._batch(self.budget.frames_per_batch // self.budget.rows)

    def _collect(self) -> TensorDictBase | None:
        steps = self.budget.steps(self.frames)
        return self._batch(steps) if steps else None

    def _batch(self, steps: int) -> TensorDictBase:
        self._check_open()
        if self.pre_collect_hook is not None:
            self.pre_collect_hook()
        self._take_weights()
        if self.reset_at_each_iter and self.iteration:
            self.reset()
        batch = self.gather(steps, random=self.frames < self.init_random_frames)
        self.frames += steps * self.budget.rows
        self.iteration += 1
        if self._trajectories is not None:
            done = batch.get(join("next", self.env.end_groups[0].done))
            flat = done.reshape(*batch.shape, -1).any(-1).reshape(self.budget.rows, batch.shape[-1])
            ids = self._trajectories.number(flat).reshape(batch.shape)
            batch.set(("collector", "traj_ids"), ids if batch.device is None else ids.to(batch.device))
        if self.track_policy_version:
            batch.set("policy_version", torch.full(batch.shape, self._version_acting, device=batch.device))
        return mark_truncated(batch, self.env) if self.set_truncated else batch

    @torch.no_grad()
    def gather(self, steps: int, *, random: bool = False) -> TensorDictBase:
        """Bare steps ``[*B, T]``, outside of budget, ids, versions and delivery: what a worker process calls.

        Args:
            steps: at most those of a full batch.
            random: whether actions are random; what the policy would have written beside them is zero then.
        """
        self._check_open()
        if random != self._random:
            self._random = random
            self._runner.use(self._random_acting if random else self._acting_or_random)
        with exploring(self.exploration_type, self.is_running):
            batch = self._runner.run(steps)
            if random:
                self._fill_policy_entries(batch)
        return batch

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

    def act_through(self, wrap: Callable[[Any], Any]) -> None:
        """Put something around every policy that acts here, random actions included.

        Args:
            wrap: a function from a policy to a policy.
        """
        self._acting = None if self._acting is None else wrap(self._acting)
        self._random_acting = wrap(self._random_acting or random_policy(self.env))
        self._runner.use(self._random_acting if self._random else self._acting_or_random)

    def keep_steps(self) -> None:
        """Let the steps of a batch under way keep their values, whatever is written into the policy's parameters."""
        self._runner.keep()

    # ---------------------------------------------------------------- steering
    def reset(self, index: int | Sequence[int] | Tensor | None = None) -> None:
        """Start new episodes, with new trajectory ids, in every row or in some.

        Args:
            index: rows of the (flattened) batch of environments, as numbers or as a bool mask; None: all.
        """
        self._check_open()
        rows = None if index is None else row_mask(index, self.budget.rows)
        if rows is None:
            self._runner.reset()
        else:
            reset_rows_of(self._runner, rows.reshape(self.env.batch_size))
        if self._trajectories is not None:
            self._trajectories.restart(rows)
            if self.delivery.episodes is not None:
                self.delivery.episodes.drop(self._trajectories.current)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environment; takes effect with the episodes that start after it."""
        following = self.env.set_seed(seed, static_seed)
        assert following is not None
        return following

    def get_model(self, model_id: str = "policy") -> nn.Module:
        """The module that acts under a model id: "policy", or a path such as "env.transform[0]"."""
        return model_at(self, model_id)

    def update_policy_weights_(self, policy_or_weights: Any = None, **kwargs: Any) -> None:
        """Give the acting policy the trained weights; they are copied, and act from the next batch on.

        Args:
            policy_or_weights: a module, its ``state_dict`` or a TensorDict of its parameters; default: the policy that
                the collector was given (nothing to do where that one acts itself).
            **kwargs: ``weights`` or ``policy``, other spellings of the argument; ``model_id``, another module than the
                policy (see :meth:`get_model`); ``weights_dict``, model id -> weights; ``worker_ids``, here only [0].

        Raises:
            CollectorError: the weights do not fit.
        """
        self._check_background()
        update = WeightUpdate.of(policy_or_weights, **kwargs)
        if update.worker_ids is not None and list(update.worker_ids) != [0]:
            raise CollectorError(f"worker_ids={update.worker_ids}: a collector in one process has only worker 0")
        running, fresh = self.is_running, {}
        for model_id, given in update.weights.items():
            source = self.original_policy if given is None and model_id == "policy" else given
            target = self.policy if model_id == "policy" else model_at(self, model_id)
            if source is target or (given is None and not isinstance(source, nn.Module)):
                continue
            if not isinstance(target, nn.Module):
                raise CollectorError(
                    f"the policy is a {type(target).__name__}, not a torch.nn.Module: it has no weights to update"
                )
            weights = named_weights(source)
            fresh[model_id] = {name: value.clone() for name, value in weights.items()} if running else weights
        self.policy_version += 1
        earlier = {} if self._waiting_weights is None else self._waiting_weights[1]
        self._waiting_weights = (self.policy_version, {**earlier, **fresh})
        if not running:
            self._take_weights()

    def _take_weights(self) -> None:
        """Between two batches: what :meth:`update_policy_weights_` was given."""
        waiting, self._waiting_weights = self._waiting_weights, None
        if waiting is not None:
            self._version_acting, weights = waiting
            for model_id, values in weights.items():
                write_weights(model_at(self, model_id), values)

    def _before_background(self) -> None:
        if isinstance(self.policy, nn.Module) and self.policy is self.original_policy:
            self.policy = copy.deepcopy(self.policy)  # the original is trained while this one acts
            self._acting = acting_policy(self.policy, self.env, **self._acting_options)
            self._runner.use(self._random_acting if self._random else self._acting_or_random)

    def shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """Close the environment if this collector made it; calling it twice is harmless."""
        self._stop_background(timeout)
        if not self.closed and close_env and self._owns_env:
            self.env.close()
        self.closed = True

    def stats(self) -> dict[str, float]:
        """Frames, batches, frames per second since the start, weight updates, trajectories that began."""
        self._check_background()
        elapsed = time.monotonic() - self._began
        counts: dict[str, float] = {"frames": self.frames, "iterations": self.iteration}
        counts.update(frames_per_second=self.frames / elapsed if elapsed else 0.0, policy_version=self.policy_version)
        if self._trajectories is not None:
            counts["trajectories"] = self._trajectories.ids.next_id
        return counts

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
        if waiting := self.delivery.state_dict():
            state["delivery"] = waiting
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back.

        Where the environment cannot go on with the episodes that were under way, new ones start.
        """
        self.frames, self.iteration = int(state_dict["frames"]), int(state_dict["iteration"])
        self.policy_version = self._version_acting = int(state_dict["policy_version"])
        restored = self.env.load_state_dict(state_dict["env"])
        self._runner.load_state_dict(state_dict["runner"])
        if self._trajectories is not None:
            self._trajectories.load_state_dict(state_dict["trajectories"])
        self.restarted = bool(state_dict["runner"]) and not restored
        if self.restarted:
            self.reset()
        if isinstance(self.policy, nn.Module) and "policy" in state_dict:
            self.policy.load_state_dict(state_dict["policy"])
        self.delivery.load_state_dict(state_dict.get("delivery", {}))

    def __repr__(self) -> str:
        return f"Collector({self.env!r}, frames_per_batch={self.budget.frames_per_batch}, frames={self.frames})"
