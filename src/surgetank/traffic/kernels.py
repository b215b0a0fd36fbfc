"""The one-pass loops over rows, as machine code: each adds one column of a batch to its tables.

Rule: a kernel touches only what it is given and releases the GIL, so that two halves of a batch can
run in two threads and be merged. A table that lacks a page is the caller's to grow: the kernel
returns the row it stopped at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

EMPTY: Final = np.iinfo(np.int64).min
"""Key of a free place in a hash table."""
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: Knuth's multiplicative hash
_HIGH: Final = np.uint64(32)  # the product's high half is the well-mixed one


class _Compiled:
    """A function that is machine code from its first call on.

    numba loads in 0.3 s of CPU time: what calls none of these functions need not wait for it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._machine: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        return (self._machine or self.machine())(*arguments)

    def machine(self) -> Callable[..., Any]:
        """Compile it with those of its module and its imports: it may call them."""
        import numba  # noqa: PLC0415 - see above

        if self._machine is None:
            self._machine = numba.njit(cache=True, nogil=True)(self._function)
            names = self._function.__globals__
            for name, value in list(names.items()):
                if isinstance(value, _Compiled):
                    names[name] = value.machine()
        return self._machine


def compiled(function: F) -> F:
    """Compile at the first call, keep the result on disk, and hold no lock while running."""
    return cast("F", _Compiled(function))


@compiled
def place_of(key: Any, keys: NDArray[np.int64]) -> Any:
    """Find the place of `key` in an open-addressed table whose size is a power of two."""
    mask = keys.size - 1
    place = np.int64((np.uint64(key) * _SPREAD) >> _HIGH) & mask
    while keys[place] != EMPTY and keys[place] != key:
        place = (place + 1) & mask
    return place


