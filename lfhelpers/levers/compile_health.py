"""What compilation did in a run: how long, how many graphs, what was compiled again and why, what stayed eager.

torch.compile never fails loudly by itself: a graph breaks, a guard fails and a function is compiled again, a limit is
reached and the function runs eagerly for ever after, with a log line at best. The figures come from dynamo's own
counters, callbacks and compilation metrics, which are not a public interface; where a torch release lacks one, the
figure is "unknown" and never a wrong number.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

UNKNOWN = "unknown"
METRICS = 4096
"""Compilations that are remembered; dynamo's own default of 64 is less than a model's."""
HINTS = {
    "InvalidCxxCompiler": "no C++ compiler is found (install g++, or name one with CXX)",
    "TritonMissing": "Triton is missing (pip install triton)",
    "GPUTooOldForTriton": "this GPU's compute capability is below 7.0, the least that Triton compiles for",
    "Failed to find C compiler": "Triton finds no C compiler (install gcc, or name one with CC)",
}


class Health:
    """Counts what happens while it is `listening`."""

    def __init__(self) -> None:
        self.failed: dict[type, str] = {}
        """Classes that run eagerly, and why."""
        self._seconds: Any = 0.0
        self._began = 0.0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Time compilations and remember their metrics until the block ends."""
        from torch._dynamo import utils

        self._since_us = time.time_ns() // 1000
        self._counters = known(_counters)
        self._breaks = known(lambda: len(utils.graph_break_reasons))
        known(lambda: utils.set_compilation_metrics_limit(METRICS))
        if known(self._register) == UNKNOWN:
            self._seconds = UNKNOWN
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):  # torch._dynamo.reset has removed them
                known(self._unregister)
            known(lambda: utils.set_compilation_metrics_limit(utils.DEFAULT_COMPILATION_METRICS_LIMIT))

    def fail(self, kind: type, error: BaseException) -> None:
        """`kind` stays eager from now on because of `error`; says so in one line."""
        self.failed[kind] = reason(error)
        print(f"compile: {kind.__name__} runs eagerly, because {self.failed[kind]}.", flush=True)

    def limit(self, kind: type, limit: int) -> str:
        """The sentence for a function that was compiled too often."""
        reasons = known(lambda: [item.recompile_reason for item in _metrics(self._since_us) if item.recompile_reason])
        last = reasons[-1] if isinstance(reasons, list) and reasons else UNKNOWN
        return (f"torch.compile has compiled {kind.__name__}.forward {limit} times and would run it eagerly from now "
                f"on, without a word: the guard that failed last is '{_guard(last)}'. Keep shapes fixed (pad them, "
                "data.last='drop'), or raise compile.recompile_limit.")

    def add_seconds(self, seconds: float) -> None:
        """Count time that belongs to compilation but is spent outside it, such as loading caches."""
        if self._seconds != UNKNOWN:
            self._seconds += seconds

    def report(self) -> dict[str, Any]:
        """The figures of summary.json: seconds, graphs, recompilations, graph_breaks, eager_fallbacks and cache."""
        return {
            "seconds": self._seconds,
            "graphs": self.graphs(),
            "recompilations": known(lambda: recompilations(_metrics(self._since_us))),
            "graph_breaks": known(self._graph_breaks),
            "eager_fallbacks": known(self._fallbacks),
            "cache": known(self._cache),
        }

    def graphs(self) -> Any:
        """Graphs compiled so far."""
        return known(lambda: _counters()["graphs"] - self._counters["graphs"])

    def _fallbacks(self) -> list[dict[str, str]]:
        """Classes that failed, and frames that dynamo gave up by itself."""
        return [{"what": kind.__name__, "reason": why} for kind, why in self.failed.items()] + [
            {"what": _function(item), "reason": _first_lines(item.fail_reason or item.fail_type)}
            for item in _metrics(self._since_us) if item.fail_type == "Unsupported"]

    def _register(self) -> None:
        from torch._dynamo.callback import callback_handler

        callback_handler.register_start_callback(self._start)
        callback_handler.register_end_callback(self._end)

    def _unregister(self) -> None:
        from torch._dynamo.callback import callback_handler

        callback_handler.remove_start_callback(self._start)
        callback_handler.remove_end_callback(self._end)

    def _start(self, _: Any) -> None:
        self._began = time.perf_counter()

    def _end(self, _: Any) -> None:
        self._seconds += time.perf_counter() - self._began

    def _graph_breaks(self) -> list[dict[str, Any]]:
        from torch._dynamo import utils

        found = Counter((_where(item.user_stack), _first_lines(item.reason))
                        for item in utils.graph_break_reasons[self._breaks:] if item.graph_break)
        return [{"where": where, "reason": why, "count": count} for (where, why), count in found.items()]

    def _cache(self) -> str:
        """hit, miss or part, by the graphs of this run; unknown where it compiled none."""
        now = _counters()
        hits, misses = now["hits"] - self._counters["hits"], now["misses"] - self._counters["misses"]
        return {(True, False): "hit", (False, True): "miss", (True, True): "part"}.get((hits > 0, misses > 0), UNKNOWN)


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All ranks' reports as one: rank 0's figures, the slowest rank's seconds, and other ranks' fallbacks by rank."""
    first, *others = reports
    strange = [item | {"what": f"{item['what']} (rank {rank})"} for rank, other in enumerate(others, 1)
               for item in _listed(other, "eager_fallbacks") if item not in first["eager_fallbacks"]]
    seconds = known(lambda: max(report["seconds"] + 0.0 for report in reports))
    return first | {"seconds": seconds} | (
        {"eager_fallbacks": _listed(first, "eager_fallbacks") + strange} if strange else {})


def notes(report: Mapping[str, Any]) -> list[str]:
    """What a reader of the run's figures should know of its `report`; nothing where all is compiled, once and whole."""
    said = []
    if report.get("state") in ("off", "part"):
        said.append(f"compile: {report['state']}, because {report['reason']}")
    elif fallbacks := _listed(report, "eager_fallbacks"):
        said.append(f"compile: {fallbacks[0]['what']} runs eagerly: {fallbacks[0]['reason']}")
    if breaks := [item for item in _listed(report, "graph_breaks") if "DDPOptimizer" not in item["where"]]:
        count, first = sum(item["count"] for item in breaks), breaks[0]
        said.append(f"compile: {count} graph breaks, the first at {first['where']}: {first['reason']}")
    return said


