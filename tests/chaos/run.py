"""One run: founds the bank, lets the plan happen, waits until all is whole, and asks the judge.

A run that breaks off is mended as far as that goes: where all comes downstream yet, it is judged as
any other, else up to the checkpoint of the Drainer.
"""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from traceback import extract_tb
from typing import Final

import psutil
import pymysql

from penstock.cluster import etcd
from penstock.cluster.history import History as DdlHistory
from penstock.errors import PenstockError, Retryable
from penstock.ts import physical_ms
from tests.chaos.cluster import Cluster
from tests.chaos.faults import BODIES, LeftOut, patience
from tests.chaos.history import CAPITAL, History, ddl_key, history_of
from tests.chaos.judge import judge, unsettled, until
from tests.chaos.logs import unexplained
from tests.chaos.plan import AT_ONCE_MAX, DRAINERS, WRITERS, Fault
from tests.chaos.reader import Reader, final_tables
from tests.chaos.result import NO_TIME, Happening, Result, left_out_too_often
from tests.chaos.writer import FOUNDER

log = logging.getLogger(__name__)

WHOLE_S_MAX: Final = 300.0
"""How long after the last fault everything must be downstream: the time in which a Pump rolls back
what a dead writer left open, a Drainer's start, and what has piled up meanwhile."""
_BEGIN_S_MAX: Final = 600.0
_VERDICT_S_MAX: Final = 120.0
_CALM_S: Final = 5.0
"""How long writers write after the last fault: all of them must be able to."""
_PROGRESS_S: Final = 5.0
_BREATH_S: Final = 30.0
"""After so long without a transaction acknowledged, or twice that without one downstream, no fault
comes before there is one: a cluster that is always down proves nothing."""


_STARVED: Final = (
    *(TimeoutError, subprocess.TimeoutExpired, Retryable),
    *(FileNotFoundError, ProcessLookupError, psutil.Error),
)
"""What a fault's body raises where a machine is too busy, or something ends just then: the fault is
not made, which the table counts; too many of them are a find. All else is a defect."""


class Broken(Exception):
    """The run cannot continue; what it says is the failure."""


class _Journals:
    """Reads what writers have noted since the last look."""

    def __init__(self, cluster: Cluster) -> None:
        self._paths = [cluster.journal(name) for name in (FOUNDER, *WRITERS)]
        self._offsets = [0] * len(self._paths)
        self.acknowledged = 0
        self.acknowledged_s = 0.0
        """When the last one was seen, by `time.time`."""
        self.others = 0
        self.last_ts = 0

    def look(self) -> None:
        for at, path in enumerate(self._paths):
            if not path.exists():
                continue
            with path.open("rb") as lines:
                lines.seek(self._offsets[at])
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    self._offsets[at] += len(line)
                    self._count(line)

    def _count(self, line: bytes) -> None:
        if b'"outcome": "acknowledged"' in line and b'"end": [' in line:
            self.acknowledged += 1
            self.acknowledged_s = time.time()
        elif b'"outcome": ' in line and b'"end": [' in line:
            self.others += 1
        elif b'"decided": ' in line:
            self.last_ts = max(
                self.last_ts, int(line.rpartition(b'"commit_ts": ')[2].strip(b"}\n"))
            )

    def whole(self) -> History:

        def lines() -> Iterator[str]:
            for path in self._paths:
                if path.exists():
                    with path.open(encoding="utf-8", newline="\n") as text:
                        yield from text

        return history_of(lines())


