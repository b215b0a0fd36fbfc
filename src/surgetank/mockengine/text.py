"""How long an answer is and what it says: seeded, so that a run can be repeated."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Final

from surgetank.mockengine.asked import Asked, Refused

_TEXT: Final = (
    "a surge tank stands beside the pipeline and takes up pressure wave when its valve closes "
    "then gives water back until turbine has followed so that nothing breaks while flow "
    "changes slowly below above level rises falls again with less each time"
)
WORDS: Final = tuple(_TEXT.split())
_STRIDE: Final = 5  # walks through all words: their number is no multiple of 5


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Output lengths, in tokens, where a request does not fix its own: a lognormal draw.

    `median` and `sigma` (of the logarithm): chat traffic has about 100-200 and 0.8-1.0.
    """

    median: float = 120.0
    sigma: float = 0.8


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice of a response: how many tokens, why it ends, and where in WORDS it begins."""

    tokens: int
    finish_reason: str
    start: int

    def token(self, number: int) -> str:
        """Return the text of token `number` (from 1); the one that means "stop" has none."""
        if number == self.tokens and self.finish_reason == "stop":
            return ""
        word = WORDS[(self.start + _STRIDE * number) % len(WORDS)]
        return word if number == 1 else f" {word}"

    def text(self, upto: int) -> str:
        """Return the text of the first `upto` tokens."""
        return "".join(self.token(number) for number in range(1, upto + 1))


def draw(asked: Asked, spec: OutputSpec, max_model_len: int, rng: random.Random) -> list[Answer]:
    """Decide the answers to a request, one a choice. Raises Refused when it cannot fit.

    A length is the least of `max_tokens`, what the context leaves, and (without `ignore_eos`) a
    draw of at least `min_tokens`; it ends with "length" when a limit cut it, else with "stop".
    """
    room = max_model_len - asked.prompt_tokens
    if room < 1:
        raise _too_long(asked.prompt_tokens, max_model_len)
    if asked.max_tokens is not None and asked.max_tokens > room:
        raise Refused(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, you"
            f" requested {asked.max_tokens} output tokens and your prompt contains"
            f" {asked.prompt_tokens} input tokens, for a total of"
            f" {asked.prompt_tokens + asked.max_tokens} tokens. Please reduce"
            " the length of the input prompt or the number of requested output tokens.",
            "BadRequestError",
            "max_tokens",
        )
    limit = asked.max_tokens or room
    answers = []
    for _ in range(asked.choices):
        drawn = max(
            2, asked.min_tokens, round(rng.lognormvariate(math.log(spec.median), spec.sigma))
        )
        cut = asked.ignore_eos or drawn > limit
        answers.append(
            Answer(
                tokens=limit if cut else drawn,
                finish_reason="length" if cut else "stop",
                start=rng.randrange(len(WORDS)),
            )
        )
    return answers


def _too_long(prompt_tokens: int, max_model_len: int) -> Refused:
    return Refused(
        400,
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt"
        f" contains at least {prompt_tokens} input tokens, which exceeds this limit even without"
        " any output tokens. Please reduce the length of the input prompt."
        f" (parameter=input_tokens, value={prompt_tokens})",
        "BadRequestError",
        "input_tokens",
    )
