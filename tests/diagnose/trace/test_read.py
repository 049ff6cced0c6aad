"""Files as people have them: old and new, packed or not, cut, damaged, or something else altogether."""

import gzip
import json

import numpy as np
import pytest

from lfhelpers.diagnose.trace import diagnose_trace, stream
from lfhelpers.diagnose.trace.read import COPY, KERNEL, read
from lfhelpers.errors import LfError
from tests.diagnose.trace.synthetic import ALL_REDUCE, Timeline, Writer


def good():
    return Timeline().steps([("data", 300.0), ("forward_host", 100.0)])


def text_of(writer):
    return json.dumps({"schemaVersion": 1, "traceEvents": writer.events, "traceName": "t", "displayTimeUnit": "ms"})


@pytest.fixture
def whole(tmp_path):
    return read(good().write(tmp_path / "whole.json"))


def same(a, b):
    return all(np.array_equal(getattr(a, column), getattr(b, column)) for column in
               ("kind", "start", "end", "correlation", "size"))


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("portion", [600, 5000, stream.PORTION])
def test_a_file_reads_the_same_however_it_is_laid_out(tmp_path, whole, monkeypatch, indent, packed, portion):
    monkeypatch.setattr(stream, "PORTION", portion)
    monkeypatch.setattr(stream, "READ", 512)
    monkeypatch.setattr(stream, "LARGEST_EVENT", 512)
    text = json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
                       "distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": good().events,
                       "traceName": "a.json", "levels": [{"a": 1}, {"b": 2}]}, indent=indent).encode()
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    trace = read(path)
    assert same(trace, whole)
    assert (trace.rank, trace.world, trace.gpu, trace.notes) == (3, 8, "NVIDIA H200", ())


def test_members_of_a_gzip_are_one_file(tmp_path, whole):
    text = text_of(good()).encode()
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text[:1000]) + gzip.compress(text[1000:]))
    assert same(read(path), whole)


def test_old_categories_and_thread_names_are_known(tmp_path, whole):
    """Before 2022: Kernel, Memcpy, Runtime, Operator; streams as 'stream 7', ids under 'external id'."""
    old = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime", "cpu_op": "Operator",
           "user_annotation": "Operator"}
    writer = good()
    for event in writer.events:
        event["cat"] = old[event["cat"]]
        event["args"] = {key.replace("External", "external"): value for key, value in event["args"].items()}
        event["tid"] = f"stream {event['tid']}" if event["cat"] == "Kernel" else str(event["tid"])
    trace = read(writer.write(tmp_path / "old.json"))
    assert np.array_equal(np.sort(trace.start[trace.rows(KERNEL)]), np.sort(whole.start[whole.rows(KERNEL)]))
    assert diagnose_trace(tmp_path / "old.json").main.percent == diagnose_trace(tmp_path / "whole.json").main.percent


def test_times_are_whole_nanoseconds_also_where_a_double_is_too_short(tmp_path):
    """Microseconds since 1970 with three decimals need 61 bits, and a double has 53."""
    events = ",".join(f'{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": {ts}, "dur": 1.234, '
                      f'"args": {{"stream": 7}}}}' for ts in ("1711964646000000.123", "1711964646000001.007"))
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [{events}]}}')
    trace = read(path)
    assert trace.start.tolist() == [0, 884]
    assert (trace.end - trace.start).tolist() == [1234, 1234]


@pytest.mark.parametrize("share", [0.35, 0.7, 0.99])
def test_what_stands_before_a_cut_is_reported(tmp_path, share):
    text = text_of(Timeline().steps([("data", 300.0)] * 10, count=8))
    path = tmp_path / "cut.json"
    path.write_text(text[:int(share * len(text))])
    trace = read(path)
    assert 0.8 * share < trace.events / text.count('"ph"') <= share + 0.01
    assert "the file ends in the middle: what stands before the cut is reported" in trace.notes
    assert sum(diagnose_trace(path).main.percent.values()) == pytest.approx(100)


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_what_stands_before_the_cut_of_a_gzip_is_reported(tmp_path, share):
    packed = gzip.compress(text_of(Timeline().steps([("data", 300.0)] * 40, count=30)).encode())
    path = tmp_path / "cut.json.gz"
    path.write_bytes(packed[:int(share * len(packed))])
    trace = read(path)
    assert trace.events > 500
    assert trace.notes[0] == "the file is damaged: its gzip ends early; what was read before that is reported"


def test_a_damaged_gzip_is_read_up_to_the_damage(tmp_path):
    packed = bytearray(gzip.compress(text_of(Timeline().steps([("data", 300.0)] * 40, count=60)).encode()))
    packed[len(packed) // 2:len(packed) // 2 + 40] = bytes(40)
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    assert read(path).notes[0].startswith("the file is damaged: its gzip")


def test_control_bytes_and_broken_utf_8_are_replaced(tmp_path, whole):
    path = tmp_path / "t.json"
    path.write_bytes(text_of(good()).encode().replace(b'"aten::linear"', b'"aten::\x01li\xffnear"'))
    trace = read(path)
    assert same(trace, whole)
    assert "the file holds raw control bytes or broken UTF-8, which were replaced" in trace.notes


def test_what_is_no_json_inside_is_left_out_and_counted(tmp_path, whole):
    text = text_of(good())
    path = tmp_path / "t.json"
    path.write_text(text.replace('"ts": 1000.0,', '"ts": 10oo.0,', 1).replace('"dur": 300.0', '"dur": NaN', 1))
    trace = read(path)
    assert "1 events can't be read and were left out" in trace.notes
    assert any(note.startswith("1 events have fields without sense") for note in trace.notes), "NaN is no time"
    assert len(trace.kind) == len(whole.kind) - 2


@pytest.mark.parametrize(("field", "dropped"), [("ts", 1), ("dur", 1), ("correlation", 0), ("bytes", 0)])
def test_integers_beyond_64_bits(tmp_path, whole, field, dropped):
    writer = good()
    event = next(event for event in writer.events if event["cat"] == "kernel")
    (event if field in event else event["args"])[field] = 2**70
    path = writer.write(tmp_path / "t.json")
    trace = read(path)
    assert len(trace.kind) == len(whole.kind) - dropped
    assert any("beyond 64 bits" in note for note in trace.notes) == bool(dropped)
    assert sum(diagnose_trace(path).main.percent.values()) == pytest.approx(100)


def test_a_bare_list_is_read_with_a_warning(tmp_path, whole):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(good().events))
    trace = read(path)
    assert same(trace, whole)
    assert any(note.startswith("the file is a bare list of events") for note in trace.notes)


