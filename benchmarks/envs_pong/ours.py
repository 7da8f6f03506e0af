"""rl-envs: GymEnv of 16 games in this process, frames by transforms on rows of bytes. Needs ale-py."""

from __future__ import annotations

from collections.abc import Callable

import ale_py
import gymnasium

from rl_collectors import Collector
from rl_core import Compose, TransformedEnv
from rl_envs import CatFrames, GrayScale, GymEnv, Resize, SignTransform, StepCounter, ToTensorImage

gymnasium.register_envs(ale_py)


def build(n_envs: int, steps: int, order: str = "channels last", native_skip: bool = True) -> Callable[[], object]:
    """One repetition takes ``steps`` steps of four frames in each environment, with random actions.

    ``order`` says whether channels come first before the frames are made small, or after; ``native_skip`` lets the
    simulator skip frames (as its default is), where Stable-Baselines3's wrapper takes and compares every one.
    """
    last = order == "channels last"
    small = [Resize(84, channels_last=last), GrayScale(channels_last=last)]
    to_image = ToTensorImage(from_int=False, in_keys=["observation"])
    for part in small:
        part.in_keys = part.out_keys = ["observation"]
    frames = [*small, to_image] if last else [to_image, small[1], small[0]]
    skip = {"frameskip": 4} if native_skip else {"frameskip": 1, "frame_skip": 4}
    env = TransformedEnv(
        GymEnv("ALE/Pong-v5", num_envs=n_envs, repeat_action_probability=0.0, **skip),
        Compose(*frames, CatFrames(4, -3, in_keys=["observation"]), SignTransform(in_keys=["reward"]), StepCounter()),
    )
    batches = iter(Collector(env, None, frames_per_batch=steps * n_envs, total_frames=-1))
    return lambda: next(batches)
