"""rl-buffers is a plugin like any third party's."""

from rl_core.testing import PluginKit


class TestRlBuffers(PluginKit):
    dist = "rl-buffers"
