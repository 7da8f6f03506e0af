"""An action chunking transformer with all packages: it learns demonstrated chunks and acts them out."""

import torch
from tensordict import TensorDict

from rl_core import with_carried_state
from rl_envs import PendulumEnv, SerialEnv
from rl_modules import ACTActor, ACTNetwork, MultiStepActorWrapper, TemporalEnsemble
from rl_objectives import ACTLoss

CHUNK = 4


def pendulums(seed):
    env = SerialEnv(8, PendulumEnv)
    env.set_seed(seed)
    return env


def torque(observation):
    """What is demonstrated: a push against the speed."""
    return (-0.2 * observation[..., 2:3]).clamp(-2, 2)


def demonstrations():
    env = pendulums(seed=0)
    steps = env.rollout(24, lambda td: td.set("action", torque(td["observation"])), break_when_any_done=False)
    chunks = steps["action"].unfold(1, CHUNK, 1).movedim(-1, -2)
    return TensorDict({"observation": steps["observation"][:, : chunks.shape[1]], "action": chunks}, chunks.shape[:2])


def test_chunks_are_learned_and_acted_out():
    torch.manual_seed(0)
    data = demonstrations().reshape(-1)
    sizes = {"n_embd": 16, "n_head": 2, "n_inner": 32, "n_encoder_layer": 1, "n_decoder_layer": 1, "dropout": 0.0}
    actor = ACTActor(ACTNetwork(3, 1, CHUNK, latent_dim=2, **sizes))
    loss = ACTLoss(actor, kl_weight=0.1)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-3)
    errors = []
    for _ in range(150):
        out = loss(data[torch.randint(data.shape[0], (64,))])
        optimizer.zero_grad()
        out["loss_act"].backward()
        optimizer.step()
        errors.append(out["loss_reconstruction"].item())
    first, last = sum(errors[:10]) / 10, sum(errors[-10:]) / 10
    assert last < 0.3 * first, f"the distance went from {first:.3f} to {last:.3f}"
    for policy in (
        TemporalEnsemble(actor.eval(), (CHUNK, 1)),
        MultiStepActorWrapper(actor, action_spec=PendulumEnv().action_spec.expand(CHUNK, 1)),
    ):
        env = with_carried_state(pendulums(seed=1), policy)
        with torch.no_grad():
            acted = env.rollout(24, policy, break_when_any_done=False)
        error = (acted["action"] - torque(acted["observation"])).abs().mean()
        assert error < 0.5 * torque(acted["observation"]).abs().mean()
