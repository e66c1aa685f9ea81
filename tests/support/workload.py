"""A made-up application that writes to Postgres: every kind of table and change in scope.

Several writers at once, in small and large transactions, with rollbacks, savepoints, key changes,
truncates and values that Postgres stores out of line. Seeded; what it leaves behind is
whatever Postgres says afterwards.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import threading
import time
import uuid
from decimal import Decimal

import psycopg
from psycopg.types.json import Json, Jsonb

from cdc.names import TableId

SCHEMA = """
create table items (
    id int primary key, b boolean, i2 smallint, i8 bigint, f4 real, f8 double precision,
    n numeric, d2 numeric(12,3), t text, v varchar(40), c char(8), y bytea, d date,
    ts timestamp, tz timestamptz, u uuid, j json, jb jsonb);
create table pairs (a int, b text, note text, primary key (b, a));
create table docs (id uuid primary key, title text, body text);
alter table docs alter body set storage external;
create table full_docs (id bigint primary key, title text, body text);
alter table full_docs alter body set storage external, replica identity full;
create table codes (id int primary key, code text not null, n int);
create unique index codes_code on codes (code);
alter table codes replica identity using index codes_code;
create table logs (id bigint generated always as identity primary key, message text);
create table clicks (n int, f double precision, t text, body text);
alter table clicks alter body set storage external, replica identity full;
create table accounts_a (id int primary key, balance bigint not null);
create table accounts_b (id int primary key, balance bigint not null);
insert into accounts_a select i, 1000 from generate_series(1, 20) i;
insert into accounts_b select i, 1000 from generate_series(1, 20) i;
"""

NAMES = (
    "items", "pairs", "docs", "full_docs", "codes", "logs", "clicks", "accounts_a", "accounts_b",
)  # fmt: skip
TABLES = tuple(TableId("public", name) for name in NAMES)
#: Sum of all balances, at every moment.
BANK_TOTAL = 40_000

_KEYS = 300
_TEXTS = ("", "plain", 'q"uo\\te', "tab\tnew\nline", "naïve 😀 \u2028", "x" * 300, "NULL", "\\N")
#: Losing these races is part of an application's life.
_CONFLICTS = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.UniqueViolation,
    psycopg.errors.LockNotAvailable,
)


def create(conninfo):
    """Make the tables, with a few rows so that a snapshot has something to copy."""
    with psycopg.connect(**conninfo, autocommit=True) as connection:
        connection.execute(SCHEMA)
    run(conninfo, changes=400, writers=1, seed=1)


def _item(rng):
    moment = dt.datetime(2000, 1, 1) + dt.timedelta(microseconds=rng.randrange(10**15))  # noqa: DTZ001
    return {
        "b": rng.random() < 0.5,
        "i2": rng.randrange(-(2**15), 2**15),
        "i8": rng.randrange(-(2**63), 2**63),
        "f4": rng.choice((0.1, -0.0, 1e-30, 3.5, float("nan"), float("inf"))),
        "f8": rng.choice((rng.random() * 10 ** rng.randrange(-300, 300), -0.0, float("-inf"))),
        "n": rng.choice((Decimal("NaN"), Decimal(rng.randrange(10**40)) / 10**20, Decimal("1.50"))),
        "d2": Decimal(rng.randrange(-(10**11), 10**11)) / 1000,
        "t": rng.choice(_TEXTS),
        "v": rng.choice(_TEXTS)[:40],
        "c": rng.choice(("", "ab", "abcdefgh")),
        "y": rng.randbytes(rng.randrange(40)),
        "d": moment.date(),
        "ts": moment,
        "tz": moment.replace(tzinfo=dt.UTC),
        "u": uuid.UUID(int=rng.getrandbits(128)),
        "j": Json({"a": rng.random(), "t": rng.choice(_TEXTS)}),
        "jb": Jsonb([rng.randrange(10), None, rng.choice(_TEXTS)]),
    }


def _large(rng):
    """A text that is stored out of line, and that does not compress."""
    return rng.randbytes(rng.choice((1500, 4000))).hex()


def _on_items(cursor, rng):
    id, item = rng.randrange(_KEYS), _item(rng)
    names = ", ".join(item)
    marks = ", ".join(f"%({name})s" for name in item)
    match rng.randrange(6):
        case 0 | 1:
            cursor.execute(
                f"insert into items (id, {names}) values (%(id)s, {marks}) on conflict do nothing",
                {"id": id, **item},
            )
        case 2:
            column = rng.choice(sorted(item))
            cursor.execute(f"update items set {column} = null where id = %s", (id,))
        case 3:
            cursor.execute("delete from items where id = %s", (id,))
        case 4:
            cursor.execute("update items set id = %s where id = %s", (rng.randrange(_KEYS), id))
        case 5:
            cursor.execute(
                f"update items set ({names}) = ({marks}) where id = %(id)s", {"id": id, **item}
            )


def _on_pairs(cursor, rng):
    a, b = rng.randrange(20), rng.choice(_TEXTS[:6])
    match rng.randrange(4):
        case 0 | 1:
            cursor.execute(
                "insert into pairs values (%s, %s, %s) on conflict (a, b) do update"
                " set note = excluded.note",
                (a, b, rng.choice(_TEXTS)),
            )
        case 2:
            cursor.execute("update pairs set a = %s where a = %s and b = %s", (a + 1, a, b))
        case 3:
            cursor.execute("delete from pairs where a = %s", (a,))


def _on_docs(cursor, rng, table, key):
    match rng.randrange(7):
        case 0 | 1:
            cursor.execute(
                f"insert into {table} values (%s, %s, %s) on conflict do nothing",
                (key(), rng.choice(_TEXTS), rng.choice((_large(rng), None, "short"))),
            )
        case 2 | 3:  # leaves the large value unsent
            cursor.execute(
                f"update {table} set title = %s where id = %s", (str(rng.random()), key())
            )
        case 4:
            cursor.execute(f"update {table} set body = %s where id = %s", (_large(rng), key()))
        case 5:
            cursor.execute(f"update {table} set id = %s where id = %s", (key(), key()))
        case 6:
            cursor.execute(f"delete from {table} where id = %s", (key(),))


def _on_codes(cursor, rng):
    id, code = rng.randrange(_KEYS), f"code{rng.randrange(_KEYS)}"
    match rng.randrange(4):
        case 0 | 1:
            cursor.execute(
                "insert into codes values (%s, %s, %s) on conflict do nothing", (id, code, id)
            )
        case 2:
            cursor.execute("update codes set code = %s where id = %s", (code, id))
        case 3:
            cursor.execute("update codes set n = n + 1 where code = %s", (code,))


def _on_logs(cursor, rng):
    if rng.random() < 0.01:
        cursor.execute("truncate logs")
    elif rng.random() < 0.02:
        cursor.execute(
            "insert into logs (message) select repeat('m', mod(i, 50))"
            " from generate_series(1, 400) i"
        )
    else:
        cursor.execute("insert into logs (message) values (%s)", (rng.choice(_TEXTS),))


def _on_clicks(cursor, rng):
    """Rows that are equal, of which one or all change; the table has no key."""
    n = rng.randrange(4)
    one = f"ctid = (select ctid from clicks where n = {n} offset {rng.randrange(3)} limit 1)"
    match rng.randrange(8):
        case 0 | 1 | 2:
            body = "repeat('large ', 800)" if n == 0 else "null"
            cursor.execute(
                "insert into clicks select %s, %s, %s, "
                f"{body} from generate_series(1, {rng.randrange(1, 4)})",
                (n, rng.choice((0.0, -0.0, float("nan"), None)), rng.choice((None, "", "a"))),
            )
        case 3:
            cursor.execute(f"delete from clicks where {one}")
        case 4:
            cursor.execute(f"update clicks set t = 'b' where {one}")
        case 5:
            cursor.execute(f"update clicks set n = {rng.randrange(5)} where {one}")
        case 6:
            cursor.execute("update clicks set t = t where n = %s", (n,))
        case 7:
            cursor.execute("delete from clicks where n = 4")


def _transfer(cursor, rng):
    amount = rng.randrange(1, 50)
    one, other = rng.sample(("accounts_a", "accounts_b"), 2)
    cursor.execute(
        f"update {one} set balance = balance - %s where id = %s", (amount, rng.randrange(1, 21))
    )
    cursor.execute(
        f"update {other} set balance = balance + %s where id = %s", (amount, rng.randrange(1, 21))
    )


def _change(cursor, rng):
    match rng.randrange(9):
        case 0 | 1:
            _on_items(cursor, rng)
        case 2:
            _on_pairs(cursor, rng)
        case 3:
            _on_docs(cursor, rng, "docs", lambda: uuid.UUID(int=rng.randrange(_KEYS)))
        case 4:
            _on_docs(cursor, rng, "full_docs", lambda: rng.randrange(_KEYS))
        case 5:
            _on_codes(cursor, rng)
        case 6:
            _on_logs(cursor, rng)
        case 7:
            _transfer(cursor, rng)
        case 8:
            _on_clicks(cursor, rng)


def _transaction(connection, rng):
    """One transaction of 1 to 12 changes; returns how many it committed."""
    changes = rng.choice((1, 1, 1, 2, 3, 12))
    try:
        with connection.transaction() as transaction, connection.cursor() as cursor:
            for _ in range(changes):
                if rng.random() < 0.05:
                    with connection.transaction() as savepoint:
                        _change(cursor, rng)
                        raise psycopg.Rollback(savepoint)
                _change(cursor, rng)
            if rng.random() < 0.05:
                raise psycopg.Rollback(transaction)
    except (*_CONFLICTS, psycopg.Rollback):  # the latter: a rollback met a dead connection
        return 0
    return changes


class Writers:
    """Writers in the background, until they are told to stop or have done their part."""

    def __init__(self, conninfo, *, writers=3, seed=0, changes=None, pause=0.0):
        self.committed = 0
        self._conninfo = conninfo
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._left = changes
        self._pause = pause
        self._failure = None
        self._threads = [
            threading.Thread(target=self._write, args=(random.Random(f"{seed}/{n}"),), daemon=True)
            for n in range(writers)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc):
        self.stop()

    def stop(self):
        self._stop.set()
        self.join()

    def join(self):
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a writer hangs"
        if self._failure is not None:
            raise self._failure

    def _write(self, rng):
        try:
            while not self._done():
                # A server that was killed is back soon: an application would go on too.
                with contextlib.suppress(psycopg.OperationalError):
                    self._write_on_one_connection(rng)
                    continue
                time.sleep(0.1)
        except psycopg.Error as failure:
            self._failure = failure

    def _write_on_one_connection(self, rng):
        with psycopg.connect(**self._conninfo, autocommit=True) as connection:
            connection.execute("set lock_timeout = '5s'")
            while not self._done():
                count = _transaction(connection, rng)
                with self._lock:
                    self.committed += count
                if self._pause:
                    time.sleep(self._pause)

    def _done(self):
        with self._lock:
            finished = self._left is not None and self.committed >= self._left
        return finished or self._stop.is_set()


def run(conninfo, *, changes, writers=3, seed=0):
    """Write so many changes and return."""
    with Writers(conninfo, writers=writers, seed=seed, changes=changes) as running:
        running.join()
