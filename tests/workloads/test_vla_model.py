"""The reference model: its published parameter counts, what of it is trained, and its parts' promises."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from lfhelpers.errors import LfError
from lfhelpers.recipe import recipe
from lfhelpers.workloads.base import Workload
from lfhelpers.workloads.vla import sizes
from lfhelpers.workloads.vla.action import EmbodimentLinear, EmbodimentMLP, Used
from lfhelpers.workloads.vla.language import Decoder, rotary, rotate
from lfhelpers.workloads.vla.model import VlaModel, store_frozen_in_bf16
from lfhelpers.workloads.vla.vision import Connector, VisionTower, patches
from lfhelpers.workloads.vla.workload import Vla
from tests.workloads.vla_batches import batch, built, job


def on_meta(size: str, *overrides: str) -> VlaModel:
    with torch.device("meta"):
        return VlaModel(sizes.find(size), recipe("competent", *overrides).workload)


def millions(module: nn.Module, digits: int, trained: bool = False) -> float:
    return round(sum(p.numel() for p in module.parameters() if p.requires_grad or not trained) / 1e6, digits)


@pytest.mark.parametrize(("size", "used", "trained", "digits"),
                         [("full", 2960.7, 1620.0, 1), ("small", 264.4, 168.9, 1), ("tiny", 1.40, 0.86, 2)])
def test_parameters_used_and_trained(size: str, used: float, trained: float, digits: int) -> None:
    model = on_meta(size)
    assert millions(model, digits) == used
    assert millions(model, digits, trained=True) == trained


@pytest.mark.parametrize(("size", "digits", "parts"), [
    ("full", 1, (412.4, 13.6, 805.4, 310.6, 1091.7, 326.9)),
    ("small", 1, (38.3, 2.2, 56.6, 12.6, 134.6, 20.1)),
    ("tiny", 2, (0.12, 0.03, 0.44, 0.05, 0.58, 0.17)),
])
def test_parameters_by_part(size: str, digits: int, parts: tuple[float, ...]) -> None:
    """Vision tower, connector, decoder, token embeddings, DiT, and the embodiment layers with their positions."""
    model = on_meta(size)
    embed, dit = millions(model.decoder.embed, 6), millions(model.head.dit, 6)
    counted = (millions(model.vision, digits), millions(model.connector, digits),
               round(millions(model.decoder, 6) - embed, digits), round(embed, digits),
               round(dit, digits), round(millions(model.head, 6) - dit, digits))
    assert counted == parts


def test_parameters_of_the_published_blocks() -> None:
    model = on_meta("full")
    cross, own = model.head.dit.blocks[:2]
    assert (millions(cross, 2), millions(own, 2), millions(model.decoder.layers[0], 2)) == (34.62, 33.05, 50.34)
    assert millions(model, 3, trained=True) == 1619.968


def test_language_model_head_exists_only_where_it_is_used() -> None:
    assert not hasattr(on_meta("full"), "lm_head")
    head = on_meta("full", "workload.compute_logits=true").lm_head
    assert (millions(head, 2), millions(head, 2, trained=True)) == (310.64, 0)
    assert millions(on_meta("full", "workload.text_loss=1").lm_head, 2, trained=True) == 310.64


@pytest.mark.parametrize(("overrides", "frozen"), [
    ((), {"vision", "connector", "embed", "final norm", "layer 0", "layer 1", "layer 2"}),
    (("workload.tune_top_layers=3",), {"vision", "connector", "embed", "final norm", "layer 0"}),
    (("workload.tune_top_layers=0",),
     {"vision", "connector", "embed", "final norm", "layer 0", "layer 1", "layer 2", "layer 3"}),
    (("workload.tune_language=true",), {"vision", "connector"}),
    (("workload.tune_vision=true", "workload.tune_language=true"), set()),
])
def test_frozen_parts_get_no_gradient_and_trained_ones_do(overrides: tuple[str, ...], frozen: set[str]) -> None:
    workload = Vla(job(*overrides))
    model = built(workload)
    total, weight = workload.loss(model, batch(workload, 2), workload.draws(2, torch.Generator().manual_seed(0)))
    (total / weight).backward()
    parts = {"vision": model.vision, "connector": model.connector, "embed": model.decoder.embed,
             "final norm": model.decoder.norm, "vlln": model.norm, "head": model.head,
             **{f"layer {index}": layer for index, layer in enumerate(model.decoder.layers)}}
    assert {name for name, part in parts.items() if all(p.grad is None for p in part.parameters())} == frozen
    touched = {name: bool(p.grad.abs().sum() > 0) for name, p in model.named_parameters() if p.requires_grad}
    # A bias of the keys moves all scores of a query alike, which softmax does not see: its gradient is rounding.
    assert [name for name, moved in touched.items() if not moved and "key.bias" not in name] == []
    counted = sum(p.numel() for part in parts.values() for p in part.parameters())
    assert counted == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("overrides", "words"), [
    (("workload.size=tinny",), ("workload.size", "did you mean 'tiny'?")),
    (("workload.tune_top_layers=9",), ("workload.tune_top_layers", "has 4 layers")),
])
def test_what_does_not_exist_is_refused_by_field(overrides: tuple[str, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(LfError) as refused:
        Vla(job(*overrides))
    assert all(word in str(refused.value) for word in words)


def test_it_is_a_workload() -> None:
    workload = Vla(job())
    assert isinstance(workload, Workload)
    assert len(workload.blocks(on_meta("tiny"))) == 2 + 4 + 4
    assert [Vla(job(f"workload.size={size}")).default_lr() for size in ("full", "small", "tiny")] == [1e-4, 3e-4, 1e-3]
    assert workload.fields.others == ("txt", "state.f32", "action.f32")
    assert Vla(job("workload.text_loss=0.5")).fields.others[-1] == "json"


def test_same_seed_same_weights() -> None:
    first, second, other = (built(Vla(job()), seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["vision.patch.weight"], other["vision.patch.weight"])


@pytest.mark.parametrize("pool", [torch.tensor([0, 0, 0, 0]), torch.tensor([2, 0, 1, 2])])
def test_gathered_embodiment_weights_equal_known_ones(pool: torch.Tensor) -> None:
    """Values and gradients: gathering each sample's weights, or computing with those of the embodiments in use."""
    torch.manual_seed(0)
    gathered, known = (EmbodimentMLP(4, 5, 6, 7, Used(ids)) for ids in (None, tuple(sorted(set(pool.tolist())))))
    known.load_state_dict(gathered.state_dict())
    x, slope = torch.randn(4, 3, 5), torch.randn(4, 3, 7)
    for layer in (gathered, known):
        (layer(x, pool) * slope).sum().backward()
    torch.testing.assert_close(known(x, pool), gathered(x, pool), rtol=1e-6, atol=1e-6)
    for one, other in zip(known.parameters(), gathered.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6)


