"""A host that launches and a GPU that runs, simulated: what a trace would show, and how long a step truly takes."""

from tests.diagnose.trace.synthetic import LOADER, Writer

LAUNCH, LATENCY = 6.0, 4.0


class Job(Writer):
    """One thread and one stream. The host is at `now`, the GPU is free from `free` on."""

    def __init__(self):
        super().__init__()
        self.now = self.free = 1000.0

    def kernel(self, length, name="sm90_gemm"):
        start = max(self.free, self.now + LATENCY)
        self.gpu(start, length, self.now, name=name)
        self.now += LAUNCH
        self.free = start + length

    def python(self, length):
        self.now += length

    def wait_for_gpu(self):
        end = max(self.now, self.free)
        self.host("cudaStreamSynchronize", self.now, end + 2 - self.now, category="cuda_runtime")
        self.now = end + 2

    def load(self, length):
        self.host(LOADER, self.now, length, category="user_annotation")
        self.now += length


def run(body, steps=6):
    """(job, mean length in ms of the steps but the first and the last, begun by the GPU) of `body(job)` repeated."""
    job, begun = Job(), []
    for number in range(steps):
        start = job.now
        begun.append(max(job.free, job.now + LATENCY))
        body(job)
        job.step(number + 1, start, job.now - start)
    return job, (begun[-1] - begun[1]) / (steps - 2) / 1e3
