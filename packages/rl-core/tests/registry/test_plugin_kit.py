"""PluginKit passes on a good distribution and fails on each bad one."""

from __future__ import annotations

import pytest

from rl_core.testing import PluginKit

METADATA = """Metadata-Version: 2.4
Name: kit-dist
Version: 1.0
Summary: made up
Requires-Python: >=3.10
License-Expression: MIT
Requires-Dist: rl-core>=0.9,<2
"""
LOSS = "class Loss:\n    def forward(self, td): ...\n"
OFFER = {"losses": {"kit": "kit_mod:Loss"}}
CHECKS = sorted(name for name in vars(PluginKit) if name.startswith("test_"))


@pytest.fixture
def kit(site):
    def build(source=LOSS, metadata=METADATA, offers=OFFER):
        site.module("kit_mod", source)
        site.dist("kit-dist", offers, metadata=metadata.encode())
        return PluginKit.of("kit-dist")

    return build


@pytest.mark.parametrize("check", CHECKS)
def test_a_good_distribution_passes(kit, check):
    getattr(kit(), check)()


@pytest.mark.parametrize(
    "requirement",
    ["", "Requires-Dist: rl-core", "Requires-Dist: rl-core>=0.9", "Requires-Dist: rl-core<2", "Requires-Dist: rl-core==0.9.*",
     "Requires-Dist: rl-core>=0.9,<1.5", "Requires-Dist: rl-core>=0.9,<2,!=1.1", "Requires-Dist: rl-core~=0.9"],
)  # fmt: skip
def test_a_requirement_without_a_floor_or_with_another_cap_fails(kit, requirement):
    bad = kit(metadata=METADATA.replace("Requires-Dist: rl-core>=0.9,<2", requirement))
    with pytest.raises(AssertionError, match="rl-core"):
        bad.test_requires_core_with_a_floor_and_a_cap_on_its_major_only()


def test_a_misfit_fails(kit):
    with pytest.raises(AssertionError, match="not usable"):
        kit(metadata=METADATA.replace(">=0.9,<2", ">=99,<100")).test_fits_the_installed_core()


@pytest.mark.parametrize("field", ["Summary", "Requires-Python", "License-Expression"])
def test_a_missing_field_fails(kit, field):
    lines = [line for line in METADATA.splitlines() if not line.startswith(field)]
    with pytest.raises(AssertionError, match=field):
        kit(metadata="\n".join(lines)).test_metadata_is_complete()


def test_an_entry_point_that_does_not_load_fails(kit):
    with pytest.raises(AssertionError, match="losses:kit"):
        kit(source="").test_every_entry_point_loads()


@pytest.mark.parametrize("offers", [{}, {"teleporters": {"x": "kit_mod:Loss"}}])
def test_a_distribution_without_names_or_with_an_unknown_group_fails(kit, offers):
    with pytest.raises(AssertionError):
        kit(offers=offers).test_offers_something()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("import torch; torch.set_default_dtype(torch.float64)", "torch default dtype"),
        ("import torch; torch.manual_seed(0)", "torch random state"),
        ("import numpy; numpy.random.seed(0)", "numpy random state"),
        ("import random; random.seed(0)", "python random state"),
        ("import torch; torch.set_grad_enabled(False)", "torch gradient mode"),
        ("import multiprocessing; multiprocessing.set_start_method('spawn')", "multiprocessing start method"),
        ("import warnings; warnings.filterwarnings('ignore', message='x')", "warning filters"),
    ],
)
def test_an_import_with_a_side_effect_fails(kit, line, what):
    with pytest.raises(AssertionError, match=what):
        kit(source=f"{line}\n{LOSS}").test_import_has_no_side_effect()


def test_a_warning_filter_that_is_taken_back_is_no_side_effect(kit):
    source = f"import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n{LOSS}"
    kit(source=source).test_import_has_no_side_effect()
