"""Run by torchrun with two gloo ranks: what crosses between ranks, and when; rank 0 prints one JSON line."""

import copy
import itertools
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.errors import LfError
from lfhelpers.levers import in_place, naive_ddp, overlap
from lfhelpers.levers.compile import session
from lfhelpers.measure import link
from lfhelpers.measure.clock import StepClock
from lfhelpers.recipe import recipe
from lfhelpers.train import agreement
from lfhelpers.train.assemble import assemble
from lfhelpers.train.captured import make_step
from lfhelpers.train.checkpoint import bare
from lfhelpers.train.communication import ExposedCommunication
from lfhelpers.train.hooks import Hook
from lfhelpers.train.ranks import identify, joined

STEPS, SAMPLES, WIDTH = 5, 4, 32


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.linear(x)) + x


class Model(nn.Module):
    def __init__(self, layers=5, idle=False):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 1)
        self.idle = nn.Linear(WIDTH, 3) if idle else None

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Doubles:
    """A workload in float64 whose samples have weights of their own."""

    idle = False

    def __init__(self, job):
        self.job = job

    def model(self):
        return Model(idle=self.idle).double()

    def blocks(self, model):
        return list(model.layers)

    def draws(self, samples, generator):
        return {}

    def loss(self, model, batch, draws):
        return ((model(batch["x"])[:, 0] - batch["y"]) ** 2 * batch["w"]).sum(), batch["w"].sum()

    def default_lr(self):
        return 1e-2


class Idle(Doubles):
    idle = True


class Kept(Hook):
    """The gradients of the step, as the update will see them."""

    def gradients_ready(self, step, model):
        self.grads = [parameter.grad.clone() for parameter in model.parameters()]


def combination(ranks, accumulate, static, compiled, instead=False):
    """All-reduces of each step, the number of buckets, and how far gradients are from those of the full batch."""
    job = recipe("competent", "precision.mode=fp32", "optimizer.fused=false", "device=cpu", "compile.cache=false",
                 "ddp.bucket_list_mb=[0.002, 0.017]", f"batch.micro={SAMPLES}",
                 f"batch.accumulate={accumulate}", f"ddp.static_graph={str(static).lower()}",
                 f"compile.scope={'blocks' if compiled else 'none'}", f"ddp.in_place={str(instead).lower()}")
    workload, exchanges, kept, rows = Doubles(job), [], Kept(), []
    generator = torch.Generator().manual_seed(3)
    with session(job, ranks.device) as compilation:
        parts = assemble(job, ranks, workload, compilation)
        if instead:
            count_messages(exchanges)
        else:
            parts.model.register_comm_hook(None, counting(exchanges))
        checks = agreement.Agreement(job, ranks)
        checks.run_start(job, None, parts.model)
        clock, exposed = StepClock(ranks.device), ExposedCommunication(parts.model)
        step = make_step(job, workload, parts.model, parts.optimizer, parts.precision, ranks, clock, [kept, checks])
        for index in range(STEPS):
            whole = drawn(2 * accumulate * SAMPLES, generator)
            mine = [({name: value.unflatten(0, (accumulate, 2, SAMPLES))[micro, ranks.rank]
                      for name, value in whole.items()}, {}) for micro in range(accumulate)]
            alone, before = copy.deepcopy(bare(parts.model)), len(exchanges)
            with compilation.eager():
                (workload.loss(alone, whole, {})[0] / (2 * accumulate * SAMPLES)).backward()
            step(index, iter(mine), accumulate)
            exposed.after_step(index + 1)
            apart = max(float((ours - theirs.grad).abs().max())
                        for ours, theirs in zip(kept.grads, alone.parameters(), strict=True))
            rows.append((len(exchanges) - before, apart))
        assert compilation.report()["state"] == ("on" if compiled else "none"), compilation.report()
    weights = agreement.differences(list(bare(parts.model).named_parameters()), ranks)
    return {"all_reduces": [row[0] for row in rows], "buckets": len(overlap.buckets(parts.model)),
            "difference": max(row[1] for row in rows), "weights_differ": weights,
            "exchange": exposed.result(ranks)}


def drawn(samples, generator):
    return {"x": torch.randn(samples, WIDTH, generator=generator, dtype=torch.float64),
            "y": torch.randn(samples, generator=generator, dtype=torch.float64),
            "w": torch.rand(samples, generator=generator, dtype=torch.float64) + 0.1}


def counting(exchanges):
    def hook(state, bucket):
        exchanges.append(bucket.index())
        return dist.all_reduce(bucket.buffer().div_(int(os.environ["WORLD_SIZE"])), async_op=True).get_future().then(
            lambda future: future.value()[0])
    return hook


def count_messages(exchanges, average=in_place.average):
    """As `counting`, of gradients in place."""
    in_place.average = lambda tensors: (exchanges.append(len(exchanges)), average(tensors))[1]


def broken(parameter):
    raise FloatingPointError


