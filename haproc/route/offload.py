"""Work on long texts, done in a process of its own, so that the event loop goes on meanwhile.

Classifying and pinning are plain functions of values. Short texts are handled at once. Long ones
wait for the worker process (`haproc.route.offload_worker`); users take turns, and each has a share
of the queue. A worker ends with its HAProc in any case, because its input is closed then. A worker
that died is replaced, and its text is tried once more. A text that kills two workers, or takes too
long, is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from haproc.config.shares import Denied, Shares
from haproc.failure import ErrorClass, FailureKind, RequestError, busy, refused
from haproc.route import messages

SHORT_MAX: Final = 4096
"""The most characters or bytes of a text that is worked on in the event loop. Measured: classifying
and pinning take up to 5 µs a character; handing a text over to a worker takes about 1 ms."""
WAITING_MAX: Final = 128
"""The most texts that wait for the worker. Chosen, not measured."""
WORK_MAX_S: Final = 30.0
"""The most seconds of work on one text; the largest take a few seconds. Chosen, not measured."""
ATTEMPTS: Final = 2
TEXTS_WORKER: Final = "haproc.route.offload_worker"
BESIDE_MAX: Final = 2
"""Threads for work that is done in this process; more would only take turns."""
LARGE_PLAN: Final = 65_536
"""The most bytes of a plan that is read in the event loop, in some 10 ms if it has only
expressions. Larger ones are read in a thread."""

T = TypeVar("T")


class Texts(Protocol):
    """Does work on long texts and plans, so that the event loop goes on meanwhile."""

    async def work_on_text(self, user: str, size: int, work: Callable[..., T], *values: Any) -> T:
        """Return ``work(*values)``, or raise its error; a long text is handed to a worker process.

        ``size``: the text's length. Raises RequestError, too, if too many texts wait or the work
        takes too long.
        """
        ...

    async def beside(self, work: Callable[..., T], *values: Any) -> T:
        """Return ``work(*values)``, or raise its error; the work is done in a thread.

        For work that releases the interpreter's lock, so that other threads run.
        """
        ...


async def plan_work(texts: Texts, size: int, work: Callable[..., T], *values: Any) -> T:
    """Do work on the protobuf messages of a plan; return ``work(*values)``, or raise its error.

    ``size``: the plan's bytes. Messages cannot be sent to the worker process, so a large plan is
    handled in a thread; the event loop gets its turns.
    """
    return work(*values) if size <= LARGE_PLAN else await texts.beside(work, *values)


class Inline:
    """Implements `Texts` without a process or thread: all work is done at once."""

    async def work_on_text(self, user: str, size: int, work: Callable[..., T], *values: Any) -> T:
        """See `Texts`."""
        return work(*values)

    async def beside(self, work: Callable[..., T], *values: Any) -> T:
        """See `Texts`."""
        return work(*values)


class WorkerDiedError(Exception):
    """The worker process ended before it answered.

    ``returncode``: as in ``subprocess.Popen``; None if the process never began.
    """

    def __init__(self, message: str, returncode: int | None = None) -> None:
        super().__init__(message)
        self.returncode = returncode


class Worker:
    """A worker process, which is started when it is needed.

    `exchange` blocks, so it must be called in a thread. ``module``: the Python module that the
    process runs. ``files``: the file descriptors that it inherits.
    """

    def __init__(self, module: str = TEXTS_WORKER, files: Collection[int] = ()) -> None:
        self._module = module
        self._files = files
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._lock = threading.Lock()

    def exchange(self, value: Any) -> Any:
        """Send a value to the process and return the process's answer; raises WorkerDiedError."""
        try:
            with self._lock:
                if self._ended:
                    raise WorkerDiedError("the HAProc is stopping")
                process = self._process or self._started()
            assert process.stdin is not None and process.stdout is not None
            sent = messages.write(process.stdin, value)
            return messages.read(process.stdout, sent)[0]
        except (OSError, EOFError, ValueError) as error:  # ValueError: its pipes were closed
            raise WorkerDiedError(str(error), self.kill()) from error
        except BaseException:
            self.kill()  # the next exchange must not read an answer that is left in its pipes
            raise

    def _started(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            pass_fds=tuple(self._files),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        return self._process

    def kill(self) -> int | None:
        """End the process; the next `exchange` starts another one.

        Returns the process's return code (it may have ended earlier by itself); None if there was
        none.
        """
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        returncode = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return returncode

    def end(self) -> None:
        """End the process for good: later calls of `exchange` raise WorkerDiedError."""
        with self._lock:
            self._ended = True
        self.kill()


@dataclass(slots=True, eq=False)
class _Task:
    work: Callable[..., Any]
    values: tuple[Any, ...]
    done: asyncio.Future[Any] = field(default_factory=lambda: asyncio.Future())


class Offload:
    """Implements `Texts` with one worker process, which is started when it is needed."""

    def __init__(
        self,
        *,
        shares: Shares | None = None,
        short_max: int = SHORT_MAX,
        work_max_s: float = WORK_MAX_S,
    ) -> None:
        self._worker = Worker()
        self._thread = ThreadPoolExecutor(1, "texts")
        # Threads of their own, so that results and files need not wait for large plans.
        self._beside = ThreadPoolExecutor(BESIDE_MAX, "beside")
        self._short_max = short_max
        self._work_max_s = work_max_s
        self._shares = shares or Shares(WAITING_MAX)
        self._queues: OrderedDict[str, deque[_Task]] = OrderedDict()
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    async def work_on_text(self, user: str, size: int, work: Callable[..., T], *values: Any) -> T:
        """See `Texts`."""
        if size <= self._short_max:
            return work(*values)
        if self._closed:
            raise _stopping()
        denied = self._shares.take(user)
        if denied is not None:
            raise _busy(self._shares, denied)
        try:
            task = _Task(work, values)
            self._queues.setdefault(user, deque()).append(task)
            self._next()
            result: T = await task.done
            return result
        finally:
            self._shares.give_back(user)

    async def beside(self, work: Callable[..., T], *values: Any) -> T:
        """See `Texts`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._beside, lambda: work(*values))

    def _next(self) -> None:
        """Give the next text to the worker if the worker is idle; users take turns."""
        while self._running is None and self._queues and not self._closed:
            user, queue = self._queues.popitem(last=False)
            task = queue.popleft()
            if queue:
                self._queues[user] = queue
            if not task.done.done():  # otherwise nobody waits for it any more
                self._running = asyncio.create_task(self._do(task))

    async def _do(self, task: _Task) -> None:
        try:
            result = await self._answer(task)
            if not task.done.done():
                task.done.set_result(result)
        except Exception as error:
            if not task.done.done():
                task.done.set_exception(error)
        finally:
            self._running = None
            self._next()

    async def _answer(self, task: _Task) -> Any:
        loop = asyncio.get_running_loop()
        for _ in range(ATTEMPTS):
            values = task.work, task.values
            answer = loop.run_in_executor(self._thread, self._worker.exchange, values)
            done, _ = await asyncio.wait({answer}, timeout=self._work_max_s)
            if not done:
                self._worker.kill()
                await asyncio.wait({answer})
                answer.exception()
                raise _too_complex(f"took longer to read than {self._work_max_s:g} s")
            try:
                succeeded, value = answer.result()
            except WorkerDiedError:
                if self._closed:
                    break
                continue
            if succeeded:
                return value
            raise value
        if self._closed:
            raise _stopping()
        raise _too_complex("ended the process that read it, twice")

    async def aclose(self) -> None:
        """End the worker; requests that still wait for it get an availability error."""
        self._closed = True
        for queue in self._queues.values():
            for task in queue:
                if not task.done.done():
                    task.done.set_exception(_stopping())
        self._queues.clear()
        self._worker.end()
        if self._running is not None:
            await asyncio.wait({self._running})
        self._thread.shutdown(wait=False)
        self._beside.shutdown(wait=False)


def _too_complex(what: str) -> RequestError:
    return refused(
        ErrorClass.STATEMENT_TOO_COMPLEX,
        f"the statement {what}",
        "send it in parts, or its values as rows",
    )


def _busy(shares: Shares, denied: Denied) -> RequestError:
    number = shares.user_max if denied is Denied.SHARE_TAKEN else shares.total_max
    return busy(f"{number} long statements wait to be read, {denied.value}")


def _stopping() -> RequestError:
    return RequestError(
        FailureKind.AVAILABILITY,
        "this HAProc is stopping",
        error_class=ErrorClass.STOPPING,
        hint="try the next HAProc with the same request id",
    )