@compiled
def place_all(wanted: NDArray[np.int64], keys: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
    """Enter `wanted[i]` with row i into an empty table."""
    for row in range(wanted.size):
        place = place_of(wanted[row], keys)
        keys[place] = wanted[row]
        rows[place] = row


@compiled
def add_to_seconds(  # noqa: PLR0917 - machine code takes no keywords
    stamps: NDArray[np.float64],
    prompt: NDArray[np.int64],
    output: NDArray[np.int64],
    start: int,
    width: int,
    shift: int,
    keys: NDArray[np.int64],
    rows: NDArray[np.int64],
    counts: NDArray[np.int64],
    prompts: NDArray[np.int64],
    outputs: NDArray[np.int64],
) -> int:
    """Count rows, and sum their tokens, per bin of `width` seconds; pages hold 2**shift bins.

    Return the first row not taken: the number of rows, or one whose page is missing. An empty
    token column is none.
    """
    mask = (1 << shift) - 1
    page = np.int64(EMPTY)
    row = np.int64(-1)
    at = np.int64(0)
    # The bin at hand is summed in registers: rows mostly come in order of time.
    begin = end = 0.0
    number = prompt_sum = output_sum = np.int64(0)
    for i in range(start, stamps.size):
        if not begin <= stamps[i] < end:
            if number:
                counts[row, at] += number
                prompts[row, at] += prompt_sum
                outputs[row, at] += output_sum
                number = prompt_sum = output_sum = np.int64(0)
            place_in_time = np.int64(np.floor(stamps[i])) // width
            if place_in_time >> shift != page:
                page = place_in_time >> shift
                place = place_of(page, keys)
                if keys[place] == EMPTY:
                    return i
                row = rows[place]
            at = place_in_time & mask
            begin = float(place_in_time * width)
            end = begin + width
        number += 1
        if prompt.size:
            prompt_sum += max(prompt[i], 0)
        if output.size:
            output_sum += max(output[i], 0)
    if number:
        counts[row, at] += number
        prompts[row, at] += prompt_sum
        outputs[row, at] += output_sum
    return stamps.size


@compiled
def bin_of(value: Any, shift: int, lowest: int, last: int) -> Any:
    """Logarithmic bin of a double >= 0, from its exponent and first mantissa bits."""
    bits = np.float64(value).view(np.int64)
    return min(max((bits >> shift) - lowest, 0), last)


@compiled
def add_to_histogram(  # noqa: PLR0917 - as above
    values: NDArray[Any],
    shift: int,
    lowest: int,
    counts: NDArray[np.int64],
    sums: NDArray[np.float64],
    moments: NDArray[np.float64],
) -> None:
    """Add values >= 0 to a histogram of 2**(52 - shift) bins an octave; others are unknown.

    `moments` gains (number, sum, sum of squares), and its last place the largest value.
    """
    last = counts.size - 1
    number = 0
    total = 0.0
    squares = 0.0
    largest = moments[3]
    for i in range(values.size):
        value = np.float64(values[i])
        if value < 0:
            continue
        place = bin_of(value, shift, lowest, last)
        counts[place] += 1
        sums[place] += value
        number += 1
        total += value
        squares += value * value
        largest = max(largest, value)
    moments[0] += number
    moments[1] += total
    moments[2] += squares
    moments[3] = largest


@compiled
def add_gaps(  # noqa: PLR0917 - as above
    stamps: NDArray[np.float64],
    start: int,
    most: float,
    large: NDArray[np.float64],
    shift: int,
    lowest: int,
    counts: NDArray[np.int64],
    sums: NDArray[np.float64],
    moments: NDArray[np.float64],
) -> tuple[int, int]:
    """Add the gaps between sorted stamps, from that after row `start` on, as above.

    Gaps above `most` go to `large` instead. Return the row reached (the last one, or an earlier one
    when `large` is full) and the number of large gaps.
    """
    last = counts.size - 1
    number = 0
    found = 0
    total = 0.0
    squares = 0.0
    i = start
    while i < stamps.size - 1 and found < large.size:
        gap = stamps[i + 1] - stamps[i]
        i += 1
        if gap > most:
            large[found] = gap
            found += 1
            continue
        place = bin_of(gap, shift, lowest, last)
        counts[place] += 1
        sums[place] += gap
        number += 1
        total += gap
        squares += gap * gap
    moments[0] += number
    moments[1] += total
    moments[2] += squares
    return i, found


@compiled
def is_sorted(stamps: NDArray[np.float64]) -> bool:
    """Tell whether no stamp is below the one before it."""
    behind = 0
    for i in range(stamps.size - 1):
        behind += stamps[i + 1] < stamps[i]
    return behind == 0


@compiled
def add_to_tenants(  # noqa: PLR0917 - as above
    stamps: NDArray[np.float64],
    codes: NDArray[np.int32],
    slots: NDArray[np.int64],
    prompt: NDArray[np.int64],
    output: NDArray[np.int64],
    start: int,
    width: int,
    shift: int,
    keys: NDArray[np.int64],
    rows: NDArray[np.int64],
    page_keys: NDArray[np.int64],
    used: NDArray[np.int64],
    counts: NDArray[np.int32],
    tokens: NDArray[np.int64],
    recent: NDArray[np.int64],
) -> int:
    """Count rows per tenant and bin of `width` seconds; `tokens` gains prompt and output tokens.

    `slots[code]` is the tenant's number, -1 for none. Pages are opened as long as `page_keys` has
    room beyond `used[0]`. `recent` holds each tenant's last page and its row, so that rows in order
    of time find it without a search. Return the first row not taken: the number of rows, or one
    that needs a page more than there is room for.
    """
    mask = (1 << shift) - 1
    begin = end = 0.0
    at = np.int64(0)
    page = np.int64(0)
    for i in range(start, stamps.size):
        signed = slots[codes[i]]
        if signed < 0:
            continue
        slot = np.uint64(signed)  # no check for indices from the end
        if not begin <= stamps[i] < end:
            place_in_time = np.int64(np.floor(stamps[i])) // width
            at = place_in_time & mask
            page = place_in_time >> shift
            begin = float(place_in_time * width)
            end = begin + width
        if recent[slot, 0] != page:
            key = tenant_key(signed, page)
            place = place_of(key, keys)
            if keys[place] == EMPTY:
                if used[0] == page_keys.size:
                    return i
                keys[place] = key
                rows[place] = used[0]
                page_keys[used[0]] = key
                used[0] += 1
            recent[slot, 0] = page
            recent[slot, 1] = rows[place]
        counts[np.uint64(recent[slot, 1]), np.uint64(at)] += 1
        if prompt.size:
            tokens[slot, 0] += max(prompt[i], 0)
        if output.size:
            tokens[slot, 1] += max(output[i], 0)
    return stamps.size


@compiled
def tenant_key(slot: Any, page: Any) -> Any:
    """One number for a tenant's page: 24 bits of slot below the page."""
    return (page << 24) | slot
