"""Our reading of Retry-After and our SDK rule beside openai-python's own, as it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import _base_client
from openai._models import FinalRequestOptions

from surgetank.policy.retry import SDK, Refusal
from surgetank.wire.retry_after import refusal

NOW = 1_800_000_000.0
OPTIONS = FinalRequestOptions.construct(method="post", url="/chat/completions")

values = st.one_of(
    st.sampled_from(
        [
            "0", "1", "0.25", "120", "120.5", "121", "-1", "1e3", "1e400", "inf", "-inf", "nan",
            "Infinity", "", " 7 ", "soon", "1,5", "0x10", "1_0",
            formatdate(NOW + 7, usegmt=True), formatdate(NOW - 7, usegmt=True),
            formatdate(NOW + 900, usegmt=True), "Mon, 99 Foo 2026 00:00:00 GMT",
        ]
    ),
    st.floats(allow_nan=True).map(str),
)  # fmt: skip
headers = st.fixed_dictionaries(
    {},
    optional={
        "retry-after": values,
        "retry-after-ms": values,
        "x-should-retry": st.sampled_from(["true", "false", "maybe"]),
    },
)
statuses = st.sampled_from([400, 401, 404, 408, 409, 422, 429, 500, 502, 503, 504, 529, 599])


@pytest.fixture(scope="module")
def sdk() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="k", base_url="http://localhost") as client:
        yield client


def response(status: int, fields: dict[str, str]) -> Any:
    name = "httpx2" if hasattr(_base_client, "httpx2") else "httpx"  # since release 3
    module: Any = getattr(_base_client, name)
    return module.Response(status, headers=fields)


@given(status=statuses, fields=headers, draw=st.floats(0, 1, exclude_max=True), done=st.just(0))
def test_our_sdk_rule_does_what_the_sdk_does(
    sdk: openai.OpenAI, status: int, fields: dict[str, str], draw: float, done: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_base_client, "random", lambda: draw)
        patch.setattr("time.time", lambda: NOW)
        answer = response(status, fields)
        theirs: float | None = None
        if sdk._should_retry(answer):
            theirs = sdk._calculate_retry_timeout(sdk.max_retries - done, OPTIONS, answer.headers)
    get: Callable[[str], str | None] = answer.headers.get
    assert SDK.wait(refusal(status, get, NOW), done, draw) == theirs


@pytest.mark.parametrize("retries", [0, 1])
def test_backoff_without_a_word_from_the_server_is_the_sdks(
    sdk: openai.OpenAI, retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_base_client, "random", lambda: 0.4)
    theirs = sdk._calculate_retry_timeout(sdk.max_retries - retries, OPTIONS, None)
    assert SDK.wait(Refusal(0), retries, 0.4) == theirs


def test_the_sdk_tries_again_as_often_as_our_rule(sdk: openai.OpenAI) -> None:
    assert sdk.max_retries == SDK.most
    assert SDK.wait(Refusal(503), SDK.most, 0.0) is None


def test_a_date_is_seconds_from_now() -> None:
    fields = {"retry-after": formatdate(NOW + 30, usegmt=True)}
    assert refusal(503, fields.get, NOW) == Refusal(503, retry_after=30.0)
