"""Run by torchrun with two ranks: every way to exchange gradients on the toy; rank 0 prints one JSON line.

Arguments: the folder in which runs are made, and the device.
"""

import json
import os
import sys

import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from lfhelpers import runs
from lfhelpers.levers import powersgd
from lfhelpers.levers.compile import session
from lfhelpers.measure.clock import StepClock
from lfhelpers.recipe import exchange, recipe
from lfhelpers.train import assemble, checkpoint
from lfhelpers.train.captured import CapturedStep, make_step
from lfhelpers.train.ranks import identify, joined
from tests.train.toy import Toy

LAST = 20
BASE = ("precision.mode=fp32", "batch.micro=8", "workload.dropout=0.2")
BUCKETS = "ddp.bucket_mb=0.0001"  # several, which DDP lays out anew after the first step
BF16 = ("optimizer.clip_norm=0", "precision.mode=bf16", "precision.weights=bf16")
POWERSGD = ("ddp.hook=powersgd", "ddp.powersgd_rank=1", BUCKETS)
CASES = {
    "none": (200,),
    "bf16": (200, "ddp.hook=bf16"),
    "fp16": (200, "ddp.hook=fp16"),
    "powersgd": (200, *POWERSGD),
    "onebit_adam": (200, "ddp.hook=onebit_adam", BUCKETS),
    "sharded": (30, "ddp.shard_optimizer=true"),
    "none, 30 steps": (30,),
    "none, not clipped": (30, "optimizer.clip_norm=0"),
    "sharded, not clipped": (30, "optimizer.clip_norm=0", "ddp.shard_optimizer=true", BUCKETS),
    "none, bf16 weights": (30, *BF16),
    "sharded, bf16 weights": (30, *BF16, "ddp.shard_optimizer=true"),
}
RESUMED = ("bf16", "powersgd", "onebit_adam", "sharded, not clipped")
CAPTURED = ("none", "bf16", "sharded, not clipped", "sharded, bf16 weights")


class Trainer:
    """One model with its optimizer and exchange, on samples that depend on the step and the rank alone."""

    def __init__(self, job, ranks):
        self.job, self.ranks, workload = job, ranks, Toy(job)
        self.stream = assemble.stream(job, ranks)
        with self.stream, session(job, ranks.device) as compilation:
            self.parts = assemble.assemble(job, ranks, workload, compilation)
            self.step = make_step(job, workload, self.parts.model, self.parts.optimizer, self.parts.precision, ranks,
                                  StepClock(ranks.device))
        self.losses, self.sent = [], []

    def run(self, start, stop):
        with self.stream:
            for step in range(start, stop):
                self.losses.append(float(self.step(step, iter([self.pair(step)]), 1)[0]))
                self.sent.append(self.parts.exchange.bytes_per_step)

    def pair(self, step):
        generator = torch.Generator().manual_seed(2 * step + self.ranks.rank)
        x = torch.randn(8, 4, generator=generator)
        y = torch.stack([torch.sin(x[:, 0] + x[:, 1]), torch.tanh(x[:, 2] - x[:, 3])], dim=1)
        batch = {"x": x, "y": y, "weight": torch.rand(8, generator=generator) + 0.1, "valid": torch.ones(8)}
        draws = {"noise": torch.randn(8, 2, generator=generator)}
        return tuple({name: value.to(self.ranks.device) for name, value in part.items()} for part in (batch, draws))

    def weights(self):
        return torch.cat([value.detach().float().flatten() for value in self.parts.model.parameters()])


class Torchs(powersgd.PowerSgd):
    """torch's PowerSGD hook in the place of ours, started from the same factors; for one bucket that never changes."""

    def average(self, bucket):
        if not hasattr(self, "torchs"):
            self.torchs = PowerSGDState(None, 1, self._start, orthogonalization_epsilon=powersgd.TINY)
        state = self.torchs
        if state.iter == state.start_powerSGD_iter:
            grads = [(self._places[parameter], parameter) for parameter in bucket.parameters()]
            factors = [self._factor(place, grad).reshape(-1) for place, grad in grads if grad.dim() == 2
                       and self._worth(grad)]
            state.q_memory_dict[0] = torch.cat(factors)
            state.p_memory_dict[0] = torch.empty(sum(len(grad) for _, grad in grads if grad.dim() == 2
                                                     and self._worth(grad)))
        future = powerSGD_hook(state, bucket)
        future.wait()
        return future


