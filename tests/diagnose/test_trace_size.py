"""A rank's trace that is too large to look at is kept, and said."""

import pytest

from lfhelpers.measure import chrome_trace
from lfhelpers.recipe import recipe
from lfhelpers.train import traces
from tests.train.toy import ALONE


@pytest.mark.parametrize(("megabytes", "said"), [
    (99.0, ""), (250.0, "the trace of rank 0 has 250 MB: its steps hold very many operators\n")])
def test_more_than_100_mb_are_said(megabytes, said, monkeypatch, capsys):
    monkeypatch.setattr(chrome_trace, "write", lambda recorded, path: megabytes)
    hook = traces.Traces(recipe("competent", "steps=20", "log.profile=true"), ALONE)
    hook._path = "rank-0.json.gz"
    hook._write(None)
    summary = {}
    hook.run_end(summary)
    assert (capsys.readouterr().out, summary["traces"]["mb"]) == (said, megabytes)