def known(figure: Callable[[], Any]) -> Any:
    """The figure, or "unknown" where this torch has no such counter."""
    try:
        return figure()
    except (AttributeError, ImportError, KeyError, TypeError):
        return UNKNOWN


def reason(error: BaseException) -> str:
    """Why a compilation failed, in half a sentence: the innermost error, or what to do where that is known."""
    while inner := getattr(error, "inner_exception", None) or error.__cause__:
        error = inner
    text = f"{type(error).__name__}: {str(error).strip()}"
    return next((hint for name, hint in HINTS.items() if name in text), text.partition("\n")[0].rstrip("."))


def recompilations(metrics: Sequence[Any]) -> list[dict[str, str]]:
    """Functions that were compiled again, each with the guard that had failed."""
    return [{"what": _function(item), "guard": _guard(item.recompile_reason)}
            for item in metrics if item.recompile_reason and not item.fail_type]


def _counters() -> dict[str, int]:
    """Graphs compiled in this process, and how many of them a cache held (AOTAutograd's, or Inductor's without it)."""
    from torch._dynamo.utils import counters

    whole, parts = counters["aot_autograd"], counters["inductor"]
    hits, misses = whole["autograd_cache_hit"], whole["autograd_cache_miss"] + whole["autograd_cache_bypass"]
    if not hits + misses:
        hits, misses = parts["fxgraph_cache_hit"], parts["fxgraph_cache_miss"] + parts["fxgraph_cache_bypass"]
    return {"graphs": counters["stats"]["unique_graphs"], "hits": hits, "misses": misses}


def _metrics(since_us: int) -> list[Any]:
    from torch._dynamo.utils import get_compilation_metrics

    return [item for item in get_compilation_metrics() if (item.start_time_us or 0) >= since_us]


def _listed(report: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = report.get(name)
    return value if isinstance(value, list) else []


def _function(item: Any) -> str:
    return f"{item.co_name} ({Path(item.co_filename or '?').name}:{item.co_firstlineno})"


def _guard(text: str) -> str:
    """Dynamo's reason without the number of the compilation before it."""
    return re.sub(r"^\d+/\d+: ", "", text).strip()


def _where(stack: Sequence[Any]) -> str:
    return f"{Path(stack[-1].filename).name}:{stack[-1].lineno} in {stack[-1].name}" if stack else UNKNOWN


def _first_lines(text: str) -> str:
    """Dynamo's headline and explanation, without its hints."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return " ".join(lines[:2]) if len(lines) > 1 and lines[1].startswith("Explanation") else lines[0]