def whole(job, ranks):
    """(trainer after all steps, run with a checkpoint of the middle)"""
    trainer, half = Trainer(job, ranks), job.steps // 2
    run = runs.Run(ranks.gather(runs.create(job).path if ranks.first else None)[0])
    trainer.run(0, half)
    parts = trainer.parts
    checkpoint.save(run, half, parts.model, parts.optimizer, {}, ranks, 1, parts.exchange)
    trainer.run(half, job.steps)
    return trainer, run


def resumed(job, run, ranks):
    trainer = Trainer(job, ranks)
    checkpoint.load(run, trainer.parts.model, trainer.parts.optimizer, ranks, trainer.parts.exchange)
    trainer.run(job.steps // 2, job.steps)
    return trainer


def against_torch(ranks):
    """The largest difference between weights after 30 steps with our PowerSGD and torch's, and torch's compression."""
    job = recipe("competent", *BASE, f"device={ranks.device.type}", "steps=30", *POWERSGD, "ddp.bucket_mb=1")
    ours = Trainer(job, ranks)
    kept, assemble.choose = assemble.choose, lambda job, parameters, ranks: Torchs(
        ranks.world, job.ddp.powersgd_rank, exchange.whole(job))
    torchs = Trainer(job, ranks)
    assemble.choose = kept
    for trainer in (ours, torchs):
        torch.manual_seed(ranks.rank)
        trainer.run(0, 30)
    compression, _, _ = torchs.parts.exchange.torchs.compression_stats()
    return {"difference": float((ours.weights() - torchs.weights()).abs().max()), "compression": compression}


def captured(job, ranks, eager):
    """What stood in the way, and the largest relative difference of a loss."""
    torch.manual_seed(job.seed + ranks.rank)
    trainer = Trainer(job.with_("graph.scope=step"), ranks)
    trainer.run(0, job.steps)
    assert isinstance(trainer.step, CapturedStep)
    pairs = zip(trainer.losses, eager.losses, strict=True)
    return {"obstacle": trainer.step.graphs.obstacle, "recorded": trainer.step.graphs.count,
            "difference": max(abs(ours / theirs - 1) for ours, theirs in pairs)}


def main():
    os.environ["LFHELPERS_RUNS"], device = sys.argv[1], sys.argv[2]
    ranks, seen, trainers, folders = identify(device), {}, {}, {}
    jobs = {name: recipe("competent", *BASE, f"device={device}", f"steps={steps}", *overrides)
            for name, (steps, *overrides) in CASES.items()}
    ranks.take_device()
    with joined(ranks):
        for name, job in jobs.items():
            trainers[name], folders[name] = trainer, run = whole(job, ranks)
            seen[name] = {"loss": sum(trainer.losses[-LAST:]) / LAST, "sent": [trainer.sent[0], trainer.sent[-1]],
                          "ranks_equal": torch.equal(*(value.cpu() for value in ranks.gather(trainer.weights()))),
                          "run": str(run.path), "report": trainer.parts.exchange.report()}
        for name in RESUMED:
            again = resumed(jobs[name], folders[name], ranks)
            half = jobs[name].steps // 2
            seen[name]["resumed_equal"] = again.losses == trainers[name].losses[half:] and torch.equal(
                again.weights(), trainers[name].weights())
        again = resumed(jobs["none, not clipped"], folders["sharded, not clipped"], ranks)
        seen["unsharded_from_sharded"] = torch.equal(again.weights(), trainers["none, not clipped"].weights())
        for name, other in (("", ", 30 steps"), (", not clipped",) * 2, (", bf16 weights",) * 2):
            difference = trainers[f"sharded{name}"].weights() - trainers[f"none{other}"].weights()
            seen[f"sharded{name}"]["difference"] = float(difference.abs().max())
        seen["powersgd"]["against_torch"] = against_torch(ranks) if device == "cpu" else None
        if device == "cuda":
            seen["captured"] = {name: captured(jobs[name], ranks, trainers[name]) for name in CAPTURED}
        if ranks.first:
            print(json.dumps(seen), flush=True)
    os._exit(0)  # torch's PowerSGD leaves Python objects to gloo's threads, which may abort at an ordinary end


if __name__ == "__main__":
    main()
