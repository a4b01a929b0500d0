"""The fingerprint of a host: taken, compared, told to the server, and kept only once the server took it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from narrows.flows.fingerprint import kept, take_fingerprint
from narrows.flows.watch import EVENT, look, watch
from narrows.inquiry.fingerprint import changes, host_fields, manifest_fields, package_fields

BEFORE, AFTER = {"host.driver": "550", "host.kernel": "6.1"}, {"host.driver": "560", "host.kernel": "6.1"}


@dataclass
class EventServer:
    """Something that takes events at /api/events, or answers with an error."""

    url: str = ""
    status: int = 204
    token: str | None = None
    moved_to: str | None = None
    csrf_page: bytes | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture
def events() -> Iterator[EventServer]:
    found = EventServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            forged = found.token is not None and self.headers.get("Prefect-Csrf-Token") != found.token
            status = 403 if forged else found.status
            if status == 204 and self.path == "/api/events":
                found.events += json.loads(body)
            found.headers.append(dict(self.headers))
            self.send_response(status)
            if found.moved_to:
                self.send_header("Location", found.moved_to)
            self.end_headers()

        def do_GET(self) -> None:
            known = self.path.startswith("/api/csrf-token?client=") or self.path == "/sign-in"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(found.csrf_page or json.dumps({"token": found.token}).encode())

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}/api"
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_change_is_told_once_with_the_fields_that_differ(events: EventServer, tmp_path: Path) -> None:
    assert look("n0", "big", tmp_path, BEFORE, events.url).first
    assert not events.events
    found = look("n0", "big", tmp_path, AFTER, events.url)
    assert found.accepted
    assert not look("n0", "big", tmp_path, AFTER, events.url).changed
    (event,) = events.events
    assert event["event"] == EVENT
    assert event["resource"]["prefect.resource.id"] == "narrows.host.n0"
    assert event["resource"]["narrows.cluster"] == "big"
    assert event["related"][0] == {"prefect.resource.id": "narrows.cluster.big", "prefect.resource.role": "cluster"}
    assert event["payload"]["changed"] == {"host.driver": {"was": "550", "now": "560"}}


def test_an_event_that_the_server_did_not_take_is_sent_again_the_next_time(events: EventServer, tmp_path: Path) -> None:
    look("n0", "big", tmp_path, BEFORE, events.url)
    for url, status, why in ((None, 204, "PREFECT_API_URL"), ("http://127.0.0.1:9/api", 204, "refused"),
                             (events.url, 500, "HTTP 500"), (events.url, 401, "HTTP 401")):  # fmt: skip
        events.status = status
        found = look("n0", "big", tmp_path, AFTER, url)
        assert not found.accepted
        assert why in found.problem
        assert kept(tmp_path, "n0") == BEFORE
    events.status = 204
    assert look("n0", "big", tmp_path, AFTER, events.url).accepted
    assert len(events.events) == 1
    assert kept(tmp_path, "n0") == AFTER


def test_a_server_with_a_password_is_given_it(
    events: EventServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_KEY", raising=False)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "user:word")
    look("n0", "big", tmp_path, BEFORE, events.url)
    look("n0", "big", tmp_path, AFTER, events.url)
    assert events.headers[0]["Authorization"] == "Basic dXNlcjp3b3Jk"


def test_a_server_that_guards_against_forged_posts_is_given_its_token(events: EventServer, tmp_path: Path) -> None:
    events.token = "a token"
    look("n0", "big", tmp_path, BEFORE, events.url)
    assert look("n0", "big", tmp_path, AFTER, events.url).accepted
    assert len(events.events) == 1
    events.status = 403
    assert "HTTP 403" in look("n0", "big", tmp_path, BEFORE, events.url).problem


def test_a_page_for_signing_in_took_no_event(events: EventServer, tmp_path: Path) -> None:
    look("n0", "big", tmp_path, BEFORE, events.url)
    events.status, events.moved_to = 302, events.url.replace("/api", "/sign-in")
    found = look("n0", "big", tmp_path, AFTER, events.url)
    assert not found.accepted
    assert "/sign-in; give the address that answers itself" in found.problem
    events.status, events.moved_to, events.csrf_page = 403, None, b"<html>no</html>"
    assert "HTTP 403" in look("n0", "big", tmp_path, AFTER, events.url).problem
    assert kept(tmp_path, "n0") == BEFORE


def test_a_kept_fingerprint_that_cannot_be_read_counts_as_none(events: EventServer, tmp_path: Path) -> None:
    for text in ("{torn", "[]", '{"fields": null}'):
        (tmp_path / "n0.json").write_text(text)
        assert look("n0", "big", tmp_path, BEFORE, events.url).first
        assert kept(tmp_path, "n0") == BEFORE


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The site's own facts of this host."""
    path = tmp_path / "facts.json"
    path.write_text('{"driver": "550", "switch_firmware": "1.2"}')
    monkeypatch.setenv("NARROWS_HOST_FACTS", str(path))
    return path


