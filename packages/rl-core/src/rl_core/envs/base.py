"""``EnvBase``: an environment reads and writes named fields of a TensorDict.

A subclass declares its specs in ``__init__`` and writes three methods: ``_reset(td | None) -> td``,
``_step(td) -> td`` (what goes under "next") and ``_set_seed(seed)``. Everything else follows from the specs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.checking import checks_enabled
from rl_core.envs.action_masks import ActionLeaf, action_leaves, legal_action_specs
from rl_core.envs.columns import Columns, RowProgram
from rl_core.envs.ends import any_done, complete_ends
from rl_core.envs.entries import put_entries
from rl_core.envs.env_specs import EnvSpecs, leaf_specs
from rl_core.envs.partial_reset import merge_reset, pop_reset_keys, reset_request, reset_rows
from rl_core.envs.self_reset import SelfResets
from rl_core.envs.step_mdp import Drop, advance, drop_tree
from rl_core.envs.validation import check_actions, check_fresh, check_not_ended, validate_output
from rl_core.errors import EnvError
from rl_core.keys import Key, as_path
from rl_core.training.seeding import seed_generator

if TYPE_CHECKING:
    from rl_core.transforms.base import Transform
    from rl_core.transforms.transformed_env import TransformedEnv

__all__ = ["EnvBase"]


class EnvBase(EnvSpecs):
    """One environment, or a batch of them that steps together.

    Args:
        device: where its tensors live; None moves nothing.
        batch_size: the prefix of every shape it reads and writes (``[N]`` for N environments).
        run_type_checks: check every step against the specs, not only the first (a debug switch; also
            :func:`rl_core.checked_mode` and ``RL_CHECKS=1``).
        allow_done_after_reset: accept an end flag right after a reset.
        auto_reset: the simulator resets itself, so what it returns at an end is the next episode's first observation.
            It is given out by the reset that follows; the last observation is lost, and marked NaN (-1, False) under
            "next".

    A stateless environment sets the class attribute ``batch_locked = False`` and takes the batch size of what it is
    given. Rollouts have batch size ``[*B, T]``, the last dimension named "time".
    """

    batch_locked: bool = True

    def __init__(
        self,
        *,
        device: torch.device | str | None = None,
        batch_size: Sequence[int] | torch.Size | None = None,
        run_type_checks: bool = False,
        allow_done_after_reset: bool = False,
        auto_reset: bool = False,
    ) -> None:
        self.auto_reset = auto_reset
        self.device = None if device is None else torch.device(device)
        self.batch_size = torch.Size([] if batch_size is None else batch_size)
        self.run_type_checks = run_type_checks
        self.allow_done_after_reset = allow_done_after_reset
        self.is_closed = False
        self.training = True
        self._validated = False
        self._init_specs()

    # ---------------------------------------------------------------- to be written by a subclass
    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """The first observations of an episode; a bool ``_reset`` entry asks for some rows only."""
        raise NotImplementedError(f"{type(self).__name__} must define _reset(self, tensordict) -> TensorDict")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Observations, rewards and end flags of time t + 1, in a new TensorDict."""
        raise NotImplementedError(f"{type(self).__name__} must define _step(self, tensordict) -> TensorDict")

    def _set_seed(self, seed: int) -> None:
        """Seed the simulator; by default torch's generator, which every random draw here uses."""
        torch.manual_seed(seed)

    # ---------------------------------------------------------------- reset
    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Start episodes.

        Args:
            tensordict: written in place and returned, where given. A bool entry ``_reset`` (shape of the end flags or
                of the batch) resets only its True rows; the others keep their values.
            **kwargs: passed to ``_reset``.

        Returns:
            the observations, end flags (all False on reset rows) and whatever was in ``tensordict``.
        """
        self._check_open()
        if tensordict is not None:
            self._check_batch(tensordict)
        request = reset_request(tensordict, self.end_groups)
        fresh = self._reset_raw(tensordict, **kwargs)
        if tensordict is None:
            return fresh
        if request is not None:
            fresh = merge_reset(tensordict, fresh, request)
        pop_reset_keys(tensordict, self.end_groups)
        return put_entries(tensordict, fresh)

    def _reset_raw(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        """``_reset`` with end flags completed and checked; rows that were not asked for are not merged yet."""
        given = None if kwargs or not self.auto_reset else self._self_resets().give(reset_rows(tensordict))
        fresh = self._reset(tensordict, **kwargs) if given is None else given
        check_fresh(self, tensordict, fresh)
        complete_ends(fresh, self.end_groups, batch_locked=self.batch_locked)
        if not self.allow_done_after_reset:
            check_not_ended(self, tensordict, fresh)
        return fresh

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reset the rows whose end flags are set, and only those."""
        rows = any_done(tensordict, self.end_groups, tensordict.batch_dims)
        if rows is None:
            return tensordict
        if bool(rows.all()):
            request = TensorDict({}, batch_size=tensordict.batch_size, device=tensordict.device)
        else:
            request = TensorDict(
                {"_reset": rows.unsqueeze(-1)}, batch_size=tensordict.batch_size, device=tensordict.device
            )
        asked = reset_request(request, self.end_groups)
        fresh = self._reset_raw(request)
        return put_entries(tensordict, fresh if asked is None else merge_reset(tensordict, fresh, asked))

    # ---------------------------------------------------------------- step
    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Act: reads the action (and state) at the root, writes the results under "next".

        Returns:
            the TensorDict it was given. Entries of its "next" that the environment does not write are kept.
        """
        result = self._step_complete(tensordict)
        if "next" in tensordict:
            result = put_entries(tensordict.get("next"), result)
        tensordict.set("next", result)
        return tensordict

    def _step_complete(self, tensordict: TensorDictBase) -> TensorDictBase:
        """``_step`` with end flags completed; the first call (and every call in checked mode) is validated."""
        if self.batch_locked and tensordict.batch_size != self.batch_size:
            self._check_batch(tensordict)
        checked = not self._validated or self.run_type_checks or checks_enabled()
        if checked:
            check_actions(self, tensordict)
        result = self._step(tensordict)
        entries = dict(result.items())
        complete_ends(result, self.end_groups, batch_locked=self.batch_locked, entries=entries)
        if self.batch_locked:
            self._shape_rewards(result, entries)
        if checked:
            validate_output(self, result, values=self._validated)
            self._validated = True
        if self.auto_reset:
            self._self_resets().hold_back(result, any_done(result, self.end_groups, result.batch_dims))
        return result

    def _self_resets(self) -> SelfResets:
        return self._derive("self_resets", lambda: SelfResets(self.observation_keys))

    def _reward_shapes(self) -> list[tuple[Key, torch.Size]]:
        return [(key, leaf.shape) for key, leaf in leaf_specs(self.full_reward_spec).items()]

    def _shape_rewards(self, result: TensorDictBase, entries: dict[str, Any]) -> None:
        for key, shape in self._derive("reward_shapes", self._reward_shapes):
            reward = entries.get(key) if isinstance(key, str) else result.get(key, None)
            if isinstance(reward, Tensor) and reward.shape != shape and reward.numel() == shape.numel():
                result.set(key, reward.reshape(shape))

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The root of the next step; unlike the free function it keeps the action and policy extras."""
        return advance(tensordict, *self._derive("step_mdp", self._step_mdp_drops))

    def _step_mdp_drops(self) -> tuple[Drop, Drop]:
        state = set(self.state_keys)
        rewards = [as_path(key) for key in self.reward_keys if key not in state]
        return drop_tree(rewards), drop_tree([*rewards, *(as_path(key) for key in self.done_keys)])

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """One step, then a reset of the rows that ended.

        Returns:
            the stepped TensorDict, whose "next" holds the true last observations, and the root of the next step, where
            ended rows hold their reset observations.
        """
        stepped = self.step(tensordict)
        return stepped, self.maybe_reset(self.step_mdp(stepped))

    def any_done(self, tensordict: TensorDictBase) -> bool:
        """Whether any row of the TensorDict carries an end flag."""
        return any_done(tensordict, self.end_groups, tensordict.batch_dims) is not None

    # ---------------------------------------------------------------- random actions
    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write random legal actions into the TensorDict (or a new one).

        An ``action_mask`` beside an action in the TensorDict, bool, True where a choice is legal, is respected.
        """
        if tensordict is None:
            tensordict = TensorDict({}, batch_size=self.batch_size, device=self.device)
        shape = () if self.batch_locked else tensordict.batch_size[len(self.batch_size) :]
        for key, spec, mask_key in self._action_leaves():
            if mask_key is None or tensordict.get(mask_key, None) is None:
                tensordict.set(key, spec.rand(shape))
            else:
                ((_, legal),) = legal_action_specs([(key, spec, mask_key)], tensordict, shape)
                tensordict.set(key, legal.rand())
        return tensordict

    def _action_leaves(self) -> list[ActionLeaf]:
        return self._derive("action_leaves", lambda: action_leaves(self))

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """One step with random actions."""
        return self.step(self.rand_action(self.reset() if tensordict is None else tensordict))

    # ---------------------------------------------------------------- rollout
    def rollout(
        self,
        max_steps: int,
        policy: Callable[[TensorDictBase], TensorDictBase] | None = None,
        callback: Callable[[EnvBase, TensorDictBase], Any] | None = None,
        *,
        auto_reset: bool = True,
        auto_cast_to_device: bool = False,
        break_when_any_done: bool | None = None,
        break_when_all_done: bool | None = None,
        return_contiguous: bool | None = None,
        tensordict: TensorDictBase | None = None,
        set_truncated: bool = False,
        trust_policy: bool = False,
        storing_device: torch.device | str | None = None,
    ) -> TensorDictBase:
        """Run a policy.

        Args:
            max_steps: the most steps to take.
            policy: writes the actions; None draws them from the action spec. A callable that is not a TensorDict module
                is called with the observations.
            callback: called as ``callback(env, td)`` after every step with the stepped TensorDict.
            auto_reset: reset first; else ``tensordict`` is where the rollout starts.
            auto_cast_to_device: move data to the policy's device and back.
            break_when_any_done: stop right after the first step that ends an episode (the default); False resets ended
                rows and goes on to ``max_steps``.
            break_when_all_done: stop when every row has ended once; ended rows keep their last transition.
            return_contiguous: True insists on dense tensors, False keeps a lazy stack of steps, None is dense where
                shapes agree.
            tensordict: passed to ``reset``, or the start where ``auto_reset=False``.
            set_truncated: mark the last step as truncated where its episode goes on.
            trust_policy: call the policy with the TensorDict without looking at its signature.
            storing_device: where the result lives.

        Returns:
            TensorDict of batch size ``[*B, T]``, T <= max_steps, last dimension named "time".
        """
        from rl_core.envs.rollout import rollout

        return rollout(
            self,
            max_steps,
            policy,
            callback,
            auto_reset=auto_reset,
            auto_cast_to_device=auto_cast_to_device,
            break_when_any_done=break_when_any_done,
            break_when_all_done=break_when_all_done,
            return_contiguous=return_contiguous,
            tensordict=tensordict,
            set_truncated=set_truncated,
            trust_policy=trust_policy,
            storing_device=storing_device,
        )

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """Whether it can be stepped on columns, by :meth:`row_program`, without a TensorDict per step.

        Rollouts and collectors go by this alone, not by the class. The answer may follow from what the environment is
        made of, and holds until :attr:`specs_version` moves.
        """
        return False

    def row_program(self, columns: Columns) -> RowProgram:
        """Bind the environment to columns, where :attr:`supports_rows` says so; see :class:`ArrayEnv`."""
        raise EnvError(
            f"{type(self).__name__} is stepped on TensorDicts (supports_rows is False); it has no row_program"
        )

    # ---------------------------------------------------------------- seeds, shapes, life
    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the environment.

        Returns:
            the seed for the next environment of a chain (the same one where ``static_seed``).
        """
        if seed is None:
            return None
        self._set_seed(seed)
        return seed if static_seed else seed_generator(seed)

    def fake_tensordict(self) -> TensorDictBase:
        """A legal step made of zeros: what a rollout's steps look like, without running anything."""
        done = self.full_done_spec.zero()
        observation = self.observation_spec.zero()
        nxt = observation.clone().update(done.clone()).update(self.full_reward_spec.zero())
        root = self.state_spec.zero().update(observation).update(done).update(self.full_action_spec.zero())
        root.set("next", nxt)
        return root

    def append_transform(self, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> TransformedEnv:
        """A new environment that passes this one's data through a transform."""
        from rl_core.transforms.transformed_env import TransformedEnv

        return TransformedEnv(self, transform)

    @classmethod
    def register_gym(cls, id: str, *, max_episode_steps: int | None = None, **kwargs: Any) -> None:
        """Publish this class as a gymnasium environment: ``gymnasium.make(id, **its arguments)``. Needs rl-envs[gym].

        Args:
            id: the id, ``"Name-v0"``.
            max_episode_steps: gymnasium's time limit.
            **kwargs: of ``gymnasium.register``.
        """
        from rl_core import registry

        registry.envs.get("gym").publish(id, cls, max_episode_steps=max_episode_steps, **kwargs)

    def check_env_specs(self, **kwargs: Any) -> None:
        """See :func:`rl_core.check_env_specs`."""
        from rl_core.envs.check import check_env_specs

        check_env_specs(self, **kwargs)

    def to(self, device: torch.device | str) -> EnvBase:
        """Move the specs, and so everything the environment writes from then on, to a device."""
        self.device = torch.device(device)
        self._specs = {kind: spec.to(self.device) for kind, spec in self._specs.items()}
        self.specs_changed()
        return self

    def train(self, mode: bool = True) -> EnvBase:
        """Let running statistics move (or freeze them)."""
        self.training = mode
        return self

    def eval(self) -> EnvBase:
        """Freeze running statistics."""
        return self.train(False)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, as tensors, numbers and texts; plain environments keep nothing."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> bool:
        """Take a :meth:`state_dict` back.

        Returns:
            whether the episodes under way go on where the state was saved; where they do not, a reset is due. True of
            stateless environments, whose state is in the data.
        """
        return not self.batch_locked

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Release the simulator; closing twice is harmless."""
        if self.is_closed and raise_if_closed:
            raise EnvError(f"{type(self).__name__} is closed already")
        self.is_closed = True

    def __enter__(self) -> EnvBase:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def base_env(self) -> EnvBase:
        """The environment under all transforms."""
        return self

    def _check_open(self) -> None:
        if self.is_closed:
            raise EnvError(f"this {type(self).__name__} is closed; construct a new one")

    def _check_batch(self, tensordict: TensorDictBase) -> None:
        if self.batch_locked and tensordict.batch_size != self.batch_size:
            raise EnvError(
                f"{type(self).__name__} has batch size {tuple(self.batch_size)}, the TensorDict "
                f"{tuple(tensordict.batch_size)}; give it a TensorDict of the environment's batch size"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={list(self.batch_size)}, device={self.device})"
