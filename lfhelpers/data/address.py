"""Folders behind a protocol: one way to read a file there, for all that fsspec knows.

Web servers are asked with the standard library and everything else through fsspec, whose driver for http keeps an event
loop in a thread: data workers are forked, and each fork would block on the loop that it inherits without the thread.
"""

from __future__ import annotations

import base64
import contextlib
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

from lfhelpers.errors import LfError, nearest

BLOCK = 2**22  # bytes a request, where a driver asks for ranges
TEMPORARY = (408, 416, 425, 429)  # answers below 500 that may be another one next time


@dataclass(frozen=True)
class Address:
    """A folder behind a protocol, such as `https://host/set` or `s3://bucket/set`."""

    text: str

    def __str__(self) -> str:
        """Without the query and the password, which may be secrets: for sentences."""
        parts = urlsplit(self.text)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")).rstrip("/")

    @property
    def http(self) -> bool:
        """Whether it is a web server's, which is asked without fsspec."""
        return self.text.startswith(("http://", "https://"))

    def of(self, name: str) -> str:
        """The address of a file in the folder; what follows a `?` stays at the end."""
        if not self.http:
            return f"{self.text.rstrip('/')}/{name}"
        parts = urlsplit(self.text)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))

    def request(self, name: str, offset: int) -> urllib.request.Request:
        """The question to a web server for a file, from byte `offset` on."""
        parts = urlsplit(self.of(name))
        user, _, host = parts.netloc.rpartition("@")
        request = urllib.request.Request(urlunsplit(parts._replace(netloc=host)))
        if user:
            request.add_header("Authorization", f"Basic {base64.b64encode(unquote(user).encode()).decode()}")
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        return request

    def censored(self, text: str) -> str:
        """`text` without this address's secrets."""
        parts = urlsplit(self.text)
        for secret in (parts.query, parts.netloc.rpartition("@")[0]):
            text = text.replace(secret, "...") if secret else text
        return text


@contextlib.contextmanager
def open_at(address: Address, name: str, offset: int, stall: float) -> Iterator[Callable[[int], bytes]]:
    """What reads the file on from `offset`. Raises LfError where the protocol is unknown or its driver is missing."""
    if address.http:
        with urllib.request.urlopen(address.request(name, offset), timeout=stall) as answer:
            yield answer.read1  # whatever is there, so that no byte is lost when the connection breaks
        return
    import fsspec

    protocol = address.text.partition("://")[0]
    try:
        # Asynchronous drivers have a thread; an instance that a fork inherits without it would block there while it is
        # cleared away. So none is kept: it ends with its file, and the next one costs a connection.
        files, path = fsspec.core.url_to_fs(address.of(name), skip_instance_cache=True)
    except ImportError as error:  # fsspec's text names the package, as in "Install s3fs to access S3"
        raise LfError(f"{address} needs a package that is missing here: {error}.") from error
    except ValueError as error:
        raise LfError(f"{address} can't be read: nothing here knows the protocol '{protocol}'; "
                      f"{nearest(protocol, fsspec.available_protocols())}") from error
    with files.open(path, "rb", block_size=BLOCK) as file:
        file.seek(offset)
        yield file.read


def is_hopeless(error: Exception) -> bool:
    """Whether no further attempt can help: it isn't there, or we may not have it."""
    status = getattr(error, "status", 0)
    return (isinstance(error, FileNotFoundError | PermissionError)
            or (isinstance(status, int) and 400 <= status < 500 and status not in TEMPORARY))


def reason(error: Exception, address: Address) -> str:
    """Why an attempt failed, in words that end no sentence."""
    status = getattr(error, "status", 0)
    if isinstance(error, FileNotFoundError) or status == 404:
        return "it is not there"
    if status:
        return f"the server answered {status}"
    text = str(getattr(error, "reason", error))  # urllib hides the cause there
    return address.censored(text.partition("\n")[0].rstrip(".") or type(error).__name__)
