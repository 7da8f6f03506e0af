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


@pytest.mark.parametrize("asked", ["", ">=0.9", "<2", "==0.9.*", ">=0.9,<1.5", ">=0.9,<2,!=1.1", "~=0.9"])
def test_a_requirement_without_a_floor_or_with_another_cap_fails(kit, asked):
    bad = kit(metadata=METADATA.replace(">=0.9,<2", asked))
    with pytest.raises(AssertionError, match="rl-core"):
        bad.test_requires_core_with_a_floor_and_a_cap_on_its_major_only()


def test_a_distribution_that_does_not_require_the_core_fails(kit):
    bad = kit(metadata=METADATA.replace("Requires-Dist: rl-core>=0.9,<2", ""))
    with pytest.raises(AssertionError, match="does not require rl-core"):
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


SIDE_EFFECTS = {
    "torch default dtype": "import torch; torch.set_default_dtype(torch.float64)",
    "torch random state": "import torch; torch.manual_seed(0)",
    "torch gradient mode": "import torch; torch.set_grad_enabled(False)",
    "numpy random state": "import numpy; numpy.random.seed(0)",
    "python random state": "import random; random.seed(0)",
    "multiprocessing start method": "import multiprocessing; multiprocessing.set_start_method('spawn')",
    "warning filters": "import warnings; warnings.filterwarnings('ignore', message='x')",
}


def test_an_import_with_side_effects_fails_and_names_each(kit):
    with pytest.raises(AssertionError) as caught:
        kit(source="\n".join([*SIDE_EFFECTS.values(), LOSS])).test_import_has_no_side_effect()
    assert [effect for effect in SIDE_EFFECTS if f"'{effect}'" not in str(caught.value)] == []


def test_what_a_third_party_does_at_its_import_is_not_the_plugins_doing(kit, site):
    site.module("third_party", "import random; random.random()")
    kit(source=f"import third_party\n{LOSS}").test_import_has_no_side_effect()


def test_a_warning_filter_that_is_taken_back_is_no_side_effect(kit):
    source = f"import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n{LOSS}"
    kit(source=source).test_import_has_no_side_effect()
