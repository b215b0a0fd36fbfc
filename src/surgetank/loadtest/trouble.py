"""What went wrong, in one line that says what would be right.

Rule: made of outcome, status and reason alone, so that a record read back next week says the same.
"""

from __future__ import annotations

from typing import Final

from surgetank.loadtest import outcome as words
from surgetank.policy.request import ENDINGS, Kind, Outcome

_BY_REASON: Final = (
    ("connect: refused", "nothing listens there; is the server up, and the port right?"),
    ("connect: host name not found", "no such host name; check its spelling and the DNS"),
    ("connect: certificate not trusted", "its certificate is not trusted; give its CA file"),
    ("connect: no TLS there", "it does not speak TLS; http:// instead of https://?"),
    ("connect: out of file descriptors", "this machine ran out of descriptors; raise ulimit -n"),
    ("connect: out of local ports", "this machine ran out of local ports for connections"),
    ("connect: ", "no connection could be made"),
    (words.NOT_CONNECTED, "no connection within the timeout; a firewall, or the wrong host?"),
    (words.NO_ANSWER, "connected, and no answer within the timeout"),
    (words.MID_ANSWER, "the answer began and did not end within the timeout"),
    (words.NOT_HTTP, "what answered does not speak HTTP/1.1; https:// instead of http://?"),
    (words.BROKEN_FRAMING, "its answer broke HTTP's framing in the middle"),
    (words.NO_DONE, "the stream ended without [DONE]: cut, or not a stream of completions"),
    (words.LOST_IN_STREAM, "the connection closed in the middle of a stream"),
    (words.LOST, "the connection closed before a whole answer"),
    ("not a completion", "status 200, but the answer is no completion; is the path right?"),
)
_BY_STATUS: Final = {
    401: "the key was not accepted; give a valid one",
    403: "the key may not do that",
    404: "no such path; the URL should end before /v1",
    405: "that path takes no POST; the URL should end before /v1",
}


def trouble(outcome: Outcome | str, status: int, reason: str) -> str:
    """One line for a request that did not complete, with its reason; empty for one that did."""
    kind = ENDINGS[Outcome(outcome)].kind
    if kind is Kind.COMPLETED:
        return ""
    return f"{_words(Outcome(outcome), status, reason)} ({reason or outcome})"


def _words(outcome: Outcome, status: int, reason: str) -> str:
    for beginning, text in _BY_REASON:
        if reason.startswith(beginning):
            return text
    if outcome is Outcome.UNKNOWN_MODEL:
        return "it serves no model of that name; GET /v1/models lists those it has"
    if outcome is Outcome.TOO_LARGE:
        return "the prompt and the output do not fit the model's context"
    if outcome is Outcome.ABANDONED:
        return "the client hung up"
    if 300 <= status < 400:
        return "it redirects, which is not followed; give the address it leads to"
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if words.HTML in reason:
        return "a web page answered instead of an engine; is a proxy or a portal in the way?"
    if ENDINGS[outcome].kind is Kind.REFUSED:
        return "refused"
    return "the engine answered with an error"
