"""The stages of the demo, each with what it shows and the figures that it leaves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from cdc.cli.output import human_bytes
from cdc.errors import CdcError
from cdc.query import output as render
from cdc.query.run import run_query
from cdc.runtime import source_conninfo
from deploy.demo.daemon import Daemon
from deploy.demo.data import FLIGHTS
from deploy.demo.live import Played, Player
from deploy.demo.play import changes
from deploy.demo.project import DATABASE, SCHEMA, SOURCE, Project
from deploy.demo.samples import Sample, samples
from deploy.demo.seed import Flights, read_flights, seed
from deploy.demo.show import Show
from deploy.demo.verify import Verifier
from deploy.demo.watch import Watch

_POLL_S = 0.3
#: Looking at all Delta tables takes time from what is waited for.
_POLL_DELTA_S = 1.0
#: Nothing has moved for so long: that is a failure, not patience.
_STUCK_S = 600.0
#: A small demo is played at this rate, changes per second, and ends early.
_LEAST_RATE = 400.0
#: So that the last flights are played when all goes well.
_PLANNED_SHARE = 0.9
_LOOK_EVERY_S = 1.0
#: When sample queries are asked, as parts of the play.
_ASK_AT = (0.25, 0.55, 0.85)


class Stages:
    """Runs the demo in a project, from its servers to the last comparison.

    Args:
        project: Just made.
        daemon: Not started yet.
        show: Told what happens.
        rows: Flights in all; None: every one.
        seconds: Longest time that changes are played for.
    """

    def __init__(
        self, project: Project, daemon: Daemon, show: Show, rows: int | None, seconds: float
    ) -> None:
        self._project = project
        self._config = project.config
        self._daemon = daemon
        self._show = show
        self._rows = rows
        self._seconds = seconds

    def run(self) -> dict[str, Any]:
        """All stages; their figures.

        Raises:
            CdcError: ``demo_differs``, ``demo_stuck``, ``demo_daemon``, or what failed.
            psycopg.Error: The demo's database failed.
        """
        began = time.monotonic()
        figures: dict[str, Any] = {}
        with ExitStack() as at_end:
            pool = at_end.enter_context(ThreadPoolExecutor(1))
            reading = pool.submit(read_flights, self._rows)
            figures["servers"] = self._servers()
            flights = reading.result()
            figures["past"] = self._past(flights)
            figures["first_load"] = self._first_load(sum(figures["past"]["rows"].values()))
            watch = Watch(self._config, SOURCE)
            at_end.callback(watch.close)
            verifier = Verifier(self._config, SOURCE, watch)
            figures["first_merge"] = self._first_merge(watch)
            figures["checks"] = [self._check(verifier, watch, "after the first load")]
            figures["live"] = self._live(flights, watch)
            figures["checks"].append(self._check(verifier, watch, "after the live changes"))
            figures["rebuild"] = self._rebuild(watch)
            figures["checks"].append(self._check(verifier, watch, "after the rebuild"))
        figures["seconds"] = _round(time.monotonic() - began)
        self._show.say("")
        self._show.headline(
            "Every table equalled Postgres: loaded, changed live and rebuilt, "
            f"in {figures['seconds']:.0f} s."
        )
        return figures

    # --- before capture ---

    def _servers(self) -> dict[str, Any]:
        began = time.monotonic()
        with self._show.step("A Postgres and a Kafka broker of its own, without containers"):
            self._show.progress("starting both")
            state = self._project.stack.up()
            seconds = time.monotonic() - began
            self._show.say(
                f"Postgres {state.postgres.version} at port {state.postgres.port}, "
                f"Kafka at port {state.kafka.port}; {seconds:.1f} s"
            )
        return {"seconds": _round(seconds)}

    def _past(self, flights: Flights) -> dict[str, Any]:
        began = time.monotonic()
        with self._show.step("A database that has been in use for a while"):
            self._show.progress("loading it by COPY")
            self._project.stack.postgres.create_database(DATABASE)
            counts = seed(self._conninfo(), flights.past)
            flights.past.clear()
            seconds = time.monotonic() - began
            self._show.say(
                ", ".join(f"{name} {count:,}" for name, count in counts.items())
                + f" rows; {seconds:.1f} s"
            )
            self._show.say(
                f"{len(flights.live):,} more flights, planned from {flights.live_from[:10]} on, "
                "will be played live"
            )
        return {"rows": counts, "seconds": _round(seconds)}

    # --- capture begins ---

    def _first_load(self, rows: int) -> dict[str, Any]:
        began = time.monotonic()
        with self._show.step("cdc start: snapshot into the log, and from there into Delta tables"):
            self._show.progress("starting the daemon")
            self._daemon.start()
            self._wait(self._loading)
            seconds = time.monotonic() - began
            self._show.say(
                f"{rows:,} rows are in the log, and changes are streaming; {seconds:.1f} s with "
                "the daemon's start"
            )
        return {"rows": rows, "seconds": _round(seconds)}

    def _loading(self) -> str | None:
        child = self._daemon.children()[f"capture:{SOURCE}"]
        if child["state"] == "streaming":
            return None
        details = child["details"] or {}
        if "table" not in details:
            return f"capture: {child['state']}"
        estimate = f" of about {details['total']:,}" if details.get("total") else ""
        return (
            f"loading {details['table']}: {details['rows']:,}{estimate} rows; "
            f"{details.get('all_rows', 0):,} rows of all tables"
        )

    def _first_merge(self, watch: Watch) -> dict[str, Any]:
        began = time.monotonic()
        self._wait(lambda: self._behind(watch), _POLL_DELTA_S)
        seconds = time.monotonic() - began
        self._show.say(f"Spark has made five Delta tables of them; {seconds:.1f} s more")
        return {"seconds": _round(seconds)}

    # --- changes ---

    def _live(self, flights: Flights, watch: Watch) -> dict[str, Any]:
        planned = changes(flights.live)
        rate = max(_LEAST_RATE, len(planned) / (self._seconds * _PLANNED_SHARE))
        player = Player(self._conninfo(), planned, self._seconds, rate)
        notes = _Notes()
        questions = samples(flights.live_from)
        with self._show.step("Flights are scheduled, depart, arrive and are cancelled, live"):
            player.start()
            try:
                asked = 0
                while not player.wait(_LOOK_EVERY_S):
                    self._daemon.children()
                    played = player.played
                    self._show.progress(notes.look(played, watch))
                    progress = max(played.changes / player.total, played.seconds / self._seconds)
                    if asked < len(_ASK_AT) and progress >= _ASK_AT[asked]:
                        self._show.say(notes.look(player.played, watch))
                        self._ask(questions[asked % len(questions)], notes)
                        asked += 1
            finally:
                player.stop()
            self._daemon.apply_now()
            played = player.played
            self._show.say(_in_all(played, player.total))
            # Asked of what stands still, when there was no time before.
            for sample in questions[asked:]:
                self._ask(sample, notes)
        return {
            "planned": player.total,
            "changes": played.changes,
            "transactions": played.transactions,
            "kinds": played.kinds,
            "seconds": _round(played.seconds),
            "changes_per_second": _round(played.rate),
            **notes.figures(),
        }

    def _ask(self, sample: Sample, notes: _Notes) -> None:
        began = time.monotonic()
        result = run_query(self._config, sample.sql)
        seconds = time.monotonic() - began
        notes.query_seconds.append(seconds)
        self._show.say("")
        self._show.say(f"cdc query: {sample.question}", style="bold")
        self._show.quote(render.to_table(result) + f"; took {seconds:.2f} s")
        self._show.say("")

    # --- rebuild ---

    def _rebuild(self, watch: Watch) -> dict[str, Any]:
        table = f"{SOURCE}.{SCHEMA}.{FLIGHTS.name}"
        id = next(id for id in self._config.sources[SOURCE].table_ids if id.table == FLIGHTS.name)
        before = watch.replica(id)
        with self._show.step(f"cdc rebuild {table} --from-offset 0"):
            began = time.monotonic()

            def tell(progress: dict[str, Any]) -> None:
                self._show.progress(f"rebuilding: {progress.get('step', '')}")

            self._show.progress("rebuilding")
            result = self._daemon.rebuild(table, tell)
            seconds = time.monotonic() - began
            after = watch.replica(id)
            if before is None or after is None or after.app.generation <= before.app.generation:
                raise CdcError(
                    "demo_rebuild", "the rebuild has not replaced the Delta table", table=table
                )
            rows = result.get("rows")
            counted = f"{rows:,} rows" if isinstance(rows, int) else "the table"
            self._show.say(
                f"{counted} folded anew from the whole topic, without Postgres; {seconds:.1f} s\n"
                f"swapped in by one commit: generation {after.app.generation}"
            )
        return {"table": table, "seconds": _round(seconds), **result}

    # --- comparison ---

    def _check(self, verifier: Verifier, watch: Watch, when: str) -> dict[str, Any]:
        began = time.monotonic()
        lsn = watch.written()
        self._wait(lambda: self._behind(watch, lsn), _POLL_DELTA_S)
        waited = time.monotonic() - began
        rows = verifier.check(lsn, lambda table: self._show.progress(f"comparing {table}"))
        self._show.good(
            f"equal to Postgres {when}: {sum(rows.values()):,} rows, every value, "
            "by cdc query and in Delta"
        )
        return {
            "when": when,
            "equal": True,
            "rows": rows,
            "waited_seconds": _round(waited),
            "seconds": _round(time.monotonic() - began),
        }

    def _behind(self, watch: Watch, lsn: int = 0) -> str | None:
        self._daemon.children()
        if watch.captured() < lsn:
            return "the log has to catch up"
        behind = watch.behind()
        return f"Spark has about {behind:,} records to merge" if behind else None

    # --- helpers ---

    def _conninfo(self) -> dict[str, Any]:
        return dict(source_conninfo(self._config, self._config.sources[SOURCE]))

    def _wait(self, look: Callable[[], str | None], poll: float = _POLL_S) -> None:
        """Show what ``look`` says until it has nothing more to say.

        Raises:
            CdcError: ``demo_stuck``.
        """
        said, since = "", time.monotonic()
        while (text := look()) is not None:
            if text != said:
                said, since = text, time.monotonic()
            elif time.monotonic() - since > _STUCK_S:
                raise CdcError("demo_stuck", f"nothing has moved for {_STUCK_S:.0f} s: {said}")
            self._show.progress(text)
            time.sleep(poll)


class _Notes:
    """Figures of the play."""

    def __init__(self) -> None:
        self.query_seconds: list[float] = []
        self._slot_bytes = 0
        self._log_seconds: list[float] = []
        self._delta_records = 0

    def look(self, played: Played, watch: Watch) -> str:
        """Take one look, in words."""
        lag = watch.lag()
        self._slot_bytes = max(self._slot_bytes, lag.slot_bytes)
        self._log_seconds.append(lag.log_seconds)
        self._delta_records = max(self._delta_records, lag.delta_records)
        clock = f"{played.clock:%d %b %H:%M}: " if played.clock else ""
        return (
            f"{clock}{played.changes:,} changes, {played.rate:,.0f}/s; "
            f"slot {human_bytes(lag.slot_bytes)}, log {lag.log_seconds:.1f} s, "
            f"Delta {lag.delta_records:,} records behind"
        )

    def figures(self) -> dict[str, Any]:
        """For the JSON answer."""
        return {
            "most_slot_bytes": self._slot_bytes,
            "median_log_seconds": _median(self._log_seconds),
            "most_delta_records_behind": self._delta_records,
            "queries": len(self.query_seconds),
            "median_query_seconds": _median(self.query_seconds),
        }


def _in_all(played: Played, total: int) -> str:
    kinds = ", ".join(f"{count:,} {word}" for word, count in played.kinds.items())
    text = (
        f"{played.changes:,} changes in {played.transactions:,} transactions in "
        f"{played.seconds:.0f} s\n{kinds}"
    )
    left = total - played.changes
    return f"{text}\n{left:,} more were not played for want of time" if left else text


def _median(values: list[float]) -> float | None:
    return _round(statistics.median(values)) if values else None


def _round(seconds: float) -> float:
    return round(seconds, 2)
