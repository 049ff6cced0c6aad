"""Random traces of a host that launches and a GPU that works on two streams, for what must hold of any."""

from hypothesis import strategies as st

from tests.diagnose.trace.simulated import Job
from tests.diagnose.trace.synthetic import ALL_REDUCE, EXCHANGE_STREAM

piece = st.one_of(
    st.tuples(st.just("kernel"), st.floats(1, 200)),
    st.tuples(st.just("python"), st.floats(1, 400)),
    st.tuples(st.just("exchange"), st.floats(1, 300)),
    st.tuples(st.just("load"), st.floats(1, 500)),
    st.tuples(st.just("wait"), st.just(0.0)),
)
bodies = st.lists(piece, min_size=4, max_size=25).filter(lambda body: sum(kind == "kernel" for kind, _ in body) >= 2)


class Exchanging(Job):
    """A job whose exchanges run on a stream of their own; the next wait of the host includes them."""

    def exchange(self, length):
        start = max(self.now + 4.0, getattr(self, "link", 0.0))
        self.gpu(start, length, self.now, name=ALL_REDUCE, stream=EXCHANGE_STREAM)
        self.link = start + length
        self.now += 6.0

    def wait_for_gpu(self):
        self.free = max(self.free, getattr(self, "link", 0.0))
        super().wait_for_gpu()


def play(job, body):
    """One step of a body [(kind, microseconds)]."""
    for kind, length in body:
        {"kernel": job.kernel, "python": job.python, "exchange": job.exchange, "load": job.load,
         "wait": lambda _: job.wait_for_gpu()}[kind](length)


def steps(body, count=5):
    """(job, mean length in ms of the settled steps, begun by the GPU) of a body repeated."""
    job, begun = Exchanging(), []
    for number in range(count):
        start, first = job.now, len(job.events)
        play(job, body)
        begun.append(min(event["ts"] for event in job.events[first:] if event["cat"] == "kernel"))
        job.step(number + 1, start, job.now - start)
    return job, (begun[-1] - begun[1]) / (count - 2) / 1e3
