"""The local stack on real servers: it comes up, survives, moves, and leaves nothing behind."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cdc.errors import EnvironmentProblem
from deploy.local.postgres import PostgresServer
from deploy.local.process import ServerProcess, server_account
from deploy.local.stack import LocalStack
from deploy.local.state import read_json

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    stack = LocalStack(folder, die_with_parent=True, fsync=False, quick_start=True)
    stack.up()
    yield stack
    stack.destroy()


def _new_topic(bootstrap, **config):
    name = f"t{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(30)
    return name


def _produce(bootstrap, topic, values):
    """Write all values in one Kafka transaction."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"x{uuid.uuid4().hex[:8]}",
            "message.max.bytes": 16_000_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(60)


def _read(bootstrap, topic, count):
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        messages = consumer.consume(count, timeout=60)
        assert all(message.error() is None for message in messages)
        return [message.value() for message in messages]
    finally:
        consumer.close()


def _setting(local, name):
    with psycopg.connect(**local.postgres.conninfo()) as connection:
        row = connection.execute("select current_setting(%s)", [name]).fetchone()
        assert row is not None
        return row[0]


def test_both_servers_are_as_the_pipeline_needs_them(local):
    assert _setting(local, "wal_level") == "logical"
    assert _setting(local, "max_replication_slots") == "20"
    assert _setting(local, "max_wal_senders") == "20"
    large = [b"x" * 15_000_000]
    topic = _new_topic(local.kafka.bootstrap)
    _produce(local.kafka.bootstrap, topic, large)
    assert _read(local.kafka.bootstrap, topic, 1) == large


def test_topics_are_never_made_by_themselves(local):
    admin = AdminClient({"bootstrap.servers": local.kafka.bootstrap, "log_level": 0})
    unknown = f"u{uuid.uuid4().hex[:8]}"
    try:
        admin.list_topics(unknown, timeout=10)
    except KafkaException:
        pass  # some versions of the client raise for an unknown topic
    assert unknown not in admin.list_topics(timeout=10).topics


def test_postgres_listens_on_loopback_only_and_asks_for_a_password(local):
    process = psutil.Process(local.postgres.state().pid)
    listening = [c for c in process.net_connections("tcp") if c.status == "LISTEN"]
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
    wrong = local.postgres.conninfo() | {"password": "wrong"}
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(**wrong)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(**(wrong | {"host": local.postgres.state().socket_dir}))


def test_kafka_listens_on_loopback_only(local):
    process = psutil.Process(local.kafka.state().pid)
    listening = [c for c in process.net_connections("tcp") if c.status == "LISTEN"]
    assert listening
    assert {c.laddr.ip.removeprefix("::ffff:") for c in listening} == {"127.0.0.1"}


def test_secrets_are_only_in_private_files(local):
    password = local.postgres.state().password.encode()
    assert stat.S_IMODE(local.state_path.stat().st_mode) == 0o600
    for folder in (local.state_dir, local.postgres.home):
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_relative_to(local.kafka.data_dir):
                holds = password in path.read_bytes()
                assert not holds or stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for pid in (local.postgres.state().pid, local.kafka.state().pid):
        assert local.postgres.state().password not in " ".join(psutil.Process(pid).cmdline())


def test_postgres_runs_as_another_user_than_root(local):
    owner = psutil.Process(local.postgres.state().pid).uids().real
    account = server_account()
    assert owner == (account.uid if account else os.geteuid())
    assert owner != 0


def test_up_again_changes_nothing(local):
    before = local.status().state
    assert local.up() == before


def test_postgres_survives_kill_9_with_its_port_and_data(local):
    before = local.postgres.state()
    with psycopg.connect(**local.postgres.conninfo(), autocommit=True) as connection:
        connection.execute("create table if not exists kept (n int)")
        connection.execute("insert into kept values (1)")
        local.postgres.kill9()
        assert not local.postgres.running()
    after = local.postgres.start()
    assert (after.port, after.password) == (before.port, before.password)
    assert after.pid != before.pid
    with psycopg.connect(**local.postgres.conninfo()) as connection:
        assert connection.execute("select count(*) from kept").fetchone() == (1,)


