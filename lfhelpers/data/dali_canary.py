"""Whether the GPU's JPEG engine writes where it must not while DALI decodes: a test that machines can be put to.

nvJPEG's hardware engine does not wait for the stream that it is given (pytorch/vision PR 9606: 134 of 200 rounds went
wrong on an H100), so it may overwrite memory that was freed but is still to be read by kernels in the queue. DALI owns
its buffers, and `dali_decoder` gives none back too early; this looks whether that holds. The method is that pull
request's: let the stream sleep, queue sums of tensors behind that, free the tensors, and decode while nothing has been
read yet. A wrong sum is a corrupted round.
"""

from __future__ import annotations

import io
from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lfhelpers.data.dali_decoder import Decoder, Settings
from lfhelpers.data.dali_source import Encoded
from lfhelpers.data.draws import crop_box

FILES, WIDTH, HEIGHT, SIZE = 32, 640, 480, 224
SETS = 4  # batches that take turns, so that a stale one is told from the right one
SLEEP = 40_000_000  # cycles of the GPU's clock: about 20 ms


def corrupted(iterations: int = 200, hardware: float = 1.0, ahead: int = 3) -> int:
    """In how many rounds a tensor, torch's own or a delivered batch, had other content than it must. 0 is sound.

    Needs a CUDA device, the current one. hardware: share of the files that the JPEG engine decodes.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    settings = Settings(FILES, 1, SIZE, False, device, threads=4, hardware=hardware)
    batches = [_batch(number) for number in range(SETS)]
    expected = _expected(settings, batches)
    decoder, wrong = Decoder(settings, ahead), 0
    for number in range(ahead):
        decoder.feed(batches[number % SETS])
    for number in range(iterations):
        guards = _guards(number, device)
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP)
        images = decoder.images()  # copied once the stream is awake: until then it lies in DALI's memory
        sums = [guard.sum(dtype=torch.int64) for guard in guards] + [_sums(images)]
        del guards, images  # free, and not yet read
        decoder.feed(batches[(number + ahead) % SETS])  # decoded while the stream sleeps
        torch.cuda.synchronize()
        sound = [int(value) for value in sums[:-1]] == _guard_sums(number)
        wrong += not (sound and torch.equal(sums[-1].cpu(), expected[number % SETS]))
    decoder.close()
    return wrong


_GUARDS = (FILES * SIZE * SIZE * 3, FILES * WIDTH * HEIGHT * 3, WIDTH * HEIGHT * 3)  # bytes, as DALI's own buffers have


def _guards(number: int, device: torch.device) -> list[Tensor]:
    """Fresh tensors of a known content that differs between rounds."""
    return [torch.full((size,), 1 + (number + place) % 250, dtype=torch.uint8, device=device)
            for place, size in enumerate(_GUARDS)]


def _guard_sums(number: int) -> list[int]:
    return [size * (1 + (number + place) % 250) for place, size in enumerate(_GUARDS)]


def _sums(images: Tensor) -> Tensor:
    """int64 [B], one for each image, with places weighted so that moved pixels change it."""
    weights = torch.arange(images[0].numel(), device=images.device, dtype=torch.int64) % 251 + 1
    return (images.flatten(1).to(torch.int64) * weights).sum(1)


def _expected(settings: Settings, batches: list[Encoded]) -> list[Tensor]:
    """The sums of each batch, decoded while the device does nothing else."""
    decoder, sums = Decoder(settings, 1), []
    for batch in batches:
        decoder.feed(batch)
        sums.append(_sums(decoder.images()).cpu())
        torch.cuda.synchronize()
    decoder.close()
    return sums


def _batch(number: int) -> Encoded:
    files: list[NDArray[np.uint8]] = []
    for place in range(FILES):
        colours = np.random.default_rng([number, place]).integers(0, 256, (HEIGHT // 16, WIDTH // 16, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(colours).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        files.append(np.frombuffer(buffer.getvalue(), np.uint8))
    boxes = np.tile(np.array(crop_box((0.5, 0.5), WIDTH, HEIGHT), np.float32), (FILES, 1))
    return Encoded(files, boxes, None, {}, [], Counter())
