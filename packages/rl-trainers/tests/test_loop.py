"""rl_trainers.loop: budget, rows, hooks, checkpoints and requests to stop, on a made-up collector."""

import io
import os
import signal

import pytest
import torch
from rich.console import Console
from tensordict import TensorDict

from rl_core import hookimpl, hooks, registry
from rl_trainers import Checkpoint, CSVLogger, Progress, TrainingRun, read_metrics


def batch(done=(False, True), returns=(1.0, 5.0), steps=(1, 4)):
    return TensorDict(
        {
            "next": {
                "done": torch.tensor(done)[:, None],
                "episode_reward": torch.tensor(returns)[:, None],
                "step_count": torch.tensor(steps)[:, None],
            }
        },
        [len(done)],
    )


def endless():
    while True:
        yield batch()


class Counter:
    value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state_dict):
        self.value = state_dict["value"]


@pytest.fixture
def counter():
    return Counter()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoint"


def train(run, counter, act=lambda run: None):
    with run:
        for _ in run.batches(endless()):
            counter.value += 1
            act(run)


def frames_saved(folder):
    return Checkpoint.metadata(folder)["frames"]


def test_the_budget_ends_the_run(counter):
    run = TrainingRun(total_frames=10)
    train(run, counter)
    assert (run.frames, run.updates, counter.value) == (10, 5, 5)


def test_a_collector_that_ends_early_ends_the_run():
    run = TrainingRun(total_frames=10)
    with run:
        assert len(list(run.batches([batch(), batch()]))) == 2


def test_padding_is_no_frame():
    padded = batch().set(("collector", "mask"), torch.tensor([True, False]))
    run = TrainingRun(total_frames=100)
    with run:
        list(run.batches([padded]))
    assert run.frames == 1


def test_a_row_holds_episodes_means_and_evaluations(tmp_path):
    logger = CSVLogger("run", tmp_path)
    run = TrainingRun(total_frames=4, loggers=[logger])
    with run:
        for _ in run.batches(endless()):
            run.record({"loss_objective": torch.tensor(1.0)})
            run.record({"loss_objective": torch.tensor(2.0)})
            if run.due(4):
                run.log_evaluation({"return_mean": 7.0})
    columns = read_metrics(logger.path)
    assert columns["step"] == [2, 4]
    assert columns["train/return"] == [5, 5] and columns["train/episode_length"] == [4, 4]
    assert columns["optim/loss_objective"] == [1.5, 1.5]
    assert str(columns["eval/return_mean"]) == "[nan, 7.0]"


def test_a_batch_without_an_end_logs_no_return():
    from rl_trainers import episode_metrics

    assert episode_metrics(batch(done=(False, False))) == {"episodes": 0.0}


def test_due_is_true_when_a_multiple_is_crossed_and_at_the_end():
    run = TrainingRun(total_frames=11)
    seen = []
    with run:
        for _ in run.batches(endless()):
            seen.append((run.frames, run.due(5)))
    assert seen == [(2, False), (4, False), (6, True), (8, False), (10, True), (12, True)]


def test_checkpoints_are_written_between_updates_and_at_the_end(counter, folder):
    saved = []

    class Watch:
        @hookimpl
        def on_checkpoint(self, run, path):
            saved.append((frames_saved(path), run.frames, counter.value))

    run = TrainingRun(
        total_frames=10, checkpoint=Checkpoint(counter=counter), checkpoint_path=folder, checkpoint_every=4
    )
    with registry.isolated(entry_points=[]):
        hooks.load().register(Watch())
        train(run, counter)
    assert saved == [(4, 4, 2), (8, 8, 4), (10, 10, 5)]


def test_a_resumed_run_goes_on_counting(counter, folder):
    train(TrainingRun(total_frames=4, checkpoint=Checkpoint(counter=counter), checkpoint_path=folder), counter)
    other = Counter()
    checkpoint = Checkpoint(counter=other)
    run = TrainingRun(total_frames=10, checkpoint=checkpoint, checkpoint_path=folder)
    checkpoint.load(folder)
    train(run, other)
    assert (run.frames, run.updates, other.value) == (10, 5, 5)
    assert run.seconds > 0


def test_ctrl_c_finishes_the_update_and_saves(counter, folder):
    run = TrainingRun(total_frames=100, checkpoint=Checkpoint(counter=counter), checkpoint_path=folder)

    def press(run):
        if run.updates == 3:
            os.kill(os.getpid(), signal.SIGINT)
            run.log({"after": 1.0})  # the update goes on

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(run, counter, press)
    assert signal.getsignal(signal.SIGINT) is before
    assert frames_saved(folder) == run.frames == 6 and counter.value == 3
    assert Checkpoint.metadata(folder)["inside_update"] is False


