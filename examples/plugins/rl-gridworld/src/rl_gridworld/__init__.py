"""Gridworlds with a known optimal return, and REINFORCE with a baseline..

>>> from rl_core import registry
>>> registry.envs.make("gridworld:4x4", batch_size=[64]).batch_size
torch.Size([64])
"""
