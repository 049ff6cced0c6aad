"""What a report says beside its verdict: kernels and their rates, JSON by its schema, a page with nothing to load."""

import json

import jsonschema
import pytest

from lfhelpers.diagnose.trace import TraceComparison, diagnose_trace
from lfhelpers.diagnose.trace.schema import schema
from lfhelpers.notebook.html import external_loads
from lfhelpers.notebook.trace_page import bar_of, page, step_spans
from tests.diagnose.trace.synthetic import ALL_REDUCE, EXCHANGE_STREAM, Timeline, Writer
from tests.diagnose.trace.test_processor import written
from tests.diagnose.trace.test_ranks import folder_of

H200 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}


def test_rates_are_those_of_the_operators_with_shapes(tmp_path):
    """4096 x 1024 by 1024 x 8192 in bf16 in 200 us is 343.6 TFLOP/s of 989; a product without shapes is left out."""
    writer = Writer(**H200)
    for number in range(3):
        at = 2000 * number
        writer.step(number, at, 2000)
        product = writer.gpu(at + 10, 150, at + 5, name="nvjet_tst_128x256")
        writer.gpu(at + 160, 50, at + 6, name="splitKreduce_kernel", **{"External id": product})
        writer.gpu(at + 300, 500, at + 7, name="sm90_xmma_gemm")
        writer.host("aten::addmm", at + 1, 5, **{
            "External id": product, "Input Dims": [[8192], [4096, 1024], [1024, 8192], [], []],
            "Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"]})
        sum_of_two = writer.gpu(at + 900, 100, at + 8, name="vectorized_elementwise_kernel")
        writer.host("aten::add", at + 7, 5, **{"External id": sum_of_two, "Input Dims": [[1 << 26], [1 << 26], []],
                                               "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"]})
        writer.gpu(at + 1100, 40, at + 9, name="Memcpy HtoD (Pinned -> Device)", category="gpu_memcpy", bytes=1_000_000)
    found = {group.name: group for group in diagnose_trace(writer.write(tmp_path / "t.json")).main.groups}
    products = found["matrix products"]
    assert (products.kernels, products.ms) == (3, pytest.approx(0.7))
    assert products.rate == pytest.approx(2 * 4096 * 1024 * 8192 / 200e-6 / 1e12)
    assert products.of_peak == pytest.approx(100 * products.rate / 989) and products.unit == "TFLOP/s"
    pointwise = found["pointwise, uncompiled"]
    assert pointwise.rate == pytest.approx(3 * 2 * (1 << 26) / 100e-6 / 1e9)
    assert pointwise.of_peak == pytest.approx(100 * pointwise.rate / 4800)
    assert (found["copies and casts"].rate, found["copies and casts"].of_peak) == (pytest.approx(25), None)


def test_an_unknown_gpu_shows_a_rate_and_no_share_of_a_peak(tmp_path):
    writer = Writer(deviceProperties=[{"name": "Some GPU"}])
    product = writer.gpu(10, 100, 5)
    writer.host("aten::mm", 1, 3, **{"External id": product, "Input Dims": [[10, 20], [20, 30]],
                                     "Input type": ["float", "float"]})
    [group] = diagnose_trace(writer.write(tmp_path / "t.json")).main.groups
    assert (group.rate, group.of_peak) == (pytest.approx(12000 / 100e-6 / 1e12), None)
    assert group.peak == "fp32: no peak is on record for 'Some GPU'"


def test_the_costliest_kernels_are_named(tmp_path):
    writer = Timeline().steps([("exposed_communication", 500.0), ("forward_host", 10.0)])
    kernels = diagnose_trace(writer.write(tmp_path / "t.json")).main.kernels
    assert (kernels[0].name, kernels[0].calls, kernels[0].ms) == (ALL_REDUCE, 1, pytest.approx(0.5))
    assert (kernels[1].group, kernels[1].calls) == ("matrix products", 4)


