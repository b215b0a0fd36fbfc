"""Which column of a log is which of ours: the usual spellings, with their units.

Rule: what a user names goes before what is guessed, and a guess never reads text as a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from surgetank.errors import InputError
from surgetank.traffic.formats.reading import TimeUnit


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SPELLINGS: Final[dict[str, tuple[str, ...]]] = {
    "arrived": _words(
        "arrival_time arrived_at arrived arrival arrival_timestamp arrival_date received_at"
        " received request_received request_received_at submitted_at submit_time submission_time"
        " request_timestamp request_start start_time started_at start start_timestamp created_at"
        " created timestamp time_stamp unix_timestamp unix_time epoch ts datetime date_time time"
        " date event_time t at"
    ),
    "ended_at": _words(
        "end_time ended_at finished_at completed_at finish_time end_timestamp response_sent_at"
        " ended"
    ),
    "prompt_tokens": _words(
        "prompt_tokens input_tokens context_tokens request_tokens num_prefill_tokens"
        " num_prompt_tokens num_input_tokens prefill_tokens n_prompt_tokens prompt_token_count"
        " input_token_count prompt_token_len input_length input_len prompt_len tokens_in in_tokens"
        " usage.prompt_tokens usage.input_tokens in"
    ),
    "output_tokens": _words(
        "output_tokens completion_tokens generated_tokens response_tokens generation_tokens"
        " num_decode_tokens num_output_tokens num_generated_tokens num_completion_tokens"
        " decode_tokens n_output_tokens output_token_count completion_token_count output_length"
        " output_len completion_len response_len tokens_out out_tokens usage.completion_tokens"
        " usage.output_tokens out"
    ),
    "cached_tokens": _words(
        "cached_tokens cached_prompt_tokens num_cached_tokens cache_read_input_tokens"
        " cache_read_tokens"
    ),
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_new_tokens", "max_output_tokens"),
    "priority": ("priority",),
    "duration": _words(
        "duration latency e2e_latency e2e elapsed_time elapsed request_duration request_latency"
        " total_latency total_time response_time processing_time"
    ),
    "ttft": _words(
        "ttft time_to_first_token time_to_first_chunk first_token_latency first_token_time"
    ),
    "status": _words(
        "status status_code http_status http_status_code response_code outcome result state"
    ),
    "tenant": _words(
        "tenant tenant_id tenant_name team team_id customer customer_id organization_id"
        " organization org_id org account_id account project_id project client_id client user_id"
        " user"
    ),
    "model": ("model", "model_name", "model_id", "served_model_name"),
    "session": _words("session_id session conversation_id conversation chat_id thread_id"),
    "prompt_chars": _words(
        "prompt_chars prompt_characters prompt_length prompt_length_chars prompt_char_count"
        " prompt_size input_chars input_characters"
    ),
}
"""Our column to the names it goes by (lower case, words joined by _), the best first."""

TIMES: Final = frozenset({"arrived", "ended_at", "duration", "ttft"})
_UNITS: Final[dict[str, TimeUnit]] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "usec", "micros", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nanos", "nano", "nanoseconds"), "ns"),
}
_GENERIC: Final = SPELLINGS["arrived"].index("timestamp")  # from here on: some time of a row
_KNOWN: Final = {name: ours for ours, names in SPELLINGS.items() for name in names}


@dataclass(frozen=True, slots=True)
class Column:
    """One of the log's columns that holds one of ours."""

    ours: str
    theirs: str  # as the log spells it
    unit: TimeUnit | None = None  # that its name states

    @property
    def rank(self) -> int:
        """Smaller is the better spelling."""
        names = SPELLINGS[self.ours]
        base = _base(self.theirs)[0]
        return names.index(base) if base in names else -1  # named by the user

    @property
    def states_start(self) -> bool:
        """Its name says that it is when a request began, or the user did."""
        return self.rank < _GENERIC


def guess(names: Sequence[str], given: Mapping[str, str]) -> list[Column]:
    """Find our columns among the log's `names`, in order of preference. Raises InputError."""
    found = [_given(ours, theirs) for ours, theirs in given.items()]
    taken = {c.theirs for c in found}
    settled = {c.ours for c in found}
    if "ended_at" in settled:
        settled.add("arrived")  # the user knows what the log's times are
    guessed = []
    for theirs in names:
        base, unit = _base(theirs)
        ours = _KNOWN.get(base)
        if ours is None or ours in settled or theirs in taken:
            continue
        if unit is None or ours in TIMES:
            guessed.append(Column(ours, theirs, unit))
    guessed.sort(key=lambda c: c.rank)  # stable: equal spellings in the log's order
    return found + guessed


def check_given(given: Mapping[str, str]) -> None:
    """Refuse a mapping of a column that we do not have. Raises InputError."""
    for ours, theirs in given.items():
        _given(ours, theirs)


def refuse_given(given: Mapping[str, str], name: str, instead: str) -> None:
    """Refuse a mapping for a format whose columns are fixed. Raises InputError."""
    if given:
        raise InputError(f"format {name} has fixed columns: name them with --format {instead}")


def _given(ours: str, theirs: str) -> Column:
    if ours not in SPELLINGS:
        raise InputError(f"column {ours!r}: must be one of {', '.join(SPELLINGS)}")
    name, _, unit = theirs.rpartition(":")
    if name and unit in _UNITS:
        return Column(ours, name, _UNITS[unit])
    if not theirs:
        raise InputError(f"column {ours}: must name a column of the log")
    return Column(ours, theirs, _base(theirs)[1])


def _base(name: str) -> tuple[str, TimeUnit | None]:
    """Put a name in lower case with words joined by _, its unit taken off."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    words = re.sub(r"[^a-z0-9.]+", "_", split.lower()).strip("_")
    if words in _KNOWN:
        return words, None
    base, _, last = words.rpartition("_")
    base = base.removesuffix("_in").removesuffix("_unix").removesuffix("_epoch")
    if base and last in _UNITS:
        return base, _UNITS[last]
    return words, None