def once(state: Path, *, strict: bool = False) -> int:
    return watch(once=True, interval_s=1, state=state, host="n0", cluster=None, strict=strict, as_json=True)


def test_one_look_never_fails_an_epilog_and_says_what_it_found_when_asked_to(
    events: EventServer,
    facts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    state = tmp_path / "hosts"
    assert once(state, strict=True) == 0
    facts.write_text('{"driver": "560", "switch_firmware": "1.2"}')
    assert once(state) == 0, "the server is away, and the job's epilog must not know"
    assert once(state, strict=True) == 1
    assert "it is sent again the next time" in capsys.readouterr().err
    monkeypatch.setenv("PREFECT_API_URL", events.url)
    assert once(state, strict=True) == 4
    assert once(state, strict=True) == 0
    assert [event["payload"]["changed"] for event in events.events] == [{"host.driver": {"was": "550", "now": "560"}}]
    (state / "not-a-folder").touch()
    assert once(state / "not-a-folder") == 0, "nor that the state cannot be kept"


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="--host a/b"):
        watch(once=True, interval_s=1, state=None, host="a/b", cluster=None, strict=False, as_json=False)


def test_the_fingerprint_of_this_host_holds_its_kernel_its_libraries_and_the_sites_own_facts(facts: Path) -> None:
    fields = take_fingerprint()
    assert {"host.kernel", "packages.torch", "packages.python"} <= set(fields)
    assert (fields["host.driver"], fields["host.switch_firmware"]) == ("550", "1.2")
    assert take_fingerprint() == fields


def test_a_boot_or_a_free_page_is_no_change() -> None:
    facts = {"kernel": "6.1", "boot_id": "a", "memory_bytes": 64 * 2**30 + 4096, "cpus_allowed": 4}
    later = facts | {"boot_id": "b", "memory_bytes": 64 * 2**30 - 8192, "cpus_allowed": 2}
    assert host_fields(facts) == host_fields(later)


def test_eight_gpus_make_one_field_and_one_that_differs_shows() -> None:
    gpus = [{"index": i, "name": "H100", "vbios": "96.00"} for i in range(8)]
    fields = host_fields({"gpus": gpus, "nics": [{"name": "ib0", "driver": "mlx5", "mtu": 4092}, {"name": "veth1"}]})
    assert fields == {"host.gpus": "8 x H100", "host.gpu_vbios": "8 x 96.00", "host.nics": "mlx5 mtu 4092"}
    gpus[3]["vbios"] = "97.00"
    assert changes(fields, host_fields({"gpus": gpus, "nics": [{"name": "ib0", "driver": "mlx5", "mtu": 4092}]})) == {
        "host.gpu_vbios": {"was": "8 x 96.00", "now": "7 x 96.00, 1 x 97.00"}
    }


def test_a_manifest_and_a_fingerprint_name_the_same_fields() -> None:
    facts, packages = {"kernel": "6.1", "driver": "550"}, {"torch": "2.9", "nvidia-nccl-cu12": "2.27.3"}
    manifest = {"hosts": {"n0": facts, "n1": facts | {"driver": "560"}}, "packages": packages}
    found = manifest_fields(manifest)
    assert found["host.driver"] == ("550", "560")
    assert set(host_fields(facts)) | set(package_fields(packages)) <= set(found)
    assert package_fields(packages)["packages.nccl"] == "2.27.3"
