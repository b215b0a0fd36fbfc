"""What looks like personal data, by kind; and what only resembles it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.traffic.personal import kinds


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"user":"bob.smith+x@mail.example.org"}', "e-mail address"),
        (b"203.0.113.9 - - [30/Nov/2026:10:47:12 +0800]", "IP address"),
        (b'"upstream":"10.0.4.12:8000"', "IP address"),
        (b'"client":"2001:db8::8a2e:370:7334"', "IP address"),
        (b"fe80::1,200", "IP address"),
        (b'{"key":"sk-st-AbCdEfGhIjKlMnOpQrStUvWxYz012345"}', "API key or token"),
        (b"Authorization: Bearer abcdefgh12345678", "API key or token"),
        (b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.x", "API key or token"),
        (b"AKIAIOSFODNN7EXAMPLE", "API key or token"),
        (b"123e4567-e89b-12d3-a456-426614174000", "id that is not hashed (UUID)"),
        (b'"Mozilla/5.0 (X11; Linux x86_64)"', "user agent"),
        (b"python-requests/2.32", "user agent"),
        (b'{"p":"please write a letter to my landlord about the rent"}', "free text"),
        (b'{"p":"please write\\na letter to my\\nlandlord about the rent"}', "free text"),
        ('{"p":"请帮我写一封信给房东说明为什么这个月的房租晚了"}'.encode(), "free text"),
    ],
)
def test_personal_data_is_told_by_kind(line: bytes, kind: str) -> None:
    assert kind in set(kinds(line))


@pytest.mark.parametrize(
    "line",
    [
        b'{"v":1,"id":"7","tenant":"t-0123456789abcdef","model":"llama","arrived":1796006832.412}',
        b"2023-11-16 18:17:03.9799600,4808,10",
        b"2024-05-10 00:00:00.009930+00:00,2162,5",
        b"arrival_time,prompt_tokens,output_tokens,tenant,model",
        b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        b"version 1.2.3.4.5 at 10:47:12",
        b"999.300.1.1",
        b"a::b std::vector",
        b"",
    ],
)
def test_figures_and_hashes_are_no_personal_data(line: bytes) -> None:
    assert list(kinds(line)) == []


@given(st.binary(max_size=300))
def test_any_bytes_are_looked_at_without_an_error(line: bytes) -> None:
    found = list(kinds(line))
    assert len(found) == len(set(found))
