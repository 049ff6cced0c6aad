"""Traces written event by event, in the profiler's own form: times in microseconds, threads and streams by number."""

import json

MAIN, ENGINE, OTHER = 100, 101, 102
COMPUTE_STREAM, EXCHANGE_STREAM, COPY_STREAM = 7, 20, 24
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
NODE = "autograd::engine::evaluate_function: MmBackward0"
UPDATE = "Optimizer.step#AdamW.step"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"


class Writer:
    """Collects events; `write` leaves a file."""

    def __init__(self, **head):
        self.events = []
        self.head = head
        self._ids = 0

    def add(self, category, name, start, length, thread=MAIN, **args):
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": round(start, 3),
                            "dur": round(length, 3), "args": args})

    def host(self, name, start, length, thread=MAIN, category="cpu_op", **args):
        self.add(category, name, start, length, thread, **args)

    def gpu(self, start, length, launched=None, thread=MAIN, name=GEMM, stream=COMPUTE_STREAM, category="kernel",
            call="cudaLaunchKernel", **args):
        """A piece of GPU work; `launched` is when the host's call began, None: the trace holds no launch of it."""
        self._ids += 1
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": round(start, 3),
                            "dur": round(length, 3), "args": {"device": 0, "stream": stream, "correlation": self._ids,
                                                              "External id": self._ids, **args}})
        if launched is not None:
            self.add("cuda_runtime", call, launched, 3.0, thread, correlation=self._ids)
        return self._ids

    def step(self, number, start, length):
        self.add("user_annotation", f"ProfilerStep#{number}", start, length)

    def write(self, path, **head):
        path.write_text(json.dumps({"schemaVersion": 1, **self.head, **head, "traceEvents": self.events}))
        return path


class Timeline(Writer):
    """A GPU that is never idle but by the segments below; each adds its cause to `truth`, in microseconds.

    Segments begin where the GPU has just become idle and end with a kernel, whose launch explains the gap.
    """

    KERNEL = 50.0

    def __init__(self, **head):
        super().__init__(**head)
        self.now = 1000.0
        self.truth = {}

    def count(self, part, length):
        self.truth[part] = self.truth.get(part, 0.0) + length

    def compute(self, length, launched=None, thread=MAIN):
        self.gpu(self.now, length, self.now - 1.0 if launched is None else launched, thread)
        self.count("compute", length)
        self.now += length

    def gap(self, cause, length, name=None, thread=MAIN, category="user_annotation"):
        """The host was in `name` for all of the gap, and launched at its end."""
        if name:
            self.host(name, self.now, length, thread, category)
        self.count(cause, length)
        self.now += length
        self.compute(self.KERNEL, self.now, thread)

    def data(self, length):
        self.gap("data", length, LOADER)

    def synchronisation(self, length):
        self.gap("synchronisation", length, "cudaStreamSynchronize", category="cuda_runtime")

    def forward_host(self, length):
        self.gap("forward host", length, "aten::linear", category="cpu_op")

    def backward_host(self, length):
        self.gap("backward host", length, NODE, ENGINE, "cpu_op")

    def optimizer_host(self, length):
        self.gap("optimizer host", length, UPDATE)

    def launch_latency(self, length):
        self.count("launch latency", length)
        started = self.now + 0.001  # behind the end of what ran before, or it would have been queued
        self.now += length
        self.compute(self.KERNEL, started)

    def dependency(self, length):
        self.count("dependency", length)
        queued = self.now - 1.0
        self.now += length
        self.compute(self.KERNEL, queued)

    def unknown(self, length):
        self.count("unknown", length)
        self.now += length
        self.gpu(self.now, self.KERNEL)
        self.count("compute", self.KERNEL)
        self.now += self.KERNEL

    def exposed_communication(self, length):
        """An exchange, the first fifth of it beside a kernel."""
        self.gpu(self.now, length, self.now - 1.0, name=ALL_REDUCE, stream=EXCHANGE_STREAM)
        self.gpu(self.now, length / 5, self.now - 1.0)
        self.count("compute", length / 5)
        self.count("exposed communication", length * 4 / 5)
        self.now += length
        self.compute(self.KERNEL)

    def exposed_copies(self, length):
        self.gpu(self.now, length, self.now - 1.0, name="Memcpy HtoD (Pinned -> Device)", stream=COPY_STREAM,
                 category="gpu_memcpy", call="cudaMemcpyAsync", bytes=1000)
        self.count("exposed copies", length)
        self.now += length
        self.compute(self.KERNEL)

    def steps(self, segments, count=4):
        """`count` steps of the same segments [(name, length)], each begun by a kernel; the last isn't in `truth`."""
        for number in range(count):
            if number == count - 1:
                self.truth, kept = {}, self.truth
            begin = self.now
            self.compute(self.KERNEL, begin + 0.001)  # launched in the step, where the GPU's window begins
            for name, length in segments:
                getattr(self, name)(length)
            self.step(number + 1, begin, self.now - begin)
        self.truth = kept
        return self


def percent(truth):
    whole = sum(truth.values())
    return {part: 100 * length / whole for part, length in truth.items()}