@pytest.mark.parametrize(("content", "sentence"), [
    (b"", r"is empty\. A profiler trace is what torch.profiler's export_chrome_trace writes"),
    (b" \n ", "is empty"),
    (b"step 1: loss 0.3\n", "is not JSON: it begins with 'step 1: loss 0.3"),
    (b"\x89PNG\r\n\x1a\n" + bytes(100), "is not JSON"),
    (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "aten::mm"}]}', "is an execution trace"),
    (b'{"a": 1}', "holds no list of traceEvents"),
    (b'{"traceEvents": null}', "holds no list of traceEvents"),
    (b'{"traceEvents": []}', "holds no operator, launch or kernel among its 0 events"),
    (b'[1, "a", null, {"ph": "X"}, [[]]]', "holds no operator, launch or kernel among its 5 events"),
    (b"[" * 5000, "holds no operator, launch or kernel"),
    (b'{"traceEvents": [{"ph": "X", "cat": "ker', "holds no operator, launch or kernel"),
    (gzip.compress(b"hello", mtime=0)[:10], r"is empty \(its gzip ends early\)"),
    (gzip.compress(b"hello", mtime=0), "is not JSON: it begins with 'hello'"),
    (b"\x1f\x8b" + bytes(40), r"its gzip is damaged"),
])
def test_other_files_are_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(LfError, match=sentence) as raised:
        diagnose_trace(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_events_that_take_no_time_are_one_sentence(tmp_path):
    writer = Writer()
    writer.gpu(5, 0, 1)
    with pytest.raises(LfError, match="takes no time at all"):
        diagnose_trace(writer.write(tmp_path / "t.json"))


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(LfError, match="can't be read: No such file"):
        diagnose_trace(tmp_path / "none.json")


def test_things_that_are_no_work_of_the_gpu_are_not_counted(tmp_path):
    """Annotations on the GPU's rows and synchronisation records span kernels and waits."""
    writer = good()
    before = diagnose_trace(writer.write(tmp_path / "t.json")).main.percent
    for category, name in (("gpu_user_annotation", "ProfilerStep#1"), ("cuda_sync", "Stream Sync"), ("ac2g", "ac2g"),
                           ("fwdbwd", "fwdbwd"), ("Trace", "PyTorch Profiler (0)")):
        writer.add(category, name, 1000, 3000, 7, stream=7, device=0)
    assert diagnose_trace(writer.write(tmp_path / "t.json")).main.percent == before


def test_a_copys_bytes_and_a_collectives_arguments_are_kept(tmp_path):
    writer = Writer()
    writer.gpu(0, 10, name="Memcpy DtoH", category="gpu_memcpy", bytes=4096)
    writer.gpu(20, 10, name="ncclDevKernel_Generic(ncclDevKernelArgs)", **{
        "Collective name": "allreduce", "In msg nelems": 256, "dtype": "BFloat16", "Process Group Name": "0", "Seq": 5})
    trace = read(writer.write(tmp_path / "t.json"))
    assert trace.size[trace.rows(COPY)].tolist() == [4096]
    [(row, known)] = trace.collectives.items()
    assert trace.kind[row] == KERNEL and known == ("allreduce", "0", 5, 256, "BFloat16")
    [exchange] = diagnose_trace(tmp_path / "t.json").main.collectives
    assert (exchange.name, exchange.bytes) == ("allreduce", 512)


def test_two_million_events_are_the_small_trace_over_and_over(tmp_path):
    """A small stand-in: 60 times 1,000 events give exactly 60 times the work; the whole size is measured apart."""
    small = Writer()
    for place in range(250):
        at = 40 * place
        small.host("aten::mm", at, 30, pad="x" * 100)
        small.gpu(at + 10, 25.125, at + 2, name=ALL_REDUCE if place % 10 == 0 else f"kernel_{place % 7}", pad="x" * 100)
        small.host("aten::add", at + 31, 5)
    once = diagnose_trace(small.write(tmp_path / "small.json")).main.whole
    large = Writer()
    for turn in range(60):
        for event in small.events:
            args = {key: value + 250 * turn if key in ("correlation", "External id") else value
                    for key, value in event["args"].items()}
            large.events.append(event | {"ts": event["ts"] + 10_000 * turn, "args": args})
    found = diagnose_trace(large.write(tmp_path / "large.json")).main
    assert found.trace.events == 60_000
    for name in ("busy_ms", "sum_ms", "communication_ms", "exposed_communication_ms"):
        assert found.whole[name] == pytest.approx(60 * once[name], rel=1e-12)
    assert found.found.launched.known.all()