class Run:
    """Lets a plan happen to a cluster."""

    def __init__(self, cluster: Cluster, faults: tuple[Fault, ...], length_s: float) -> None:
        self._cluster, self._faults, self._length_s = cluster, faults, length_s
        self._reader = Reader(cluster.mariadb)
        self._journals = _Journals(cluster)
        self._calm = threading.Event()
        """Set once what lasts is to end."""
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        # Mending may take longer than planned.
        occupied = frozenset[str]().union(*(fault.occupies for fault in faults))
        self._whole = {name: threading.Lock() for name in occupied}
        self._failures: list[str] = []
        self._shown_s = 0.0
        self.result = Result()

    def run(self) -> Result:
        result = self.result
        try:
            is_whole = self._lived()
        finally:
            self._calm.set()
            self._over.set()
            if self._reader.is_alive():
                self._reader.stop()
        cluster = self._cluster
        result.checks, result.advances = self._reader.checks, self._reader.advances
        result.deposed, result.decisions = len(cluster.deposed), len(cluster.decisions)
        result.restores = [str(restore) for restore in cluster.restores]
        result.history = self._journals.whole()
        result.problems += self._verdict(is_whole=is_whole)
        result.problems += left_out_too_often(result.happenings)
        for name, path in cluster.logs.items():
            put_back = [restore.windows(name) for restore in cluster.restores]
            with path.open("rb") as lines:
                found = list(dict.fromkeys(unexplained(lines, put_back)))
            result.problems += [f"{name} logged: {line}" for line in found[:10]]
        return result

    def _lived(self) -> bool:
        """Let everything happen; return whether everything is downstream in the end."""
        try:
            self._begin()
            self._chaos()
        except Broken as failure:
            self.result.problems.append(str(failure))
            if not self._reader.snapshots:
                return False
            say(f"the run breaks off: {failure}")
            self._mend()
        try:
            self._until_whole()
        except Broken as failure:
            self.result.problems.append(str(failure))
            return False
        return True

    def _mend(self) -> None:
        """End all faults, and let what was found stay as it is: it has been said."""
        self._calm.set()
        for thread in self._threads:
            thread.join(WHOLE_S_MAX)
        self._failures.clear()
        self._cluster.may_be_down.update(self._cluster.dead())
        self._reader.problem = ""

    def _begin(self) -> None:
        say("the cluster starts")
        cluster = self._cluster
        began_s = time.monotonic()
        try:
            cluster.found()
        except (subprocess.SubprocessError, PenstockError) as error:
            raise Broken(f"no bank was founded: {error}") from error
        self._reader.start()
        while not self._reader.snapshots or self._reader.snapshots[-1].total != CAPITAL:
            self._watch(began_s)
            self._limit(began_s, "the bank is not downstream", _BEGIN_S_MAX)
        founded = self._journals.acknowledged
        for name in WRITERS:
            cluster.start(name)
        while self._journals.acknowledged == founded:
            self._watch(began_s)
            self._limit(began_s, "no writer could write", _BEGIN_S_MAX)
        # How long the start took is no stall.
        self._reader.advances = self._reader.advances[-1:]
        say(f"the bank is open after {time.monotonic() - began_s:.0f} s")

    def _chaos(self) -> None:
        began_s = time.monotonic()
        waiting = list(self._faults)
        threads = self._threads
        while waiting or time.monotonic() - began_s < self._length_s:
            now_s = time.monotonic() - began_s
            # On a slow machine faults last longer than planned, and others come later.
            while (
                waiting
                and waiting[0].at_s <= now_s
                and self._may_happen(threads, waiting[0])
                and self._breathes(threads)
            ):
                threads.append(threading.Thread(target=self._happen, args=(waiting.pop(0),)))
                threads[-1].start()
            if now_s > self._length_s:
                for fault in waiting:
                    self._leave_out(Happening(fault, "", time.time()), NO_TIME)
                waiting.clear()
            self._watch(began_s)
        while any(thread.is_alive() for thread in threads):
            self._watch(began_s)

    def _may_happen(self, threads: list[threading.Thread], fault: Fault) -> bool:
        lasting = sum(thread.is_alive() for thread in threads)
        whole = not any(self._whole[name].locked() for name in fault.occupies)
        return whole and lasting < AT_ONCE_MAX

    def _breathes(self, threads: list[threading.Thread]) -> bool:
        """Return whether there was progress of late; break off if none comes without a fault."""
        now_s = time.time()
        for what, last_s, within_s in (
            ("acknowledged", self._journals.acknowledged_s, _BREATH_S),
            ("downstream", self._reader.advances[-1][0], 2 * _BREATH_S),
        ):
            if now_s - last_s > within_s:
                if not any(thread.is_alive() for thread in threads):
                    ended_s = max((h.ended_s for h in self.result.happenings), default=0.0)
                    since_s = time.monotonic() - (now_s - max(last_s, ended_s))
                    self._limit(since_s, f"no transaction is {what}, and no fault lasts,")
                return False
        return True

    def _leave_out(self, happening: Happening, why: str) -> None:
        happening.left_out, happening.ended_s = why, time.time()
        if happening not in self.result.happenings:
            self.result.happenings.append(happening)
        say(f"left out, {happening.fault}: {why}")

    def _happen(self, fault: Fault) -> None:
        """Break something, wait, mend it; in a thread of its own."""
        with ExitStack() as held:
            for name in sorted(fault.occupies):
                held.enter_context(self._whole[name])
            self._happen_to_whole(fault)

    def _happen_to_whole(self, fault: Fault) -> None:
        note = self._cluster.role(fault.target) if fault.target in DRAINERS else ""
        happening = Happening(fault, note, time.time())
        self.result.happenings.append(happening)
        try:
            with BODIES[fault.kind](self._cluster, fault):
                self._calm.wait(fault.lasts_s)
        except LeftOut as why:
            self._leave_out(happening, str(why))
        except _STARVED as error:
            happening.is_starved = True
            log.warning("%s could not be made or ended: %r at %s", fault, error, _where(error))
            self._leave_out(happening, f"{type(error).__name__} in {_where(error)[-1]}")
            self._make_whole(fault)
        except Exception as error:
            where = " > ".join(_where(error))
            self._failures.append(f"{fault} could not be made: {error!r} in {where}")
        happening.ended_s = time.time()

    def _make_whole(self, fault: Fault) -> None:
        """Start what a fault has left dead, as often as that takes."""
        began_s = time.monotonic()
        for name in sorted(fault.occupies & self._cluster.processes.keys()):
            while not self._over.is_set():
                try:
                    self._cluster.start_if_ended(name)
                    break
                except _STARVED as error:
                    if time.monotonic() - began_s > WHOLE_S_MAX * patience():
                        self._failures.append(f"{name} does not start after {fault}: {error!r}")
                        return
                    self._cluster.kill(name)
                    self._over.wait(1)

    def _until_whole(self) -> None:
        """Let writers write on a little, end them, and wait for the last of what they wrote."""
        say("no more faults")
        self._cluster.allow_ddl()
        healed_s = time.monotonic()
        before = self._journals.acknowledged
        while time.monotonic() - healed_s < _CALM_S or self._journals.acknowledged == before:
            self._watch(healed_s)
            self._limit(healed_s, "no transaction is acknowledged after the last fault")
        ending = [
            threading.Thread(target=self._end_writer, args=(name, healed_s)) for name in WRITERS
        ]
        for thread in ending:
            thread.start()
        while any(thread.is_alive() for thread in ending):
            self._watch(healed_s)
        while self._reader.advances[-1][1] < self._journals.last_ts:
            self._watch(healed_s)
            self._limit(healed_s, "the downstream has not everything")
        if self._cluster.copies_wanted > 1:
            while missing := self._missing():
                self._watch(healed_s)
                self._limit(healed_s, "; ".join(missing))
        self.result.whole_after_s = time.monotonic() - healed_s
        # What no one wanted would come after what everyone did.
        time.sleep(2)

    def _missing(self) -> list[str]:
        try:
            return list(self._cluster.copies.problems().values())
        except Retryable as error:
            return [str(error)]

    def _end_writer(self, name: str, healed_s: float) -> None:
        self._cluster.may_be_down.add(name)
        left_s = WHOLE_S_MAX * patience() - (time.monotonic() - healed_s)
        code = self._cluster.processes[name].stop(max(left_s, 1))
        if code != 0:
            self._failures.append(f"{name} did not end in order within its time, but with {code}")

    def _limit(self, since_s: float, what: str, within_s: float = WHOLE_S_MAX) -> None:
        """Break off if something is not so in time: more of it, as far as the machine is busy."""
        within_s *= patience()
        if time.monotonic() - since_s > within_s:
            raise Broken(f"{what} within {within_s:.0f} s")

    def _watch(self, since_s: float) -> None:
        """Look for what must never be, show how it goes, and let some time pass."""
        time.sleep(0.1)
        self._journals.look()
        self._cluster.supervise()
        failures = [*self._failures, *filter(None, [self._reader.problem])]
        failures += [
            f"{name} ended by itself:\n{log}" for name, log in self._cluster.dead().items()
        ]
        if failures:
            raise Broken("\n".join(failures))
        now_s = time.monotonic()
        if now_s - self._shown_s >= _PROGRESS_S:
            self._shown_s = now_s
            say(f"{now_s - since_s:5.0f} s  {self._state()}")

    def _state(self) -> str:
        lag = ""
        if self._reader.advances:
            lag_s = time.time() - physical_ms(self._reader.advances[-1][1]) / 1000
            lag = f", downstream {lag_s:.1f} s behind"
        now_s = time.time()
        broken = [
            f"{h.fault} {h.note} ({now_s - h.began_s:.0f} s)"
            for h in list(self.result.happenings)
            if not h.ended_s
        ]
        return (
            f"{self._journals.acknowledged} acknowledged, {self._journals.others} not{lag},"
            f" {self._reader.checks} checks; {'; '.join(broken) or 'nothing broken'}"
        )

    def _verdict(self, *, is_whole: bool) -> list[str]:
        """Judge in any case: a run that broke off by what the reader saw until then."""
        if not self._reader.snapshots:
            return ["nothing was judged: the reader saw nothing"]
        began_s = time.monotonic()
        while True:
            try:
                return self._judged() if is_whole else self._judged_until_then()
            except (pymysql.err.MySQLError, OSError, PenstockError) as error:
                if time.monotonic() - began_s > _VERDICT_S_MAX:
                    return [f"the end was not judged: {error!r}"]
                time.sleep(1)

    def _judged_until_then(self) -> list[str]:
        """Stop the Drainers, and judge what is downstream up to their checkpoint."""
        for name in DRAINERS:
            if name in self._cluster.processes:
                self._cluster.may_be_down.add(name)
                self._cluster.processes[name].stop()
        while (last := self._reader.read()) is not None:
            final = final_tables(self._cluster.mariadb)
            if self._reader.read() == last:
                break
        else:
            return ["the end was not judged: there is no checkpoint"]
        self._time_ddl()
        history = self.result.history
        left = ", ".join(sorted(unsettled(history, last.commit_ts)))
        say(f"judged up to {last.commit_ts}, where the run broke off; of tables with DDL after that"
            f" only the own columns are compared: {left or 'none'}")  # fmt: skip
        return until(history, [*self._reader.snapshots, last], final)

    def _judged(self) -> list[str]:
        self._time_ddl()
        final = final_tables(self._cluster.mariadb)
        return judge(self.result.history, self._reader.snapshots, final)

    def _time_ddl(self) -> None:
        """Give each DDL its time from the cluster's history."""
        history = self.result.history
        connection = etcd.connect(self._cluster.etcd.url)
        try:
            jobs = {ddl_key(job.query): job.finished_ts for job in DdlHistory(connection).jobs()}
        finally:
            connection.close()
        for query, ddl in history.ddl.items():
            ddl.commit_ts = jobs.get(ddl_key(query), 0)


def _where(error: BaseException) -> list[str]:
    frames = extract_tb(error.__traceback__)
    return [frame.name for frame in frames if "/tests/" in frame.filename]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