def test_ctrl_c_twice_stops_at_once_and_leaves_the_last_whole_checkpoint(counter, folder):
    run = TrainingRun(
        total_frames=100, checkpoint=Checkpoint(counter=counter), checkpoint_path=folder, checkpoint_every=4
    )

    def press(run):
        if run.updates == 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        train(run, counter, press)
    assert frames_saved(folder) == 4


def test_an_interrupt_in_the_first_update_saves_what_there_is(counter, folder):
    run = TrainingRun(total_frames=100, checkpoint=Checkpoint(counter=counter), checkpoint_path=folder)

    def fail(run):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, counter, fail)
    assert Checkpoint.metadata(folder) == {"frames": 2, "updates": 1, "inside_update": True}


def test_an_error_leaves_the_last_checkpoint_alone(counter, folder):
    run = TrainingRun(
        total_frames=100, checkpoint=Checkpoint(counter=counter), checkpoint_path=folder, checkpoint_every=4
    )

    def fail(run):
        if run.updates == 3:
            raise RuntimeError("diverged")

    with pytest.raises(RuntimeError, match="diverged"):
        train(run, counter, fail)
    assert frames_saved(folder) == 4


def test_a_stopped_run_says_how_to_go_on(counter, folder):
    text = io.StringIO()

    def progress(start):
        return Progress(100, "toy", start_frames=start, console=Console(file=text, width=200))

    run = TrainingRun(
        total_frames=100,
        checkpoint=Checkpoint(counter=counter),
        checkpoint_path=folder,
        progress=progress,
        resume_command="rl train toy --resume runs/a",
    )
    with pytest.raises(KeyboardInterrupt):
        train(run, counter, lambda run: os.kill(os.getpid(), signal.SIGTERM))
    assert f"Stopped at 2 of 100 frames; the checkpoint is {folder}" in text.getvalue()
    assert "Go on with: rl train toy --resume runs/a" in text.getvalue()


def test_every_hook_fires_in_order(counter, folder):
    seen = []

    class Spy:
        @hookimpl
        def on_run_start(self, run):
            seen.append("start")

        @hookimpl
        def on_batch(self, run, batch):
            seen.append(f"batch {batch.numel()}")

        @hookimpl
        def on_update(self, run, metrics):
            seen.append(f"update {metrics['train/return']}")

        @hookimpl
        def on_evaluation(self, run, metrics):
            seen.append(f"evaluation {metrics}")

        @hookimpl
        def on_checkpoint(self, run, path):
            seen.append(f"checkpoint {path == folder}")

        @hookimpl
        def on_run_end(self, run, error):
            seen.append(f"end {error} {run.config}")

    with registry.isolated(entry_points=[]):
        hooks.load().register(Spy())
        run = TrainingRun(config="cfg", total_frames=2, checkpoint=Checkpoint(counter=counter), checkpoint_path=folder)
        train(run, counter, lambda run: run.log_evaluation({"return_mean": 1.0}))
    assert seen == [
        "start",
        "batch 2",
        "evaluation {'eval/return_mean': 1.0}",
        "update 5.0",
        "checkpoint True",
        "end None cfg",
    ]


def test_a_checkpoint_needs_a_folder(counter):
    with pytest.raises(ValueError, match="belong together"):
        TrainingRun(total_frames=1, checkpoint=Checkpoint(counter=counter))


def test_rounds_count_their_frames_and_the_last_one_is_what_is_left(tmp_path):
    with CSVLogger("a", tmp_path) as csv:
        run = TrainingRun(total_frames=10, loggers=[csv])
        with run:
            seen = [
                (count, run.frames, run.due(4)) for count in run.rounds(4) if run.record({"loss": 1.0 * count}) is None
            ]
    assert seen == [(4, 4, True), (4, 8, True), (2, 10, True)]
    columns = read_metrics(tmp_path / "a" / "metrics.csv")
    assert columns["step"] == [4, 8, 10] and columns["optim/loss"] == [4, 4, 2]


def test_a_request_to_stop_is_obeyed_between_two_rounds(counter, folder):
    run = TrainingRun(total_frames=10, checkpoint=Checkpoint(counter=counter), checkpoint_path=folder)
    with pytest.raises(KeyboardInterrupt), run:
        for _ in run.rounds(4):
            counter.value += 1
            os.kill(os.getpid(), signal.SIGINT)
    assert Checkpoint.metadata(folder) == {"frames": 4, "updates": 1, "inside_update": False}
    again = TrainingRun(total_frames=10, checkpoint=Checkpoint(counter=Counter()), checkpoint_path=folder)
    again.checkpoint.load(folder)
    with again:
        assert list(again.rounds(4)) == [4, 2]
