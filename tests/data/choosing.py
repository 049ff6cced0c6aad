"""A workload on the small dataset, for processes that measure engines."""

from tests.data.toy_shards import ToyFields, tensors


class Workload:
    """As much of one as loaders need."""

    fields = ToyFields()
    sample = staticmethod(tensors)


def find(job):
    """The workload of any recipe."""
    return Workload()


def broken(job):
    """A workload whose file has a mistake."""
    raise NameError("name 'torhc' is not defined")
