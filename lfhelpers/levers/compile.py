"""torch.compile in place: each repeated block, or the whole model; never a run that stops, or slows down unseen.

Compiling whole blocks keeps every gap between blocks as a place where DDP can start sending gradients, and blocks of
one class share one compilation; a graph over the whole model fuses more but has no gaps, so dynamo cuts it at DDP's
bucket edges (DDPOptimizer; it can't hold a checkpointed region, pytorch issue 144035). Shapes are static: batches are
of one size, and a second context length must not turn the first into a symbol.

torch's own ways of failing are changed here. What can't be compiled runs eagerly and is named, class by class; backward
graphs are compiled with the forward, so that they fail where this can be done. A function that reaches the recompile
limit ends the run, where torch would run it eagerly for ever after. torch leaves its own modules (nn.Sequential,
nn.Linear) eager when they are compiled in place; a thin function around them is compiled instead. Evaluation runs
eagerly: it has other shapes, and quality should measure weights, not kernels.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from lfhelpers.errors import LfError
from lfhelpers.levers import activations, compile_cache
from lfhelpers.levers.compile_health import Health, known
from lfhelpers.recipe import Recipe

SAVE_AFTER = 3
"""Steps after which all graphs of a run exist, and are saved."""
CUDAGRAPH_MODES = ("reduce-overhead", "max-autotune")


class Compilation:
    """One run's compiled parts. Made by `session`."""

    def __init__(self, job: Recipe, device: torch.device, health: Health | None) -> None:
        self._job = job
        self._device = device
        self._health = health
        self._eager = False
        self._checked: set[type] = set()
        self._wrappers: dict[type, Callable[..., Any]] = {}
        self._save: Callable[[], None] | None = None
        self._cudagraphs = device.type == "cuda" and job.compile.mode in CUDAGRAPH_MODES

    def apply(self, model: nn.Module, blocks: Iterable[nn.Module]) -> None:
        """Compile what the recipe asks for, in place; must run before DDP wraps the model."""
        if self._health is None:
            return
        for module in [model] if self._job.compile.scope == "model" else blocks:
            module._compiled_call_impl = self._guarded(module, self._health)  # as nn.Module.compile does

    @contextlib.contextmanager
    def eager(self) -> Iterator[None]:
        """Inside, everything runs as if it were not compiled."""
        before, self._eager = self._eager, True
        try:
            yield
        finally:
            self._eager = before

    def before_step(self) -> None:
        """Tell Inductor's own CUDA graphs, where the mode has them, that outputs of the step before may be reused."""
        if self._health and self._cudagraphs:
            torch.compiler.cudagraph_mark_step_begin()

    def after_step(self, done: int) -> None:
        """Keep what was compiled, once `done` steps of this process have brought all of it."""
        if self._save and done >= SAVE_AFTER:
            self._save()
            self._save = None

    def report(self) -> dict[str, Any]:
        """What compilation did (compile_health), and whether it is on: none, on, part or off, with the reason."""
        fields = {"scope": self._job.compile.scope, "mode": self._job.compile.mode}
        if self._health is None:
            return fields | {"state": "none", "reason": None, "seconds": 0.0, "graphs": 0, "recompilations": [],
                             "graph_breaks": [], "eager_fallbacks": [], "cache": "off"}
        failed = self._health.failed
        state = "on" if not failed else "off" if self._checked <= failed.keys() else "part"
        report = self._health.report() | {"state": state, "reason": next(iter(failed.values()), None)}
        return fields | report | ({} if self._job.compile.cache else {"cache": "off"})

    def _guarded(self, module: nn.Module, health: Health) -> Callable[..., Any]:
        """The compiled call of a module, which falls back to the eager one."""
        from torch._dynamo import exc

        kind, eager, compiled = type(module), module._call_impl, self._compiled(module)
        limit = self._job.compile.recompile_limit

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._eager or kind in health.failed:
                return eager(*args, **kwargs)
            graphs = None if kind in self._checked else health.graphs()
            try:
                result = compiled(*args, **kwargs)
            except exc.FailOnRecompileLimitHit as error:
                raise LfError(health.limit(kind, limit)) from error
            except exc.TorchDynamoException as error:
                self._checked.add(kind)
                health.fail(kind, error)
                return eager(*args, **kwargs)
            if kind not in self._checked:
                self._check(kind, health, health.graphs() == graphs)
            return result
        return call

    def _compiled(self, module: nn.Module) -> Callable[..., Any]:
        from torch._dynamo import trace_rules

        options: dict[str, Any] = {"dynamic": False, "mode": self._job.compile.mode}
        if known(lambda: trace_rules.check(module.forward)) is not True:
            return torch.compile(module._call_impl, **options)
        kind = type(module)
        if kind not in self._wrappers:  # code of its own, since dynamo counts recompilations by code object
            wrapper = types.FunctionType(_forward.__code__.replace(co_name=kind.__name__), globals())
            self._wrappers[kind] = torch.compile(wrapper, **options)
        return functools.partial(self._wrappers[kind], module)

    def _check(self, kind: type[nn.Module], health: Health, no_graph: bool) -> None:
        """After a class's first compiled call: whether dynamo has left it eager without a word."""
        self._checked.add(kind)
        # A wrapper's code is new, so its graphs are; a class's own may have been compiled earlier in this process.
        if no_graph and (kind in self._wrappers or known(lambda: _entries(inspect.unwrap(kind.forward))) == 0):
            health.fail(kind, RuntimeError("torch.compile passes over it"))


