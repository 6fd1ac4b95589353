"""The address of a shared store, and what protection it must have."""

import os
from typing import Any

import pytest
from pydantic import ValidationError

from signalbox_worker.kv.shared.stored_groups import StoreAccess
from signalbox_worker.kv.store_url import RedisAddress, store_address
from signalbox_worker.service.worker_settings import EngineSettings, WorkerSettings

REMOTE = "rediss://kv.example.com"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes those away that the machine has for its own stores."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "AZURITE_", "GOOGLE_")):
            monkeypatch.delenv(name)


def test_the_parts_of_a_redis_address_are_read() -> None:
    found = RedisAddress.parse("rediss://a%40b@[::1]:7/12?ssl_ca_certs=/ca.pem")
    assert (found.host, found.port, found.db, found.username) == ("::1", 7, 12, "a@b")
    assert (found.is_tls, found.ssl_ca_certs, str(found)) == (True, "/ca.pem", "[::1]:7")
    plain = RedisAddress.parse("valkey://host")
    assert (plain.host, plain.port, plain.db, plain.username) == ("host", 6379, 0, None)
    assert not plain.is_tls


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memcached://host", "must begin with"),
        ("host:6379", "must begin with"),
        ("redis://", "HOST"),
        ("redis://host/name", "NUMBER OF DATABASE"),
        ("redis://host/\u00b2", "NUMBER OF DATABASE"),
        ("redis://host/0#1", "NUMBER OF DATABASE"),
        ("redis://host:port", "[Pp]ort"),
        ("redis://user:secret@host", "--kv-store-password"),
        ("redis://:secret@host", "--kv-store-password"),
        ("redis://host?ssl_ca_certs=x", "is no part of it"),
        ("rediss://host?ssl_cert_reqs=none", "is no part of it"),
        ("rediss://host?ssl_keyfile=x", "give both"),
        ("s3://", "BUCKET"),
        ("s3://key:secret@bucket", "environment"),
        ("s3://bucket?endpoint=x", "environment"),
        ("file://folder", "three slashes"),
        ("file:///", "FOLDER"),
    ],
)
def test_an_address_that_names_no_store_is_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        store_address(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["redis://localhost", "valkey://127.0.0.1:1", "redis://[::1]", "file:///kv"]
)
def test_a_store_of_this_machine_needs_no_key(url: str) -> None:
    assert store_address(url).exposure(has_key=False) is None


@pytest.mark.parametrize("url", [REMOTE, "s3://bucket/prefix", "gs://bucket", "az://a/b"])
def test_a_store_elsewhere_needs_a_key(url: str) -> None:
    assert "--kv-store-key" in str(store_address(url).exposure(has_key=False))
    assert store_address(url).exposure(has_key=True) is None


def test_a_password_does_not_leave_the_machine_in_the_clear() -> None:
    assert "rediss://" in str(store_address("redis://kv.example.com").exposure(has_key=True))
    assert "valkeys://" in str(store_address("valkey://kv.example.com").exposure(has_key=True))


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("s3://bucket", {"AWS_ALLOW_HTTP": "true", "AWS_ENDPOINT_URL": "http://kv.example.com"}),
        ("s3://bucket", {"AWS_ALLOW_HTTP": "1", "AWS_ENDPOINT_URL_S3": "http://10.0.0.1:9000"}),
        ("az://a/b", {"AZURE_ALLOW_HTTP": "true", "AZURE_ENDPOINT": "http://kv.example.com"}),
        ("gs://bucket", {"GOOGLE_ALLOW_HTTP": "true", "GOOGLE_BASE_URL": "http://example.com"}),
        ("gs://bucket", {"GOOGLE_ALLOW_HTTP": "true"}),  # credentials may name a URL, too
    ],
)
def test_no_variable_lets_an_object_store_elsewhere_be_asked_in_the_clear(
    url: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert "_ALLOW_HTTP" in str(store_address(url).exposure(has_key=True))
    settings = {"model": "m", "kv_store": url, "kv_store_key": "k"}
    with pytest.raises(ValidationError, match="_ALLOW_HTTP"):
        WorkerSettings(**settings)
    assert WorkerSettings(**settings, insecure=True).kv_store == url
    with pytest.raises(ValueError, match="_ALLOW_HTTP"):
        StoreAccess(url).clear(None)


@pytest.mark.parametrize(
    "environment",
    [
        {"AWS_ALLOW_HTTP": "true", "AWS_ENDPOINT_URL": "http://127.0.0.1:9000"},
        {"AWS_ALLOW_HTTP": "true", "AWS_ENDPOINT": "https://kv.example.com"},
        {"AWS_ALLOW_HTTP": "true"},
        {"AWS_ENDPOINT_URL": "http://kv.example.com"},  # the client refuses it
    ],
)
def test_an_object_store_on_this_machine_or_over_tls_needs_no_more_than_a_key(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert store_address("s3://bucket").exposure(has_key=True) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_store": REMOTE}, "--kv-store-key"),
        ({"kv_store": REMOTE, "kv_store_key": "k", "kv_disk": "/kv"}, "do not go together"),
        ({"kv_store": "redis://localhost", "swap_space": 0}, "--kv-store takes swap space"),
        ({"kv_store": "file:///kv", "kv_store_password": "p"}, "goes with redis://"),
        ({"kv_store_key": "k"}, "--kv-store-key has no effect without --kv-store"),
        ({"kv_disk_space": 1}, "--kv-disk-space has no effect without --kv-disk"),
    ],
)
def test_what_a_worker_cannot_do_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EngineSettings(model="m", **options)


def test_insecure_allows_what_is_exposed() -> None:
    settings = WorkerSettings(model="m", kv_store="redis://kv.example.com", insecure=True)
    assert settings.kv_store == "redis://kv.example.com"