def test_only_the_embodiments_in_the_batch_learn() -> None:
    layer = EmbodimentLinear(4, 5, 6, Used(None))
    layer(torch.randn(2, 3, 5), torch.tensor([1, 3])).sum().backward()
    assert [bool(row.abs().sum() > 0) for row in layer.weight.grad] == [False, True, False, True]


def test_images_of_both_kinds_become_the_same_patches() -> None:
    pixels = torch.randint(0, 256, (2, 2, 28, 28, 3), dtype=torch.uint8)
    normalised = pixels.movedim(-1, -3).float() / 127.5 - 1
    assert torch.equal(patches(pixels, 14), patches(normalised, 14))
    assert patches(pixels, 14).shape == (4, 4, 3 * 14 * 14)
    lower_left = normalised[1, 0, :, 14:, :14]
    assert torch.equal(patches(pixels, 14)[2, 2], lower_left.flatten())


def test_connector_joins_neighbouring_patches() -> None:
    """A change in one patch moves one token alone: that of its own 2x2 square."""
    torch.manual_seed(0)
    size = sizes.find("tiny").vision
    connector, x = Connector(size, 8), torch.randn(2, 16, size.width)
    changed = x.clone()
    changed[0, 6] += 1  # row 1, column 2 of the 4x4 grid: the upper right square of the first view
    moved = (connector(changed) - connector(x)).abs().sum(-1) > 1e-6
    assert moved.tolist() == [[False, True, False, False, False, False, False, False]]


def test_positions_are_resized_to_the_images_own_grid() -> None:
    small = sizes.VisionSize(layers=1, width=8, ffn=8, heads=2, pixels=84, positions=4)
    assert VisionTower(small)(torch.zeros(1, 2, 84, 84, 3, dtype=torch.uint8)).shape == (2, 36, 8)


def test_decoder_does_not_see_the_future() -> None:
    torch.manual_seed(0)
    size = sizes.find("tiny").language
    decoder, image = Decoder(size, 8, 0), torch.randn(1, 8, size.width)
    tokens = torch.randint(0, 512, (1, 16))
    changed = tokens.clone()
    changed[0, 10] += 1
    moved = (decoder(image, changed) - decoder(image, tokens)).abs().sum(-1)[0] > 0
    assert moved.tolist() == [False] * 18 + [True] * 6