def test_percents_are_to_a_tenth_and_sum_to_100(tmp_path):
    report = diagnose_trace(Timeline().steps([("data", 333.3), ("unknown", 77.7)]).write(tmp_path / "t.json")).main
    assert round(sum(report.percent.values()), 6) == 100
    assert report.rows()[-1] == {"part": "whole step", "ms": round(report.step_ms["mean"], 3), "percent": 100.0}
    assert [row["part"] for row in report.rows()][:4] == ["compute", "exposed communication", "exposed copies",
                                                          "idle: data"]


def diagnoses(tmp_path):
    """A diagnosis of each kind."""
    (tmp_path / "ranks").mkdir()
    one = diagnose_trace(Timeline(**H200).steps([("data", 90.0)] * 70).write(tmp_path / "one.json"))
    thin = diagnose_trace(Timeline().steps([("backward_host", 90.0)], 2).write(tmp_path / "thin.json"))
    host = diagnose_trace(written().write(tmp_path / "host.json"))
    return {"one": one, "thin": thin, "host": host, "ranks": diagnose_trace(folder_of(tmp_path / "ranks")),
            "compared": TraceComparison(one, thin), "mixed": TraceComparison(one, host)}


def test_the_json_keeps_to_its_schema_and_the_schema_names_every_field(tmp_path):
    validator = jsonschema.Draft202012Validator(schema())
    validator.check_schema(schema())
    for found in diagnoses(tmp_path).values():
        validator.validate(json.loads(json.dumps(found.as_dict())))
    report = diagnose_trace(tmp_path / "one.json").as_dict()
    for damage in ("verdict", "reports"):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({key: value for key, value in report.items() if key != damage})
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(report | {"more": 1})


def test_the_page_says_the_verdict_shows_pictures_and_loads_nothing(tmp_path):
    for name, found in diagnoses(tmp_path).items():
        html = page(found)
        assert found.verdict.split(";")[0] in html.replace("&#x27;", "'"), name
        assert external_loads(html) == []
        assert html.count("<img alt=") >= (1 if name == "host" else 2)
        assert "<script" not in html


def test_a_kernels_name_can_put_nothing_into_the_page(tmp_path):
    writer = Timeline().steps([("data", 90.0)] * 70)
    for event in writer.events:
        if event["cat"] == "kernel":
            event["name"] = "<script>alert(1)</script><int, 4>"
    assert "<script" not in page(diagnose_trace(writer.write(tmp_path / "t.json")))


def test_the_bar_sums_to_100_and_the_picture_is_one_step(tmp_path):
    writer = Timeline().steps([("data", 90.0), ("exposed_communication", 100.0), ("optimizer_host", 40.0)] * 10)
    report = diagnose_trace(writer.write(tmp_path / "t.json")).main
    assert sum(bar_of(report).values()) == pytest.approx(100)
    spans, length = step_spans(report)
    assert length == pytest.approx(1e3 * report.step_ms["median"])
    assert {span.lane for span in spans} == {"host", "stream 7", f"stream {EXCHANGE_STREAM}"}
    assert all(0 <= span.start_us <= span.end_us <= length for span in spans)
    busy = sum(span.end_us - span.start_us for span in spans if span.lane == "stream 7")
    assert busy == pytest.approx(1e3 * report.ms["compute"], rel=1e-6)


def test_without_a_gpu_the_picture_has_the_main_thread_and_the_exchange(tmp_path):
    report = diagnose_trace(written().write(tmp_path / "t.json")).main
    spans, length = step_spans(report)
    assert length == pytest.approx(1000)
    exchange = [span for span in spans if span.lane == "exchange"]
    assert [(span.start_us, span.end_us) for span in exchange] == [(700.0, 810.0)]
    assert {span.lane for span in spans} == {"host", "exchange"}
    assert [span.start_us for span in spans if span.lane == "host"] == [200, 220, 500, 830]