def test_postgres_starts_although_its_old_pid_belongs_to_another_now(local, tmp_path):
    local.postgres.kill9()
    account = server_account()
    stranger = ServerProcess.spawn(
        ["/bin/sleep", "600"],
        log_path=tmp_path / "log",
        cwd=Path("/"),
        env={},
        account=account,
        die_signal=signal.SIGKILL,
    )
    lock = local.postgres.data_dir / "postmaster.pid"
    lines = lock.read_text().splitlines()
    lock.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
    try:
        local.postgres.start()
        assert stranger.alive()
    finally:
        stranger.kill()


def test_kafka_survives_kill_9_with_its_port_and_committed_records(local):
    before = local.kafka.state()
    topic = _new_topic(local.kafka.bootstrap)
    _produce(local.kafka.bootstrap, topic, [b"1", b"2"])
    local.kafka.kill9()
    assert not local.kafka.running()
    after = local.kafka.start()
    assert (after.port, after.controller_port) == (before.port, before.controller_port)
    assert after.pid != before.pid
    assert _read(local.kafka.bootstrap, topic, 2) == [b"1", b"2"]


def test_a_paused_server_answers_again(local):
    local.kafka.pause()
    local.postgres.pause()
    assert local.status().running
    with pytest.raises(EnvironmentProblem, match="did not answer"):
        local.postgres.wait_ready(1)
    local.kafka.resume()
    local.postgres.resume()
    local.kafka.wait_ready(60)
    local.postgres.wait_ready(60)


def test_a_port_that_another_took_meanwhile_is_left_to_it(local):
    before = local.status().state
    local.down()
    taken = [
        socket.create_server(("127.0.0.1", port))
        for port in (before.kafka.port, before.postgres.port)
    ]
    try:
        after = local.up()
    finally:
        for server in taken:
            server.close()
    assert after.kafka.port != before.kafka.port
    assert after.postgres.port != before.postgres.port
    assert after.kafka.controller_port == before.kafka.controller_port
    assert read_json(local.state_path) == after.to_json()
    with psycopg.connect(**local.postgres.conninfo()):
        pass


def test_down_ends_both_and_up_brings_the_same_back(local):
    before = local.status().state
    local.down()
    status = local.status()
    assert not status.kafka_running
    assert not status.postgres_running
    assert status.state.kafka.pid is None
    assert status.state.postgres.pid is None
    assert "database system is shut down" in local.postgres.log_path.read_text()
    after = local.up()
    assert after.kafka.cluster_id == before.kafka.cluster_id
    assert after.kafka.bootstrap_servers == before.kafka.bootstrap_servers
    assert after.postgres.port == before.postgres.port


def test_a_database_is_dropped_with_its_connections_and_slots(local):
    conninfo = local.postgres.create_database("doomed")
    with psycopg.connect(**conninfo) as connection:
        connection.execute("select pg_create_logical_replication_slot('doomed', 'pgoutput')")
        local.postgres.drop_database("doomed")
        assert connection.broken or connection.pgconn.socket >= 0
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    with psycopg.connect(**local.postgres.conninfo()) as connection:
        row = connection.execute(
            "select count(*) from pg_replication_slots where slot_name = 'doomed'"
        ).fetchone()
        assert row == (0,)


def _run(code):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


