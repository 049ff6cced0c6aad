"""Each lever in torch alone, for a loop that never imports lfhelpers: nobody is locked in.

The lines use the names of a usual loop: dataset, loader, model, optimizer, batch, loss. They are the idea of a lever;
what the recipe's fields add to it (fall-backs, checks, the order of things) is in the module named beside them.
"""

from __future__ import annotations

from typing import NamedTuple


class InTorch(NamedTuple):
    """`lines` of Python; `module`: where this package does the same, with its checks."""

    lines: str
    module: str


LINES: dict[str, InTorch] = {
    "workers do all preprocessing": InTorch("""\
class Prepared(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return augment(decode(self.files[index]))  # in the worker, down to uint8; not between two steps
loader = torch.utils.data.DataLoader(Prepared(), batch_size=32, num_workers=8, prefetch_factor=2,
                                     persistent_workers=True)""", "data.engines.webdataset"),
    "asynchronous copy": InTorch("""\
loader = torch.utils.data.DataLoader(dataset, batch_size=32, num_workers=8, pin_memory=True)
batch = batch.to("cuda", non_blocking=True)  # on a stream of its own, while the step before still runs""",
                                 "train.feed"),
    "no wasted logits": InTorch("""\
hidden = model.body(tokens)  # call the part that you need, not the whole model with its head""",
                                "workloads.vla.language"),
    "shared embodiment weights": InTorch("""\
out = torch.nn.functional.linear(x, weight[0])  # one matrix for all samples that share it
# instead of torch.bmm(x, weight[ids]), which copies the matrix once a sample""", "workloads.vla.action"),
    "fused AdamW": InTorch("""\
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)""", "train.adamw"),
    "lean DDP": InTorch("""\
model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True,
                                                  find_unused_parameters=False)""", "levers.overlap"),
    "no read in the step": InTorch("""\
total += loss.detach()  # stays on the device
if step % 50 == 0:
    print(total.item() / 50)  # one read for many steps
    total.zero_()""", "train.recorder"),
    "measured loader": InTorch("""\
for workers in (2, 4, 8, 16):
    batches, began = iter(torch.utils.data.DataLoader(dataset, 32, num_workers=workers)), time.perf_counter()
    for _ in range(50):
        next(batches)
    print(workers, 50 / (time.perf_counter() - began))""", "data.choice"),
    "compiled blocks": InTorch("""\
for block in model.blocks:
    block.compile(dynamic=False)  # in place, and each block alone: DDP keeps its gaps""", "levers.compile"),
    "CUDA graph": InTorch("""\
graph = torch.cuda.CUDAGraph()  # after 11 ordinary steps on a side stream
with torch.cuda.graph(graph):
    loss = compute_loss(model, static_batch)
    loss.backward()
    optimizer.step()  # capturable=True
static_batch.copy_(batch)
graph.replay()""", "levers.graphs"),
    "only rows that the data has": InTorch("""\
table = torch.nn.Embedding(rows, width)
used = torch.nn.Parameter(table.weight[ids_in_data].detach().clone())  # train these; keep the others as a buffer""",
                                           "workloads.vla.action"),
    "bf16 weights": InTorch("""\
masters = [p.detach().float().clone() for p in model.parameters()]
model.to(torch.bfloat16)
optimizer = torch.optim.AdamW(masters, lr=1e-3, fused=True)
for master, p in zip(masters, model.parameters()):
    master.grad = p.grad.float()
optimizer.step()
for master, p in zip(masters, model.parameters()):
    p.data.copy_(master)""", "train.adamw"),
    "packed frozen weights": InTorch("""\
qkv = torch.nn.Linear(width, 3 * width)
qkv.weight.data = torch.cat([q.weight, k.weight, v.weight])  # one product in place of three""",
                                     "workloads.vla.packed"),
    "frozen part ahead": InTorch("""\
side = torch.cuda.Stream()
with torch.cuda.stream(side), torch.no_grad():
    next_hidden = frozen(next_batch)  # beside this step's update
torch.cuda.current_stream().wait_stream(side)""", "levers.frozen"),
    "large buckets": InTorch("""\
model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=100)""", "levers.overlap"),
    "gradients in place": InTorch("""\
import torch.distributed as dist
with dist._coalescing_manager(async_ops=True) as sent:  # for each group of gradients, once backward has made them
    for parameter in group:
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
sent.wait()  # before the update""", "levers.in_place"),
    "sharded optimizer": InTorch("""\
share = parameter.grad.view(world, -1)[rank]
dist.reduce_scatter_tensor(share, parameter.grad.view(-1), op=dist.ReduceOp.AVG)
optimizer.step()  # AdamW over parameter.data.view(world, -1)[rank], whose gradient `share` is
dist.all_gather_into_tensor(parameter.data.view(-1), parameter.data.view(world, -1)[rank])""", "train.sharded"),
    "bf16 gradients on the wire": InTorch("""\
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model.register_comm_hook(None, default_hooks.bf16_compress_hook)""", "levers.comm_hooks"),
    "PowerSGD": InTorch("""\
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=1000)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)""", "levers.powersgd"),
    "1-bit Adam": InTorch("""\
signs = momentum.sign() * momentum.abs().mean()  # what crosses; torch has no optimizer for it
error += momentum - signs  # kept, and added to the next one""", "levers.one_bit_adam"),
    "fused gated FFN": InTorch("""\
both = torch.nn.functional.linear(x, torch.cat([gate.weight, up.weight]))  # one product for two weights
hidden = torch.nn.functional.silu(both[..., :width]) * both[..., width:]""", "levers.gated_ffn"),
    "recomputed blocks": InTorch("""\
from torch.utils.checkpoint import checkpoint
for block in model.blocks:
    x = checkpoint(block, x, use_reentrant=False)""", "levers.activations"),
    "recomputed pointwise work": InTorch("""\
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
kept = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
x = checkpoint(block, x, use_reentrant=False,
               context_fn=lambda: create_selective_checkpoint_contexts(kept))""", "levers.activations"),
}
