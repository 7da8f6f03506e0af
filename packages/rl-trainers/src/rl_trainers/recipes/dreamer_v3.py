"""DreamerV3 on pixels in one flat script: learn a world model from what was seen, and behaviour inside the model.

Read :meth:`DreamerV3.train` from top to bottom: build the world model and the policy on its states, then loop over
collect, keep, and a few updates, each of model, actor and value model. Hafner et al. 2023, arXiv 2301.04104.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_core import registry, with_carried_state
from rl_core.errors import RLError
from rl_core.training.seeding import seed_everything, spawn_seeds
from rl_trainers.evaluation import evaluate
from rl_trainers.plots import plot_learning_curve
from rl_trainers.progress import number
from rl_trainers.recipes.recipe import Recipe
from rl_trainers.recipes.single_precision import env_in_single_precision

__all__ = ["DreamerV3"]


@dataclass(frozen=True, kw_only=True)
class DreamerV3(Recipe):
    """Train a world model on images and one-hot actions, and a policy in its imagination.

    The environment has one observation "pixels" [C, H, W], bytes or numbers in [0, 1], and a one-hot action. The
    defaults are small: ``native:Catch`` takes some minutes on one CPU core.
    """

    recipe: ClassVar[str] = "dreamer_v3"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    env: str = "native:Catch"
    """Registry id of the environment, "provider:id"."""
    frames: int = 20_000
    """Environment steps to train for, over all environments."""
    num_envs: int = 16
    """Environments stepped together."""
    frames_per_batch: int = 256
    """Environment steps between two rounds of updates, over all environments."""
    updates_per_batch: int = 20
    """Updates in a round."""
    warmup_frames: int = 1_024
    """Steps collected before learning begins."""
    buffer_size: int = 100_000
    """Steps kept for replay."""
    sequences: int = 16
    """Sequences in an update."""
    sequence_length: int = 16
    """Steps of each; they run over the ends of episodes."""
    start_every: int = 2
    """Imagination starts from every n-th step of a sequence."""
    horizon: int = 8
    """Imagined steps from each of them."""
    gamma: float = 0.985
    """Discount per step."""
    lmbda: float = 0.95
    """Mixture weight of imagined returns, between 0 (one step) and 1 (whole trajectories)."""
    entropy_bonus: float = 3e-3
    """Weight of the policy's entropy."""
    belief: int = 128
    """Size of the recurrent state."""
    categoricals: int = 16
    """Variables of a latent."""
    classes: int = 16
    """Classes of each."""
    hidden: int = 256
    """Units of hidden layers."""
    depth: int = 0
    """Channels of the first of two convolutions; 0: perceptrons read and draw the image, which tiny ones need."""
    bins: int = 63
    """Bins over which rewards and values are distributions."""
    unimix: float = 0.01
    """Uniform share of latents and policy."""
    model_learning_rate: float = 2e-3
    """Adam's step size for the world model."""
    behavior_learning_rate: float = 5e-4
    """Adam's step size for actor and value model."""
    max_grad_norm: float = 100.0
    """Longest gradient of each; longer ones are scaled down."""
    slow_value_rate: float = 0.02
    """Share of the value model that enters its slow copy at each update."""
    eval_every: int = 0
    """Frames between two deterministic evaluations; 0 makes ten of them in the run."""
    eval_episodes: int = 64
    """Episodes of an evaluation."""

    def train(self, folder: Path, stack: ExitStack) -> dict[str, float]:
        """Train, evaluate and leave everything in the folder.

        Returns:
            The last evaluation, as :func:`rl_trainers.evaluate` gives it.
        """
        seed_everything(self.seed)
        train_seed, eval_seed = spawn_seeds(self.seed, 2)

        # Environments. InitTracker flags first steps, for the world model's memory to begin anew.
        env = env_in_single_precision(registry.envs.make(self.env, num_envs=self.num_envs))
        image, actions = _image_and_actions(env, self.env)
        for name in ("InitTracker", "RewardSum", "StepCounter"):
            env = env.append_transform(registry.transforms.get(name)())
        stack.callback(env.close)

        # Networks, the world model that learns from sequences, the policy that acts on what it sees.
        nets = self._networks(image, actions)
        world_model = self._world_model(nets)
        policy = registry.modules.get("sequential")(
            TensorDictModule(nets["encoder"], ["pixels"], ["encoded_latents"]),
            TensorDictModule(nets["posterior"], ["belief", "encoded_latents"], ["_", "state"]),
            nets["actor"],
            registry.modules.get("rssm_belief_carrier")(nets["prior"]),
        )
        imagination = self._imagination(nets, env)
        eval_env = env_in_single_precision(registry.envs.make(self.env, num_envs=self.eval_episodes))
        eval_env = with_carried_state(eval_env, policy)
        stack.callback(eval_env.close)

        # Losses, optimisers, the slow copy of the value model, buffer, collector.
        model_loss, actor_loss, value_loss = self._losses(nets, world_model, imagination)
        slow = registry.target_updates.get("soft")(value_loss, tau=self.slow_value_rate)
        optimizers = {
            "model": torch.optim.Adam(model_loss.parameters(), lr=self.model_learning_rate),
            "actor": torch.optim.Adam(actor_loss.parameters(), lr=self.behavior_learning_rate),
            "value": torch.optim.Adam(value_loss.parameters(), lr=self.behavior_learning_rate),
        }
        buffer = self._buffer()
        collector = registry.collectors.get("serial")(
            env, policy, frames_per_batch=self.frames_per_batch, total_frames=self.frames
        )
        stack.callback(collector.shutdown)

        run = self.open_run(
            folder,
            stack,
            model_loss=model_loss,
            actor_loss=actor_loss,
            value_loss=value_loss,
            slow=slow,
            buffer=buffer,
            collector=collector,
            **{f"{name}_optimizer": optimizer for name, optimizer in optimizers.items()},
        )
        if not self.resume:
            collector.set_seed(train_seed)

        # The algorithm.
        eval_every = self.eval_every or max(1, self.frames // 10)
        with run:
            for batch in run.batches(collector):  # [N, T]
                buffer.extend(_steps(batch))
                if run.frames >= self.warmup_frames:
                    for _ in range(self.updates_per_batch):
                        sequences = self._sample(buffer)  # [B, T]
                        losses, data = model_loss(sequences)
                        run.record({**losses, **self._step(optimizers, "model", losses, model_loss)})
                        losses, imagined = actor_loss(data[:, :: self.start_every])  # [B, T', H]
                        run.record({**losses, **self._step(optimizers, "actor", losses, actor_loss)})
                        losses, _ = value_loss(imagined)
                        run.record({**losses, **self._step(optimizers, "value", losses, value_loss)})
                        slow.step()
                collector.update_policy_weights_()
                if run.due(eval_every) and run.frames < self.frames:
                    run.log_evaluation(evaluate(eval_env, policy, self.eval_episodes, seed=eval_seed))
            result = evaluate(eval_env, policy, self.eval_episodes, seed=eval_seed)
            run.log_evaluation(result)
        curve = plot_learning_curve(
            folder / "metrics.csv", folder / "learning_curve.png", title=f"DreamerV3 on {self.env}, seed {self.seed}"
        )
        episodes = f"{int(result['episodes'])} deterministic episodes"
        rows = {
            "evaluation": f"return {number(result['return_mean'])} ± {number(result['return_std'])} ({episodes})",
            "learning curve": curve.name,
        }
        self.report(folder, run, rows)
        return result

    # ---------------------------------------------------------------- the parts
    def _networks(self, image: tuple[int, int, int], actions: int) -> dict[str, nn.Module]:
        """Every network, by what it computes."""
        modules, latent = registry.modules, self.belief + self.categoricals * self.classes
        shape = {"num_categoricals": self.categoricals, "num_classes": self.classes, "unimix": self.unimix}
        encoder, decoder, features = self._image_networks(image, latent)

        def head(outputs: int, outscale: float = 0.0) -> nn.Module:
            return modules.get("dreamer_v3_mlp")(latent, outputs, depth=1, num_cells=self.hidden, outscale=outscale)

        return {
            "encoder": _ImageEncoder(encoder),
            "decoder": decoder,
            "prior": modules.get("rssm_prior_v3")(
                action_dim=actions,
                hidden_dim=self.hidden,
                rnn_hidden_dim=self.belief,
                prior_num_layers=1,
                **shape,
            ),
            "posterior": modules.get("rssm_posterior_v3")(
                hidden_dim=self.hidden,
                rnn_hidden_dim=self.belief,
                obs_embed_dim=features,
                use_rms_norm=True,
                **shape,
            ),
            "reward": head(self.bins),
            "continue": head(1, outscale=1.0),
            "value": head(self.bins),
            "two_hot": modules.get("symexp_two_hot")(self.bins),
            "actor": modules.get("dreamer_v3_discrete_actor")(
                latent, actions, depth=2, num_cells=self.hidden, unimix=self.unimix
            ),
        }

    def _image_networks(self, image: tuple[int, int, int], latent: int) -> tuple[nn.Module, nn.Module, int]:
        """Encoder, decoder, and the size of what the first one gives."""
        modules = registry.modules
        if self.depth:
            options: dict[str, Any] = {"depth": self.depth, "mults": (1, 2)}
            encoder = modules.get("dreamer_v3_image_encoder")(image[0], **options)
            decoder = modules.get("dreamer_v3_image_decoder")(latent, image, num_blocks=1, **options)
            return encoder, decoder, encoder.output_features(image)
        pixels, perceptron = math.prod(image), modules.get("dreamer_v3_mlp")
        encoder = nn.Sequential(nn.Flatten(-3), perceptron(pixels, None, depth=1, num_cells=self.hidden))
        decoder = _FlatDecoder(perceptron(latent, pixels, depth=1, num_cells=self.hidden), image)
        return encoder, decoder, self.hidden

    def _world_model(self, nets: Mapping[str, nn.Module]) -> nn.Module:
        """Sequences [B, T] to beliefs, reconstructions and predictions under "next"."""
        prior = TensorDictModule(
            nets["prior"], ["state", "belief", "action"], [("next", "prior_logits"), "_", ("next", "belief")]
        )
        posterior = TensorDictModule(
            nets["posterior"],
            [("next", "belief"), ("next", "encoded_latents")],
            [("next", "posterior_logits"), ("next", "state")],
        )
        latent: list[Any] = [("next", "state"), ("next", "belief")]
        return registry.modules.get("sequential")(
            TensorDictModule(_FirstImages(nets["encoder"]), ["pixels", "is_init"], ["encoded_latents"]),
            TensorDictModule(nets["encoder"], [("next", "pixels")], [("next", "encoded_latents")]),
            registry.modules.get("rssm_rollout_v3")(prior, posterior, infer_first=True),
            TensorDictModule(nets["decoder"], latent, [("next", "reco_pixels")]),
            TensorDictModule(nets["reward"], latent, [("next", "reward_logits")]),
            TensorDictModule(nets["continue"], latent, [("next", "continue_pred")]),
        )

    def _imagination(self, nets: Mapping[str, nn.Module], env: Any) -> Any:
        """The environment that steps the world model's states."""
        sequential = registry.modules.get("sequential")
        model = registry.modules.get("world_model_wrapper")(
            TensorDictModule(nets["prior"], ["state", "belief", "action"], ["_", "state", "belief"]),
            sequential(
                TensorDictModule(nets["reward"], ["state", "belief"], ["reward_logits"]),
                TensorDictModule(nets["two_hot"], ["reward_logits"], ["reward"]),
            ),
        )
        imagination = registry.envs.make(
            "model_based:Dreamer",
            world_model=model,
            prior_shape=(self.categoricals * self.classes,),
            belief_shape=(self.belief,),
        )
        imagination.set_specs_from_env(env)
        return imagination

    def _losses(self, nets: Mapping[str, nn.Module], world_model: nn.Module, imagination: Any) -> tuple[Any, Any, Any]:
        """Of the world model, the actor and the value model."""
        sequential = registry.modules.get("sequential")
        value = sequential(
            TensorDictModule(nets["value"], ["state", "belief"], ["state_value_logits"]),
            TensorDictModule(nets["two_hot"], ["state_value_logits"], ["state_value"]),
        )
        continuation = sequential(
            TensorDictModule(nets["continue"], ["state", "belief"], ["continue_pred"]),
            TensorDictModule(nn.Sigmoid(), ["continue_pred"], ["continuation"]),
        )
        model_loss = registry.losses.get("dreamer_v3_model")(
            world_model, kl_mode="separate", lambda_continue=1.0, reco_symlog=False, num_reward_bins=self.bins
        )
        actor_loss = registry.losses.get("dreamer_v3_actor")(
            nets["actor"],
            value,
            imagination,
            continuation_model=continuation,
            imagination_horizon=self.horizon,
            entropy_bonus=self.entropy_bonus,
            use_reinforce=True,
            gamma=self.gamma,
            lmbda=self.lmbda,
        )
        value_loss = registry.losses.get("dreamer_v3_value")(
            value, value_loss="two_hot", num_value_bins=self.bins, slow_critic_regularization=1.0
        )
        return model_loss, actor_loss, value_loss

    def _buffer(self) -> Any:
        """Steps in one lane per environment, from which windows are drawn that run over the ends of episodes."""
        sampler = registry.samplers.get("slices")(
            slice_len=self.sequence_length,
            traj_key="lane",  # a window stays within its environment's steps
            truncated_key=None,
            init_key="window_start",  # no such entry: first steps of episodes stay what they are
            uniform_over="steps",
        )
        storage = registry.storages.get("lazy_tensor")(self.buffer_size, ndim=2)
        return registry.buffers.get("tensordict_replay")(
            storage=storage, sampler=sampler, batch_size=self.sequences * self.sequence_length
        )

    def _sample(self, buffer: Any) -> TensorDictBase:
        """Sequences [B, T] with images in [0, 1]."""
        data: TensorDictBase = buffer.sample().reshape(self.sequences, self.sequence_length)
        for key in ("pixels", ("next", "pixels")):
            data.set(key, _unit_image(data.get(key)))
        return data

    def _step(
        self, optimizers: Mapping[str, torch.optim.Optimizer], name: str, losses: TensorDictBase, loss: Any
    ) -> dict[str, Tensor]:
        """One step down the sum of a loss's terms."""
        total = sum(value for key, value in losses.items() if key.startswith("loss_"))
        optimizers[name].zero_grad()
        total.backward()  # type: ignore[union-attr]
        grad_norm = nn.utils.clip_grad_norm_(loss.parameters(), self.max_grad_norm)
        optimizers[name].step()
        return {f"grad_norm_{name}": grad_norm}


class _ImageEncoder(nn.Module):
    """An encoder of images in [0, 1], or of bytes."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.encoder(_unit_image(pixels))
        return features


class _FlatDecoder(nn.Module):
    """A perceptron that draws an image."""

    def __init__(self, perceptron: nn.Module, image: tuple[int, int, int]) -> None:
        super().__init__()
        self.perceptron, self.image = perceptron, image

    def forward(self, state: Tensor, belief: Tensor) -> Tensor:
        pixels: Tensor = self.perceptron(state, belief)
        return pixels.unflatten(-1, self.image)


class _FirstImages(nn.Module):
    """Encodes the first images of episodes; all others are encoded as what a step led to. Zero elsewhere."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, pixels: Tensor, is_init: Tensor) -> Tensor:
        first = is_init.squeeze(-1)
        features: Tensor = self.encoder(pixels[first])
        return features.new_zeros(*first.shape, features.shape[-1]).index_put((first,), features)


def _unit_image(pixels: Tensor) -> Tensor:
    return pixels if pixels.is_floating_point() else pixels.float() / 255


def _image_and_actions(env: Any, name: str) -> tuple[tuple[int, int, int], int]:
    """The image's shape and the number of actions.

    Raises:
        RLError: the environment has other observations or actions.
    """
    spec, action = env.observation_spec.get("pixels", None), env.action_spec_unbatched
    shape = () if spec is None else tuple(spec.shape[len(env.batch_size) :])
    if len(shape) != 3:
        raise RLError(
            f"the dreamer_v3 recipe learns from 'pixels' [C, H, W]; {name} has "
            f"{list(env.observation_keys)}" + (f", pixels of shape {list(shape)}" if shape else "")
        )
    if getattr(action, "n", None) != (action.shape[-1] if action.shape else None):
        raise RLError(f"the dreamer_v3 recipe takes one one-hot action; that of {name} is {action!r}")
    return (shape[0], shape[1], shape[2]), int(action.n)


def _steps(batch: TensorDictBase) -> TensorDictBase:
    """What the world model learns from, with the number of each environment."""
    kept = ["pixels", "action", "is_init", "state", "belief"]
    steps = batch.select(*kept, *(("next", key) for key in ("pixels", "reward", "terminated", "done")))
    lanes = torch.arange(batch.shape[0]).unsqueeze(-1).expand(batch.shape[:2])
    return steps.set("lane", lanes)