def test_servers_outlive_the_command_and_destroy_leaves_nothing(tmp_path):
    folder = tmp_path / "a project" / ".cdc" / "local"
    up = f"""
from pathlib import Path
from deploy.local.stack import LocalStack
LocalStack(Path({str(folder)!r}), quick_start=True).up()
"""
    assert (answer := _run(up)).returncode == 0, answer.stderr
    stack = LocalStack(folder)
    try:
        status = stack.status()
        assert status.running
        assert status.state is not None
        home = Path(status.state.postgres.home)
        with psycopg.connect(**stack.postgres.conninfo()):
            pass
        # A second command at the same time waits for the first, and finds all done.
        outcomes = []
        threads = [
            threading.Thread(target=lambda: outcomes.append(_run(up).returncode)) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes == [0, 0]
        assert stack.status().state == status.state
    finally:
        stack.destroy()
    assert not folder.exists()
    assert not home.exists()
    for server in (status.state.kafka, status.state.postgres):
        assert server.pid is not None
        assert server.started is not None
        # Every command line holds a path.
        assert ServerProcess.find(server.pid, server.started, "/") is None


def test_a_failed_up_leaves_nothing_running(tmp_path, monkeypatch):
    stack = LocalStack(tmp_path / "local", die_with_parent=True, fsync=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    try:
        with pytest.raises(EnvironmentProblem) as caught:
            stack.up()
        assert caught.value.code == "java_missing"
        assert not stack.postgres.running()
        assert not stack.state_path.exists()
    finally:
        stack.destroy()
    assert not stack.postgres.home.exists()


@pytest.mark.full
def test_a_copied_project_gets_data_of_its_own(tmp_path):
    first = LocalStack(tmp_path / "first", die_with_parent=True, fsync=False, quick_start=True)
    try:
        first.up()
        first.down()
        shutil.copytree(first.state_dir, tmp_path / "second")
        second = LocalStack(tmp_path / "second")
        assert second.postgres.home != first.postgres.home
        # A moved project keeps its data.
        (tmp_path / "first").rename(tmp_path / "moved")
        assert (LocalStack(tmp_path / "moved").postgres.data_dir / "PG_VERSION").exists()
    finally:
        LocalStack(tmp_path / "moved").destroy()
    assert not first.postgres.home.exists()


def test_postgres_of_a_package(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("CDC_POSTGRES", "package")
    stack = LocalStack(tmp_path_factory.mktemp("packaged"), die_with_parent=True, fsync=False)
    try:
        stack.state_dir.mkdir(exist_ok=True)
        home = stack.postgres.home
        home.parent.mkdir(parents=True, exist_ok=True)
        server = PostgresServer(home, die_with_parent=True, fsync=False)
        state = server.start()
        assert state.version == 17
        assert "postgres-" in state.binaries
        with psycopg.connect(**server.conninfo(), autocommit=True) as connection:
            connection.execute("create table t (id int primary key)")
            connection.execute("create publication p for table t")
            connection.execute("select pg_create_logical_replication_slot('s', 'pgoutput')")
    finally:
        stack.postgres.destroy()


def test_a_socket_path_over_the_limit_goes_elsewhere(tmp_path):
    root = LocalStack(tmp_path).postgres.home.parent
    home = root / uuid.uuid4().hex / ("long" * 25)
    home.parent.mkdir(parents=True)
    home.parent.chmod(0o711)
    server = PostgresServer(home, die_with_parent=True, fsync=False)
    try:
        state = server.start()
        assert not state.socket_dir.startswith(str(home))
        over_socket = server.conninfo() | {"host": state.socket_dir}
        with psycopg.connect(**over_socket):
            pass
        server.restart()
        assert server.state().socket_dir == state.socket_dir
    finally:
        server.destroy()
        home.parent.rmdir()
    assert not Path(state.socket_dir).exists()


def test_programs_of_another_version_are_refused(local, tmp_path, monkeypatch):
    for name in ("postgres", "initdb"):
        (tmp_path / name).write_text('#!/bin/sh\necho "postgres (PostgreSQL) 99.1"\n')
        (tmp_path / name).chmod(0o755)
    local.postgres.stop()
    monkeypatch.setenv("CDC_POSTGRES", str(tmp_path))
    try:
        with pytest.raises(EnvironmentProblem) as caught:
            local.postgres.start()
        assert caught.value.code == "postgres_version_differs"
    finally:
        monkeypatch.delenv("CDC_POSTGRES")
        local.postgres.start()


def test_a_container_stack_without_an_engine_says_so(tmp_path, monkeypatch):
    from tests.support.stack import open_stack

    monkeypatch.setenv("CDC_TEST_STACK", "containers")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(EnvironmentProblem) as caught, open_stack(tmp_path):
        pass
    assert caught.value.code == "no_container_engine"
    assert caught.value.exit_code == 3


def test_the_fixtures_give_each_test_its_own(stack, database, topic_prefix):
    with psycopg.connect(**database) as connection:
        assert connection.execute("select current_database()").fetchone() == (database["dbname"],)
    assert topic_prefix.startswith("t")
    assert AdminClient({"bootstrap.servers": stack.bootstrap}).list_topics(timeout=10).brokers
