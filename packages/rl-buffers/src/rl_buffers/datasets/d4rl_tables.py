"""Where D4RL's files are and its reference scores: a small table of the MuJoCo tasks, and d4rl's own for the others.

J. Fu, A. Kumar, O. Nachum, G. Tucker, S. Levine (2020), D4RL: Datasets for Deep Data-Driven Reinforcement Learning,
arXiv:2004.07219, appendix.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["Tables", "tables"]

_BASE = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
_SCORES = {  # of a random policy and of an expert
    "hopper": (-20.272305, 3234.3),
    "halfcheetah": (-280.178953, 12135.0),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
}
_DATA = ("random", "medium", "expert", "medium-replay", "full-replay", "medium-expert")


class Tables(NamedTuple):
    """Addresses and scores by dataset id."""

    urls: Mapping[str, str]
    lowest: Mapping[str, float]
    highest: Mapping[str, float]


def tables() -> Tables:
    """What is known here, and what an installed d4rl knows.

    The package itself is not imported, since that needs old versions of gym and mujoco-py; its table is one plain file.
    """
    known = _mujoco()
    installed = importlib.util.find_spec("d4rl")
    places = list(installed.submodule_search_locations or []) if installed is not None else []
    file = next((Path(place) / "infos.py" for place in places if (Path(place) / "infos.py").is_file()), None)
    if file is None:
        return known
    spec = importlib.util.spec_from_file_location("_d4rl_infos", file)
    assert spec is not None and spec.loader is not None
    infos = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(infos)
    return Tables(
        {**infos.DATASET_URLS, **known.urls},
        {**infos.REF_MIN_SCORE, **known.lowest},
        {**infos.REF_MAX_SCORE, **known.highest},
    )


def _mujoco() -> Tables:
    urls, lowest, highest = {}, {}, {}
    for (task, (low, high)), data, version in itertools.product(_SCORES.items(), _DATA, (1, 2)):
        name = f"{task}-{data}-v{version}"
        urls[name] = f"{_BASE}/gym_mujoco_v{version}/{task}_{data.replace('-', '_')}-v{version}.hdf5"
        lowest[name], highest[name] = low, high
    return Tables(urls, lowest, highest)
