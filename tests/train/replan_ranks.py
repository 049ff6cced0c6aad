"""Run by torchrun with two ranks: accumulation, and steps that run out of memory; rank 0 prints one JSON line.

The arguments are a run folder, whose recipe is trained on the way, and the device: cpu (gloo) or cuda (NCCL).
"""

import contextlib
import json
import sys
from pathlib import Path

import torch

from lfhelpers.levers.compile import session
from lfhelpers.measure.clock import StepClock
from lfhelpers.recipe import recipe
from lfhelpers.runs import Run
from lfhelpers.train import loop
from lfhelpers.train.assemble import assemble
from lfhelpers.train.captured import make_step
from lfhelpers.train.checkpoint import bare
from lfhelpers.train.fit import agreed
from lfhelpers.train.ranks import identify, joined
from lfhelpers.train.replan import Cuts, Replan
from tests.train.replanning import Planted, pairs_of

STEPS, RANK_SAMPLES, WORLD = 5, 8, 2
PLANTED = {
    "nothing": {},
    "forward of the last micro-batch": {"place": "forward", "step": 3, "micro": 1},
    "forward of the first micro-batch": {"place": "forward", "step": 3, "micro": 0},
    "backward before any bucket": {"place": "late", "step": 3, "micro": 1},
    "backward after some buckets": {"place": "early", "step": 3, "micro": 1},
    "backward without an exchange": {"place": "early", "step": 3, "micro": 0},
    "in the first step": {"place": "early", "step": 0, "micro": 1},
    "when buckets are rebuilt": {"place": "forward", "step": 1, "micro": 0},
    "twice": {"place": "early", "step": 2, "micro": 1, "above": 1},
}
AHEAD = ("nothing", "forward of the first micro-batch", "backward after some buckets")


def job_of(micro, *overrides):
    return recipe("competent", "precision.mode=fp32", "batch.replan=true", "ddp.bucket_mb=0.0002",
                  f"batch.micro={micro}", f"batch.accumulate={-(-RANK_SAMPLES // micro)}", f"steps={STEPS}", *overrides)


def trained(ranks, job, place=None, samples=RANK_SAMPLES, **planted):
    """(weights, values of each step, ids of each applied step, replan's events) of this rank."""
    workload = Planted(job, at=place if ranks.rank == 1 else None, **planted)
    with session(job, ranks.device, ranks.first) as compilation:
        parts = assemble(job, ranks, workload, compilation)
    step = make_step(job, workload, parts.model, parts.optimizer, parts.precision, ranks, StepClock(ranks.device),
                     [workload])
    again = Replan(step, job, parts.model, parts.optimizer, ranks)
    micro_batches = -(-samples // job.batch.micro)
    cuts = Cuts(tuple({name: value.to(ranks.device) for name, value in part.items()} for part in pair)
                for pair in pairs_of(STEPS, samples, job.batch.micro, ranks.rank, WORLD))
    values = []
    for index in range(STEPS):
        workload.step = index
        values.append(again(index, cuts, micro_batches).tolist())
    weights = torch.cat([parameter.detach().flatten() for parameter in bare(parts.model).parameters()]).cpu()
    return weights, values, workload.applied, again.events


def main() -> None:
    ranks = identify(sys.argv[2])
    ranks.take_device()
    with joined(ranks):
        answer = {"accumulation": {}, "planted": {}, "agreed": ranks.gather(agreed(ranks, 7 - ranks.rank))}
        loop.joined = lambda *_: contextlib.nullcontext()  # the group stands
        run = Run(Path(sys.argv[1]))
        loop.train(run.recipe, run, ranks)
        whole = trained(ranks, job_of(8))
        for micro in (4, 2, 1, 3):
            weights, values, _, _ = trained(ranks, job_of(micro))
            answer["accumulation"][micro] = [float((weights - whole[0]).abs().max()), values[-1][0] - whole[1][-1][0]]
        base = trained(ranks, job_of(4))
        for ahead in (False, True):
            for name in AHEAD if ahead else PLANTED:
                job = job_of(4, f"frozen.ahead={str(ahead).lower()}")
                weights, values, ids, events = trained(ranks, job, **PLANTED[name])
                alike = ranks.gather(weights)
                answer["planted"][f"{name}, ahead" if ahead else name] = {
                    "weights": float((weights - base[0]).abs().max()), "alike": torch.equal(*alike),
                    "losses": [abs(one[0] - other[0]) for one, other in zip(values, base[1], strict=True)],
                    "ids": ranks.gather([sorted(step) for step in ids]), "skipped": sum(row[3] for row in values),
                    "events": events}
        answer["expected"] = [[sorted(int(i) for batch, _ in list(
            pairs_of(STEPS, RANK_SAMPLES, 4, rank, WORLD))[2 * step:2 * step + 2] for i in batch["ids"])
            for step in range(STEPS)] for rank in range(WORLD)]
        if ranks.first:
            print(json.dumps(answer))


if __name__ == "__main__":
    main()