def test_rotary_scores_depend_on_distance_alone() -> None:
    cos, sin = rotary(40, 24)
    query, key = torch.randn(2, 1, 1, 24, generator=torch.Generator().manual_seed(0)).expand(2, 1, 40, 24)
    scores = rotate(query[None], cos, sin)[0, 0] @ rotate(key[None], cos, sin)[0, 0].T
    torch.testing.assert_close(scores.diagonal(3), scores[0, 3].expand(37), rtol=1e-5, atol=1e-5)
    assert scores.diagonal(3)[0] != scores.diagonal(5)[0]


def test_frozen_weights_are_stored_in_bf16_and_trained_ones_in_fp32() -> None:
    model = on_meta("tiny")
    store_frozen_in_bf16(model)
    assert {(p.requires_grad, p.dtype) for p in model.parameters()} == {(False, torch.bfloat16), (True, torch.float32)}
    by_recipe = {mode: Vla(recipe("competent", *mode)).model().decoder.embed.weight.dtype for mode in (
        ("precision.mode=bf16",), ("precision.mode=bf16", "precision.frozen_bf16=false"), ("precision.mode=fp32",))}
    assert list(by_recipe.values()) == [torch.bfloat16, torch.float32, torch.float32]


@pytest.mark.parametrize("overrides", [(), ("workload.tune_vision=true",), ("workload.tune_language=true",),
                                       ("precision.frozen_bf16=false",), ("workload.text_loss=1",)])
def test_bf16_autocast_trains_near_fp32(overrides: tuple[str, ...]) -> None:
    losses = []
    for mode in ("fp32", "bf16"):
        workload = Vla(recipe("competent", f"precision.mode={mode}", *overrides))
        model, draws = built(workload), workload.draws(4, torch.Generator().manual_seed(0))
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "bf16"):
            total, weight = workload.loss(model, batch(workload, 4), draws)
        total.backward()
        assert {total.dtype, weight.dtype} == {torch.float32}
        losses.append((total / weight).item())
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] != losses[0]


def test_blocks_compile_without_a_graph_break() -> None:
    """Six graphs for ten blocks: vision, decoder frozen and trained, attention to text, to images and to itself."""
    torch._dynamo.reset()
    graphs = CompileCounter()  # traces, and runs what it traced eagerly
    workload = Vla(job())
    model, inputs, draws = built(workload), batch(workload, 2), workload.draws(2, torch.Generator().manual_seed(0))
    expected = workload.loss(model, inputs, draws)[0]
    for block in workload.blocks(model):
        block.compile(backend=graphs, fullgraph=True, dynamic=False)
    for _ in range(2):
        torch.testing.assert_close(workload.loss(model, inputs, draws)[0], expected, rtol=1e-6, atol=1e-6)
    assert graphs.frame_count == 6


def test_blocks_attend_to_what_they_are_published_to() -> None:
    """Block 0 is given the text, block 2 the images, and the odd ones nothing but their own tokens."""
    workload = Vla(job())
    model, inputs = built(workload), batch(workload, 2)
    seen: list[list[torch.Tensor]] = []
    for block in model.head.dit.blocks:
        block.register_forward_hook(lambda _block, given, _output: seen.append(list(given[2:])))
    hidden = []
    model.norm.register_forward_hook(lambda _norm, _given, output: hidden.append(output))
    model(inputs, torch.zeros(2, 16, 16), torch.zeros(2, dtype=torch.long))
    image, text = hidden[0][:, :8], hidden[0][:, 8:24]
    assert [len(context) for context in seen] == [1, 0, 1, 0]
    assert torch.equal(seen[0][0], text)
    assert torch.equal(seen[2][0], image)


@pytest.mark.parametrize(("overrides", "expected"), [
    ((), [False] * 5 + [True] * 5),
    (("workload.tune_language=true",), [False] * 2 + [True] * 8),
    (("workload.tune_vision=true",), [True] * 10),
])
def test_frozen_blocks_build_no_graph(overrides: tuple[str, ...], expected: list[bool]) -> None:
    """Two vision blocks, four decoder layers, four of the DiT: which outputs autograd follows."""
    workload = Vla(job(*overrides))
    model, followed = built(workload), []
    for block in workload.blocks(model):
        block.register_forward_hook(lambda _block, _given, output: followed.append(output.requires_grad))
    workload.loss(model, batch(workload, 1), workload.draws(1, torch.Generator()))
    assert followed == expected