def wrapped_anew(ranks):
    """Messages of a backward whose model was wrapped twice, after one that failed: the living wrapper alone sends."""
    torch.manual_seed(ranks.rank)  # unlike, so that starting alike is put to the test
    exchanges, model, batch = [], Model().double(), drawn(SAMPLES, torch.Generator().manual_seed(ranks.rank))
    count_messages(exchanges)
    wrapper = in_place.InPlace(model, (1.0,))
    del wrapper
    wrapper = in_place.InPlace(model, (1.0,))
    stopped = wrapper(batch["x"])
    last = next(model.parameters()).register_post_accumulate_grad_hook(broken)
    try:
        stopped.sum().backward()
    except FloatingPointError:
        last.remove()
    del exchanges[:]
    model.zero_grad()
    Doubles(None).loss(wrapper, batch, {})[0].backward()
    messages = len(exchanges)
    grads = agreement.differences([(name, value.grad) for name, value in model.named_parameters()], ranks)
    Doubles(None).loss(model, batch, {})[0].backward()
    weights = agreement.differences(list(model.named_parameters()), ranks)
    return {"messages": messages, "of_the_bare_model": len(exchanges) - messages, "weights_differ": weights,
            "grads_differ": grads, "groups": [len(names) for names in wrapper.groups]}


def by_hand(ranks):
    """The two readable versions against DDP, over two micro-batches each: (largest difference, messages) of each."""
    generator = torch.Generator().manual_seed(4)
    micro = [[drawn(SAMPLES, generator) for _ in range(2)] for _ in range(2)]
    loss = Doubles(None).loss

    def fresh():
        torch.manual_seed(ranks.rank)  # unlike, so that starting alike is put to the test
        model = Model().double()
        naive_ddp.start_alike(model)
        return model
    theirs, slow, ours = DistributedDataParallel(fresh()), fresh(), fresh()
    with theirs.no_sync():
        loss(theirs, micro[0][ranks.rank], {})[0].backward()
    loss(theirs, micro[1][ranks.rank], {})[0].backward()
    for part in micro:
        loss(slow, part[ranks.rank], {})[0].backward()
    messages = naive_ddp.average_after_backward(slow.parameters())
    buckets = naive_ddp.Buckets(ours, bucket_mb=0.02)
    for _ in range(2):  # the second step shows that the buckets are ready again
        for parameter in ours.parameters():
            parameter.grad.zero_()
        with buckets.no_sync():
            loss(ours, micro[0][ranks.rank], {})[0].backward()
        loss(ours, micro[1][ranks.rank], {})[0].backward()
        buckets.wait()
    grads = [[parameter.grad for parameter in model.parameters()] for model in (theirs.module, slow, ours)]
    apart = [max(float((a - b).abs().max()) for a, b in zip(grads[0], other, strict=True)) for other in grads[1:]]
    return {"differences": apart, "messages": [messages, buckets.sent], "buckets": len(buckets.buckets),
            "parameters": len(grads[0])}


def unused(ranks):
    """What is said of parameters without a gradient, before and after they are frozen; and of ranks that disagree."""
    job = recipe("competent", "precision.mode=fp32", "optimizer.fused=false", "device=cpu",
                 f"batch.micro={SAMPLES}")
    workload, batch = Idle(job), drawn(SAMPLES, torch.Generator().manual_seed(ranks.rank))
    said, losses = [], []
    for first in (None, batch):
        with session(job, ranks.device) as compilation:
            parts = assemble(job, ranks, workload, compilation, first)
        checks = agreement.Agreement(job, ranks)
        checks.run_start(job, None, parts.model)
        step = make_step(job, workload, parts.model, parts.optimizer, parts.precision, ranks, StepClock(ranks.device),
                         [checks])
        try:
            losses += [float(step(index, iter([(batch, {})]), 1)[0]) for index in range(3)]
        except LfError as error:
            said.append(str(error))
    torch.manual_seed(0)
    try:
        agreement.freeze_unused(Model(idle=True).double(), lambda model: model.head(batch["x"]).sum() + (
            model.idle(batch["x"]).sum() if ranks.rank else 0), ranks)
    except LfError as error:
        said.append(str(error))
    return {"said": said, "steps": len(losses)}


def unlike(ranks):
    """What is said where ranks build models of other shapes and sizes."""
    job, said = recipe("competent", "device=cpu"), []
    for model in (nn.Sequential(nn.Linear(2, 5 + ranks.rank)),
                  nn.Sequential(*(nn.Linear(2, 2) for _ in range(1 + ranks.rank)))):
        try:
            overlap.wrap(job, model, ranks.device)
        except LfError as error:
            said.append(str(error))
    return said


def main():
    ranks = identify("cpu")
    torch.set_num_threads(1)
    with joined(ranks):
        found = {f"{accumulate} {static} {compiled}": combination(ranks, accumulate, static, compiled)
                 for accumulate, static, compiled in itertools.product((1, 4), (False, True), (False, True))}
        found |= {f"in place {accumulate} {compiled}": combination(ranks, accumulate, False, compiled, True)
                  for accumulate, compiled in ((1, False), (4, True))}
        sweep, times = link.sweep(ranks.device, repeats=3, of=link.sizes("cpu", count=4, most=2**18))
        dropout = float(torch.rand(1))
        report = {
            "combinations": found, "by_hand": by_hand(ranks), "unused": unused(ranks), "unlike": unlike(ranks),
            "wrapped_anew": wrapped_anew(ranks),
            "links_equal": len({str(other.as_dict()) for other in ranks.gather(sweep)}), "link": sweep.as_dict(),
            "repeats": {size: len(values) for size, values in times.items()},
            "masks_differ": len(set(ranks.gather(dropout))) == 2,
            "differ": agreement.differences([("same", torch.ones(3)), ("other", torch.full((3,), float(ranks.rank)))],
                                            ranks)}
    if ranks.first:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
