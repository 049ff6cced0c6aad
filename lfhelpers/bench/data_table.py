"""From the rates of `bench data` to the rows of its table and to the figures for which goals are set."""

from __future__ import annotations

import statistics

from lfhelpers.bench import data_engines
from lfhelpers.data.rate import Rate
from lfhelpers.measure.record import Row


def rows(name: str, rates: list[Rate]) -> list[Row]:
    """Speed, CPU time, bytes over the bus and GPU load of one engine; only the first where it failed."""
    found = [Row.of(name, [rate.images_per_s for rate in rates], "images/s")]
    if not rates:
        return found
    found.append(Row.of(name, [1e3 * rate.cpu_seconds / rate.images for rate in rates], "CPU ms/image"))
    copied = [rate.copied_bytes / rate.images / 1e3 for rate in rates if rate.copied_bytes is not None]
    gpu = [rate.gpu_percent for rate in rates if rate.gpu_percent is not None]
    jpeg = [rate.jpeg_percent for rate in rates if rate.jpeg_percent is not None]
    more = {"kB/image to the GPU": copied, "% of time a kernel ran": gpu, "% of the JPEG engines": jpeg}
    return found + [Row.of(name, values, unit) for unit, values in more.items() if values]


def hardware_ceiling(found: dict[str, list[Rate]], cores: int) -> list[Row]:
    """What each JPEG engine of the GPU decodes when all images go there."""
    count, rates = data_engines.jpeg_engines(), found.get(f"dali mixed 1 x{cores}", [])
    if not count or not rates:
        return []
    return [Row.of(f"decode ceiling, one of {count} JPEG engines", [rate.images_per_s / count for rate in rates],
                   "images/s")]


def checks(found: dict[str, list[Rate]], cores: int, gpu: bool) -> dict[str, float]:
    """The figures for which goals are set, of what was measured."""
    if not gpu:
        return _ratios(found, {"threads_over_naive": (f"threads exact x{cores}", "plain x2"),
                               "threads_scaled_over_naive": (f"threads scaled x{cores}", "plain x2")})
    mixed = {name: statistics.median(rate.images_per_s for rate in rates) for name, rates in found.items()
             if name.startswith("dali mixed") and name.endswith(f"x{cores}") and rates}
    if not mixed:
        return {}
    best = max(mixed, key=lambda name: mixed[name])
    return {"dali_mixed_images_per_s": mixed[best]} | _ratios(
        found, {"dali_mixed_over_pillow_all_cores": (best, f"webdataset as documented x{cores}"),
                "dali_mixed_over_webdataset_engine": (best, f"webdataset x{cores}")})


def _ratios(found: dict[str, list[Rate]], wanted: dict[str, tuple[str, str]]) -> dict[str, float]:
    """Medians over rounds of one engine's speed over another's in the same round."""
    pairs = {name: list(zip(found.get(over, []), found.get(under, []), strict=False))
             for name, (over, under) in wanted.items()}
    return {name: statistics.median(a.images_per_s / b.images_per_s for a, b in both) for name, both in pairs.items()
            if both}
