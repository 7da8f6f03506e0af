"""A chat with tools: Python in a sandbox and a function, their answers as turns, and which tokens would be trained.

Without an argument the policy is a script, so that nothing is downloaded; ``llm_tools.py FOLDER_OR_NAME`` loads a chat
model of transformers instead.
"""

import sys

import torch
from tensordict import TensorDict

from rl_llm import (
    ChatEnv,
    ChatHistory,
    History,
    LogProbs,
    PythonInterpreter,
    SimpleToolTransform,
    Tokens,
    TransformersWrapper,
    char_tokenizer,
    rows_of,
)

SCRIPT = (
    "Let me compute it.\n```python\nx = sum(n * n for n in range(1, 11))\nprint(x)\n```",
    "The variable is still there.\n```python\nprint(x / 0)\n```",
    'And in words:\n<tool_call>{"name": "spell", "arguments": {"number": 385}}</tool_call>',
    "The sum of the first ten squares is 385: three eight five.",
)


def spell(number: int) -> str:
    """Spell a number, digit by digit.

    Args:
        number: what to spell.
    """
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return " ".join(names[int(digit)] for digit in str(abs(number)))


class ScriptedPolicy:
    """Writes the messages of a script, as text and as tokens, where a language model would write its own."""

    def __init__(self, tokenizer, script):
        self.tokenizer, self.script = tokenizer, iter(script)

    def __call__(self, td):
        content = next(self.script)
        prompt = td["history"].prompt
        full = prompt.append(History.from_chats([{"role": "assistant", "content": content}]), inplace=False)
        td["history"] = ChatHistory(prompt=prompt, full=full, batch_size=td.batch_size)
        ids = [*self.tokenizer.encode(content, add_special_tokens=False), self.tokenizer.eos_token_id]
        td["tokens"] = Tokens.from_rows(prompt=rows_of(td["tokens"], "prompt"), response=[torch.tensor(ids)])
        td["log_probs"] = LogProbs.from_rows(response=[torch.zeros(len(ids))])
        return td


def main() -> None:
    if len(sys.argv) > 1:
        policy = TransformersWrapper(sys.argv[1], generate_kwargs={"max_new_tokens": 256})
        tokenizer = policy.tokenizer
    else:
        tokenizer = char_tokenizer()
        policy = ScriptedPolicy(tokenizer, SCRIPT)

    python = PythonInterpreter(persistent=True, timeout=5.0, max_calls=8)
    functions = SimpleToolTransform({"spell": spell})
    print(python.sandbox.explain(), end="\n\n")

    env = ChatEnv(
        tokenizer=tokenizer,
        system_prompt="You can execute Python code in ```python blocks.",
        template_kwargs={"tools": functions.schemas},  # shown to the model, if its template does that
        max_turns=len(SCRIPT),
        batch_size=[1],
    )
    env = env.append_transform(python).append_transform(functions)

    td = env.reset(TensorDict({"query": "What is the sum of the first ten squares?"}, batch_size=[1]))
    for _ in range(len(SCRIPT)):
        td = env.step_mdp(env.step(policy(td)))

    for message in td["history"].prompt.to_chats()[0]:
        print(f"[{message['role']}] {message['content']}")
    mask = rows_of(td["masks"], "prompt_assistant_mask")[0]
    print(f"\n{len(mask)} tokens, of which the policy wrote {int(mask.sum())}")
    print("calls:", python.pop_metrics(), functions.pop_metrics())
    python.close()
    functions.close()


if __name__ == "__main__":
    main()
