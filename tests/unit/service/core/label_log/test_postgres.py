"""The log in a PostgreSQL schema: URLs, other schemas, and time limits."""

import sys
import threading
from contextlib import closing

import pytest
import sqlalchemy as sa

from service.core.errors import InvalidConfig, LogError, LogLocked, MissingExtra
from service.core.label_log import LabelLog, open_log, postgres
from tests.support.label_logs import Place, append
from tests.support.postgres import changed, in_schema, named_after_schema


@pytest.fixture
def place(postgres_url: str) -> Place:
    return Place(named_after_schema(postgres_url))


def test_both_schemes_reach_the_same_log(postgres_url: str) -> None:
    with closing(open_log(postgres_url)) as log:
        append(log, "a")
    assert Place(changed(postgres_url, drivername="postgresql+psycopg")).ids() == ["a"]


@pytest.mark.parametrize(
    "url", ["mysql://u:secret@host/db", "postgres://u:secret@host/db", "sqlite:///labels.sqlite"]
)
def test_another_kind_of_url_is_refused_with_the_allowed_forms(url: str) -> None:
    with pytest.raises(InvalidConfig, match="a folder or postgresql://") as caught:
        open_log(url)
    assert "secret" not in str(caught.value)


def test_a_url_that_cannot_be_read_is_refused_without_repeating_it() -> None:
    with pytest.raises(InvalidConfig, match="URL cannot be read") as caught:
        open_log("postgresql://user:secret@host:port/db")
    assert "secret" not in str(caught.value)


def test_no_message_holds_the_password(postgres_url: str) -> None:
    url = changed(postgres_url, password="secret")
    with closing(open_log(url)) as log:
        assert "secret" not in log.place
        assert ":***@" in log.place
    unreachable = sa.make_url(url).set(port=1).update_query_dict({"password": "hidden"})
    with pytest.raises(LogError, match=r"cannot be opened: .*onnection.* failed") as caught:
        open_log(unreachable.render_as_string(hide_password=False))
    assert "secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"database": "no_such_database"}, 'database "no_such_database" does not exist'),
        ({"username": "nobody_at_all", "password": "secret"}, "nobody_at_all"),
    ],
)
def test_errors_quote_the_server(postgres_url: str, parts: dict[str, str], said: str) -> None:
    with pytest.raises(LogError, match=said) as caught:
        open_log(changed(postgres_url, **parts))
    assert str(caught.value).startswith("postgresql://")
    assert "secret" not in str(caught.value)


def test_a_schema_that_does_not_exist_is_named_as_the_reason(postgres_url: str) -> None:
    with pytest.raises(LogError, match="no schema of its search_path exists"):
        open_log(in_schema(postgres_url, "never_created"))


def test_a_read_only_server_can_only_be_read(place: Place) -> None:
    place.open().close()
    assert isinstance(place.state, str)
    options = f"{sa.make_url(place.state).query['options']} -cdefault_transaction_read_only=on"
    url = sa.make_url(place.state).update_query_dict({"options": options})
    standby = Place(url.render_as_string(hide_password=False))
    with pytest.raises(LogError, match="cannot be written: the server is a standby or read-only"):
        standby.open()
    with closing(standby.open(create=False)) as log:
        assert log.last_sequence() == 0


def test_a_role_without_the_right_to_create_tables_is_an_error(
    place: Place, postgres_url: str
) -> None:
    role = f"{sa.make_url(postgres_url).query['options']}".removeprefix("-csearch_path=")
    place.tamper(f"CREATE ROLE {role} LOGIN")
    try:
        place.tamper(f"GRANT USAGE ON SCHEMA {role} TO {role}")
        with pytest.raises(LogError, match="cannot be opened: permission denied for schema"):
            open_log(changed(postgres_url, username=role))
    finally:
        place.tamper(f"DROP OWNED BY {role}")
        place.tamper(f"DROP ROLE {role}")


def test_without_psycopg_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "service.core.label_log.postgres")
    monkeypatch.setitem(sys.modules, "psycopg", None)  # an import of it fails
    with pytest.raises(MissingExtra) as caught:
        open_log("postgresql://host/db")
    assert str(caught.value) == "psycopg is not installed: pip install 'keymatch[postgres]'"


# Schemas ---------------------------------------------------------------------------------


def test_two_schemas_of_one_database_are_two_logs(place: Place, log: LabelLog) -> None:
    """Neither waits for the other, and a search path with both schemas does not mix them."""
    assert isinstance(place.state, str)
    first = sa.make_url(place.state).query["options"].removeprefix("-csearch_path=")
    second = f"{first}_2"
    place.tamper(f"CREATE SCHEMA {second}")
    try:
        append(log, "a")
        with closing(open_log(in_schema(place.state, f"{second},{first}"))) as other:
            assert other.id != log.id
            with log.exclusive(), other.exclusive() as appending:
                assert appending.last == 0
            append(other, "b", "c")
            assert (log.last_sequence(), other.last_sequence()) == (1, 2)
    finally:
        place.tamper(f"DROP SCHEMA {second} CASCADE")


def test_a_commit_is_on_disk_whatever_the_server_is_configured_for(place: Place) -> None:
    assert isinstance(place.state, str)
    options = f"{sa.make_url(place.state).query['options']} -csynchronous_commit="
    for configured, expected in (("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")):
        url = sa.make_url(place.state).update_query_dict({"options": options + configured})
        with closing(open_log(url.render_as_string(hide_password=False))) as log:
            with log.exclusive() as appending:
                show = appending._connection.exec_driver_sql("SHOW synchronous_commit")
                assert show.scalar() == expected


def test_a_server_of_another_isolation_level_gives_no_number_twice(place: Place) -> None:
    assert isinstance(place.state, str)
    options = sa.make_url(place.state).query["options"]
    strict = f"{options} -cdefault_transaction_isolation=serializable"
    url = sa.make_url(place.state).update_query_dict({"options": strict})
    with closing(open_log(url.render_as_string(hide_password=False))) as log:
        threads = [
            threading.Thread(target=lambda: [append(log, "a") for _ in range(10)]) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert log.last_sequence() == 30


# Time ------------------------------------------------------------------------------------


def test_time_limits_are_set_unless_the_url_sets_them(place: Place) -> None:
    assert isinstance(place.state, str)
    options = f"{sa.make_url(place.state).query['options']} -cstatement_timeout=77s"
    url = sa.make_url(place.state).update_query_dict({"options": options})
    with closing(open_log(url.render_as_string(hide_password=False))) as log:
        with log.exclusive() as appending:
            settings = appending._connection.exec_driver_sql(
                "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"
            )
            assert settings.one() == ("4s", "77s")


def test_a_locked_table_is_log_locked(
    place: Place, log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_LIMITS", "SET lock_timeout = '100ms'")
    with closing(place.open()) as other, log.exclusive() as appending:
        appending._connection.exec_driver_sql("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(LogLocked, match="cannot be read"):
            other.last_sequence()
