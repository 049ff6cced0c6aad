"""The step report for loops that other libraries run: a callback each, the same report and ceilings as `lf.watch`.

    Trainer(..., callbacks=[lfhelpers.adapters.hugging_face()])          # transformers
    Trainer(..., callbacks=[lfhelpers.adapters.lightning()])             # lightning, or pytorch_lightning
    for batch in lfhelpers.watch(loader, model, optimizer): ...          # a plain loop needs none

Nothing of these libraries is imported before its function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lfhelpers.errors import LfError

if TYPE_CHECKING:
    from lfhelpers.adapters.hugging_face import HuggingFaceReport
    from lfhelpers.adapters.lightning import LightningReport

__all__ = ["hugging_face", "lightning"]


def hugging_face(skip: int = 5, show: bool = True) -> HuggingFaceReport:
    """A callback for transformers.Trainer; `skip` first steps aren't counted, `show` prints the report at the end.

    Raises LfError where transformers isn't installed.
    """
    try:
        from lfhelpers.adapters.hugging_face import HuggingFaceReport as Report
    except ModuleNotFoundError as error:
        raise LfError(f"this callback needs transformers and accelerate ({error}); install them: "
                      "pip install 'lfhelpers[adapters]'.") from error
    return Report(skip, show)


def lightning(skip: int = 5, show: bool = True) -> LightningReport:
    """A callback for Lightning's Trainer; `skip` and `show` as above. Raises LfError where Lightning isn't installed.
    """
    try:
        from lfhelpers.adapters.lightning import LightningReport as Report
    except ModuleNotFoundError as error:
        raise LfError(f"this callback needs lightning ({error}); install it: pip install 'lfhelpers[adapters]'."
                      ) from error
    return Report(skip, show)
