"""A few steps of GRPO on a real language model of 135 million parameters, which pip brings in a wheel."""

from __future__ import annotations

import pytest

from rl_core.cli import main
from rl_trainers import read_metrics

OPTIONS = ["--frames", "8", "--prompts-per-batch", "1", "--group-size", "4", "--max-new-tokens", "6", "--no-progress"]


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_real_model_takes_a_few_steps(engine, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    run = ["--run-dir", str(tmp_path), "--name", "run", "--eval-prompts", "2"]
    assert main(["train", "grpo", "--model", "smollm2", "--engine", engine, *OPTIONS, *run]) == 0
    columns = read_metrics(tmp_path / "run" / "metrics.csv")
    assert columns["step"][-1] == 8 and len(columns["train/reward"]) >= 2
    assert (tmp_path / "run" / "learning_curve.png").is_file()
    shown = capsys.readouterr().out
    assert "completion" in shown and "reward" in shown
