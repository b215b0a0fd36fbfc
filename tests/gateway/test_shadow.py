"""Admission in shadow, and what was learnt, as a gateway tells of them."""

from __future__ import annotations

from surgetank.gateway.spec import LearnedSpec
from surgetank.gateway.telling import Telling, learned_rows, shadow_row
from surgetank.policy.flow import FlowControl, FlowSettings, FlowSpec
from surgetank.policy.tenant import Tenant
from tests.gateway.harness import Engine, ask, chat, run, serving, until


def test_everything_is_served_and_the_records_and_metrics_say_what_would_not_have_been() -> None:
    async def test() -> None:
        spec = FlowSpec(admission="shadow")
        tenants = [Tenant("default", requests_per_minute=1, burst_seconds=120)]
        async with serving(Engine(), flow=spec, tenants=tenants) as running:
            replies = [await ask(running.port, chat()) for _ in range(4)]
            assert [reply.status for reply in replies] == [200] * 4
            assert "x-ratelimit-limit-requests" not in replies[0].headers
            told = [record.shadow for record in running.records]
            assert told == ["admitted"] * 2 + ["quota_requests"] * 2
            assert all(record.outcome == "completed" for record in running.records)
            assert running.records[0].shadow_wait == 0.0
            text = running.gateway.metrics.exposition(running.gateway.gauges()).decode()
            label = '{reason="quota_requests",tenant="default"}'
            assert f"surgetank_shadow_refused_total{label} 2.0" in text
            assert 'surgetank_shadow_admitted_total{tenant="default"} 2.0' in text
            row = shadow_row(running.gateway.driver)
            assert row is not None
            assert row["refused"] == [{"tenant": "default", "reason": "quota_requests", "count": 2}]
            assert "of 4 requests 2 refused" in row["text"]

    run(test)


def test_turning_admission_on_ends_the_shadow_without_a_restart() -> None:
    async def test() -> None:
        tenants = (Tenant("default", requests_per_minute=1, burst_seconds=60),)
        spec = FlowSpec(admission="shadow")
        async with serving(Engine(), flow=spec, tenants=tenants) as running:
            driver = running.gateway.driver
            assert (await ask(running.port, chat())).status == 200
            driver.reconfigure(FlowSettings(FlowSpec(), tenants, (), ("tiny",)))
            assert driver.shadow is None
            assert shadow_row(driver) is None
            assert [(await ask(running.port, chat())).status for _ in range(2)] == [200, 429]
            assert running.records[-1].shadow == ""
            driver.reconfigure(FlowSettings(spec, tenants, (), ("tiny",)))
            assert (await ask(running.port, chat())).status == 200
            assert running.records[-1].shadow == "admitted"

    run(test)


def test_what_was_learnt_is_told_once_and_kept() -> None:
    async def test() -> None:
        kept: list[dict[str, object]] = []
        async with serving(Engine()) as running:
            driver = running.gateway.driver
            telling = Telling(driver, LearnedSpec(save_interval=0.01), save=kept.append)
            (row,) = learned_rows(driver)
            assert (row["confidence"], row["outputs"]) == ("none", ())
            for _ in range(9):
                assert (await ask(running.port, chat(stream=True))).status == 200
            (row,) = learned_rows(driver)
            assert (row["model"], row["confidence"]) == ("tiny", "low")
            assert row["outputs"][0]["answers"] == 9
            assert row["prefill_rate"] > 0
            (line,) = telling.tell()
            assert line == f"learnt: {row['text']}"
            assert telling.tell() == []  # nothing new
            telling.start()
            await until(lambda: bool(kept))
            telling.stop()
            again = FlowControl(FlowSpec(), models=("tiny",), learned=kept[0])
            (lesson,) = again.lessons()
            assert lesson.outputs[0].answers == 9
            assert lesson.prefill_rate == row["prefill_rate"]
            assert lesson.service_rate is None  # it is of as many replicas as there were

    run(test)
