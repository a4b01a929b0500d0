"""The server of docs/team-server.md, with the documented settings: PostgreSQL, Redis, a password."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from narrows.flows.doctor_checks import State
from narrows.flows.doctor_server import server as look_at
from narrows.flows.fingerprint import keep
from narrows.flows.local_launcher import free_port
from narrows.flows.server import health
from narrows.flows.watch import EVENT, look

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "team-server.md"
PASSWORD = "only-for-this-test"
AUTH = f"narrows:{PASSWORD}"
POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)

pytestmark = [
    pytest.mark.xdist_group("server"),
    pytest.mark.skipif(
        POSTGRES is None or os.geteuid() != 0, reason="needs root and PostgreSQL (scripts/install-system-packages.sh)"
    ),
    pytest.mark.skipif(
        shutil.which("redis-server") is None, reason="needs redis-server (scripts/install-system-packages.sh)"
    ),
]


def _block(marker: str) -> list[str]:
    """The lines of the fenced block after ``marker`` on the page."""
    found = re.search(rf"<!-- {marker} -->\n```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1).splitlines()


@dataclass(frozen=True)
class TeamServer:
    url: str
    environment: dict[str, str]


def _started(stack: ExitStack, command: list[str], log: Path, **more: object) -> subprocess.Popen[bytes]:
    stream = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True, **more)  # type: ignore[call-overload]

    def stop() -> None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    stack.callback(stop)
    found: subprocess.Popen[bytes] = process
    return found


def _postgres(stack: ExitStack, folder: Path) -> int:
    """A PostgreSQL of its own on loopback, with the user and the database of the page; returns its port."""
    assert POSTGRES is not None
    port, data = free_port(), folder / "pg"
    data.mkdir()
    for place in (folder, *list(folder.parents)[:3]):
        place.chmod(place.stat().st_mode | 0o011)
    shutil.chown(data, "postgres", "postgres")
    (folder / "pw").write_text(PASSWORD)
    (folder / "pw").chmod(0o644)
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"]
    initdb = [
        str(POSTGRES / "initdb"),
        "-D",
        str(data),
        "-U",
        "prefect",
        "--auth=scram-sha-256",
        f"--pwfile={folder / 'pw'}",
    ]
    subprocess.run([*as_postgres, *initdb], check=True, capture_output=True, cwd="/")
    options = ["-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", str(data), "-c", "fsync=off"]
    _started(stack, [*as_postgres, str(POSTGRES / "postgres"), *options], folder / "postgres.log", cwd="/")
    environment = os.environ | {"PGPASSWORD": PASSWORD}
    create = [str(POSTGRES / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "prefect", "prefect"]
    _until(lambda: subprocess.run(create, env=environment, capture_output=True, check=False).returncode == 0)
    return port


def _redis(stack: ExitStack, folder: Path) -> int:
    port = free_port()
    options = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--requirepass",
        PASSWORD,
        "--save",
        "",
        "--dir",
        str(folder),
    ]
    _started(stack, ["redis-server", *options], folder / "redis.log")
    return port


def _until(done: object, limit_s: float = 120.0) -> None:
    end = time.monotonic() + limit_s
    while not done():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.fixture(scope="module")
def team_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamServer]:
    folder = tmp_path_factory.mktemp("team")
    with ExitStack() as stack:
        pg, redis, port = _postgres(stack, folder), _redis(stack, folder), free_port()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        for line in _block("server.env"):
            name, _, value = line.partition("=")
            for word in ("DATABASE_PASSWORD", "REDIS_PASSWORD", "API_PASSWORD"):
                value = value.replace(word, PASSWORD)
            for documented, ours in (("5432", pg), ("6379", redis), ("4200", port)):
                value = value.replace(documented, str(ours))
            environment[name] = value
        environment |= {"PREFECT_HOME": str(folder / "home"), "PREFECT_UI_STATIC_DIRECTORY": str(folder / "page")}
        # It forgets once an hour, and what hangs on nothing once a day: too long for a test.
        forgets = ("PREFECT_SERVER_SERVICES_DB_VACUUM_LOOP_SECONDS",
                   "PREFECT_SERVER_SERVICES_DB_VACUUM_ORPHAN_CLEANUP_LOOP_SECONDS")  # fmt: skip
        environment |= dict.fromkeys(forgets, "5")
        upgrade, *services = _block("commands")
        python = [sys.executable, "-m"]
        subprocess.run([*python, *upgrade.split()], env=environment, check=True, capture_output=True, timeout=180)
        for number, command in enumerate(services):
            words = command.replace("4200", str(port)).split()
            _started(stack, [*python, *words], folder / f"server-{number}.log", env=environment)
        url = f"http://127.0.0.1:{port}/api"
        _until(lambda: health(url) is None)
        yield TeamServer(url, environment)


def _status(url: str, *, auth: str | None = None, body: object = None, method: str | None = None) -> int:
    headers = {"Content-Type": "application/json"}
    if auth:
        import base64

        headers["Authorization"] = "Basic " + base64.b64encode(auth.encode()).decode()
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/flow_runs/filter", {}),
        ("/flow_runs/", {"flow_id": "00000000-0000-0000-0000-000000000000"}),
        ("/flows/", {"name": "mine"}),
        ("/deployments/filter", {}),
        ("/artifacts/filter", {}),
        ("/logs/filter", {}),
        ("/events", []),
        ("/automations/filter", {}),
        ("/block_documents/filter", {}),
        ("/work_pools/filter", {}),
        ("/variables/", {"name": "x", "value": "y"}),
        ("/admin/database/clear", {"confirm": True}),
        ("/admin/settings", None),
        ("/admin/version", None),
    ],
)
def test_without_the_password_nothing_can_be_read_or_started(team_server: TeamServer, path: str, body: object) -> None:
    refused = (401, 403)  # 403: a post without the token against forged forms is refused first
    assert _status(team_server.url + path, body=body) in refused
    assert _status(team_server.url + path, body=body, auth="narrows:wrong") in refused


def test_with_the_password_it_answers_and_the_doctor_finds_nothing_open(
    team_server: TeamServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert _status(team_server.url + "/admin/version", auth=AUTH) == 200
    monkeypatch.setenv("PREFECT_API_URL", team_server.url)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", AUTH)
    checks = list(look_at(tmp_path))
    words = " | ".join(check.text for check in checks)
    assert "asks for a password" in words
    assert "for a team it should be PostgreSQL" in words
    assert not [check for check in checks if check.state is State.FAIL]
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "narrows:wrong")
    assert any(check.state is State.FAIL and "refuses us" in check.text for check in look_at(tmp_path))


def test_an_investigation_runs_on_it(team_server: TeamServer, tmp_path: Path) -> None:
    environment = team_server.environment | {"PREFECT_HOME": str(tmp_path / "home")}
    words = ["-m", "narrows.flows.cli", "demo", "nothing", "--out", str(tmp_path / "demo")]
    code = "import sys; from narrows.flows.cli import main; main(sys.argv[3:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NO REGRESSION" in done.stdout
    found = subprocess.run(
        [sys.executable, "-m", "prefect", "flow-run", "ls"], env=environment, capture_output=True, text=True, check=True
    )
    assert "No regression" in found.stdout or "investigate nothing" in found.stdout


CLAIM = Path(__file__).parents[1] / "claims" / "padding.yaml"
HOSTS, PATIENCE_S = 200, 240.0


def _ask(team_server: TeamServer, path: str, body: object) -> Any:
    """What the server answers to a post with the password and the token against forged posts."""
    headers = {"Content-Type": "application/json", "Authorization": "Basic " + b64encode(AUTH.encode()).decode()}
    client = str(uuid4())
    with urllib.request.urlopen(
        urllib.request.Request(f"{team_server.url}/csrf-token?client={client}", headers=headers), timeout=20
    ) as answer:
        headers |= {"Prefect-Csrf-Token": json.load(answer)["token"], "Prefect-Csrf-Client": client}
    request = urllib.request.Request(f"{team_server.url}/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def _awaited(question: Callable[[], Any]) -> Any:
    answers: list[Any] = []
    _until(lambda: bool(answers.append(question()) or answers[-1]), PATIENCE_S)
    return answers[-1]


@pytest.mark.dist
def test_hosts_with_a_new_driver_start_one_revalidation_on_it(
    team_server: TeamServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, hosts, facts = tmp_path / "claims", tmp_path / "hosts", tmp_path / "facts.json"
    claims.mkdir()
    (claims / CLAIM.name).write_text(CLAIM.read_text(encoding="utf-8"))
    facts.write_text(json.dumps({"driver": "560.35.03"}))
    own = {"PREFECT_HOME": str(tmp_path / "home"), "NARROWS_HOSTS": str(hosts), "NARROWS_HOST_FACTS": str(facts)}
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", AUTH)
    monkeypatch.delenv("PREFECT_API_KEY", raising=False)
    code = "from narrows.flows.cli import main; main()"
    words = [sys.executable, "-c", code, "revalidate", "--serve", "--within", "300", "--settle", "2"]
    with ExitStack() as stack:
        _started(stack, words, tmp_path / "serve.log", env=team_server.environment | own, cwd=str(tmp_path))
        named = {"deployments": {"name": {"any_": ["revalidate"]}}}
        deployment = _awaited(lambda: _ask(team_server, "deployments/filter", named))[0]["id"]
        _awaited(
            lambda: [
                one for one in _ask(team_server, "automations/filter", {}) if EVENT in one["trigger"].get("expect", [])
            ]
        )

        def runs() -> list[dict[str, Any]]:
            found = _ask(team_server, "flow_runs/filter", {"deployments": {"id": {"any_": [deployment]}}})
            return [run for run in found if "auto-scheduled" not in run["tags"]]

        old, new = {"host.driver": "550.54.15"}, {"host.driver": "560.35.03"}
        names = ["n0", *(f"gpu-{number:03}" for number in range(1, HOSTS))]
        for name in names:
            keep(hosts, name, old, "big")
        began = time.monotonic()
        assert all(look(name, "big", hosts, new, team_server.url).accepted for name in names)
        assert time.monotonic() - began < 60
        _until(lambda: any(one["state_type"] == "COMPLETED" for one in runs()), PATIENCE_S)
        (one,) = runs()
    assert one["state_name"] == "Holds", one
    assert {"claim:padding", "verdict:holds"} <= set(one["tags"])
    told = _ask(team_server, "events/filter", {"filter": {"event": {"name": [EVENT]}}, "limit": 1})
    assert told["total"] == HOSTS


def _ended_run(team_server: TeamServer, name: str, days_ago: int) -> str:
    """A flow run with an artifact and a line of log, that ended so long ago; returns its id."""
    assert POSTGRES is not None
    flow = _ask(team_server, "flows/", {"name": "forgotten"})["id"]
    run = str(_ask(team_server, "flow_runs/", {"flow_id": flow, "name": name, "state": {"type": "COMPLETED"}})["id"])
    _ask(team_server, "artifacts/", {"key": name, "type": "markdown", "data": "a page", "flow_run_id": run})
    port = re.search(r":(\d+)/prefect", team_server.environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"])
    assert port is not None
    ended = f"UPDATE flow_run SET end_time = now() - interval '{days_ago} days' WHERE id = '{run}'"
    where = ["-h", "127.0.0.1", "-p", port.group(1), "-U", "prefect", "prefect"]
    password = os.environ | {"PGPASSWORD": PASSWORD}
    subprocess.run([str(POSTGRES / "psql"), *where, "-c", ended], env=password, check=True, capture_output=True)
    return run


def test_runs_that_ended_more_than_ninety_days_ago_are_forgotten_with_their_artifacts(team_server: TeamServer) -> None:
    old, new = _ended_run(team_server, "old-run", 91), _ended_run(team_server, "new-run", 89)

    def there(kind: str, **wanted: Any) -> list[dict[str, Any]]:
        return list(_ask(team_server, f"{kind}/filter", {kind: wanted}))

    _until(lambda: not there("flow_runs", id={"any_": [old]}) and not there("artifacts", key={"any_": ["old-run"]}))
    assert [one["id"] for one in there("flow_runs", id={"any_": [new]})] == [new]
    assert [one["flow_run_id"] for one in there("artifacts", key={"any_": ["new-run"]})] == [new]


def test_without_the_password_no_deployment_can_be_read_changed_or_started(
    team_server: TeamServer, tmp_path: Path
) -> None:
    environment = team_server.environment | {"PREFECT_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "prefect", "--no-prompt"]
    for words in (["work-pool", "create", "narrows", "--type", "process"], ["deploy", "--all"]):
        subprocess.run([*command, *words], cwd=ROOT, env=environment, capture_output=True, timeout=180, check=True)
    deployments = {one["name"]: one["id"] for one in _ask(team_server, "deployments/filter", {})}
    assert {"investigate", "revalidate", "canary-rollout"} <= set(deployments)

    def runs() -> set[str]:
        found = _ask(team_server, "flow_runs/filter", {"deployments": {"id": {"any_": list(deployments.values())}}})
        return {run["id"] for run in found if "auto-scheduled" not in run["tags"]}

    before = runs()
    for known in deployments.values():
        place = f"{team_server.url}/deployments/{known}"
        for auth in (None, "narrows:wrong"):
            started = _status(f"{place}/create_flow_run", body={"state": {"type": "SCHEDULED"}}, auth=auth)
            assert started in (401, 403)
            assert _status(place, auth=auth) == 401
            assert _status(place, body={"paused": True}, method="PATCH", auth=auth) in (401, 403)
    assert runs() == before
