"""The body of a chat as most clients send it: read in one go, and written in one.

Rule: what is not exactly of this form is not judged here: the general reader does that, and says
what is wrong. Values that admission does not ask for stay as they were sent, byte for byte.
"""

from __future__ import annotations

from typing import Final

import msgspec

from surgetank.wire.verdict import UNREADABLE

_RAW: Final = msgspec.Raw
_ABSENT: Final = _RAW(b"")  # left out when written, as any default is
_UNSET: Final = msgspec.UNSET


class UsualChat(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The members of such a body; of duplicates the last counts, as everywhere."""

    model: str
    messages: msgspec.Raw
    max_tokens: int | msgspec.UnsetType = _UNSET
    stream: bool | msgspec.UnsetType = _UNSET
    temperature: msgspec.Raw = _ABSENT
    top_p: msgspec.Raw = _ABSENT
    stop: msgspec.Raw = _ABSENT
    seed: msgspec.Raw = _ABSENT
    user: msgspec.Raw = _ABSENT
    frequency_penalty: msgspec.Raw = _ABSENT
    presence_penalty: msgspec.Raw = _ABSENT
    response_format: msgspec.Raw = _ABSENT
    ignore_eos: msgspec.Raw = _ABSENT
    min_tokens: msgspec.Raw = _ABSENT

    def write(self, stream: bool | None) -> bytes:  # noqa: FBT001 - a keyword costs the hot path
        """Write the body; `stream` None leaves that member as the client sent it."""
        if stream is not None:
            self.stream = stream
        return _ENCODER.encode(self)


_DECODER: Final = msgspec.json.Decoder(UsualChat)
_ENCODER: Final = msgspec.json.Encoder()


def read_usual(body: bytes) -> UsualChat | None:
    """Read a body; None when it is of another form, or no valid one."""
    try:
        if not body.isascii():
            body.decode()  # strings within the values that are kept raw are not looked into
        return _DECODER.decode(body)
    except UNREADABLE:
        return None