@contextlib.contextmanager
def session(job: Recipe, device: torch.device, first: bool = True) -> Iterator[Compilation]:
    """The compilation of one run: torch's settings for it, and its caches; both are put back when the block ends.

    first: whether this process saves and speaks where all ranks would do the same.
    """
    if job.compile.scope == "none":
        yield Compilation(job, device, None)
        return
    health = Health()
    compilation = Compilation(job, device, health)
    with _settings(job), health.listening(), contextlib.ExitStack() as stack:
        if job.compile.cache:
            _caches(compilation, health, job, device, first)
        else:
            stack.enter_context(compile_cache.nothing_kept())
        yield compilation
        compilation.after_step(SAVE_AFTER)


def graphs(job: Recipe) -> int:
    """Graphs compiled in this process so far: a number that grows after the warm-up means recompilation."""
    if job.compile.scope == "none":
        return 0
    from torch._dynamo.utils import counters  # heavy to import, so only where something is compiled

    return int(counters["stats"]["unique_graphs"])


def _caches(compilation: Compilation, health: Health, job: Recipe, device: torch.device, first: bool) -> None:
    began = time.perf_counter()
    made_for = compile_cache.key(job, device)
    loaded, complaint = compile_cache.load(made_for)
    health.add_seconds(time.perf_counter() - began)
    if complaint and first:
        print(complaint, flush=True)

    def save() -> None:
        if loaded and health.report()["cache"] == "hit":
            return
        complaint = compile_cache.save(made_for)
        if complaint and first:
            print(complaint, flush=True)
    if first or device.type == "cuda":
        compilation._save = save


@contextlib.contextmanager
def _settings(job: Recipe) -> Iterator[None]:
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch

    # Between blocks DDP has its gaps already: cutting a block at bucket edges would only undo fusions.
    with dynamo.patch(fail_on_recompile_limit_hit=True, suppress_errors=False,
                      recompile_limit=job.compile.recompile_limit, optimize_ddp=job.compile.scope == "model"), \
            functorch.patch(force_non_lazy_backward_lowering=True), activations.budget(job):
        yield


def _entries(function: Callable[..., Any]) -> int:
    """Compiled forms that dynamo holds for a function's code."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    return len(_debug_get_cache_entry_list(function.__code__))


def _forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What is compiled around a module of torch's own."""
    return module._call_impl(*args, **kwargs)
