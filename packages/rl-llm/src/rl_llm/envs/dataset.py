"""``DataLoadingPrimer`` and ``DatasetChatEnv``: chats whose questions come from data, in a known order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase
from torch import Tensor

from rl_core import Composite, NonTensor, Transform, Unbounded, reset_rows
from rl_core.errors import SpecError
from rl_llm.data.tokenizer_protocol import Tokenizer
from rl_llm.envs.chat import ChatEnv
from rl_llm.envs.chat_transforms import ChatTransformedEnv
from rl_llm.envs.lengths import LengthPolicy
from rl_llm.envs.priming import ResetSource
from rl_llm.envs.prompt_stream import PromptStream
from rl_llm.envs.rewards import RewardFunctions
from rl_llm.envs.row_merge import put_entries
from rl_llm.envs.sources import BlockSource, IndexedData, IterableSource, LoaderSource, Sample, SequenceSource

__all__ = ["DataLoadingPrimer", "DatasetChatEnv"]

_QUESTION_NAMES = ("text", "prompt", "question")


class DataLoadingPrimer(ResetSource):
    """Feeds the resets of a chat environment from a dataloader, and stamps ``group_id``.

    Every reset takes one prompt per row that starts; the loader is begun anew when it ends. All columns of a sample are
    written beside the first observation: tensors as tensors, everything else as it is. ``group_id`` (int64 ``[*B]``)
    numbers the occurrences of prompts: rows of one group are repeats of one draw.

    Args:
        dataloader: gives batches (see :class:`~rl_llm.envs.sources.LoaderSource`), or None.
        dataloader_factory: makes it; exactly one of the two is given.
        primers: specs of the columns, where others than the found ones are wanted.
        stack_method: from a list of TensorDicts ``[]`` to one ``[B]``; default: as described.
        batch_size: of the environment, for a check.
        repeats: how often each sample is given; None: once.
        device: where tensors go.
        group_repeats: repeats follow each other, so an environment of a multiple of ``repeats`` chats has whole groups;
            else they spread over resets.
        data_key: the column with the question; a column "text", "prompt" or "question" takes its name if it is absent.
        lengths: what to do with prompts that are too long.

    Raises:
        SpecError: both or none of dataloader and factory, or rows that cannot hold whole groups.
    """

    def __init__(
        self,
        dataloader: Iterable[Any] | None = None,
        *,
        dataloader_factory: Callable[[], Iterable[Any]] | None = None,
        primers: Composite | None = None,
        stack_method: Callable[[list[TensorDictBase]], TensorDictBase] | None = None,
        batch_size: Sequence[int] | None = None,
        repeats: int | None = None,
        device: torch.device | str | None = None,
        group_repeats: bool = False,
        data_key: str = "query",
        lengths: LengthPolicy | None = None,
    ) -> None:
        if (dataloader is None) == (dataloader_factory is None):
            raise SpecError("DataLoadingPrimer needs exactly one of dataloader and dataloader_factory")
        loader = dataloader if dataloader is not None else (dataloader_factory or list)()
        self._setup(
            LoaderSource(loader), primers, stack_method, batch_size, repeats, device, group_repeats, data_key, lengths
        )

    def _setup(
        self,
        source: BlockSource,
        primers: Composite | None,
        stack_method: Callable[[list[TensorDictBase]], TensorDictBase] | None,
        batch_size: Sequence[int] | None,
        repeats: int | None,
        device: torch.device | str | None,
        group_repeats: bool,
        data_key: str,
        lengths: LengthPolicy | None,
    ) -> None:
        Transform.__init__(self)
        self.stream = PromptStream(
            source, repeats=repeats, group_repeats=group_repeats, prepare=self._named, lengths=lengths
        )
        self.primers, self.stack_method, self.data_key, self.lengths = primers, stack_method, data_key, lengths
        self.batch_size = None if batch_size is None else torch.Size(batch_size)
        self.device = None if device is None else torch.device(device)

    @classmethod
    def from_source(
        cls,
        source: BlockSource,
        *,
        repeats: int | None = None,
        group_repeats: bool = False,
        device: torch.device | str | None = None,
        primers: Composite | None = None,
        data_key: str = "query",
        lengths: LengthPolicy | None = None,
    ) -> DataLoadingPrimer:
        """A primer over blocks of samples, with their place in the data as its state."""
        primer = cls.__new__(cls)
        primer._setup(source, primers, None, None, repeats, device, group_repeats, data_key, lengths)
        return primer

    def _named(self, sample: Sample) -> Sample:
        if self.data_key in sample:
            return sample
        for name in _QUESTION_NAMES:
            if name in sample:
                sample[self.data_key] = sample.pop(name)
                return sample
        raise SpecError(
            f"a sample has the columns {sorted(sample)} and none named {self.data_key!r} (nor "
            f"{', '.join(_QUESTION_NAMES)}); name the question's column with data_key=..."
        )

    # ---------------------------------------------------------------- resets
    def prime(
        self, tensordict: TensorDictBase | None, batch_size: torch.Size, columns: dict[str, Any]
    ) -> TensorDictBase | None:
        """Take one prompt for each row that starts; a TensorDict that brings a question of its own is left alone."""
        rows = reset_rows(tensordict)
        if tensordict is not None and rows is None and tensordict.get(self.data_key, None) is not None:
            return tensordict
        self._check_batch(batch_size)
        starting = [True] * batch_size[0] if rows is None else rows.tolist()
        drawn = iter(self.stream.take(sum(starting)))
        pairs = [next(drawn) if start else None for start in starting]
        filler = next(pair for pair in pairs if pair is not None)
        chosen = [filler if pair is None else pair for pair in pairs]
        columns.update(self._columns([sample for _, sample in chosen]))
        columns["group_id"] = torch.tensor([group for group, _ in chosen], dtype=torch.int64, device=self.device)
        given = TensorDict({}, batch_size=batch_size) if tensordict is None else tensordict.copy()
        return put_entries(given, columns)

    def _check_batch(self, batch_size: torch.Size) -> None:
        if self.batch_size is not None and self.batch_size != batch_size:
            raise SpecError(
                f"this DataLoadingPrimer is one for batch size {tuple(self.batch_size)}, its environment has "
                f"{tuple(batch_size)}"
            )
        if self.stream.group_repeats and batch_size[0] % self.stream.repeats:
            raise SpecError(
                f"group_repeats=True with repeats={self.stream.repeats} needs an environment of a multiple of so many "
                f"chats, so that a reset holds whole groups; it has {batch_size[0]}"
            )

    def _columns(self, samples: list[Sample]) -> dict[str, Any]:
        names = set(samples[0])
        for sample in samples:
            if set(sample) != names:
                raise SpecError(f"samples have different columns: {sorted(names)} and {sorted(sample)}; fill them up")
        if self.stack_method is not None:
            stacked = self.stack_method([_row(sample) for sample in samples])
            return dict(stacked.items())
        return {name: _stacked([sample[name] for sample in samples], self.device) for name in sorted(names)}

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The columns are read by steps (rewards), and kept at the root."""
        size = tuple(state_spec.shape)
        if self.primers is not None:
            for name, spec in self.primers.items():
                state_spec.set(name, spec)
        else:
            state_spec.set(self.data_key, NonTensor(shape=size, batched=True))
        state_spec.set("group_id", Unbounded(shape=size, dtype=torch.int64))
        return state_spec

    # ---------------------------------------------------------------- state
    def reset_dataloader(self) -> None:
        """Begin the data anew."""
        self.stream.restart()

    def reseed(self, seed: int) -> None:
        """Begin the data anew, in the order of another seed."""
        self.stream.restart(seed)

    def get_extra_state(self) -> dict[str, Any]:
        """The place in the data; part of ``state_dict()``."""
        return self.stream.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on at a place in the data."""
        self.stream.load_state_dict(state)


def _row(sample: Sample) -> TensorDict:
    row = TensorDict({}, batch_size=[])
    for name, value in sample.items():
        if isinstance(value, Tensor):
            row.set(name, value)
        else:
            row.set_non_tensor(name, value)
    return row


def _stacked(values: list[Any], device: torch.device | None) -> Any:
    if all(isinstance(value, Tensor) for value in values) and len({value.shape for value in values}) == 1:
        stacked = torch.stack(values)
        return stacked if device is None else stacked.to(device)
    return NonTensorStack(*[NonTensorData(value, batch_size=[]) for value in values])


class DatasetChatEnv(ChatTransformedEnv):
    """A ChatEnv whose questions come from a data set, endless, in an order that the seed decides.

    ``state_dict`` holds the place in the data: a loaded environment goes on with the next prompt.

    Args:
        dataset: a sequence of samples (dicts of columns, or texts), or an iterable of them.
        shuffle: draw an order for each epoch; an iterable keeps its own.
        num_envs: prompts at a time; the batch size, times ``repeats`` with ``group_repeats``.
        repeats: how often each prompt is given (the group size); None: once.
        batch_size_dl: samples read at a time: without ``group_repeats``, so many come before their repeats.
        seed: of the order; None: drawn once (``random``), and kept in the state.
        group_repeats: all repeats of a prompt stand in one batch, side by side.
        tokenizer: see :class:`ChatEnv`.
        device: see :class:`ChatEnv`.
        template_kwargs: see :class:`ChatEnv`.
        collate_fn: changes each sample first (a dict to a dict).
        input_mode: see :class:`ChatEnv`.
        data_key: the column with the question (default "query"); "text", "prompt" or "question" are renamed.
        primers: specs of the columns.
        system_prompt: default: the class attribute ``SYSTEM_PROMPT``.
        max_steps: turns after which an episode is truncated; None: never.
        reward: RewardFunctions, another Transform, or a list of reward functions, which score a chat when it ends.
        lengths: what to do with prompts that are too long.
        special_tokens: see :class:`ChatEnv`.
        token_mismatch: see :class:`ChatEnv`.

    Example:
        >>> env = DatasetChatEnv(dataset=[{"query": "a", "answer": "A"}, {"query": "b", "answer": "B"}], shuffle=False)
        >>> td = env.reset()
        >>> td["query"], td["answer"], td["group_id"].tolist()
        (LinkedList(['a']), LinkedList(['A']), [0])
    """

    SYSTEM_PROMPT: str | None = None

    def __init__(
        self,
        *,
        dataset: Sequence[Any] | Iterable[Any],
        shuffle: bool = True,
        num_envs: int = 1,
        repeats: int | None = None,
        batch_size_dl: int = 1,
        seed: int | None = None,
        group_repeats: bool = False,
        tokenizer: Tokenizer | None = None,
        device: torch.device | str | None = None,
        template_kwargs: dict[str, Any] | None = None,
        collate_fn: Callable[[Sample], Sample] | None = None,
        input_mode: str = "history",
        data_key: str | None = None,
        primers: Composite | None = None,
        system_prompt: str | None = None,
        max_steps: int | None = 1,
        reward: Transform | Sequence[Callable[..., Any]] | None = None,
        lengths: LengthPolicy | None = None,
        special_tokens: str = "refuse",
        token_mismatch: str = "raise",
    ) -> None:
        rows = num_envs * (repeats or 1) if group_repeats else num_envs
        env = ChatEnv(
            input_mode=input_mode,
            batch_size=(rows,),
            system_prompt=self.SYSTEM_PROMPT if system_prompt is None else system_prompt,
            tokenizer=tokenizer,
            template_kwargs=template_kwargs,
            data_key=data_key,
            device=device,
            max_turns=max_steps,
            special_tokens=special_tokens,
            token_mismatch=token_mismatch,
        )
        super().__init__(env)
        self.primer = DataLoadingPrimer.from_source(
            _source(dataset, batch_size_dl, shuffle, seed, collate_fn),
            repeats=repeats,
            group_repeats=group_repeats,
            device=device,
            primers=primers,
            data_key=env.data_key,
            lengths=lengths,
        )
        self.append_transform(self.primer)
        if reward is not None:
            functions = (
                reward
                if isinstance(reward, Transform)
                else RewardFunctions(reward, data_key=env.data_key, tokenizer=tokenizer, set_done=max_steps == 1)
            )
            self.append_transform(functions)

    def reset_dataloader(self) -> None:
        """Begin the data anew."""
        self.primer.reset_dataloader()

    def _set_seed(self, seed: int) -> None:
        self.primer.reseed(seed)


def _source(
    dataset: Any, block: int, shuffle: bool, seed: int | None, collate_fn: Callable[[Sample], Sample] | None
) -> BlockSource:
    if isinstance(dataset, str):
        raise SpecError(
            f"dataset={dataset!r} is a name; load the data first and pass them: a list of dicts, or any sequence with "
            "len() and an index (datasets.load_dataset(...)['train'] is one)"
        )
    if block < 1:
        raise SpecError(f"batch_size_dl={block}; it is at least 1")
    if isinstance(dataset, IndexedData):
        items = dataset if collate_fn is None else _Mapped(dataset, collate_fn)
        drawn = random.SystemRandom().randrange(2**31) if seed is None else seed
        return SequenceSource(items, block=block, shuffle=shuffle, seed=drawn)
    return IterableSource(dataset if collate_fn is None else _MappedIterable(dataset, collate_fn), block=block)


class _Mapped:
    """Indexed data with a function over its items."""

    def __init__(self, items: Any, function: Callable[[Any], Any]) -> None:
        self.items, self.function = items, function

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.function(self.items[index])


class _MappedIterable:
    """An iterable with a function over its items."""

    def __init__(self, items: Iterable[Any], function: Callable[[Any], Any]) -> None:
        self.items, self.function = items, function

    def __iter__(self) -> Any:
        return map(self.function, self.items)
