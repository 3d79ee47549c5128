"""Runs whose draws go to a server that speaks the protocol of S3: that of moto, where it is installed with s3fs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import xarray
from fsspec import filesystem
from test_resume import CONFIG, assert_same_run, checkpoint_of, groups_of, written

pytestmark = pytest.mark.slow
moto_server = pytest.importorskip("moto.server", reason="pip install 'moto[server]' s3fs")
pytest.importorskip("s3fs")

URL = "s3://runs/deep/a.zarr"


@pytest.fixture(scope="module")
def environment() -> Iterator[Mapping[str, str]]:
    """Variables that lead to a server with the bucket `runs`."""
    import boto3

    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    found = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "one",
        "AWS_SECRET_ACCESS_KEY": "other",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="runs")
        yield found
    server.stop()


def process(*arguments: str, cwd: Path, module: str = "sample", **variables: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", f"batchnuts.{module}", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(line, cwd=cwd, text=True, env={**os.environ, **variables}, **pipes)  # type: ignore[call-overload, no-any-return]


def ended(*arguments: str, cwd: Path, code: int = 0, module: str = "sample", **variables: str) -> str:
    """What it has printed."""
    run = process(*arguments, cwd=cwd, module=module, **variables)
    said = "".join(run.communicate(timeout=300))
    assert run.returncode == code, said
    return said


def test_a_run_is_killed_goes_on_and_is_made_longer(environment: Mapping[str, str], tmp_path: Path) -> None:
    """It has the draws of one in a file, bit for bit; and nothing else is in the bucket at the end."""
    (tmp_path / "run.yaml").write_text(CONFIG)
    ended("--config", "run.yaml", "--quiet", cwd=tmp_path)
    run = process("--config", "run.yaml", f"output.path={URL}", "sampler.draws=9000", "--quiet", cwd=tmp_path)
    until = time.monotonic() + 120
    while not written(tmp_path, URL) and run.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    run.kill()
    _, error = run.communicate()
    assert run.returncode == -signal.SIGKILL, error
    ended("--resume", URL, "--quiet", cwd=tmp_path)
    ended("--resume", URL, "sampler.draws=+3000", "--quiet", cwd=tmp_path)
    assert not checkpoint_of(tmp_path, URL).exists()
    files = filesystem("s3", skip_instance_cache=True)
    files.get("runs/deep/a.zarr", str(tmp_path / "copy.zarr"), recursive=True)
    assert_same_run(tmp_path / "whole.nc", tmp_path / "copy.zarr")
    assert files.ls("runs/deep", detail=False) == ["runs/deep/a.zarr"]
    with xarray.open_datatree(URL, engine="zarr") as tree:
        xarray.testing.assert_equal(tree["posterior"].to_dataset(), groups_of(tmp_path / "copy.zarr")["posterior"])
    assert "a.html" in ended(URL, cwd=tmp_path, module="report")
    assert (tmp_path / "a.html").exists()
    again = ended("--config", "run.yaml", f"output.path={URL}", cwd=tmp_path, code=2)
    assert f"{URL} exists and is not overwritten" in again


REFUSED = {
    "no bucket": ("s3://none/a.zarr", {}, r"Cannot write s3://none/a\.zarr: the bucket or folder does not exist"),
    "no server": (
        "s3://runs/b.zarr",
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
        r"Cannot write s3://runs/b\.zarr: it cannot be reached",
    ),
    "a bucket": ("s3://runs", {}, r"it is a whole bucket\. Set output\.path to a name in it, such as s3://runs/run"),
    "no credentials": (
        "s3://runs/b.zarr",
        {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"},
        r"Cannot write s3://runs/b\.zarr: no credentials were found",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(environment: Mapping[str, str], tmp_path: Path, name: str) -> None:
    url, variables, said = REFUSED[name]
    (tmp_path / "run.yaml").write_text(CONFIG)
    found = ended("--config", "run.yaml", f"output.path={url}", cwd=tmp_path, code=2, **variables)
    assert re.search(said, found)
    assert "Traceback" not in found
