"""The contracts of replay buffers: what a storage, a sampler, a writer and the buffer made of them promise.

A buffer is three parts that know each other only through these contracts: the writer says *where* new rows go, the
storage keeps them, the sampler says *which* rows come back. Concrete parts live in plugins such as ``rl-buffers``; the
kits in :mod:`rl_core.testing.buffer_kit` check any implementation.
"""

from rl_core.buffers.buffer import ReplayBuffer
from rl_core.buffers.sampler import Sampler
from rl_core.buffers.storage import Block, Storage
from rl_core.buffers.writer import Span, Writer

__all__ = ["Block", "ReplayBuffer", "Sampler", "Span", "Storage", "Writer"]
